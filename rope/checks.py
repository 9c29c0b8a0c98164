"""What apply_rope accepts. Every function here raises before anything is written."""

import functools
import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from rope.errors import PositionError, RopeError, RopePrecisionWarning
from rope.overlap import Strides, reach, repeats, shares

LAYOUTS = ("neox", "gptj")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
POSITION_DTYPES = (torch.int32, torch.int64)
_SIXTEEN_BIT = (torch.float16, torch.bfloat16)
_INTS = (int, torch.SymInt)
# What torch.Tensor itself or a module holds, as against other subclasses.
PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))


# Of batch rows, tokens, heads and table rows; 32-bit numbers then hold a whole tile past the last one.
_MOST = 2**30
# Sizes, dtype, device, layout and strides of a tensor.
Description = tuple[torch.Size, torch.dtype, torch.device, torch.layout, tuple[int, ...]]


class Options(NamedTuple):
    """Keyword arguments of apply_rope, all but inplace."""

    layout: str
    rot_dim: int | None
    rot_offset: int
    head_axis: int
    inverse: bool
    validate: bool


@dataclass(frozen=True, eq=False)
class Geometry:
    """The sizes of one call, whatever the rank and the order of the axes.

    Compared by identity. Equal calls (sizes, strides, dtypes, devices and options of all tensors) share one
    object, and what follows from those alone is worked out once and lies in `kept`.
    """

    layout: str
    batch: int
    tokens: int  # per batch row
    q_heads: int
    k_heads: int  # 0 when there is no k
    head_dim: int
    rot_half: int
    rot_offset: int
    heads_first: bool
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    def bnhd_strides(self, strides: tuple[int, ...]) -> tuple[int, int, int, int]:
        """Strides of q, k or an output in the order (batch, token, head, dim)."""
        *batch, second, third, dim = strides
        token, head = (third, second) if self.heads_first else (second, third)
        return batch[0] if batch else 0, token, head, dim

    def bnhd(self, x: torch.Tensor) -> torch.Tensor:
        """A view of q, k or an output as (batch, token, head, dim)."""
        x = x if x.dim() == 4 else x.unsqueeze(0)
        return x.transpose(1, 2) if self.heads_first else x


def check_call(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    layout: str,
    rot_dim: int | None,
    rot_offset: int,
    head_axis: int,
) -> Geometry:
    """Check types, dtypes, devices and shapes; return the sizes of the call."""
    described = _describe(q, k, cos, sin, positions, axes)
    try:
        geometry = _check_description(*described, layout, rot_dim, rot_offset, head_axis)
    except TypeError:
        # Symbolic sizes, of a tracer, have no hash to be kept by.
        geometry = _check_description.__wrapped__(*described, layout, rot_dim, rot_offset, head_axis)
    if cos.dtype in _SIXTEEN_BIT:
        _warn_about_table_precision(cos, sin, q.dtype)
    return geometry


def _describe(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
) -> tuple[Any, ...]:
    if q is None or cos is None or sin is None:
        _check_tensors(q=q, cos=cos, sin=sin)
    try:
        return tuple(
            None if x is None else (x.shape, x.dtype, x.device, x.layout, x.stride())
            for x in (q, k, cos, sin, positions, axes)
        )
    except (AttributeError, TypeError, RuntimeError):
        # Not a tensor, or one without strides.
        _check_tensors(q=q, k=k, cos=cos, sin=sin, positions=positions, axes=axes)
        raise


