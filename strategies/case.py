"""RopeCase: everything that determines one run, without tensors."""

import dataclasses
import json
import random
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

AXES = "bnhd"  # batch, token, head, dim: the canonical order of axes everywhere in the harness
DTYPES = ("float32", "bfloat16", "float16", "float64")
LAYOUTS = ("neox", "gptj")
POSITION_KINDS = ("given", "implied", "shared", "expanded")
# Which axis of the positions each pair reads; several axes but for "none".
AXES_KINDS = ("none", "chunked", "interleaved", "mixed")
TABLE_KINDS = ("indexed", "gathered")
TABLE_FILLS = ("angles", "ramp", "normal")
FILLS = ("zeros", "ones", "ramp", "one_hot", "normal", "extremes", "specials")
TENSORS = ("q", "k", "cos", "sin", "positions", "axes")


class _ShortRepr:
    """A repr that prints only what differs from the simplest value, and evaluates to an equal object."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in non_default(self).items())})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # Hypothesis would spell out every field of a dataclass.
        printer.text(repr(self))


def non_default(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, in order."""
    values = {f.name: (getattr(instance, f.name), f) for f in dataclasses.fields(instance)}
    return {name: value for name, (value, f) in values.items() if value != default_of(f)}


def default_of(f: "dataclasses.Field[Any]") -> Any:
    """The default of a dataclass field."""
    return f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default


@dataclass(frozen=True, repr=False)
class Strides(_ShortRepr):
    """How one tensor lies in memory. Pads and the offset are in elements of the tensor, all red zone.

    Attributes:
        order: memory order of the axes, outermost first; dim stays last.
        token_pad: tokens allocated past the last, as in a preallocated cache.
        head_pad: heads allocated past the last.
        dim_pad: dims allocated past the last: padded rows, or a slice of a wider last dim.
        dim_step: stride of the last dim.
        offset: elements between an aligned address and the first element.
        expand: axes (of "bnh") with stride 0.
    """

    order: str = AXES
    token_pad: int = 0
    head_pad: int = 0
    dim_pad: int = 0
    dim_step: int = 1
    offset: int = 0
    expand: str = ""

    def __post_init__(self) -> None:
        _require(sorted(self.order) == sorted(AXES) and self.order[-1] == "d", "order", self.order)
        for name in ("token_pad", "head_pad", "dim_pad", "offset"):
            _require(getattr(self, name) >= 0, name, getattr(self, name))
        _require(self.dim_step >= 1, "dim_step", self.dim_step)
        _require(set(self.expand) <= set("bnh"), "expand", self.expand)


