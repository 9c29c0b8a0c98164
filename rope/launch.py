"""Tile choice, grid and launch of the Triton kernels."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton

from rope import repeated
from rope.checks import Geometry
from rope.kernels import rope_kernel

# Blocks on axis 0 of a grid, and on each of the other axes.
_MAX_PROGRAMS, _MAX_BLOCKS = 2**31 - 1, 65535
# The widest access of one lane.
_ALIGN_BYTES = 16
_TRITON = triton.__version__.split(".")[:2]


class Tile(NamedTuple):
    """Tokens and heads that one program owns (powers of two), its warps, and whether the grid has one axis,
    which takes more blocks of tokens and batch rows."""

    tokens: int
    heads: int
    warps: int = 1
    flat: bool = False


_forced_tile: Tile | None = None


@contextlib.contextmanager
def forced_tile(tile: Tile | None) -> Iterator[None]:
    """Launch with this tile instead of the chosen one (None: no change), for tests of tile independence."""
    global _forced_tile
    before = _forced_tile
    _forced_tile = tile or before
    repeated.forget()
    try:
        yield
    finally:
        _forced_tile = before


def interpreted() -> bool:
    """Whether the kernels were decorated for Triton's interpreter."""
    return not isinstance(rope_kernel, triton.JITFunction)


