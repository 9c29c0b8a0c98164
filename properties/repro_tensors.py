"""The statements of a script that make a case's tensors by formula, with torch alone."""

import inspect
import math
from collections.abc import Collection

import torch

from strategies import Arena, RopeCase, values
from strategies.arena import RED_ZONE

# At most this many numbers are written out; beyond it tensors are made by their formula.
_MOST_LITERALS = 12


class TensorWriter:
    """Writes the part of a script that makes the tensors of a case and calls the kernel.

    Attributes:
        function: the name of the kernel in the script.
        compute: arithmetic that the implementation claims, as in Domain.
        guarded: names of the tensors that lie between red zones; others only in what strides need.
    """

    def __init__(self, case: RopeCase, function: str, compute: str, *, guarded: Collection[str] = ()) -> None:
        self.case, self.function, self.compute, self.guarded = case, function, compute, guarded
        self.arena = Arena(case)
        self.helpers: dict[str, str] = {}
        self.lines: list[str] = []
        self.names = ("q",) if case.k_heads is None else ("q", "k")
        self.buffers: dict[str, str] = {}  # name of the buffer by name of the tensor

    def tensors(self) -> str:
        """Statements that make every argument of the call; q_in and k_in keep the values."""
        self._positions()
        for name in ("cos", "sin"):
            self._table(name)
        for guarded in self.arena.buffers:
            self._activations([name for name in ("q", "k", "v") if name in guarded.views])
        return "\n".join([*self.helpers.values(), *self.lines])

    def call(self) -> str:
        """The call as an expression."""
        case = self.case
        options = (
            f'layout="{case.layout}", rot_dim={2 * case.rot_half}, rot_offset={case.rot_offset}, '
            f"head_axis={case.head_axis}, inplace={case.inplace}, inverse={case.inverse}"
        )
        if case.tile is not None:
            options += f", tile={case.tile}"
        if case.axes != "none":
            options += ", axes=axes"
        k = "None" if case.k_heads is None else "k"
        positions = "None" if case.positions == "implied" else "positions"
        return f"{self.function}(\n    q, {k}, cos, sin, {positions},\n    {options},\n)"

    @property
    def may_overflow(self) -> bool:
        """Whether some values are so large that a product or a result may be infinite."""
        huge = [value for _, _, value in self.case.pokes if not abs(float(value)) < 1e4]
        return self.case.fill in ("extremes", "specials") or bool(huge)

    def canonical(self, x: str) -> str:
        """The expression in (batch, token, head, dim)."""
        x = x if self.case.rank == 4 else f"{x}[None]"
        return f"{x}.transpose(1, 2)" if self.case.heads_first else x

    def _given(self, x: str) -> str:
        x = f"{x}.transpose(1, 2)" if self.case.heads_first else x
        return x if self.case.rank == 4 else f"{x}[0]"

    def _positions(self) -> None:
        case = self.case
        rows = case.positions_bn()
        starts = [start for start, _ in case.requests]
        if case.positions in ("shared", "expanded"):
            rows, starts = rows[:1], starts[:1]
        size = len(rows) * case.tokens
        if size <= _MOST_LITERALS:
            made = f"torch.tensor({rows})"
        elif case.rank == 4:
            made = f"torch.tensor({starts})[:, None] + torch.arange({case.tokens})"
        else:
            spans = ", ".join(f"torch.arange({s}, {s + n})" for s, n in case.requests)
            made = f"torch.cat([{spans}])[None]"
        made = made if size else f"torch.zeros({len(rows)}, {case.tokens}, dtype=torch.int64)"
        self.lines.append(f"at = {made}  # the position of every token, (batch, token)")
        if case.axes != "none":
            several = f"[at // (axis + 1) for axis in range({case.position_axes})]"
            self.lines.append(f"at = torch.stack({several})  # (axis, batch, token)")
            size *= case.position_axes
        self._poke("positions", "at", size)
        if case.positions == "implied":
            return
        given = "at"
        if case.rank == 3 or case.positions == "shared":
            given = "at[0]" if case.axes == "none" else "at[:, 0]"
        given = given if case.positions_dtype == "int64" else f"{given}.int()"
        self._place("positions", given, base=[1, case.tokens] if case.positions == "expanded" else None)
        axes = case.axes_of_pairs()
        if axes is not None:
            self.lines.append(
                f"axes_in = torch.tensor({axes}, dtype=torch.{case.positions_dtype})  # that each pair reads"
            )
            self._poke("axes", "axes_in", len(axes))
            self._place("axes", "axes_in")

    def _table(self, name: str) -> None:
        case = self.case
        rows, pairs = case.max_position, case.rot_half
        dtype = str(values.table_dtype(case))
        cast = "" if dtype == "torch.float64" else f".to({dtype})"
        if case.table_fill == "angles":
            if name == "cos":
                self.lines.append(
                    f"angle = torch.arange({rows}, dtype=torch.float64)[:, None] * 10000.0 ** "
                    f"(-torch.arange({pairs}, dtype=torch.float64) / {max(pairs, 1)})"
                )
            made = f"angle.{name}()"
        else:
            made = self._values(name, [rows, pairs], case.table_fill, values.table_dtype(case))
            cast = cast if case.attention_factor != 1 else ""
            made = f"{made}.double()" if cast else made
        if case.attention_factor != 1:
            made = f"({made} * {case.attention_factor})"
        self.lines.append(f"{name}_in = {made}{cast}")
        if case.table == "gathered":
            self.lines.append(f"{name}_in = {name}_in[{'at' if case.rank == 4 else 'at[0]'}]")
        rows = case.batch * case.tokens if case.table == "gathered" else rows
        self._poke(name, f"{name}_in", rows * pairs)
        self._place(name, f"{name}_in")

    def _activations(self, names: list[str]) -> None:
        if not names or (names == ["v"] and "v" not in self.guarded):
            return
        case, dtype = self.case, values.activation_dtype(self.case)
        for name in names:
            heads = {"q": case.q_heads, "k": case.k_heads}.get(name)
            heads = (case.q_heads if case.k_heads is None else case.k_heads) if heads is None else heads
            expand = {"q": case.q_strides, "k": case.k_strides}.get(name, case.k_strides).expand
            expand = "" if name == "v" else expand
            shape = {"b": case.batch, "n": case.tokens, "h": heads, "d": case.head_dim}
            base = [min(shape[a], 1) if a in expand else shape[a] for a in "bnhd"]
            made = self._values(name, base, case.fill, dtype)
            self.lines.append(f"{name}_in = {made}  # batch, token, head, dim")
            self._poke(name, f"{name}_in", math.prod(base))
            self._place(name, self._given(f"{name}_in"), base=base if expand else None)
            if expand:
                self.lines.append(f"{name}_in = {name}_in.expand({', '.join(map(str, shape.values()))})")

    def _place(self, name: str, made: str, base: list[int] | None = None) -> None:
        """The tensor of the call: as made when that is what the case says, or a view of a larger buffer."""
        guarded = next(g for g in self.arena.buffers if name in g.views)
        view = guarded.views[name]
        shared = len(guarded.views) > 1
        if (
            not (name in self.guarded or shared)
            and base is None
            and view.is_contiguous()
            and self._aligned(view)
        ):
            # A plain clone keeps the strides of a transposed tensor.
            dense = "memory_format=torch.contiguous_format" if "transpose" in made else ""
            self.lines.append(f"{name} = {made}.clone({dense}).to(device)")
            return
        first = next(iter(guarded.views))
        buffer = f"{first}_memory"
        if name == first:
            fill = 'float("nan")' if view.is_floating_point() else str(guarded.pristine[0].item())
            size = guarded.pristine.numel()
            self.lines.append(f"{buffer} = torch.full(({size},), {fill}, dtype={view.dtype}, device=device)")
        self.buffers[name] = buffer
        where = f"{tuple(view.shape)}, {tuple(view.stride())}, {view.storage_offset()}"
        self.lines.append(f"{name} = {buffer}.as_strided({where})")
        if not view.numel():
            return  # its strides say nothing
        # A tensor with stride 0 is written through a view that has each element once.
        target = f"{name}" if base is None else self._narrowed(name, view)
        self.lines.append(f"{target}.copy_({made})")

    @staticmethod
    def _narrowed(name: str, view: torch.Tensor) -> str:
        index = ", ".join(":1" if s == 0 else ":" for s in view.stride())
        return f"{name}[{index}]"

    @staticmethod
    def _aligned(view: torch.Tensor) -> bool:
        return view.storage_offset() % RED_ZONE == 0

    def _values(self, name: str, shape: list[int], fill: str, dtype: torch.dtype) -> str:
        """An expression for a filled tensor."""
        size, sizes = math.prod(shape), ", ".join(map(str, shape))
        if fill in ("zeros", "ones"):
            return f"torch.{fill}({sizes}, dtype={dtype})"
        if fill == "one_hot":
            hot = self.case.seed % max(size, 1)
            return f"(torch.arange({size}) == {hot}).to({dtype}).view({sizes})"
        if fill == "ramp":
            return f"{self._ramp(size, dtype, name)}.view({sizes})"
        if size <= _MOST_LITERALS:
            numbers = values.filled(name, size, dtype, fill, self.case.seed).double().tolist()
            return f"torch.tensor([{', '.join(map(_number, numbers))}], dtype={dtype}).view({sizes})"
        self._inline("hashed", values._hash)
        hashed = f"_hash(torch.arange({size}), {self.case.seed * 8 + values._SALTS[name]})"
        if fill == "normal":
            self._inline("normal", values.normal)
            return f"normal({hashed}).to({dtype}).view({sizes})"
        table = _distinct(fill, dtype)
        self.helpers[fill] = f"{fill.upper()} = torch.tensor([{table}], dtype=torch.float64)"
        return f"{fill.upper()}[{hashed} % len({fill.upper()})].to({dtype}).view({sizes})"

    def _ramp(self, size: int, dtype: torch.dtype, name: str) -> str:
        sign = "-" if name in ("k", "sin") else ""
        steps = values._RAMP_STEPS[dtype]
        eps = 2.0**-23 if dtype is torch.float64 else torch.finfo(dtype).eps
        if size <= 1 / eps:
            return f"({sign}(1 + torch.arange({size}, dtype=torch.float64) * {eps})).to({dtype})"
        one = values.bits(torch.ones((), dtype=dtype)).item()
        integers = values._BITS[dtype]
        return f"({sign}(torch.arange({size}) % {steps} + {one}).to({integers}).view({dtype}))"

    def _inline(self, key: str, function: object) -> None:
        source = inspect.getsource(function)  # type: ignore[arg-type]
        self.helpers[key] = source.replace("  # type: ignore[union-attr]", "") + "\n"

    def _poke(self, tensor: str, variable: str, size: int) -> None:
        for name, index, value in self.case.pokes:
            if name == tensor and size:
                number = value if tensor in ("positions", "axes") else _number(float(value))
                self.lines.append(f"{variable}.view(-1)[{index % size}] = {number}")


def _number(x: float) -> str:
    return repr(x) if math.isfinite(x) else f'float("{x}")'


def _distinct(fill: str, dtype: torch.dtype) -> str:
    info = torch.finfo(dtype)
    extremes = [info.max, -info.max, info.tiny, -info.smallest_normal, info.smallest_normal / 4, 1.0, -0.75]
    specials = [math.inf, -math.inf, math.nan, -0.0, 0.0, 1.0, -2.0, 0.5]
    return ", ".join(map(_number, extremes if fill == "extremes" else specials))
