"""The arena turns a case into tensors that lie inside guarded buffers."""

import itertools
from dataclasses import dataclass

import torch

from strategies.case import RopeCase, Strides
from strategies.values import activation_dtype, angle_tables, bits, filled, table_dtype

# Elements of red zone before and behind each tensor; a multiple of 16 bytes in every dtype.
RED_ZONE = 64
# Bytes; a multiple of every element size.
_ALIGNED = 16
# NaNs with a payload of their own, so that "never written" differs from "computed NaN", and a stray value
# names where it came from.
RED = {
    torch.bfloat16: 0x7FDA,
    torch.float16: 0x7E5A,
    torch.float32: 0x7FC05A5A,
    torch.float64: 0x7FF800005A5A5A5A,
    torch.int32: -0x5A5A5A5A,
    torch.int64: -0x5A5A5A5A5A5A5A5A,
}
UNWRITTEN = {
    torch.bfloat16: 0x7FE5,
    torch.float16: 0x7EA5,
    torch.float32: 0x7FC0A5A5,
    torch.float64: 0x7FF80000A5A5A5A5,
    torch.int32: -0x25A5A5A5,
    torch.int64: -0x25A5A5A5A5A5A5A5,
}


def marked(size: int, dtype: torch.dtype, mark: int) -> torch.Tensor:
    """A flat buffer on the CPU in which every element has the bit pattern `mark`."""
    buffer = torch.empty(size, dtype=dtype)
    bits(buffer).fill_(mark)
    return buffer


@dataclass
class Guarded:
    """A buffer full of red zone and the tensors that lie in it.

    Attributes:
        buffer: flat, on the device of the run.
        pristine: its bits before the run, on the CPU.
        views: the tensors by name, in the axis order that the implementation gets.
    """

    buffer: torch.Tensor
    pristine: torch.Tensor
    views: dict[str, torch.Tensor]

    def owned(self, *names: str) -> torch.Tensor:
        """Which elements of the buffer belong to these views, as bools on the CPU."""
        mask = torch.zeros(self.pristine.shape, dtype=torch.bool)
        for name in names:
            view = self.views[name]
            mask.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(True)
        return mask

    def changed(self, after: torch.Tensor | None = None) -> torch.Tensor:
        """Which elements of the buffer have other bits than before the run, as bools on the CPU.

        Args:
            after: what the buffer holds, where it was fetched to the CPU already.
        """
        return bits(self.buffer.cpu() if after is None else after) != self.pristine


