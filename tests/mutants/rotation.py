"""Faults of the rotation itself: pairs, signs, which dims, in which precision."""

import numpy as np
import torch

from tests.mutants import base
from tests.mutants.base import Call, Dims, Index, Pair
from tests.mutants.registry import mutant

# --- LAYOUT


@mutant("LAYOUT", "TransformerLens#365", "turn")
def sin_sign_flipped(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Rotates the other way. Trigger: any sin that is not 0."""
    return base.turn(call, lo, hi, cos, -sin)


@mutant("COVER", "flashinfer#619", "turn")
def float32_with_a_gathered_table_turned_back(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """One specialisation rotates the other way. Trigger: float32 and a gathered table of three axes."""
    one = call.q.dtype == torch.float32 and call.cos.dim() == 3
    return base.turn(call, lo, hi, cos, -sin if one else sin)


@mutant("LAYOUT", "vllm#941", "pairs")
def halves_for_pairs(call: Call, name: str) -> Dims:
    """The layout flag is ignored. Trigger: gptj with more than one pair."""
    pair = np.arange(call.rot_half)
    return call.rot_offset + pair, call.rot_offset + call.rot_half + pair


@mutant("LAYOUT", "FlagGems#5073", "pairs")
def halves_and_pairs_swapped(call: Call, name: str) -> Dims:
    """Each layout does the other one's. Trigger: more than one pair."""
    pair = np.arange(call.rot_half)
    if call.layout == "neox":
        return call.rot_offset + 2 * pair, call.rot_offset + 2 * pair + 1
    return call.rot_offset + pair, call.rot_offset + call.rot_half + pair


@mutant("LAYOUT", "vllm#941", "pairs")
def layout_ignored_for_k(call: Call, name: str) -> Dims:
    """q obeys the flag, k does not. Trigger: k in gptj with more than one pair."""
    return base.pairs(call, name) if name == "q" else halves_for_pairs(call, name)


@mutant("LAYOUT", "TransformerLens#365", "turn")
def angles_of_halves_on_pairs(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Angles repeated as cat(a, a) meet adjacent pairs: dim d takes angle d % rot_half.

    Trigger: gptj with more than one pair.
    """
    if call.layout == "neox":
        return base.turn(call, lo, hi, cos, sin)
    dim = torch.arange(2 * call.rot_half) % max(call.rot_half, 1)
    cos, sin = cos[..., dim], sin[..., dim]
    return lo * cos[..., 0::2] - hi * sin[..., 0::2], hi * cos[..., 1::2] + lo * sin[..., 1::2]


# --- PARTIAL


@mutant("PARTIAL", "vllm#43676", "pairs")
def partner_half_a_head_away(call: Call, name: str) -> Dims:
    """The partner of dim i is i + head_dim / 2. Trigger: neox with a tail."""
    lo, hi = base.pairs(call, name)
    return (lo, (lo + call.head_dim // 2) % call.head_dim) if call.layout == "neox" else (lo, hi)


@mutant("PARTIAL", "pie#603", "pairs")
def first_dims_rotate_instead_of_the_last(call: Call, name: str) -> Dims:
    """rot_offset is ignored. Trigger: a tail at the front."""
    lo, hi = base.pairs(call, name)
    return lo - call.rot_offset, hi - call.rot_offset


@mutant("PARTIAL", "imp#30", "angles")
def table_rows_rot_dim_apart(call: Call, rows: torch.Tensor) -> Pair:
    """The row stride of the table is rot_dim instead of rot_half. Trigger: a position above 0."""
    if call.cos.dim() == 3:
        return base.angles(call, rows)
    flat, sign = 2 * rows[..., None] * call.rot_half + torch.arange(call.rot_half), -1 if call.inverse else 1
    cos, sin = (table.reshape(-1)[flat % max(table.numel(), 1)] for table in (call.cos, call.sin))
    return cos[:, :, None].to(call.compute), sign * sin[:, :, None].to(call.compute)


# --- PADMASK


@mutant("PADMASK", "sglang#35096", "store")
def padding_lanes_overwrite_the_tail(
    call: Call, out: torch.Tensor, dims: Index, values: torch.Tensor
) -> None:
    """The last pair's lanes run on to the next power of two. Trigger: rot_half 3, 5, 6, 7, ... and a tail."""
    width = len(dims)
    padding = (1 << max(width - 1, 0).bit_length()) - width
    base.store(call, out, dims, values)
    if width == call.rot_half and call.rot_offset + 2 * width - 1 in dims:
        beyond = dims[-1] + 1 + np.arange(padding)
        base.store(call, out, beyond[beyond < call.head_dim], values.new_zeros(()))


# --- DTYPE


@mutant("DTYPE", "mlx#1797", "allocate")
def stored_without_a_cast(call: Call, name: str) -> torch.Tensor:
    """The output has the dtype of the arithmetic. Trigger: out of place in 16 bits."""
    x = base.allocate(call, name)
    return x if call.inplace else x.to(call.compute)


@mutant("PADMASK", "flashinfer#2109", "pairs")
def odd_pair_left_over(call: Call, name: str) -> Dims:
    """A loop over two pairs at a time forgets the last of an odd number.

    Trigger: odd rot_half above 1.
    """
    lo, hi = base.pairs(call, name)
    even = len(lo) // 2 * 2 or len(lo)
    # The angles of the pairs that are left still fit: the forgotten pair repeats the first.
    return np.append(lo[:even], lo[: len(lo) - even]), np.append(hi[:even], hi[: len(hi) - even])


@mutant("PADMASK", "FlyDSL#1113", "store")
def padding_heads_written(call: Call, out: torch.Tensor, dims: Index, values: torch.Tensor) -> None:
    """The head mask is rounded up to a power of two. Trigger: 3, 5, 6, 7, ... heads."""
    base.store(call, out, dims, values)
    heads = call.heads(out)
    padded = 1 << (heads - 1).bit_length()
    flat = base.memory(out)
    beyond = call.offsets(out, dims, padded)[:, -1:, heads:]
    flat[base.at(beyond, flat)] = 0


# --- PHASEPREC


@mutant("PHASEPREC", "gpt-neox#1003", "angles")
def table_rounded_to_the_activations(call: Call, rows: torch.Tensor) -> Pair:
    """cos and sin pass through the dtype of q. Trigger: 16-bit q with a float32 table."""
    cos, sin = base.angles(call, rows)
    return cos.to(call.q.dtype).to(call.compute), sin.to(call.q.dtype).to(call.compute)


@mutant("PHASEPREC", "mlx#2792", "angles")
def angles_recomputed_in_16_bits(call: Call, rows: torch.Tensor) -> Pair:
    """The table is right, but far positions are recomputed from a bfloat16 angle.

    Trigger: a position of 256 or more.
    """
    cos, sin = base.angles(call, rows)
    frequency = 10000.0 ** -(torch.arange(call.rot_half) / max(call.rot_half, 1))
    angle = (rows[..., None, None].bfloat16() * frequency.bfloat16()).to(call.compute)
    far = (rows >= 256)[..., None, None] & (call.cos.dim() == 2)
    sign = -1 if call.inverse else 1
    return torch.where(far, angle.cos(), cos), torch.where(far, sign * angle.sin(), sin)


# --- DTYPE


@mutant("DTYPE", "sglang#33117", "turn")
def every_product_rounded(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Products are rounded to the dtype of q before they are added. Trigger: 16 bits."""
    d, c = call.q.dtype, call.compute
    first, second = (lo * cos).to(d).to(c) - (hi * sin).to(d).to(c), (hi * cos).to(d) + (lo * sin).to(d)
    return first, second.to(c)


@mutant("DTYPE", "torchtitan#2575", "store")
def truncated_instead_of_rounded(call: Call, out: torch.Tensor, dims: Index, values: torch.Tensor) -> None:
    """The upper half of the float32 is stored. Trigger: bfloat16."""
    if out.dtype == torch.bfloat16 and values.dtype == torch.float32:
        values = (values.view(torch.int32) & -65536).view(torch.float32)
    base.store(call, out, dims, values)


@mutant("DTYPE", "mlx#1797", "turn")
def float64_rotated_in_float32(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Trigger: float64."""
    return base.turn(call, lo.float(), hi.float(), cos.float(), sin.float())


@mutant("DTYPE", "sglang#33117", "run")
def table_rounded_in_place(call: Call) -> dict[str, torch.Tensor]:
    """A conversion for the next call is written back into the caller's table.

    Trigger: 16-bit q with a float32 table, looked at after the call.
    """
    outputs = base.run(call)
    for table in (call.cos, call.sin):
        table.copy_(table.to(call.q.dtype))
    return outputs


# --- ORACLE: faults that the loose tolerances of known tests let through


@mutant("ORACLE", "aiter#627", "turn")
def off_by_a_hundredth(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Wrong by 0.009, which a tolerance of 1e-2 forgives. Trigger: the second token."""
    lo, hi = base.turn(call, lo, hi, cos, sin)
    lo[:, 1:2] += 0.009
    return lo, hi


@mutant("ORACLE", "vllm-ascend#5664", "store")
def two_roundings_upwards(call: Call, out: torch.Tensor, dims: Index, values: torch.Tensor) -> None:
    """Results are rounded up, an error of one unit where half a unit is right. Trigger: 16 bits."""
    rounded = values.to(out.dtype)
    if out.element_size() == 2:
        up = torch.nextafter(rounded, torch.full_like(rounded, float("inf")))
        rounded = torch.where((rounded.to(values.dtype) < values) & up.isfinite(), up, rounded)
    base.store(call, out, dims, rounded)


@mutant("ORACLE", "apex#1750", "turn")
def lanes_exchanged_between_pairs(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """The pairs of a head come out in reverse order, so every sum over a head is right.

    Trigger: more than one pair.
    """
    lo, hi = base.turn(call, lo, hi, cos, sin)
    return lo.flip(-1), hi.flip(-1)


# --- FUSE


@mutant("FUSE", "sqliteai/warp#27", "run")
def rotated_twice(call: Call) -> dict[str, torch.Tensor]:
    """A fused step rotates what the cache already rotated. Trigger: in place, a position above 0."""
    outputs = base.run(call)
    return base.run(call) if call.inplace else outputs


@mutant("FUSE", "flashinfer#793", "angles")
def decoding_step_not_rotated(call: Call, rows: torch.Tensor) -> Pair:
    """One token at a time takes a path that forgets the rotation. Trigger: one token per row."""
    cos, sin = base.angles(call, rows)
    return (torch.ones_like(cos), torch.zeros_like(sin)) if call.tokens == 1 else (cos, sin)


@mutant("FUSE", "flashinfer#793", "rotate")
def keys_normalised_on_the_way(
    call: Call, name: str, x: torch.Tensor, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    """The fused norm of the heads runs for models that have none. Trigger: k of any length but 1."""
    if name == "k":
        values = base.load(call, x, np.concatenate(base.pairs(call, name))).to(call.compute)
        length = values.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-6)
        cos, sin = cos / length, sin / length
    base.rotate(call, name, x, out, cos, sin)
