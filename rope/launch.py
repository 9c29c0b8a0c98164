"""Tile choice, grid and launch of the Triton kernels."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import triton

from rope.checks import Geometry
from rope.kernels import rope_kernel

# Pairs that one program holds in registers: enough loads in flight for one or two warps, few enough for
# several programs on each multiprocessor (measured on an H200).
_PAIRS_PER_PROGRAM = 1024
# Axis 0 of a grid; the other axes stop at 65535, so they are not used.
_MAX_PROGRAMS = 2**31 - 1
# The widest access of one lane.
_ALIGN_BYTES = 16


class Tile(NamedTuple):
    """Tokens and heads that one program owns (powers of two), and its warps."""

    tokens: int
    heads: int
    warps: int = 1


_forced_tile: Tile | None = None


@contextlib.contextmanager
def forced_tile(tile: Tile | None) -> Iterator[None]:
    """Launch with this tile instead of the chosen one (None: no change), for tests of tile independence."""
    global _forced_tile
    before = _forced_tile
    _forced_tile = tile or before
    try:
        yield
    finally:
        _forced_tile = before


def interpreted() -> bool:
    """Whether the kernels were decorated for Triton's interpreter."""
    return not isinstance(rope_kernel, triton.JITFunction)


def choose_tile(geometry: Geometry) -> Tile:
    """The tile for this problem; results do not depend on it, bit for bit."""
    pairs = _block(geometry.rot_half)
    heads = _block(max(geometry.q_heads, geometry.k_heads))
    if interpreted():
        # The interpreter's cost is per program, whatever the tile holds.
        return Tile(_block(min(geometry.tokens, 16)), heads)
    block_h = min(heads, max(1, _PAIRS_PER_PROGRAM // pairs))
    return Tile(1, block_h, 1 if pairs * block_h <= _PAIRS_PER_PROGRAM else 2)


def rotate(
    q: torch.Tensor,
    k: torch.Tensor | None,
    q_out: torch.Tensor,
    k_out: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    geometry: Geometry,
    *,
    inverse: bool,
) -> None:
    """Rotate q and k into q_out and k_out (which may be q and k) in one launch; checks nothing."""
    g = geometry
    if k is None or k_out is None:
        k, k_out = q, q_out
    tile = _forced_tile or choose_tile(g)
    x_strides = [g.bnhd_strides(t) for t in (q, k, q_out, k_out)]
    table_strides = [_table_strides(t) for t in (cos, sin)]
    x_unit, x_numbers = _in_units((q, k, q_out, k_out), x_strides)
    table_unit, table_numbers = _in_units((cos, sin), table_strides)
    tail = 0 if q_out is q else g.head_dim - 2 * g.rot_half
    tile = _fit_grid(tile, g)
    q_blocks, head_blocks = _head_blocks(tile, g)
    programs = _programs(tile, g)
    if programs == 0:
        return
    with _on_device_of(q):
        rope_kernel[(programs,)](
            q,
            k,
            q_out,
            k_out,
            cos,
            sin,
            q if positions is None else positions,
            *x_numbers,
            *table_numbers,
            *_position_strides(positions),
            g.tokens,
            triton.cdiv(g.tokens, tile.tokens),
            g.q_heads,
            g.k_heads,
            q_blocks,
            head_blocks,
            cos.shape[-2],
            GPTJ=g.layout == "gptj",
            INVERSE=inverse,
            HAS_POSITIONS=positions is not None,
            UNIT_DIM=all(s[3] == 1 for s in x_strides),
            UNIT_PAIR=all(s[2] == 1 for s in table_strides),
            X_UNIT=x_unit,
            TABLE_UNIT=table_unit,
            ROT_HALF=g.rot_half,
            ROT_OFFSET=g.rot_offset,
            TAIL=tail,
            BLOCK_T=tile.tokens,
            BLOCK_H=tile.heads,
            BLOCK_HALF=_block(g.rot_half),
            BLOCK_TAIL=_block(tail),
            num_warps=tile.warps,
        )


def _block(n: int) -> int:
    return triton.next_power_of_2(max(n, 1))


def _head_blocks(tile: Tile, g: Geometry) -> tuple[int, int]:
    """Blocks of q heads, and of q and k heads together."""
    q_blocks = triton.cdiv(g.q_heads, tile.heads)
    return q_blocks, q_blocks + triton.cdiv(g.k_heads, tile.heads)


def _programs(tile: Tile, g: Geometry) -> int:
    return g.batch * triton.cdiv(g.tokens, tile.tokens) * _head_blocks(tile, g)[1]


def _fit_grid(tile: Tile, g: Geometry) -> Tile:
    while _programs(tile, g) > _MAX_PROGRAMS:
        tile = tile._replace(tokens=2 * tile.tokens)
    return tile


def _table_strides(table: torch.Tensor) -> tuple[int, int, int]:
    strides = table.stride()
    return (0, *strides) if len(strides) == 2 else strides  # type: ignore[return-value]


def _position_strides(positions: torch.Tensor | None) -> tuple[int, int]:
    if positions is None:
        return 0, 0
    strides = positions.stride()
    return (0, *strides) if len(strides) == 1 else strides  # type: ignore[return-value]


def _in_units(tensors: tuple[torch.Tensor, ...], strides: Sequence[tuple[int, ...]]) -> tuple[int, list[int]]:
    """The elements (at most 16 bytes of them) that every row starts at a multiple of, and all strides.

    Strides come in units of that many elements, except the last of each tensor, which is in elements.
    """
    size = tensors[0].element_size()
    misaligned = _ALIGN_BYTES // size
    for stride in strides:
        for s in stride[:-1]:
            misaligned |= s
    unit = misaligned & -misaligned
    return unit, [n for *rows, last in strides for n in (*(s // unit for s in rows), last)]


def _on_device_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    # Triton launches on the current device, which need not be the tensors' one.
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return contextlib.nullcontext()
