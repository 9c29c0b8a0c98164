"""Faults of the rotation itself: pairs, signs, which dims, in which precision."""

import torch

from tests.mutants import base
from tests.mutants.base import Call, Pair
from tests.mutants.registry import mutant

# --- LAYOUT


@mutant("LAYOUT", "TransformerLens#365", "turn")
def sin_sign_flipped(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Rotates the other way. Trigger: any sin that is not 0."""
    return base.turn(call, lo, hi, cos, -sin)


@mutant("LAYOUT", "vllm#941", "pairs")
def halves_for_pairs(call: Call, name: str) -> Pair:
    """The layout flag is ignored. Trigger: gptj with more than one pair."""
    pair = torch.arange(call.rot_half)
    return call.rot_offset + pair, call.rot_offset + call.rot_half + pair


@mutant("LAYOUT", "FlagGems#5073", "pairs")
def halves_and_pairs_swapped(call: Call, name: str) -> Pair:
    """Each layout does the other one's. Trigger: more than one pair."""
    pair = torch.arange(call.rot_half)
    if call.layout == "neox":
        return call.rot_offset + 2 * pair, call.rot_offset + 2 * pair + 1
    return call.rot_offset + pair, call.rot_offset + call.rot_half + pair


@mutant("LAYOUT", "vllm#941", "pairs")
def layout_ignored_for_k(call: Call, name: str) -> Pair:
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
def partner_half_a_head_away(call: Call, name: str) -> Pair:
    """The partner of dim i is i + head_dim / 2. Trigger: neox with a tail."""
    lo, hi = base.pairs(call, name)
    return (lo, (lo + call.head_dim // 2) % call.head_dim) if call.layout == "neox" else (lo, hi)


@mutant("PARTIAL", "pie#603", "pairs")
def first_dims_rotate_instead_of_the_last(call: Call, name: str) -> Pair:
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
    call: Call, out: torch.Tensor, dims: torch.Tensor, values: torch.Tensor
) -> None:
    """The last pair's lanes run on to the next power of two. Trigger: rot_half 3, 5, 6, 7, ... and a tail."""
    width = dims.numel()
    padding = (1 << max(width - 1, 0).bit_length()) - width
    is_last_store = width == call.rot_half and dims[-1:].tolist() == [call.rot_offset + 2 * width - 1]
    base.store(call, out, dims, values)
    if is_last_store:
        beyond = dims[-1] + 1 + torch.arange(padding)
        beyond = beyond[beyond < call.head_dim]
        base.store(call, out, beyond, values.new_zeros(()))


# --- DTYPE


@mutant("DTYPE", "mlx#1797", "allocate")
def stored_without_a_cast(call: Call, name: str) -> torch.Tensor:
    """The output has the dtype of the arithmetic. Trigger: out of place in 16 bits."""
    x = base.allocate(call, name)
    return x if call.inplace else x.to(call.compute)
