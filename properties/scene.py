"""One tensor of a case, and everything that a kernel could confuse in rotating it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from properties.oracle import Array, angles, pair_dims
from strategies import Arena
from strategies.values import bits

Dims = npt.NDArray[np.int64]


class Angles(NamedTuple):
    """cos and sin, float64 (batch, token, 1 or head, pair), sin negated for the inverse."""

    cos: Array
    sin: Array


class Prediction(NamedTuple):
    """What a kernel with a mistake would return.

    Attributes:
        value: before the store rounds it, (batch, token, head, dim).
        products: magnitude of the products that were summed, which scales the arithmetic's error.
        store: rounds float64 values to the output's dtype, as float64.
    """

    value: Array
    products: Array
    store: Callable[[Array], Array]


class Scene:
    """One tensor of a case, and everything that a kernel could confuse in rotating it.

    Attributes:
        x: its values, float64 (batch, token, head, dim).
        positions: (batch, token); with several axes those on the first.
        axes: the axis of every pair, or None.
        angles: cos and sin of every token.
        lo, hi: the dims of the first and of the second element of every pair.
        b, n, h, d: the indices along the axes of x; pair: those along the table's columns.
    """

    def __init__(self, arena: Arena, name: str) -> None:
        self.arena, self.name, self.case = arena, name, arena.case
        self.x = arena.inputs[name].double().numpy()
        self.dtype = arena.inputs[name].dtype
        self.axes = None if arena.axes is None else arena.axes.cpu().numpy()
        self._positions = arena.inputs["positions"].numpy()
        self.positions = self._positions if self.axes is None else self._positions[0]
        self.angles = Angles(*angles(arena))
        self.lo, self.hi = pair_dims(self.case)
        self.b, self.n, self.h, self.d = (np.arange(size) for size in self.x.shape)
        self.pair = np.arange(self.case.rot_half)

    @cached_property
    def token(self) -> npt.NDArray[np.int64]:
        """Index of every token in its batch row, (batch, token)."""
        return np.broadcast_to(self.n, self.positions.shape)

    @cached_property
    def from_start(self) -> npt.NDArray[np.int64]:
        """Index of every token in its own request, (batch, token)."""
        counted = [i for _, length in self.case.requests for i in range(length)]
        return np.array(counted, dtype=np.int64).reshape(self.positions.shape)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The position that every token, or with several axes (batch, token, 1, pair) every pair, reads."""
        return self.positions if self.axes is None else self.by_pair(self.axes)

    def by_pair(self, axes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The position on the axis of every pair, (batch, token, 1, pair); -1 where there is no such axis."""
        there = (axes >= 0) & (axes < len(self._positions))
        read = np.moveaxis(self._positions, 0, -1)[..., np.where(there, axes, 0)]
        return np.where(there, read, -1)[:, :, None]

    def pairs(self, **changes: Any) -> tuple[Dims, Dims]:
        """The dims of the pairs of another case."""
        return pair_dims(replace(self.case, **changes))

    def rotate(
        self,
        *,
        x: Array | None = None,
        angles: Angles | None = None,
        hi_angles: Angles | None = None,
        read: tuple[Dims, Dims] | None = None,
        write: tuple[Dims, Dims] | None = None,
        signs: tuple[int, int] = (-1, 1),
        tail: Array | None = None,
        rounded: bool = False,
        store: Callable[[Array], Array] | None = None,
    ) -> Prediction | None:
        """The rotation with something changed, or None when that cannot be done on this case.

        Args:
            x, angles: other inputs.
            hi_angles: other angles for the second element of every pair.
            read, write: other dims of the pairs to read; and to write, when those differ.
            signs: of sin, for the first and for the second element of every pair.
            tail: where the dims that do not rotate come from.
            rounded: both products are rounded to the output's dtype before they are summed.
            store: another rounding at the end.
        """
        x = self.x if x is None else x
        cos, sin = angles or self.angles
        hi_cos, hi_sin = hi_angles or (cos, sin)
        lo, hi = read or (self.lo, self.hi)
        to_lo, to_hi = write or read or (self.lo, self.hi)
        if max((*lo, *hi), default=0) >= x.shape[-1] or x.shape != self.x.shape:
            return None
        first, second = (x if tail is None else tail).copy(), np.zeros_like(x)
        with np.errstate(all="ignore"):
            first[..., to_lo], second[..., to_lo] = x[..., lo] * cos, signs[0] * x[..., hi] * sin
            first[..., to_hi], second[..., to_hi] = x[..., hi] * hi_cos, signs[1] * x[..., lo] * hi_sin
            if rounded:
                first, second = self.nearest(first), self.nearest(second)
            return Prediction(first + second, np.abs(first) + np.abs(second), store or self.nearest)

    def nearest(self, values: Array) -> Array:
        """Values rounded to the dtype of this tensor."""
        return round_to(values, self.dtype)

    def truncated(self, values: Array) -> Array:
        """Values cut to the dtype of this tensor, towards zero."""
        nearest = round_to(values, self.dtype)
        with np.errstate(all="ignore"):
            below = bits(torch.from_numpy(nearest).to(self.dtype)) - 1
            toward_zero = below.view(self.dtype).double().numpy()
            return np.where(np.abs(nearest) > np.abs(values), toward_zero, nearest)

    def done(self) -> Array:
        """The right output."""
        right = self.rotate()
        assert right is not None
        return self.nearest(right.value)

    def partly_done(self, dims: Dims) -> Array:
        """The input in which these dims are rotated already, as in place."""
        x = self.x.copy()
        x[..., dims] = self.done()[..., dims]
        return x

    def table(
        self,
        rows: npt.NDArray[np.int64] | None = None,
        *,
        row_stride: int | None = None,
        columns: Dims | None = None,
        dtype: torch.dtype | None = None,
    ) -> Angles:
        """cos and sin read from other places of the table's memory; NaN outside it.

        Args:
            rows: (batch, token), (batch, token, head) or (batch, token, 1, pair); the right ones when None.
            row_stride: in elements.
            columns: of every pair.
            dtype: the table is rounded to it.
        """
        if rows is None:
            per_token = np.arange(self.positions.size).reshape(self.positions.shape)
            rows = self.rows if self.case.table == "indexed" else per_token
        rows = rows.reshape(*rows.shape, *[1] * (4 - rows.ndim))
        columns = self.pair if columns is None else columns
        read = {}
        for name in ("cos", "sin"):
            memory, view = self.memory(name)
            stride = view.stride(-2) if row_stride is None else row_stride
            read[name] = gather(memory, view.storage_offset() + rows * stride + columns)
            read[name] = read[name] if dtype is None else round_to(read[name], dtype)
        return Angles(read["cos"], -read["sin"] if self.case.inverse else read["sin"])

    def wide_table(self) -> Prediction | None:
        """A table that is read as if it were rot_dim wide: one column per dim."""
        offset = self.case.rot_offset
        lo, hi = (self.table(columns=dims - offset) for dims in (self.lo, self.hi))
        return self.rotate(angles=lo, hi_angles=hi)

    def at(self, positions: npt.NDArray[np.int64]) -> Prediction | None:
        """The rotation by other positions, which are given as `table` takes rows."""
        if self.case.table == "gathered" or positions.size == 0:
            return None
        return self.rotate(angles=self.table(positions))

    def positions_read(self, dtype: torch.dtype | None = None) -> Prediction | None:
        """Positions read with stride 1, as if they were of this dtype."""
        if self.case.positions in ("implied", "expanded") or self.axes is not None:
            return None
        guarded = next(g for g in self.arena.buffers if "positions" in g.views)
        memory = guarded.pristine.view(dtype or guarded.pristine.dtype)
        scale = guarded.pristine.element_size() // memory.element_size()
        start = guarded.views["positions"].storage_offset() * scale
        count = self.n.size if guarded.views["positions"].dim() == 1 else self.positions.size
        read = memory[start : start + count].long().numpy()
        return self.at(np.broadcast_to(read.reshape(-1, self.n.size), self.positions.shape))

    def strided(self, like: str | None = None, heads: int | None = None) -> Prediction | None:
        """The tensor read with the strides of another, or as if it were contiguous with this many heads."""
        memory, view = self.memory(self.name)
        b, n, h, d = (
            index.reshape([-1, *[1] * k]) for index, k in zip(self._indices, (3, 2, 1, 0), strict=True)
        )
        if like is not None:
            strides = self.arena.bnhd(self.memory(like)[1]).stride()
        else:
            given = [self.case.batch, self.n.size, heads or self.h.size, self.d.size]
            axes = (0, 2, 1, 3) if self.case.heads_first else (0, 1, 2, 3)
            step, strides_by_axis = 1, {}
            for axis in reversed(axes):
                strides_by_axis[axis], step = step, step * given[axis]
            strides = tuple(strides_by_axis[axis] for axis in range(4))
        at = view.storage_offset() + b * strides[0] + n * strides[1] + h * strides[2] + d * strides[3]
        return self.rotate(x=gather(memory, at))

    @property
    def _indices(self) -> tuple[Dims, Dims, Dims, Dims]:
        return self.b, self.n, self.h, self.d

    def memory(self, name: str) -> tuple[Array, torch.Tensor]:
        """The values of the whole buffer in which a tensor lies, before the call, and the tensor."""
        guarded = next(g for g in self.arena.buffers if name in g.views)
        view = guarded.views[name]
        values = guarded.pristine if not view.is_floating_point() else guarded.pristine.view(view.dtype)
        return values.double().numpy(), view


def round_to(values: Array, dtype: torch.dtype) -> Array:
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype).double().numpy()


def gather(memory: Array, at: Any) -> Array:
    """Values at flat indices; NaN outside the memory."""
    inside = (at >= 0) & (at < memory.size)
    return np.where(inside, memory[np.where(inside, at, 0)], np.nan)
