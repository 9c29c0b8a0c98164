"""Hypothesis strategies for cases: valid by construction, simplest first, inside a domain."""

import functools
from typing import Any, TypeVar

from hypothesis import strategies as st

from strategies.case import FILLS, TABLE_FILLS, RopeCase, Strides
from strategies.domain import Domain

T = TypeVar("T")

# Strategies are built once: building one costs more than drawing from it.
_integers = functools.cache(st.integers)
_sampled_from = functools.cache(st.sampled_from)
_flags = st.booleans()

# One draw each, in the order in which shrinking goes back: small, then both sides of the powers of two at
# which kernels change their tiles, then the sizes of published models, whose fast paths no other reaches.
_SMALL = tuple(range(1, 10))
_ROT_HALVES = (*_SMALL, 12, 15, 16, 17, 20, 24, 31, 33, 63, 65, 32, 64, 128, 64, 64, 40, 48, 96)
# Whatever makes the head a multiple of 16, as heads are: rows are aligned then, though the tail is not.
_ROUND = -1
_LARGE_TAILS = (16, 31, 32, 33, 64, 96, _ROUND, _ROUND, _ROUND)
_TAILS = st.sampled_from((*_SMALL, *_LARGE_TAILS))
_TAILS_OR_NONE = st.sampled_from((*[0] * 6, *_SMALL, *_LARGE_TAILS))
_HEADS = st.sampled_from((1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 32, 33))
STARTS = st.sampled_from((0, 1, 2, 3, 5, 8, 13, 21, 40, 127, 128, 1023, 2047, 4095))
_LENGTH_KINDS = st.sampled_from(("one", "any", "same"))
_PADS = st.sampled_from((*_SMALL, 16, 32))
_SEEDS = st.integers(0, 1 << 12)
_MOST_HEADS = 40
_GROUPS = (1, 2, 3, 4, 7, 8)
_STRIDE_VALUES = {
    "dim_step": st.integers(2, 3),
    "order": st.sampled_from(["bhnd", "nbhd", "hbnd", "nhbd", "hnbd"]),
    "expand": st.sampled_from(["n", "h", "b", "nh", "bnh"]),
}
_NUMBERS = ("1.0", "-1.0", "0.5", "3.0", "-2.5")
_SPECIAL_NUMBERS = ("inf", "-inf", "nan", "-0.0", "1e-40", "65504.0", "3e38")
# A case holds about this many elements of q at most, so that the interpreter and the oracle stay quick.
_MAX_ELEMENTS = 1 << 14


@st.composite
def rope_cases(
    draw: st.DrawFn, domain: Domain, *, layout: str | None = None, dtype: str | None = None, **fixed: Any
) -> RopeCase:
    """Cases inside the domain.

    Args:
        domain: what the implementation supports.
        layout, dtype: fix one of the domain's; None draws it.
        fixed: fields of RopeCase to overwrite, for properties about them; the caller answers for the
            result being valid.
    """
    values: dict[str, Any] = {
        "layout": layout or _pick(draw, domain.layouts),
        "dtype": dtype or _pick(draw, domain.dtypes),
        "rank": _pick(draw, domain.ranks),
        "heads_first": _pick(draw, domain.heads_first),
        "inplace": _pick(draw, domain.inplace),
        "inverse": _pick(draw, domain.inverse),
        "tile": _pick(draw, domain.tiles),
    }
    values |= _position_fields(draw, domain, values["rank"])
    values |= _rotation_fields(draw, domain)
    values |= _head_fields(draw, domain, values["tile"])
    values["requests"] = _requests(draw, domain, values)
    values |= _stride_fields(draw, domain, values)
    values |= _table_fields(draw, domain, values["table"])
    values |= _value_fields(draw)
    return RopeCase(**(values | fixed))


def _pick(draw: st.DrawFn, options: tuple[T, ...]) -> T:
    return options[0] if len(options) == 1 else draw(_sampled_from(options))


