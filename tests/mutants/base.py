"""A correct apply_rope in small steps, made to be broken: a mutant replaces one step.

Like a kernel it reads and writes memory through element offsets that it computes from strides itself, so
faults of addressing can be planted too. It shares no arithmetic with rope/; only the argument checks are
the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rope import api
from rope.checks import check_call, check_in_place

Pair = tuple[torch.Tensor, torch.Tensor]
# Indices are NumPy arrays: they need no watching, and PyTorch's calls are watched one by one.
Index = npt.NDArray[np.int64]
Dims = tuple[Index, Index]


@dataclass
class Call:
    """One call: what apply_rope was given, and the sizes that follow from it.

    Attributes:
        steps: how to do it.
        kept: what the implementation remembers from one call to the next.
    """

    q: torch.Tensor
    k: torch.Tensor | None
    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor | None
    axes: torch.Tensor | None
    layout: str
    rot_dim: int | None
    rot_offset: int
    head_axis: int
    inplace: bool
    inverse: bool
    steps: "Steps"
    kept: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        return ("q",) if self.k is None else ("q", "k")

    def given(self, name: str) -> torch.Tensor:
        """q or k."""
        x = getattr(self, name)
        assert isinstance(x, torch.Tensor)
        return x

    @property
    def rot_half(self) -> int:
        return self.cos.shape[-1]

    @property
    def head_dim(self) -> int:
        return self.q.shape[-1]

    @property
    def heads_first(self) -> bool:
        return self.head_axis in (self.q.dim() - 3, -3)

    @property
    def batch(self) -> int:
        return self.q.shape[0] if self.q.dim() == 4 else 1

    @property
    def tokens(self) -> int:
        return self.q.shape[-2 if self.heads_first else -3]

    def heads(self, x: torch.Tensor) -> int:
        return x.shape[-3 if self.heads_first else -2]

    @property
    def compute(self) -> torch.dtype:
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def tail_dims(self) -> Index:
        end = self.rot_offset + 2 * self.rot_half
        return np.concatenate((np.arange(self.rot_offset), np.arange(end, self.head_dim)))

    def offsets(self, x: torch.Tensor, dims: Index, heads: int | None = None) -> Index:
        """Where the elements (batch, token, head, dims) of x lie, in elements from its storage's start."""
        b, n, h, d = self.steps.strides(self, x)
        rows = np.arange(self.batch)[:, None, None] * b + np.arange(self.tokens)[:, None] * n
        rows = rows + np.arange(self.heads(x) if heads is None else heads) * h
        return x.storage_offset() + rows[..., None] + dims * d


def memory(x: torch.Tensor) -> torch.Tensor:
    """All of the storage that x lies in, flat."""
    return x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)


def at(offsets: Index, flat: torch.Tensor) -> torch.Tensor:
    """Offsets to index with. A GPU would touch what lies at a wrong one; wrapping keeps the process alive."""
    return torch.from_numpy(offsets % flat.numel())


def run(call: Call) -> dict[str, torch.Tensor]:
    """The whole call; the outputs by name."""
    steps = call.steps
    steps.check(call)
    cos, sin = steps.angles(call, steps.positions(call))
    outputs = {}
    for name in call.names:
        outputs[name] = steps.allocate(call, name)
        if outputs[name].numel():
            steps.rotate(call, name, call.given(name), outputs[name], cos, sin)
    return outputs


def check(call: Call) -> None:
    """Refuse wrong input."""
    options = (call.layout, call.rot_dim, call.rot_offset, call.head_axis)
    geometry = check_call(call.q, call.k, call.cos, call.sin, call.positions, call.axes, *options)
    if call.positions is not None:
        # Looked up where apply_rope does, so that what lies below the check can be reached for both.
        api.check_position_range(call.positions, call.axes, call.cos.shape[0])
    if call.inplace:
        check_in_place(call.q, call.k, geometry)


def allocate(call: Call, name: str) -> torch.Tensor:
    """The tensor to write into."""
    return call.given(name) if call.inplace else torch.empty_like(call.given(name))


def positions(call: Call) -> torch.Tensor:
    """The position of every token, (batch, tokens); with several axes (axis, batch, tokens)."""
    if call.positions is None:
        return torch.arange(call.tokens).expand(call.batch, -1)
    if call.axes is None:
        return call.positions.long().expand(call.batch, -1)
    rows = call.positions.long()
    return (rows if rows.dim() == 3 else rows[:, None]).expand(-1, call.batch, -1)


def by_pair(call: Call, rows: torch.Tensor) -> torch.Tensor:
    """The position on the axis that each pair reads, (batch, tokens, rot_half); -1 without such an axis."""
    assert call.axes is not None
    there = (call.axes >= 0) & (call.axes < len(rows))
    read = rows.movedim(0, -1)[..., call.axes.long().where(there, 0)]
    return read.masked_fill(~there, -1)


