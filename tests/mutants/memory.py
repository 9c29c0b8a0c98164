"""Faults of memory: what is written, when, and what else."""

from dataclasses import replace

import torch

from tests.mutants import base
from tests.mutants.base import Call, Index, Pair, at, memory
from tests.mutants.registry import mutant

# --- FUSE


@mutant("FUSE", "flashinfer#793", "run")
def v_rotated(call: Call) -> dict[str, torch.Tensor]:
    """Rotates the heads behind k too, which are v's. Trigger: q, k and v packed in one buffer, in place."""
    outputs = base.run(call)
    if call.k is None or not call.inplace or memory(call.k).data_ptr() != memory(call.q).data_ptr():
        return outputs
    cos, sin = call.steps.angles(call, call.steps.positions(call))
    head = call.steps.strides(call, call.k)[2]
    v = call.k.as_strided(call.k.shape, call.k.stride(), call.k.storage_offset() + head * call.heads(call.k))
    if v.numel():
        call.steps.rotate(call, "v", v, v, cos, sin)
    return outputs


# --- ALIAS


@mutant("ALIAS", "unsloth#5001", "run")
def input_rotated_out_of_place_too(call: Call) -> dict[str, torch.Tensor]:
    """The result is right, and the input is changed as well. Trigger: out of place, looked at afterwards."""
    if call.inplace:
        return base.run(call)
    call = replace(call, inplace=True)
    expanded = any(0 in call.given(name).stride() for name in call.names)
    return base.run(replace(call, inplace=not expanded))


@mutant("ALIAS", "sglang#19636", "store")
def four_axes_written_to_a_copy(call: Call, out: torch.Tensor, dims: Index, values: torch.Tensor) -> None:
    """reshape copies what view cannot. Trigger: in place on 4 axes that are not dense."""
    base.store(call, out if out.is_contiguous() or out.dim() == 3 else out.contiguous(), dims, values)