def _check_tensors(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is None and name in ("k", "positions", "axes"):
            continue
        if not isinstance(value, torch.Tensor):
            raise RopeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
        if value.layout is not torch.strided or value.is_nested:
            kind = "a nested tensor" if value.is_nested else f"layout {value.layout}"
            raise RopeError(f"{name} must be a strided tensor, got {kind}: densify it")


# Kept, because a decoding loop makes the same call for every layer and every token.
@functools.lru_cache(maxsize=4096)
def _check_description(
    q: Description,
    k: Description | None,
    cos: Description,
    sin: Description,
    positions: Description | None,
    axes: Description | None,
    layout: str,
    rot_dim: int | None,
    rot_offset: int,
    head_axis: int,
) -> Geometry:
    others = (("k", k), ("cos", cos), ("sin", sin), ("positions", positions), ("axes", axes))
    for name, x in (("q", q), *others):
        if x is not None and x[3] is not torch.strided:
            raise RopeError(f"{name} must be a strided tensor, got layout {x[3]}: densify it")
    _check_dtypes(q[1], k and k[1], cos[1], sin[1], positions and positions[1], axes and axes[1])
    for name, x in others:
        if x is not None and x[2] != q[2]:
            raise RopeError(f"{name} is on {x[2]} but q is on {q[2]}: move {name} to {q[2]} first")
    shapes = q[0], k and k[0], cos[0], sin[0], positions and positions[0], axes and axes[0]
    return _check_shapes(*shapes, layout, rot_dim, rot_offset, head_axis)


def _check_dtypes(
    q: torch.dtype,
    k: torch.dtype | None,
    cos: torch.dtype,
    sin: torch.dtype,
    positions: torch.dtype | None,
    axes: torch.dtype | None,
) -> None:
    if q not in DTYPES:
        raise RopeError(f"q has dtype {q}, expected one of {_names(DTYPES)}")
    if k is not None and k != q:
        raise RopeError(f"k has dtype {k} but q has {q}: both must have the same dtype")
    if cos != sin:
        raise RopeError(f"cos has dtype {cos} but sin has {sin}: both must have the same dtype")
    if cos not in DTYPES:
        raise RopeError(f"cos and sin have dtype {cos}, expected torch.float32")
    if cos == torch.float64 and q != torch.float64:
        raise RopeError(
            f"cos and sin are float64 but q is {q}, which is rotated in float32: pass cos.float() and "
            "sin.float()"
        )
    if positions is not None and positions not in POSITION_DTYPES:
        raise RopeError(f"positions have dtype {positions}, expected torch.int32 or torch.int64")
    if axes is not None and axes not in POSITION_DTYPES:
        raise RopeError(f"axes has dtype {axes}, expected torch.int32 or torch.int64")


# Dtypes of table and activations that were warned about.
_warned: set[tuple[torch.dtype, torch.dtype]] = set()


def _warn_about_table_precision(cos: torch.Tensor, sin: torch.Tensor, activations: torch.dtype) -> None:
    """Say once how far rounding the table moves a rotated value (docs/tables.md derives it)."""
    if (cos.dtype, activations) in _warned:
        return
    _warned.add((cos.dtype, activations))
    units = torch.finfo(cos.dtype).eps / 2 / torch.finfo(activations).eps
    row = _first_repeated_row(cos, sin)
    repeated = (
        ""
        if row is None
        else f"Rows {row - 1} and {row} are the same, as when positions are rounded too: from position {row} "
        "on tokens turn by the angles of others. "
    )
    warnings.warn(
        f"cos and sin are {cos.dtype}: rounding them moves a rotated value by up to {units:g} units in the "
        f"last place of {activations} (taken at the sum of its two products), from position 1 on and no more "
        f"further out. {repeated}Pass float32 tables (this warning is given once)",
        RopePrecisionWarning,
        stacklevel=4,
    )


def _first_repeated_row(cos: torch.Tensor, sin: torch.Tensor) -> int | None:
    """The first row of a table on the CPU that equals the row before it; None without one.

    Neighbours differ in a table of true positions: its fastest pair turns by far more than 16 bits resolve.
    On a GPU nobody waits for the answer, and what is traced has none.
    """
    traced = torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active()
    if traced or type(cos) not in PLAIN_TYPES or not cos.is_cpu or cos.dim() != 2 or cos.numel() == 0:
        return None
    same = (cos[1:] == cos[:-1]).all(-1) & (sin[1:] == sin[:-1]).all(-1)
    return int(same.to(torch.uint8).argmax()) + 1 if bool(same.any()) else None


def _check_shapes(
    q: torch.Size,
    k: torch.Size | None,
    cos: torch.Size,
    sin: torch.Size,
    positions: torch.Size | None,
    axes: torch.Size | None,
    layout: str,
    rot_dim: int | None,
    rot_offset: int,
    head_axis: int,
) -> Geometry:
    if layout not in LAYOUTS:
        raise RopeError(f'layout is {layout!r}, expected "neox" (halves) or "gptj" (adjacent elements)')
    heads_first = _heads_first(q, head_axis)
    batch, tokens, q_heads, head_dim = _bnhd(q, heads_first)
    k_heads = 0
    if k is not None:
        k_heads = _check_k(q, k, heads_first)
    rot_half = _check_rotation(head_dim, cos, rot_dim, rot_offset)
    _check_tables(len(q), batch, tokens, cos, sin, positions)
    if axes is not None:
        _check_axes(rot_half, cos, positions, axes)
    if positions is not None:
        _check_positions(len(q), batch, tokens, positions, axes is not None)
    _check_counts(batch, tokens, q_heads + k_heads, cos[-2])
    return Geometry(layout, batch, tokens, q_heads, k_heads, head_dim, rot_half, rot_offset, heads_first)


def _check_counts(*counts: int) -> None:
    for what, count in zip(("batch rows", "tokens", "heads", "table rows"), counts, strict=True):
        if count > _MOST:
            raise RopeError(
                f"{count} {what}, expected at most {_MOST}, as the kernels count in 32 bits: split the call"
            )


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(map(str, dtypes))


def _heads_first(q: torch.Size, head_axis: int) -> bool:
    if len(q) not in (3, 4):
        raise RopeError(
            f"q has shape {tuple(q)}, expected 3 axes (tokens, heads, head_dim) or 4 axes "
            "(batch, tokens, heads, head_dim)"
        )
    axes = {-2: len(q) - 2, -3: len(q) - 3, len(q) - 2: len(q) - 2, len(q) - 3: len(q) - 3}
    if isinstance(head_axis, bool) or head_axis not in axes:
        raise RopeError(
            f"head_axis is {head_axis}, expected -2 (heads before head_dim) or {len(q) - 3} (heads "
            f"before tokens) for q with {len(q)} axes"
        )
    return axes[head_axis] == len(q) - 3


def _bnhd(x: torch.Size, heads_first: bool) -> tuple[int, int, int, int]:
    *batch, second, third, head_dim = x
    tokens, heads = (third, second) if heads_first else (second, third)
    return batch[0] if batch else 1, tokens, heads, head_dim


def _check_k(q: torch.Size, k: torch.Size, heads_first: bool) -> int:
    if len(k) != len(q):
        raise RopeError(f"k has shape {tuple(k)} but q has {tuple(q)}: both must have {len(q)} axes")
    batch, tokens, _, head_dim = _bnhd(q, heads_first)
    k_batch, k_tokens, k_heads, k_head_dim = _bnhd(k, heads_first)
    if (k_batch, k_tokens, k_head_dim) != (batch, tokens, head_dim):
        raise RopeError(
            f"k has shape {tuple(k)} but q has {tuple(q)}: they may differ only in the number of "
            f"heads, axis {len(q) - 3 if heads_first else len(q) - 2}"
        )
    return k_heads


def _check_rotation(head_dim: int, cos: torch.Size, rot_dim: int | None, rot_offset: int) -> int:
    if len(cos) not in (2, 3):
        raise RopeError(
            f"cos has shape {tuple(cos)}, expected (max_position, rot_dim // 2) or, gathered per "
            "token, (batch, tokens, rot_dim // 2)"
        )
    width = cos[-1]
    if rot_dim is None:
        rot_dim = 2 * width
        given = f"cos has {width} columns, so rot_dim is {rot_dim}"
    else:
        given = f"rot_dim is {rot_dim}"
        if isinstance(rot_dim, bool) or not isinstance(rot_dim, _INTS) or rot_dim % 2 or rot_dim < 0:
            raise RopeError(f"rot_dim is {rot_dim!r}, expected an even number of dims, or None")
    if width > 0 and rot_dim <= head_dim and width == rot_dim:
        raise RopeError(
            f"{given} and cos has {width} columns, expected {rot_dim // 2}: a full-width table holds "
            f"every angle twice, pass one copy, cos[..., :{rot_dim // 2}] if its halves repeat"
        )
    if 2 * width != rot_dim:
        raise RopeError(f"{given} but cos has {width} columns, expected rot_dim // 2 = {rot_dim // 2}")
    if rot_dim > head_dim:
        hint = (
            f"; a full-width table holds every angle twice, pass one copy, cos[..., :{width // 2}] if "
            "its halves repeat"
            if width <= head_dim
            else ""
        )
        raise RopeError(f"{given} but head_dim is {head_dim}: rot_dim must fit{hint}")
    if isinstance(rot_offset, bool) or not isinstance(rot_offset, _INTS):
        raise RopeError(f"rot_offset is {rot_offset!r}, expected an int")
    if not 0 <= rot_offset <= head_dim - rot_dim:
        raise RopeError(
            f"rot_offset is {rot_offset}, expected 0 to head_dim - rot_dim = {head_dim - rot_dim}"
        )
    return rot_dim // 2


def _check_tables(
    rank: int,
    batch: int,
    tokens: int,
    cos: torch.Size,
    sin: torch.Size,
    positions: torch.Size | None,
) -> None:
    if cos != sin:
        raise RopeError(f"cos has shape {tuple(cos)} but sin has {tuple(sin)}: both must be the same")
    if len(cos) == 2:
        if positions is None and tokens > cos[0]:
            raise PositionError(
                f"{tokens} tokens without positions reach position {tokens - 1}, but the table has "
                f"{cos[0]} rows: build a longer table, or pass positions"
            )
        return
    if rank == 3:
        raise RopeError(
            f"cos has shape {tuple(cos)} but q has 3 axes: for tokens on one axis a gathered table is "
            "(tokens, rot_dim // 2), pass cos[0] and sin[0]"
        )
    if positions is not None:
        raise RopeError(
            f"cos has shape {tuple(cos)}, already gathered per token, and positions were given too: "
            "pass positions=None, or a table of shape (max_position, rot_dim // 2)"
        )
    if tuple(cos[:2]) != (batch, tokens):
        raise RopeError(
            f"cos has shape {tuple(cos)}, gathered per token, expected ({batch}, {tokens}, "
            "rot_dim // 2) as in q: cos.expand shares one row over the batch without a copy"
        )


def _check_axes(rot_half: int, cos: torch.Size, positions: torch.Size | None, axes: torch.Size) -> None:
    if len(cos) == 3:
        raise RopeError(
            f"cos has shape {tuple(cos)}, already gathered per token, and axes was given too: pass "
            "axes=None, or a table of shape (max_position, rot_dim // 2) and positions"
        )
    if positions is None:
        raise RopeError(
            "axes was given without positions, expected positions of shape (axes, ...), one row per axis"
        )
    if tuple(axes) != (rot_half,):
        raise RopeError(
            f"axes has shape {tuple(axes)}, expected rot_dim // 2 = ({rot_half},): the position axis of each "
            "pair, as rope.axes.mrope_axes gives"
        )


def _check_positions(rank: int, batch: int, tokens: int, positions: torch.Size, several_axes: bool) -> None:
    expected = [(tokens,)] if rank == 3 else [(tokens,), (batch, tokens)]
    if several_axes:
        if len(positions) < 2 or positions[0] < 1 or tuple(positions[1:]) not in expected:
            shapes = " or ".join(f"(axes, {', '.join(map(str, sizes))})" for sizes in expected)
            raise RopeError(
                f"positions have shape {tuple(positions)}, expected {shapes}, one position per axis and "
                "token of q, because axes was given"
            )
    elif tuple(positions) not in expected:
        hint = ""
        if tuple(positions[1:]) in expected:
            hint = "; for positions of several axes say which one each pair reads: axes=mrope_axes(...)"
        raise RopeError(
            f"positions have shape {tuple(positions)}, expected "
            f"{' or '.join(map(str, expected))}, one position per token of q{hint}"
        )


def check_in_place(q: torch.Tensor, k: torch.Tensor | None, geometry: Geometry) -> None:
    """Refuse an in-place target with two names for one element: the result would depend on the order."""
    if k is None:
        _check_no_repeats("q", q.shape, q.stride())
        return
    before, after = room(q, k, geometry)
    distance = k.data_ptr() - q.data_ptr()
    close = -before < distance < after
    if close and shares(q.shape, q.stride(), k.shape, k.stride(), distance, q.element_size()):
        raise RopeError(
            "inplace=True but q and k share memory, so elements would rotate twice: pass a copy of one "
            "of them, or inplace=False"
        )


def room(q: torch.Tensor, k: torch.Tensor, geometry: Geometry) -> tuple[int, int]:
    """Bytes that k must start before or after q for the two to be apart; RopeError when one has repeats."""
    if "room" not in geometry.kept:
        _check_no_repeats("q", q.shape, q.stride())
        _check_no_repeats("k", k.shape, k.stride())
        size = q.element_size()
        reaches = (reach(x.shape, x.stride()) for x in (k, q))
        geometry.kept["room"] = tuple((r + 1) * size for r in reaches)
    return geometry.kept["room"]


def _check_no_repeats(name: str, shape: torch.Size, strides: Strides) -> None:
    if repeats(shape, strides):
        raise RopeError(
            f"inplace=True but {name}, with shape {tuple(shape)} and strides {strides}, "
            f"overlaps itself: pass {name}.contiguous(), or inplace=False"
        )


def check_position_range(positions: torch.Tensor, axes: torch.Tensor | None, max_position: int) -> None:
    """Raise PositionError for the first position outside 0 .. max_position - 1, RopeError for the first
    pair on an axis that positions lack (synchronises on CUDA)."""
    if axes is not None:
        _check_axis_range(axes, positions.shape[0])
    bad = ((positions < 0) | (positions >= max_position)).nonzero()
    if len(bad) == 0:
        return
    first = tuple(bad[0].tolist())
    token = first if axes is None else first[1:]
    where = f"token {token[0]}" if len(token) == 1 else f"token {token[1]} of batch row {token[0]}"
    where += "" if axes is None else f" on axis {first[0]}"
    raise PositionError(
        f"{where} has position {int(positions[first])}, but the table has {max_position} rows "
        f"(positions 0 to {max_position - 1}); {len(bad)} of {positions.numel()} positions are outside: "
        "build a longer table or mend the positions"
    )


def _check_axis_range(axes: torch.Tensor, count: int) -> None:
    bad = ((axes < 0) | (axes >= count)).nonzero()
    if len(bad):
        pair = int(bad[0])
        raise RopeError(
            f"axes says that pair {pair} reads position axis {int(axes[pair])}, but positions have {count} "
            f"(axes 0 to {count - 1}): pass positions of every axis, or mend axes"
        )