def choose_tile(geometry: Geometry) -> Tile:
    """The tile for this problem; results do not depend on it, bit for bit.

    Measured on an H200 with `python -m benchmarks.tiles`.
    """
    half = geometry.rot_half
    pairs = _block(half)
    heads = _block(geometry.q_heads + geometry.k_heads)
    rows = geometry.batch * geometry.tokens
    if interpreted():
        # The interpreter's cost is per program, whatever the tile holds.
        return Tile(_block(min(geometry.tokens, 16)), heads)
    if rows <= 64:
        # Few programs: what counts is how long one takes, so a lane has four pairs only.
        heads = min(heads, 8 if pairs >= 64 else 16)
        return Tile(1, heads, min(8, max(1, heads * pairs // 128)))
    if pairs >= 64 and half == pairs:
        return Tile(1, min(heads, 8), max(2, pairs // 128))
    if pairs >= 64:
        # Masked lanes cost instructions, so fewer lanes do more each.
        return Tile(2 if rows >= 2048 else 1, min(heads, 8))
    if pairs == 32 and rows >= 512:
        # Several tokens of few heads were faster by 3 to 8 %.
        return Tile(4, 4, 2) if rows >= 4096 else Tile(4, 8, 4)
    return Tile(1, min(heads, 16), 2 if pairs == 16 else 1)


def rotate(
    q: torch.Tensor,
    k: torch.Tensor | None,
    q_out: torch.Tensor,
    k_out: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    geometry: Geometry,
    *,
    inverse: bool,
) -> "Plan | None":
    """Rotate q and k into q_out and k_out (which may be q and k) in one launch; checks nothing.

    Returns:
        The launch, where one that differs in nothing but pointers may be made with it.
    """
    if k is None or k_out is None:
        k, k_out = q, q_out
    in_place = q_out is q
    # A launch needs some pointer where there are no positions; the kernel does not read it.
    tensors: tuple[torch.Tensor, ...] = (q, k, cos, sin, q if positions is None else positions, q_out, k_out)
    if axes is not None:
        tensors = (*tensors, axes)
    pointers = tuple([x.data_ptr() for x in tensors])
    key = (inverse, _aligned(pointers), _forced_tile, None if in_place else (q_out.stride(), k_out.stride()))
    plan = geometry.kept.get(key)
    if plan is None:
        plan = _plan(geometry, tensors, positions is not None, in_place, inverse, _forced_tile)
        geometry.kept[key] = plan
    if 0 in plan.grid:
        return None
    plan.launch(tensors, pointers)
    return plan if _forced_tile is None else None


@dataclass
class Plan:
    """One launch of rope_kernel but for its pointers.

    Attributes:
        grid: how many programs run along each axis.
        numbers: the run-time numbers of the kernel, in order; before them None for a missing pointer.
        constants: its constexprs, in order.
        warps: per program.
        device: the index of the GPU, or -1 for tensors on the CPU.
        compiled: the quick way to launch it again, once it was compiled.
    """

    grid: tuple[int, int, int]
    numbers: tuple[int | None, ...]
    constants: dict[str, object]
    warps: int
    device: int
    compiled: tuple[Any, tuple[Any, ...]] | None = None

    def __post_init__(self) -> None:
        self.arguments = (*self.numbers, *self.constants.values())

    def launch(self, tensors: tuple[torch.Tensor, ...], pointers: tuple[int, ...]) -> None:
        """Launch on the current stream of the tensors' device."""
        if self.device >= 0 and self.device != torch._C._cuda_getDevice():
            with torch.cuda.device(self.device):
                self.launch(tensors, pointers)
        elif self.compiled is None or _enter_hooks.calls or _exit_hooks.calls:
            self._launch_publicly(tensors)
        else:
            # Triton looks up the compiled kernel by its arguments at every launch, which costs more than a
            # short rotation; the plan knows it already.
            launch, of_kernel = self.compiled
            stream = torch._C._cuda_getCurrentRawStream(self.device)
            launch(*self.grid, stream, *of_kernel, *pointers, *self.arguments)

    def _launch_publicly(self, tensors: tuple[torch.Tensor, ...]) -> None:
        kernel = rope_kernel[self.grid](*tensors, *self.numbers, **self.constants, num_warps=self.warps)
        self.compiled = _quick_way(kernel)


def _quick_way(kernel: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """How to launch what Triton compiled: a callable, and its arguments between the stream and the pointers.

    None where Triton's private interface is another one: then every launch goes the public way.
    """
    if not hasattr(kernel, "packed_metadata"):
        return None
    run, no_hooks = kernel.run, (None, None, None)
    if _TRITON == ["3", "6"] and not run.global_scratch_size and not run.profile_scratch_size:
        # What run calls, once it has found that it need not allocate.
        flags = run.launch_cooperative_grid, run.launch_pdl
        return run.launch, (kernel.function, *flags, None, None, kernel.packed_metadata, *no_hooks)
    return run, (kernel.function, kernel.packed_metadata, *no_hooks)


# Profilers register here; a launch they watch goes the public way.
_enter_hooks = triton.knobs.runtime.launch_enter_hook
_exit_hooks = triton.knobs.runtime.launch_exit_hook


def _plan(
    g: Geometry,
    tensors: tuple[torch.Tensor, ...],
    has_positions: bool,
    in_place: bool,
    inverse: bool,
    forced: Tile | None,
) -> Plan:
    """The launch for tensors of this description."""
    q, k, cos, sin, positions, q_out, k_out, *several = tensors
    x_strides = [g.bnhd_strides(x.stride()) for x in (q, k, q_out, k_out)]
    table_strides = [(0, *x.stride())[-3:] for x in (cos, sin)]
    position_strides = (0, 0, *positions.stride()[1 if several else 0 :])[-2:] if has_positions else (0, 0)
    # The kernel has no parameters for what is None.
    missing_pointer: tuple[None, ...] = () if several else (None,)
    axes_numbers: tuple[int | None, ...] = (None, None, None)
    if several:
        axes_numbers = (positions.stride(0), positions.shape[0], several[0].stride(0))
    tail = 0 if in_place else g.head_dim - 2 * g.rot_half
    x_unit, x_numbers = _in_units(q.element_size(), x_strides, g.rot_offset | tail)
    table_unit, table_numbers = _in_units(cos.element_size(), table_strides)
    (q_b, *q_nh, q_d), (k_b, *k_nh, k_d), (*q_out_bnh, q_out_d), (*k_out_bnh, k_out_d) = x_numbers
    (cos_b, cos_row, cos_i), (sin_b, sin_row, sin_i) = table_numbers
    position_b, position_n = position_strides
    tile = _fit_grid(forced or choose_tile(g), g)
    head_blocks, row_blocks = _blocks(tile, g)
    every = (*q_nh, *k_nh, cos_row, sin_row, position_n)
    sizes = (g.tokens, g.q_heads, g.q_heads + g.k_heads, cos.shape[-2], g.rot_offset // x_unit)
    batched = (q_b, k_b, cos_b, sin_b, position_b)
    out_of_place = (*q_out_bnh, *k_out_bnh, tail // x_unit)
    strided = (q_d, k_d, q_out_d, k_out_d, cos_i, sin_i)
    flat = (row_blocks, head_blocks)
    numbers = (*missing_pointer, *every, *sizes, *batched, *out_of_place, *strided, *axes_numbers, *flat)
    constants: dict[str, object] = {
        "GPTJ": g.layout == "gptj",
        "INVERSE": inverse,
        "INPLACE": in_place,
        "HAS_POSITIONS": has_positions,
        "BATCHED": g.batch > 1,
        "UNIT_DIM": all(s[3] == 1 for s in x_strides),
        "UNIT_PAIR": all(s[2] == 1 for s in table_strides),
        "X_UNIT": x_unit,
        "TABLE_UNIT": table_unit,
        "ROT_HALF": g.rot_half,
        "TAIL_SIDE": _tail_side(g.rot_offset, tail),
        "BLOCK_T": tile.tokens,
        "BLOCK_H": tile.heads,
        "BLOCK_HALF": _block(g.rot_half),
        "BLOCK_TAIL": _block(tail),
        "FLAT": tile.flat,
    }
    grid = (head_blocks, row_blocks, g.batch)
    if tile.flat:
        grid = (head_blocks * row_blocks * g.batch, 1, 1)
    return Plan(grid, numbers, constants, tile.warps, q.get_device())


def _aligned(pointers: tuple[int, ...]) -> tuple[bool, ...]:
    """Which pointers are multiples of 16 bytes: Triton compiles a kernel for each answer."""
    a, b, c, d, e, f, g, *_ = pointers
    if not (a | b | c | d | e | f | g) & (_ALIGN_BYTES - 1):
        return ()
    return tuple([not pointer & (_ALIGN_BYTES - 1) for pointer in pointers])


def _block(n: int) -> int:
    return triton.next_power_of_2(max(n, 1))


def _blocks(tile: Tile, g: Geometry) -> tuple[int, int]:
    """Blocks of heads of q and k together, and blocks of tokens of a batch row."""
    return triton.cdiv(g.q_heads + g.k_heads, tile.heads), triton.cdiv(g.tokens, tile.tokens)


def _fit_grid(tile: Tile, g: Geometry) -> Tile:
    if max(g.batch, _blocks(tile, g)[1]) > _MAX_BLOCKS:
        tile = tile._replace(flat=True)
    while g.batch * math.prod(_blocks(tile, g)) > _MAX_PROGRAMS:
        tile = tile._replace(tokens=2 * tile.tokens)
    return tile


def _tail_side(rot_offset: int, tail: int) -> str:
    if tail == 0:
        return "none"
    if rot_offset == 0:
        return "after"
    return "before" if rot_offset == tail else "both"


def _in_units(
    size: int, strides: Sequence[tuple[int, ...]], others: int = 0
) -> tuple[int, list[tuple[int, ...]]]:
    """The elements (at most 16 bytes of them) that every row starts at a multiple of, and all strides.

    `size` is an element's, in bytes; `others` must be a multiple of the unit too. The strides returned are
    in units of that many elements, except the last of each tensor, which stays in elements.
    """
    misaligned = _ALIGN_BYTES // size | others
    for stride in strides:
        for s in stride[:-1]:
            misaligned |= s
    unit = misaligned & -misaligned
    return unit, [(*(s // unit for s in rows), last) for *rows, last in strides]