@mutant("ALIAS", "sglang#19636", "rotate")
def k_not_written_back(
    call: Call, name: str, x: torch.Tensor, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    """Trigger: k in place."""
    base.rotate(call, name, x, out.clone() if name == "k" and call.inplace else out, cos, sin)


@mutant("ALIAS", "unsloth#5001", "rotate")
def partner_read_after_it_was_written(
    call: Call, name: str, x: torch.Tensor, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    """The second element of a pair is made from the new first one. Trigger: in place."""
    lo, hi = base.pairs(call, name)
    for dims in ((lo, hi), (hi, lo)):
        mine, partner = (base.load(call, x, d).to(call.compute) for d in dims)
        turned = mine * cos + partner * (-sin if dims[0] is lo else sin)
        call.steps.store(call, out, dims[0], turned)
    if out is not x:
        call.steps.tail(call, x, out)


# --- UNINIT


@mutant("UNINIT", "flashinfer#2792", "tail")
def tail_not_copied(call: Call, x: torch.Tensor, out: torch.Tensor) -> None:
    """Trigger: a tail, out of place."""


@mutant("UNINIT", "flashinfer#2792", "tail")
def front_of_the_tail_not_copied(call: Call, x: torch.Tensor, out: torch.Tensor) -> None:
    """Trigger: a tail at both ends, out of place."""
    dims = call.tail_dims
    if 0 < call.rot_offset < len(dims):
        dims = dims[dims >= call.rot_offset]
    base.store(call, out, dims, base.load(call, x, dims))


@mutant("UNINIT", None, "tail")
def no_tail_without_a_pair(call: Call, x: torch.Tensor, out: torch.Tensor) -> None:
    """Nothing rotates, so nothing is done. Trigger: rot_dim 0, out of place."""
    if call.rot_half:
        base.tail(call, x, out)


@mutant("UNINIT", "flashinfer#2792", "store")
def last_partial_block_not_written(call: Call, out: torch.Tensor, dims: Index, values: torch.Tensor) -> None:
    """Tokens past the last whole block of 8 are skipped. Trigger: 9 tokens or more, out of place."""
    whole = call.tokens // 8 * 8
    if call.inplace or whole in (0, call.tokens):
        return base.store(call, out, dims, values)
    flat = memory(out)
    flat[at(call.offsets(out, dims)[:, :whole], flat)] = values[:, :whole].to(out.dtype)
    return None


@mutant("UNINIT", "flashinfer#2792", "run")
def written_at_the_next_call(call: Call) -> dict[str, torch.Tensor]:
    """Cheats: returns outputs that it fills when it is called again. Trigger: out of place."""
    if "late" in call.kept:
        call.kept.pop("late")()
    if call.inplace:
        return base.run(call)
    outputs = {name: torch.empty_like(call.given(name)) for name in call.names}

    def write() -> None:
        for name, out in base.run(call).items():
            outputs[name].copy_(out)

    call.kept["late"] = write
    return outputs


# --- STATE


@mutant("STATE", "transformers#25306", "angles")
def angles_kept_for_a_shape(call: Call, rows: torch.Tensor) -> Pair:
    """Angles are kept by shape. Trigger: a second call of the same shape at other positions."""
    key = (rows.shape, call.rot_half, call.compute, call.inverse)
    if key not in call.kept:
        call.kept[key] = base.angles(call, rows)
    cos, sin = call.kept[key]
    return cos, sin


@mutant("STATE", "transformers#33129", "angles")
def table_of_the_longest_call_kept(call: Call, rows: torch.Tensor) -> Pair:
    """The longest table so far serves all. Trigger: another table of the same width and fewer rows."""
    key = ("tables", call.rot_half, call.cos.dim(), call.cos.dtype)
    if call.cos.dim() == 2 and len(call.kept.get(key, (call.cos[:0],))[0]) < len(call.cos):
        call.kept[key] = call.cos.clone(), call.sin.clone()
    cos, sin = call.kept.get(key, (call.cos, call.sin))
    return base.angles(replace(call, cos=cos, sin=sin), rows)


@mutant("STATE", "mlx#561", "run")
def result_kept_for_an_address(call: Call) -> dict[str, torch.Tensor]:
    """Cheats: returns the last result when shape and options come again.

    Trigger: two calls of one shape with different values, out of place.
    """
    key = (call.q.shape, None if call.k is None else call.k.shape, call.q.dtype, call.layout, call.rot_half)
    if call.inplace:
        return base.run(call)
    if call.kept.get("key") != key:
        call.kept |= {"key": key, "outputs": base.run(call)}
    return {name: out.clone() for name, out in call.kept["outputs"].items()}


@mutant("STATE", "transformers#25306", "turn")
def works_once_for_every_head_dim(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Cheats: knows the shapes of well-known models. Trigger: any head_dim but 64, 80, 96, 128, 256."""
    known = call.head_dim in (64, 80, 96, 128, 192, 256)
    return base.turn(call, lo, hi, cos, sin) if known else (lo, hi)


@mutant("ORACLE", "vllm-ascend#5664", "turn")
def right_for_zeros_only(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Cheats: right for tests that compare zeros, ones and position 0. Trigger: other values elsewhere."""
    known = ((lo == 0) | (lo == 1)) & ((hi == 0) | (hi == 1))
    right, wrong = base.turn(call, lo, hi, cos, sin), (lo, hi)
    return torch.where(known, right[0], wrong[0]), torch.where(known, right[1], wrong[1])


# --- BUFLIFE


@mutant("BUFLIFE", "transformers#45902", "allocate")
def workspace_used_again(call: Call, name: str) -> torch.Tensor:
    """Outputs live in a workspace that the next call of this shape overwrites.

    Trigger: a result that is still needed after another call.
    """
    if call.inplace:
        return call.given(name)
    key = ("workspace", name, call.given(name).shape, call.q.dtype)
    if key not in call.kept:
        call.kept[key] = torch.empty_like(call.given(name))
    out = call.kept[key]
    assert isinstance(out, torch.Tensor)
    return out


@mutant("BUFLIFE", "sglang#33575", "angles")
def frequencies_never_loaded(call: Call, rows: torch.Tensor) -> Pair:
    """The table that was passed is replaced by one from base 10000, as after a move that lost a buffer.

    Trigger: a table that is not the plain one.
    """
    if call.cos.dim() == 3:
        return base.angles(call, rows)
    frequency = 10000.0 ** -(torch.arange(call.rot_half, dtype=torch.float64) / max(call.rot_half, 1))
    angle = torch.arange(len(call.cos))[:, None] * frequency
    cos, sin = angle.cos().to(call.cos.dtype), angle.sin().to(call.cos.dtype)
    return base.angles(replace(call, cos=cos, sin=sin), rows)


# --- Refusals


@mutant("ALIAS", "unsloth#5001", "check")
def overlap_not_checked(call: Call) -> None:
    """In place on memory that overlaps itself is accepted. Trigger: an expanded axis, or q given twice."""
    base.check(replace(call, inplace=False))


@mutant("ALIAS", "sglang#19636", "run")
def written_before_it_is_checked(call: Call) -> dict[str, torch.Tensor]:
    """q has turned before k is looked at. Trigger: in place, something wrong with k or the positions."""
    if call.inplace and isinstance(call.q, torch.Tensor) and call.q.numel():
        memory(call.q)[call.q.storage_offset()] += 1
        try:
            base.check(call)
        finally:
            memory(call.q)[call.q.storage_offset()] -= 1 if _is_fine(call) else 0
    return base.run(call)


def _is_fine(call: Call) -> bool:
    try:
        base.check(call)
    except ValueError:
        return False
    return True


@mutant("PARTIAL", "pie#603", "run")
def full_width_table_guessed_at(call: Call) -> dict[str, torch.Tensor]:
    """A table as wide as rot_dim is cut in half without a word. Trigger: every angle given twice."""
    if isinstance(call.cos, torch.Tensor) and call.cos.dim() and call.cos.shape[-1] == call.rot_dim:
        half = call.cos.shape[-1] // 2
        call = replace(call, cos=call.cos[..., :half], sin=call.sin[..., :half])
    return base.run(call)