class Arena:
    """The tensors of one case.

    Attributes:
        q, k, v, cos, sin, positions, axes: what the implementation is given (k, positions and axes may be
            None; v is a bystander it never sees).
        buffers: the guarded buffers, by the names of their views.
        inputs: float64-exact copies of the values by name, on the CPU in the canonical axis order
            (batch, token, head, dim); "cos" and "sin" per token as (batch, token, pair); "positions" as
            (batch, token), with several axes (axis, batch, token).

    Args:
        values: q and k as (batch, token, head, dim), of one size along expanded axes, and positions as in
            `inputs`, in place of the case's own; for runs that follow from another run.
    """

    def __init__(self, case: RopeCase, device: str | torch.device = "cpu", **values: torch.Tensor) -> None:
        self.case = case
        self.values = values
        self.device = torch.device(device)
        self.buffers: list[Guarded] = []
        self.inputs: dict[str, torch.Tensor] = {}
        self._make_activations()
        self._make_tables()
        views = {name: view for guarded in self.buffers for name, view in guarded.views.items()}
        self.q = views["q"]
        self.k = views.get("k")
        self.v = views["v"]
        self.cos = views["cos"]
        self.sin = views["sin"]
        self.positions = views.get("positions")
        self.axes = views.get("axes")

    def bnhd(self, x: torch.Tensor) -> torch.Tensor:
        """A view of q, k or an output in the canonical axis order."""
        x = x if self.case.rank == 4 else x.unsqueeze(0)
        return x.transpose(1, 2) if self.case.heads_first else x

    def _make_activations(self) -> None:
        case = self.case
        heads = {"q": case.q_heads}
        if case.k_heads is not None:
            heads["k"] = case.k_heads
        heads["v"] = case.q_heads if case.k_heads is None else case.k_heads
        if case.packed:
            self._place_activations(heads, case.q_strides)
            return
        strides = {"q": case.q_strides, "k": case.k_strides, "v": Strides()}
        for name, count in heads.items():
            self._place_activations({name: count}, strides[name])

    def _place_activations(self, heads: dict[str, int], strides: Strides) -> None:
        """Lay tensors with these head counts side by side along the heads of one buffer."""
        case = self.case
        shape = {"b": case.batch, "n": case.tokens, "h": sum(heads.values()), "d": case.head_dim}
        step, size = _memory(shape, strides)
        start = RED_ZONE + strides.offset
        buffer = marked(start + size + RED_ZONE, activation_dtype(case), RED[activation_dtype(case)])
        first = 0
        views = {}
        for name, count in heads.items():
            values = self._values(name, {**shape, "h": count}, strides.expand)
            view = buffer.as_strided(values.shape, [step[axis] for axis in "bnhd"], start + first * step["h"])
            view.copy_(values)
            self.inputs[name] = view.expand(case.batch, case.tokens, count, case.head_dim).clone()
            stride = [0 if axis in strides.expand else step[axis] for axis in "bnhd"]
            views[name] = self._as_given((case.batch, case.tokens, count, case.head_dim), stride, view)
            first += count
        self._guard(buffer, views)

    def _values(self, name: str, shape: dict[str, int], expand: str) -> torch.Tensor:
        """The values of q, k or v as (batch, token, head, dim), one along every expanded axis."""
        case = self.case
        if name in self.values:
            return self.values[name]
        sizes = [min(shape[axis], 1) if axis in expand else shape[axis] for axis in "bnhd"]
        size = sizes[0] * sizes[1] * sizes[2] * sizes[3]
        values = filled(name, size, activation_dtype(case), case.fill, case.seed)
        self._poke(name, values)
        return values.view(sizes)

    def _as_given(
        self, sizes: tuple[int, ...], stride: list[int], base: torch.Tensor
    ) -> tuple[tuple[int, ...], list[int], int]:
        """Sizes, strides and offset in the axis order that the implementation gets."""
        axes = [0, 2, 1, 3] if self.case.heads_first else [0, 1, 2, 3]
        axes = axes if self.case.rank == 4 else axes[1:]
        return tuple(sizes[a] for a in axes), [stride[a] for a in axes], int(base.storage_offset())

    def _make_tables(self) -> None:
        case = self.case
        positions = torch.tensor(case.positions_bn(), dtype=torch.int64).view(case.batch, case.tokens)
        if case.axes != "none":
            positions = torch.stack([positions // (axis + 1) for axis in range(case.position_axes)])
        positions = self.values.get("positions", positions)
        cos, sin = angle_tables(case, case.max_position)
        tables = {"cos": cos.to(table_dtype(case)), "sin": sin.to(table_dtype(case))}
        if case.table == "gathered":
            # Packed on one token axis, a gathered table is one row per token.
            rows = positions if case.rank == 4 else positions[0]
            tables = {name: table[rows] for name, table in tables.items()}
        for name, table in tables.items():
            self._poke(name, table.view(-1))
            self._place_table(name, table)
        given, axes = self._place_positions(positions), self._place_axes()
        for name, table in tables.items():
            if case.table == "gathered":
                self.inputs[name] = table.view(*given.shape, case.rot_half)
            else:
                self.inputs[name] = looked_up(table, given, axes)
        self.inputs["positions"] = given

    def _place_table(self, name: str, table: torch.Tensor) -> None:
        case = self.case
        # Other strides for each, so that those of one do not serve for the other.
        pad, step = case.table_pad, case.table_step
        if name == "sin":
            pad, step = 2 * pad, step if step == 1 else step + 1
        row = table.shape[-1] * step + pad
        stride = [row, step] if table.dim() == 2 else [row * table.shape[1], row, step]
        # The last row ends at the red zone: a table is exactly as long as its positions need.
        last = sum((n - 1) * s for n, s in zip(table.shape, stride, strict=True))
        buffer = marked(2 * RED_ZONE + (last + 1 if table.numel() else 0), table.dtype, RED[table.dtype])
        view = buffer.as_strided(table.shape, stride, RED_ZONE)
        view.copy_(table)
        self._guard(buffer, {name: (tuple(table.shape), stride, RED_ZONE)})

    def _place_positions(self, positions: torch.Tensor) -> torch.Tensor:
        """Make the positions tensor of the call; return the positions of all tokens, pokes included."""
        case = self.case
        if case.positions == "implied":
            return positions
        dtype = getattr(torch, case.positions_dtype)
        rows = 1 if case.rank == 3 or case.positions in ("shared", "expanded") else case.batch
        values = positions[..., :rows, :].to(dtype).contiguous()
        self._poke("positions", values.view(-1))
        step = case.positions_step
        buffer = marked(2 * RED_ZONE + values.numel() * step, dtype, RED[dtype])
        row = case.tokens * step
        several = [rows * row] if case.axes != "none" else []
        buffer.as_strided(values.shape, [*several, row, step], RED_ZONE).copy_(values)
        one_axis = case.rank == 3 or case.positions == "shared"
        batch_stride = 0 if case.positions == "expanded" else row
        shape = (case.tokens,) if one_axis else (case.batch, case.tokens)
        stride = [step] if one_axis else [batch_stride, step]
        where = ((*values.shape[:-2], *shape), [*several, *stride], RED_ZONE)
        self._guard(buffer, {"positions": where})
        return values.long().expand(*values.shape[:-2], case.batch, case.tokens)

    def _place_axes(self) -> torch.Tensor | None:
        """Make the axes tensor of the call, if it has one; return its values, pokes included."""
        axes = self.case.axes_of_pairs()
        if axes is None:
            return None
        values = torch.tensor(axes, dtype=getattr(torch, self.case.positions_dtype))
        self._poke("axes", values)
        step = self.case.positions_step
        buffer = marked(2 * RED_ZONE + len(axes) * step, values.dtype, RED[values.dtype])
        buffer.as_strided(values.shape, [step], RED_ZONE).copy_(values)
        self._guard(buffer, {"axes": (tuple(values.shape), [step], RED_ZONE)})
        return values.long()

    def _poke(self, name: str, flat: torch.Tensor) -> None:
        for tensor, index, value in self.case.pokes:
            if tensor == name and flat.numel():
                number = float(value) if flat.is_floating_point() else int(value)
                flat[index % flat.numel()] = number

    def _guard(self, buffer: torch.Tensor, views: dict[str, tuple[tuple[int, ...], list[int], int]]) -> None:
        on_device = buffer.to(self.device, non_blocking=True, copy=True)
        placed = {name: on_device.as_strided(*where) for name, where in views.items()}
        self.buffers.append(Guarded(on_device, bits(buffer), placed))


def fetched(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors on the CPU, those of a GPU in one transfer: each transfer waits for the GPU."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return tensors
    sizes = (_ALIGNED * -(-tensor.nbytes // _ALIGNED) for tensor in tensors)
    *starts, size = itertools.accumulate(sizes, initial=0)
    joined = torch.empty(size, dtype=torch.uint8, device=tensors[0].device)
    for tensor, start in zip(tensors, starts, strict=True):
        _lying_at(joined, start, tensor).copy_(tensor)
    joined = joined.cpu()
    return [_lying_at(joined, start, tensor) for tensor, start in zip(tensors, starts, strict=True)]


def _lying_at(memory: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    """A dense tensor of this shape and dtype in these bytes."""
    return memory[start : start + like.nbytes].view(like.dtype).view(like.shape)


def looked_up(table: torch.Tensor, positions: torch.Tensor, axes: torch.Tensor | None) -> torch.Tensor:
    """The values of a table, (row, pair), that each token reads, as (batch, token, pair); NaN outside it.

    Args:
        positions: (batch, token), or with axes (axis, batch, token).
        axes: the axis of each pair.
    """
    pair = torch.arange(table.shape[-1])
    rows = positions[..., None]
    if axes is not None:
        there = (axes >= 0) & (axes < len(positions))
        rows = torch.where(there, positions.movedim(0, -1)[..., axes.where(there, 0)], -1)
    inside = (rows >= 0) & (rows < len(table))
    if not inside.any():
        return table.new_full((*positions.shape[-2:], len(pair)), float("nan"))
    return table[rows.where(inside, 0), pair].masked_fill(~inside, float("nan"))


def _memory(shape: dict[str, int], strides: Strides) -> tuple[dict[str, int], int]:
    """The stride of each axis in elements, and how many elements they span."""
    allocated = {
        "b": shape["b"],
        "n": shape["n"] + strides.token_pad,
        "h": shape["h"] + strides.head_pad,
        "d": (shape["d"] + strides.dim_pad) * strides.dim_step,
    }
    step = {}
    size = 1
    for axis in reversed(strides.order):
        step[axis] = size * (strides.dim_step if axis == "d" else 1)
        size *= 1 if axis in strides.expand else max(allocated[axis], 1)
    return step, size