@dataclass(frozen=True, repr=False)
class RopeCase(_ShortRepr):
    """One run of one implementation; every field at its default is the simplest case.

    Attributes:
        layout: "neox" or "gptj".
        dtype: of q and k.
        rank: 3 packs the requests on one token axis; 4 makes each request a batch row.
        requests: (start position, length) of each; equal lengths when rank is 4.
        q_heads: heads of q.
        k_heads: heads of k, or None for no k.
        rot_half: number of pairs.
        tail: dims that do not rotate.
        rot_offset: how many of the tail's dims come before the rotated ones.
        heads_first: the head axis comes before the token axis.
        packed: q, k and v are views of one buffer, which q_strides describes.
        q_strides, k_strides: memory of q and k.
        inplace, inverse: as in apply_rope.
        positions: "given" per token; "implied" passes None; "shared" passes (tokens,) for rank 4;
            "expanded" passes (batch, tokens) with batch stride 0.
        positions_dtype: "int64" or "int32", of the axes tensor too.
        positions_step: stride of the positions' last axis, and of the axes tensor.
        axes: "none", positions have one axis; "chunked", three axes in sections of Qwen2-VL's proportions;
            "interleaved", three as in Qwen3-VL; "mixed", one to four in an order that the seed decides.
            On axis a a token at position p has position p // (a + 1).
        table: "indexed" by position, or "gathered" per token beforehand.
        table_dtype: "float32" or, of q, "input".
        table_fill: "angles" (base 10000), "ramp" (every entry different), "normal".
        table_slack: rows past the last position used; 0 makes the last row used the table's last row.
        table_pad: elements between the rows of cos; twice as many are between those of sin.
        table_step: stride of the last axis of cos; sin's is one larger, unless both are 1.
        attention_factor: factor on cos and sin.
        fill, seed: values of q, k and v; properties that pick a token or a head pick by the seed.
        pokes: (tensor, flat index modulo its size, value as float() or int() reads it) set after the fill.
        tile: (tokens, heads) of a program, for implementations whose domain lists tiles.
        steps: of a server that rotates the requests piece by piece: the chunks of each step, packed on one
            token axis in this order, as (index into requests, first position, length).
    """

    layout: str = "neox"
    dtype: str = "float32"
    rank: int = 3
    requests: tuple[tuple[int, int], ...] = ((0, 1),)
    q_heads: int = 1
    k_heads: int | None = 1
    rot_half: int = 1
    tail: int = 0
    rot_offset: int = 0
    heads_first: bool = False
    packed: bool = False
    q_strides: Strides = field(default_factory=Strides)
    k_strides: Strides = field(default_factory=Strides)
    inplace: bool = False
    inverse: bool = False
    positions: str = "given"
    positions_dtype: str = "int64"
    positions_step: int = 1
    axes: str = "none"
    table: str = "indexed"
    table_dtype: str = "float32"
    table_fill: str = "angles"
    table_slack: int = 0
    table_pad: int = 0
    table_step: int = 1
    attention_factor: float = 1.0
    fill: str = "zeros"
    seed: int = 0
    pokes: tuple[tuple[str, int, str], ...] = ()
    tile: tuple[int, int] | None = None
    steps: tuple[tuple[tuple[int, int, int], ...], ...] = ()

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            _require(getattr(self, name) in known, name, getattr(self, name), f"one of {known}")
        for name in ("q_heads", "rot_half", "tail", "rot_offset", "table_slack", "table_pad"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _require(self.k_heads is None or self.k_heads >= 0, "k_heads", self.k_heads, "0 or more, or None")
        for name in ("positions_step", "table_step"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        _require(self.rot_offset <= self.tail, "rot_offset", self.rot_offset, f"at most tail = {self.tail}")
        _require(all(s >= 0 and n >= 0 for s, n in self.requests), "requests", self.requests, "0 or more")
        lengths = {length for _, length in self.requests}
        if self.rank == 4:
            _require(len(lengths) == 1, "requests", self.requests, "equal lengths when rank is 4")
        if self.positions == "implied" and self.table == "indexed":
            one_row = self.rank == 4 or len(self.requests) <= 1
            _require(one_row and not any(s for s, _ in self.requests), "positions", "implied", "start 0")
        if self.positions in ("shared", "expanded"):
            same = len({s for s, _ in self.requests}) == 1
            _require(self.rank == 4 and same, "positions", self.positions, "rank 4 and one start")
        if self.axes != "none":
            _require(self.positions != "implied", "axes", self.axes, "none when positions are implied")
        if self.table == "gathered":
            _require(self.positions == "implied", "positions", self.positions, "implied when gathered")
        if self.packed:
            _require(self.k_strides == Strides(), "k_strides", self.k_strides, "the default when packed")
            _require(self.k_heads is not None, "k_heads", None, "a number when packed")
            _require(not self.q_strides.expand, "q_strides", self.q_strides, "no expand when packed")
        if self.inplace:
            expand = self.q_strides.expand + self.k_strides.expand
            _require(not expand, "expand", expand, "nothing in place")
        if self.steps:
            plain = (self.rank, self.positions, self.table) == (3, "given", "indexed")
            _require(plain, "steps", self.steps, "none unless rank is 3, positions given, table indexed")
        for chunk in (chunk for step in self.steps for chunk in step):
            _require(self._holds(*chunk), "steps", chunk, f"a chunk of one of the requests {self.requests}")
        for poke in self.pokes:
            _require(_is_poke(*poke), "pokes", poke, f"one of {TENSORS}, an index from 0, a number")

    def _holds(self, request: int, first: int, length: int) -> bool:
        """Whether a chunk lies in its request."""
        if not 0 <= request < len(self.requests):
            return False
        start, total = self.requests[request]
        return start <= first and length >= 1 and first + length <= start + total

    @property
    def head_dim(self) -> int:
        return 2 * self.rot_half + self.tail

    @property
    def batch(self) -> int:
        return len(self.requests) if self.rank == 4 else 1

    @property
    def tokens(self) -> int:
        """Tokens per batch row."""
        if self.rank == 4:
            return self.requests[0][1]
        return sum(length for _, length in self.requests)

    @property
    def max_position(self) -> int:
        """Rows of the table."""
        ends = [start + length for start, length in self.requests if length]
        return max(ends, default=0) + self.table_slack

    @property
    def head_axis(self) -> int:
        return self.rank - 3 if self.heads_first else -2

    def positions_bn(self) -> list[list[int]]:
        """True position of each token, by batch row, before any poke."""
        if self.rank == 4:
            return [list(range(start, start + length)) for start, length in self.requests]
        return [[p for start, length in self.requests for p in range(start, start + length)]]

    def axes_of_pairs(self) -> list[int] | None:
        """The axis that each pair reads, before any poke; None where positions have one axis."""
        half = self.rot_half
        if self.axes == "none":
            return None
        if self.axes == "chunked":
            return [(i >= half // 4) + (i >= 5 * half // 8) for i in range(half)]
        if self.axes == "interleaved":
            return [i % 3 if i < 3 * -(-5 * half // 16) else 0 for i in range(half)]
        axes = random.Random(self.seed)
        return [axes.randrange(self.position_axes) for _ in range(half)]

    @property
    def position_axes(self) -> int:
        """How many axes the positions have, where they have axes."""
        return 1 + self.seed % 4 if self.axes == "mixed" else 3

    def to_json(self) -> str:
        """The case as a JSON object of the fields that differ from the simplest case."""
        fields = {
            name: non_default(value) if isinstance(value, Strides) else value
            for name, value in non_default(self).items()
        }
        lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> "RopeCase":
        """Parse what to_json wrote; ValueError names what is wrong. Nothing is evaluated."""
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"not a case: no valid JSON ({error})") from None
        return _parse(cls, data, "case")


_CHOICES: dict[str, tuple[Any, ...]] = {
    "layout": LAYOUTS,
    "dtype": DTYPES,
    "rank": (3, 4),
    "positions": POSITION_KINDS,
    "positions_dtype": ("int64", "int32"),
    "axes": AXES_KINDS,
    "table": TABLE_KINDS,
    "table_dtype": ("float32", "input"),
    "table_fill": TABLE_FILLS,
    "fill": FILLS,
}


def _is_poke(tensor: str, index: int, value: str) -> bool:
    try:
        int(value) if tensor in ("positions", "axes") else float(value)
    except ValueError:
        return False
    return tensor in TENSORS and index >= 0


def _require(holds: bool, name: str, value: object, expected: str = "something valid") -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}, expected {expected}")


def _parse(cls: Any, data: Any, where: str) -> Any:
    """A dataclass from plain JSON data, checked field by field."""
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {type(data).__name__}, expected an object")
    hints = get_type_hints(cls)
    values = {}
    for name, value in data.items():
        if name not in hints:
            raise ValueError(f"{where} has no field {name!r}, expected one of {', '.join(hints)}")
        values[name] = _parse_value(hints[name], value, f"{where}.{name}")
    return cls(**values)


def _parse_value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _parse(hint, value, where)
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} is {value!r}, expected a list")
        if arguments[-1] is Ellipsis:
            return tuple(_parse_value(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
        if len(value) != len(arguments):
            raise ValueError(f"{where} has {len(value)} values, expected {len(arguments)}")
        return tuple(
            _parse_value(h, v, f"{where}[{i}]") for i, (h, v) in enumerate(zip(arguments, value, strict=True))
        )
    if type(None) in arguments:
        if value is None:
            return None
        return _parse_value(next(a for a in arguments if a is not type(None)), value, where)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"{where} is {value!r}, expected {hint.__name__}")
    return value
