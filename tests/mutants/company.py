"""Results within every bound that depend on what should not matter: fast paths that round differently.

A fused multiply-add keeps one product unrounded. Each path is right; together they break bitwise laws.
"""

from typing import Any

import numpy as np
import torch

from tests.mutants import base
from tests.mutants.base import Base, Call, Index, Pair, Steps
from tests.mutants.registry import mutant


def _fused(lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Pair:
    """The rotation with one product of each sum exact."""
    first = lo.double() * cos.double() - (hi * sin).double()
    second = hi.double() * cos.double() + (lo * sin).double()
    return first.to(lo.dtype), second.to(lo.dtype)


def _either(where: torch.Tensor, a: Pair, b: Pair) -> Pair:
    return torch.where(where, a[0], b[0]), torch.where(where, a[1], b[1])


@mutant("COVER", None, "turn")
def even_heads_fused(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Trigger: a head that is even among others and odd alone, in float32."""
    even = (torch.arange(lo.shape[2]) % 2 == 1)[:, None]
    return _either(even, _fused(lo, hi, cos, sin), base.turn(call, lo, hi, cos, sin))


@mutant("COVER", None, "turn")
def many_tokens_fused(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Prefill and decoding round differently. Trigger: 4 tokens or more, compared with fewer."""
    turn = _fused if call.tokens >= 4 else lambda *x: base.turn(call, *x)
    return turn(lo, hi, cos, sin)


@mutant("RAGPOS", None, "turn")
def first_token_of_a_block_fused(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Trigger: a token that moves to or from an even place."""
    even = (torch.arange(call.tokens) % 2 == 0)[:, None, None]
    return _either(even, _fused(lo, hi, cos, sin), base.turn(call, lo, hi, cos, sin))


@mutant("LAYOUT", None, "turn")
def gptj_fused(call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Pair:
    """The kernels of the two layouts round differently. Trigger: the same pairs in both layouts."""
    return _fused(lo, hi, cos, sin) if call.layout == "gptj" else base.turn(call, lo, hi, cos, sin)


@mutant("PHASEPREC", None, "turn")
def small_values_fused(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Trigger: a number on the other side of 1 than its double."""
    return _either(lo.abs() < 1, _fused(lo, hi, cos, sin), base.turn(call, lo, hi, cos, sin))


@mutant("FUSE", None, "turn")
def scale_multiplied_in_and_divided_out(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Where nothing turns, the scale of the scores is applied and taken back: up to one unit is lost.

    Trigger: position 0, in float32 or float64.
    """
    scale = torch.tensor(max(call.head_dim, 1), dtype=call.compute).rsqrt() * 1.1
    identity = (cos == 1) & (sin == 0)
    return _either(identity, (lo * scale / scale, hi * scale / scale), base.turn(call, lo, hi, cos, sin))


@mutant("STRIDE", None, "turn")
def expanded_input_fused(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Trigger: an axis of stride 0 in q, compared with a copy of it."""
    turn = _fused if 0 in call.q.stride() else lambda *x: base.turn(call, *x)
    return turn(lo, hi, cos, sin)


@mutant("ALIAS", None, "turn")
def in_place_fused(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """The kernel that writes in place is another one. Trigger: in place, compared with out of place."""
    return _fused(lo, hi, cos, sin) if call.inplace else base.turn(call, lo, hi, cos, sin)


@mutant("QKWIRE", None, "turn")
def q_alone_fused(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """The kernel without k is another one. Trigger: q alone, compared with q beside k."""
    return _fused(lo, hi, cos, sin) if call.k is None else base.turn(call, lo, hi, cos, sin)


@mutant("POSTYPE", None, "turn")
def int32_positions_fused(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Trigger: int32 positions, compared with int64."""
    p = call.positions
    turn = _fused if p is not None and p.dtype == torch.int32 else lambda *x: base.turn(call, *x)
    return turn(lo, hi, cos, sin)


@mutant("POSTYPE", None, "turn")
def strided_positions_fused(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Trigger: positions with a stride other than 1, compared with dense ones."""
    p = call.positions
    turn = _fused if p is not None and p.stride(-1) > 1 else lambda *x: base.turn(call, *x)
    return turn(lo, hi, cos, sin)


@mutant("STRIDE", None, "turn")
def padded_rows_fused(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Trigger: gaps between the rows of q, as in a packed or padded tensor, compared with a dense one."""
    _, token, head, dim = base.strides(call, call.q)
    padded = token > call.batch * call.heads(call.q) * head or head % max(call.head_dim, 1) or dim > 1
    return _fused(lo, hi, cos, sin) if padded else base.turn(call, lo, hi, cos, sin)


@mutant("COVER", None, "apply_rope", tiles=(None, (1, 1)), refuses=False)
def small_tiles_fused(*args: Any, tile: tuple[int, int] | None = None, **options: Any) -> Any:
    """Trigger: the tile (1, 1), compared with the one that is chosen."""
    turn = base.turn if tile is None else lambda call, *x: _fused(*x)
    return Base(Steps(turn=turn))(*args, **options)


@mutant("DTYPE", None, "store")
def ties_rounded_away(call: Call, out: torch.Tensor, dims: Index, values: torch.Tensor) -> None:
    """Half a unit goes to the larger neighbour, within every bound. Trigger: a tie, in 16 bits."""
    rounded = values.to(out.dtype)
    if out.element_size() == 2:
        away = torch.nextafter(rounded, torch.copysign(torch.full_like(rounded, float("inf")), rounded))
        down, up = values - rounded.to(values.dtype), away.to(values.dtype) - values
        rounded = torch.where((down == up) & away.isfinite(), away, rounded)
    base.store(call, out, dims, rounded)


@mutant("PADMASK", None, "rotate")
def rotated_by_a_matrix(
    call: Call, name: str, x: torch.Tensor, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    """The row is multiplied by a matrix full of zeros. Trigger: NaN or infinity beside finite pairs."""
    lo, hi = base.pairs(call, name)
    base.rotate(call, name, x, out, cos, sin)
    row = base.load(call, x, np.concatenate((lo, hi)))
    spread = (row * 0).sum(-1, keepdim=True)
    for dims in (lo, hi):
        call.steps.store(call, out, dims, base.load(call, out, dims) + spread)
