"""Hypothesis strategies for cases: valid by construction, simplest first, inside a domain."""

from typing import Any

from hypothesis import strategies as st

from strategies.case import FILLS, TABLE_FILLS, RopeCase, Strides
from strategies.domain import Domain

# Both sides of the powers of two at which kernels change their tiles, and odd sizes between.
_ROT_HALVES = st.one_of(
    st.integers(1, 9), st.sampled_from([12, 15, 16, 17, 20, 24, 31, 32, 33, 40, 48, 63, 64, 65, 96, 128])
)
_TAILS = st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 32, 33, 64, 96]))
_HEADS = st.one_of(st.integers(1, 5), st.sampled_from([7, 8, 9, 16, 17, 32, 33]))
_GROUPS = st.sampled_from([1, 2, 3, 4, 7, 8])
_STARTS = st.one_of(st.just(0), st.integers(1, 40), st.sampled_from([127, 128, 1023, 2047, 4095]))
_PADS = st.one_of(st.integers(1, 9), st.sampled_from([16, 32]))
_ORDERS = ["bhnd", "nbhd", "hbnd", "nhbd", "hnbd"]
_POKES = {
    "small": ["1.0", "-1.0", "0.5", "3.0", "-2.5"],
    "special": ["inf", "-inf", "nan", "-0.0", "1e-40", "65504.0", "3e38"],
}
# A case holds at most this many elements of q, so that the interpreter and the oracle stay quick.
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
    rank = draw(st.sampled_from(domain.ranks))
    positions = draw(_position_kinds(domain, rank))
    table = "indexed"
    if positions == "implied" and "gathered" in domain.tables:
        table = draw(st.sampled_from(domain.tables))
    elif domain.tables == ("gathered",):
        table, positions = "gathered", "implied"
    rot_half, tail, rot_offset = draw(_rotations(domain))
    q_heads, k_heads = draw(_head_counts(domain))
    row = max(1, 2 * rot_half + tail) * max(1, q_heads)
    requests = draw(_requests(domain, rank, positions, table, max(1, _MAX_ELEMENTS // row)))
    inplace = draw(st.sampled_from(domain.inplace))
    packed = draw(_packed(domain, k_heads))
    values: dict[str, Any] = {
        "layout": layout or draw(st.sampled_from(domain.layouts)),
        "dtype": dtype or draw(st.sampled_from(domain.dtypes)),
        "rank": rank,
        "requests": requests,
        "q_heads": q_heads,
        "k_heads": k_heads,
        "rot_half": rot_half,
        "tail": tail,
        "rot_offset": rot_offset,
        "heads_first": draw(st.sampled_from(domain.heads_first)),
        "packed": packed,
        "q_strides": draw(_strides(domain.q_strides, expandable=not inplace and not packed)),
        "k_strides": Strides()
        if packed or k_heads is None
        else draw(_strides(domain.k_strides, expandable=not inplace)),
        "inplace": inplace,
        "inverse": draw(st.sampled_from(domain.inverse)),
        "positions": positions,
        "table": table,
        "tile": draw(st.sampled_from(domain.tiles)),
    }
    if positions != "implied":
        values["positions_dtype"] = draw(st.sampled_from(domain.position_dtypes))
        values["positions_step"] = draw(st.sampled_from([1, 2, 3] if domain.position_steps else [1]))
    values |= draw(_table_fields(domain, table)) | draw(_value_fields())
    return RopeCase(**(values | fixed))


def _position_kinds(domain: Domain, rank: int) -> st.SearchStrategy[str]:
    batched = rank == 4
    kinds = [kind for kind in domain.positions if batched or kind in ("given", "implied")]
    return st.sampled_from(kinds or ["implied"])


@st.composite
def _rotations(draw: st.DrawFn, domain: Domain) -> tuple[int, int, int]:
    """(rot_half, tail, rot_offset)."""
    kind = draw(st.sampled_from(domain.tails))
    if domain.head_dims is not None:
        head_dim = draw(st.sampled_from(domain.head_dims))
        if kind == "none":
            return head_dim // 2, 0, 0
        rot_half = draw(st.integers(1, max(1, head_dim // 2 - 1)))
        tail = head_dim - 2 * rot_half
    else:
        rot_half = draw(_ROT_HALVES)
        tail = 0 if kind == "none" else draw(_TAILS)
    if kind == "both" and tail > 1:
        return rot_half, tail, draw(st.integers(1, tail - 1))
    return rot_half, tail, tail if kind == "before" else 0


@st.composite
def _head_counts(draw: st.DrawFn, domain: Domain) -> tuple[int, int | None]:
    if draw(st.sampled_from(domain.without_k)):
        return draw(_HEADS), None
    if not domain.grouped_heads:
        heads = draw(_HEADS)
        return heads, heads
    group = draw(_GROUPS)
    k_heads = draw(_HEADS if group == 1 else st.integers(1, 5))
    return group * k_heads, k_heads


@st.composite
def _requests(
    draw: st.DrawFn, domain: Domain, rank: int, positions: str, table: str, max_tokens: int
) -> tuple[tuple[int, int], ...]:
    """Requests as (start, length): prefill, chunks, decode of one token, none at all, repeated positions."""
    starts = _STARTS if domain.starts else st.just(0)
    if positions == "implied" and table == "indexed":
        starts = st.just(0)
    shortest = 0 if domain.empty else 1
    if rank == 3:
        many = not (positions == "implied" and table == "indexed")
        longest = min(8, max_tokens)
        first = draw(st.tuples(starts, _lengths(shortest, min(24, max_tokens))))
        more = st.lists(st.tuples(starts, _lengths(0, longest)), max_size=4 if many else 0)
        return (first, *draw(more))
    batch = draw(st.integers(1, min(4, max_tokens)))
    length = draw(_lengths(shortest, min(12, max(1, max_tokens // batch))))
    if positions in ("shared", "expanded"):
        return ((draw(starts), length),) * batch
    return tuple((draw(starts), length) for _ in range(batch))


def _lengths(shortest: int, longest: int) -> st.SearchStrategy[int]:
    """Lengths of a request; shrinks towards one token rather than none."""
    lengths = st.integers(shortest, longest)
    return lengths.map(lambda n: 1 - n if n < 2 else n) if shortest == 0 else lengths


@st.composite
def _packed(draw: st.DrawFn, domain: Domain, k_heads: int | None) -> bool:
    possible = k_heads is not None and "packed" in domain.q_strides and "packed" in domain.k_strides
    return possible and draw(st.integers(0, 4)) == 4


@st.composite
def _strides(draw: st.DrawFn, kinds: tuple[str, ...], *, expandable: bool) -> Strides:
    """One or two kinds of memory at once; dense first."""
    usable = [k for k in kinds if k not in ("dense", "packed") and (expandable or k != "expand")]
    if not usable or not draw(st.booleans()):
        return Strides()
    values: dict[str, Any] = {}
    for kind in draw(st.lists(st.sampled_from(usable), min_size=1, max_size=2, unique=True)):
        values[kind] = draw(
            {
                "dim_step": st.integers(2, 3),
                "order": st.sampled_from(_ORDERS),
                "expand": st.sampled_from(["n", "h", "b", "nh", "bnh"]),
            }.get(kind, _PADS)
        )
    return Strides(**values)


@st.composite
def _table_fields(draw: st.DrawFn, domain: Domain, table: str) -> dict[str, Any]:
    values: dict[str, Any] = {"table_dtype": draw(st.sampled_from(domain.table_dtypes))}
    if domain.free_tables:
        values["table_fill"] = draw(st.sampled_from(TABLE_FILLS))
        values["attention_factor"] = draw(st.sampled_from([1.0, 1.25]))
    if domain.table_strides:
        values["table_pad"] = draw(st.one_of(st.just(0), _PADS))
    if table == "indexed":
        values["table_slack"] = draw(st.integers(0, 3))
    return values


@st.composite
def _value_fields(draw: st.DrawFn) -> dict[str, Any]:
    fill = draw(st.sampled_from(FILLS))
    values: dict[str, Any] = {"fill": fill}
    if fill in ("one_hot", "normal", "extremes", "specials"):
        values["seed"] = draw(st.integers(0, 1 << 12))
    number = st.sampled_from(_POKES["small"] + (_POKES["special"] if fill == "specials" else []))
    poke = st.tuples(st.sampled_from(["q", "k"]), st.integers(0, 255), number)
    values["pokes"] = tuple(draw(st.lists(poke, max_size=2)))
    return values