def _position_fields(draw: st.DrawFn, domain: Domain, rank: int) -> dict[str, Any]:
    if domain.tables == ("gathered",):
        return {"positions": "implied", "table": "gathered"}
    kinds = tuple(k for k in domain.positions if rank == 4 or k in ("given", "implied"))
    if "none" not in domain.axes:
        kinds = tuple(k for k in kinds if k != "implied")
    # Rows with positions of their own are what batches of requests have.
    positions = _pick(draw, kinds[:1] + kinds)
    if positions == "implied":
        return {"positions": positions, "table": _pick(draw, domain.tables)}
    return {
        "positions": positions,
        "table": "indexed",
        "positions_dtype": _pick(draw, domain.position_dtypes),
        "positions_step": _pick(draw, (1, 2, 3) if domain.position_steps else (1,)),
        # Most positions have one axis.
        "axes": _pick(draw, ("none",) * (2 * ("none" in domain.axes)) + domain.axes),
    }


def _rotation_fields(draw: st.DrawFn, domain: Domain) -> dict[str, int]:
    if domain.head_dims is None:
        rot_half = draw(_rot_halves(domain.rot_multiple))
        kinds = tuple(kind for kind in domain.tails if kind != "none")
        tail = 0
        if kinds:
            tail = draw(_TAILS if kinds == domain.tails else _TAILS_OR_NONE)
            # Most models rotate their first dims.
            kind = _pick(draw, kinds[:1] + kinds)
        if tail == _ROUND:
            tail = 16 - 2 * rot_half % 16
        if tail == 0:
            kind = "none"
    else:
        head_dim = _pick(draw, domain.head_dims)
        kind = _pick(draw, domain.tails)
        multiple = domain.rot_multiple
        most = max(1, (head_dim // 2 - 1) // multiple)
        rot_half = (
            head_dim // 2 if kind == "none" else min(head_dim // 2, draw(_integers(1, most)) * multiple)
        )
        tail = head_dim - 2 * rot_half
    if kind == "both":
        tail = max(tail, 2)
    # Drawn for every kind, so that what follows is the same when another kind takes its place.
    inner = draw(_integers(1, max(1, tail - 1))) if "both" in domain.tails else 0
    rot_offset = {"before": tail, "both": inner}.get(kind, 0)
    return {"rot_half": rot_half, "tail": tail, "rot_offset": rot_offset}


@functools.cache
def _rot_halves(multiple: int) -> st.SearchStrategy[int]:
    """Numbers of pairs: those of any kernel that are such multiples, or the first few multiples."""
    halves = tuple(half for half in _ROT_HALVES if half % multiple == 0)
    return st.sampled_from(halves or tuple(multiple * n for n in range(1, 5)))


def _head_fields(draw: st.DrawFn, domain: Domain, tile: tuple[int, int] | None) -> dict[str, int | None]:
    # Up to three blocks of a forced tile, so that ids of programs matter but few programs run.
    most = _MOST_HEADS if tile is None else 3 * tile[1]
    heads = draw(_HEADS if most >= 33 else _integers(1, most))
    if _pick(draw, domain.without_k):
        return {"q_heads": heads, "k_heads": None}
    groups = tuple(g for g in _GROUPS if g * heads <= most) if domain.grouped_heads else (1,)
    return {"q_heads": _pick(draw, groups) * heads, "k_heads": heads}


def _requests(draw: st.DrawFn, domain: Domain, values: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """(start, length) of each: prefill, chunks, decode of one token, none at all, repeated positions."""
    counted = values["positions"] == "implied" and values["table"] == "indexed"
    from_zero = counted or not domain.starts
    shortest = 0 if domain.empty else 1
    row = (2 * values["rot_half"] + values["tail"]) * values["q_heads"]
    max_tokens = max(1, _MAX_ELEMENTS // row)
    if values["tile"] is not None:
        max_tokens = min(max_tokens, 4 * values["tile"][0])

    def start() -> int:
        return 0 if from_zero else draw(STARTS)

    # Lengths come before starts: one token at position 1 is simpler than two from position 0.
    if values["rank"] == 4:
        # Rows come before lengths, which would leave no room for a second one.
        rows = draw(_integers(1, min(4, max_tokens)))
        length = draw(_lengths(shortest, min(12, max_tokens // rows)))
        if values["positions"] in ("shared", "expanded"):
            return ((start(), length),) * rows
        return tuple((start(), length) for _ in range(rows))
    length = draw(_lengths(shortest, min(24, max_tokens)))
    requests = [(start(), length)]
    for _ in range(0 if counted else draw(_integers(0, 4))):
        left = max_tokens - sum(length for _, length in requests)
        another = _length_of_another(draw, length, left)
        requests.append((start(), another))
    return tuple(requests)


def _length_of_another(draw: st.DrawFn, first: int, left: int) -> int:
    """The length of a further request: any, one token as in decoding, or that of the first."""
    kind = draw(_LENGTH_KINDS)
    if kind == "any":
        return draw(_lengths(0, min(8, left)))
    return min(1 if kind == "one" else first, left)


@functools.cache
def _lengths(shortest: int, longest: int) -> st.SearchStrategy[int]:
    """Lengths of a request; shrinks towards one token rather than none."""
    lengths = st.integers(shortest, longest)
    return lengths.map(lambda n: 1 - n if n < 2 else n) if shortest == 0 < longest else lengths


def _stride_fields(draw: st.DrawFn, domain: Domain, values: dict[str, Any]) -> dict[str, Any]:
    packable = values["k_heads"] is not None and "packed" in domain.q_strides and "packed" in domain.k_strides
    packed = packable and draw(_integers(0, 4)) == 4
    expandable = not values["inplace"] and not packed
    fields = {"packed": packed, "q_strides": _strides(draw, domain.q_strides, expandable)}
    if values["k_heads"] is not None and not packed:
        fields["k_strides"] = _strides(draw, domain.k_strides, expandable)
    return fields


def _strides(draw: st.DrawFn, kinds: tuple[str, ...], expandable: bool) -> Strides:
    """One or two kinds of memory at once; dense first."""
    usable = tuple(k for k in kinds if k not in ("dense", "packed") and (expandable or k != "expand"))
    if not usable or not draw(_flags):
        return Strides()
    picked = {_pick(draw, usable)}
    if draw(_flags):
        picked.add(_pick(draw, usable))
    values: dict[str, Any] = {kind: draw(_STRIDE_VALUES.get(kind, _PADS)) for kind in sorted(picked)}
    return Strides(**values)


def _table_fields(draw: st.DrawFn, domain: Domain, table: str) -> dict[str, Any]:
    values: dict[str, Any] = {"table_dtype": _pick(draw, domain.table_dtypes)}
    if domain.free_tables:
        values["table_fill"] = _pick(draw, TABLE_FILLS)
        values["attention_factor"] = _pick(draw, (1.0, 1.25))
    if domain.table_strides and draw(_flags):
        values["table_pad"] = draw(_PADS)
    if domain.table_steps:
        values["table_step"] = _pick(draw, (1, 1, 1, 2, 3))
    if table == "indexed":
        values["table_slack"] = draw(_integers(0, 3))
    return values


def _value_fields(draw: st.DrawFn) -> dict[str, Any]:
    fill = _pick(draw, FILLS)
    # Properties that choose a token or a head choose by the seed, so every fill has one.
    values: dict[str, Any] = {"fill": fill, "seed": draw(_SEEDS)}
    numbers = _NUMBERS + _SPECIAL_NUMBERS if fill == "specials" else _NUMBERS
    values["pokes"] = tuple(
        (_pick(draw, ("q", "k")), draw(_integers(0, 255)), _pick(draw, numbers))
        for _ in range(draw(_integers(0, 2)))
    )
    return values