def angles(call: Call, rows: torch.Tensor) -> Pair:
    """cos and sin of every token, (batch, tokens, 1, rot_half); NaN where a row is outside the table."""
    rows = rows[..., None] if call.axes is None else call.steps.by_pair(call, rows)
    tables = []
    for table in (call.cos, call.sin):
        if table.dim() == 2:
            outside = (rows < 0) | (rows >= len(table))
            safe = rows.masked_fill(outside, 0)
            pair = torch.arange(call.rot_half)
            table = table[safe, pair] if len(table) else table.new_empty(*rows.shape[:2], call.rot_half)
            table = table.masked_fill(outside, float("nan"))
        tables.append(table[:, :, None].to(call.compute))
    cos, sin = tables
    return cos, -sin if call.inverse else sin


def rotate(
    call: Call, name: str, x: torch.Tensor, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    """Rotate one tensor, called `name`, into `out`."""
    steps = call.steps
    lo_dims, hi_dims = steps.pairs(call, name)
    lo = steps.load(call, x, lo_dims).to(call.compute)
    hi = steps.load(call, x, hi_dims).to(call.compute)
    lo, hi = steps.turn(call, lo, hi, cos, sin)
    steps.store(call, out, lo_dims, lo)
    steps.store(call, out, hi_dims, hi)
    if out is not x:
        steps.tail(call, x, out)


def pairs(call: Call, name: str) -> Dims:
    """The dims of the first and of the second element of every pair."""
    pair = np.arange(call.rot_half)
    if call.layout == "neox":
        return call.rot_offset + pair, call.rot_offset + call.rot_half + pair
    return call.rot_offset + 2 * pair, call.rot_offset + 2 * pair + 1


def strides(call: Call, x: torch.Tensor) -> Sequence[int]:
    """Strides of q, k or an output in the order (batch, token, head, dim), in elements."""
    *batch, second, third, dim = x.stride()
    token, head = (third, second) if call.heads_first else (second, third)
    return (*(batch or [0]), token, head, dim)


def load(call: Call, x: torch.Tensor, dims: Index) -> torch.Tensor:
    """The elements of these dims, (batch, token, head, dims)."""
    flat = memory(x)
    return flat[at(call.offsets(x, dims), flat)]


def turn(call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Pair:
    """The rotation."""
    return lo * cos - hi * sin, hi * cos + lo * sin


def store(call: Call, out: torch.Tensor, dims: Index, values: torch.Tensor) -> None:
    """Round once and write."""
    flat = memory(out)
    flat[at(call.offsets(out, dims), flat)] = values.to(out.dtype)


def tail(call: Call, x: torch.Tensor, out: torch.Tensor) -> None:
    """Copy the dims that do not rotate."""
    call.steps.store(call, out, call.tail_dims, call.steps.load(call, x, call.tail_dims))


@dataclass(frozen=True)
class Steps:
    """The steps of a call; every field at its default is correct."""

    run: Callable[[Call], dict[str, torch.Tensor]] = run
    check: Callable[[Call], None] = check
    allocate: Callable[[Call, str], torch.Tensor] = allocate
    positions: Callable[[Call], torch.Tensor] = positions
    by_pair: Callable[[Call, torch.Tensor], torch.Tensor] = by_pair
    angles: Callable[[Call, torch.Tensor], Pair] = angles
    rotate: Callable[..., None] = rotate
    pairs: Callable[[Call, str], Dims] = pairs
    strides: Callable[[Call, torch.Tensor], Sequence[int]] = strides
    load: Callable[[Call, torch.Tensor, Index], torch.Tensor] = load
    turn: Callable[..., Pair] = turn
    store: Callable[[Call, torch.Tensor, Index, torch.Tensor], None] = store
    tail: Callable[[Call, torch.Tensor, torch.Tensor], None] = tail


@dataclass(frozen=True)
class Base:
    """apply_rope, done in these steps. One instance is one process: it keeps what its steps remember."""

    steps: Steps = field(default_factory=Steps)
    kept: dict[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor | None = None,
        *,
        axes: torch.Tensor | None = None,
        layout: str = "neox",
        rot_dim: int | None = None,
        rot_offset: int = 0,
        head_axis: int = -2,
        inplace: bool = False,
        inverse: bool = False,
    ) -> Any:
        options = (layout, rot_dim, rot_offset, head_axis, inplace, inverse)
        call = Call(q, k, cos, sin, positions, axes, *options, self.steps, self.kept)
        outputs = self.steps.run(call)
        return outputs["q"] if k is None else (outputs["q"], outputs["k"])
