"""The strategies reach every region that faults hide in, often enough, and all of them together."""

import functools
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.internal.conjecture.data import ConjectureData

from strategies import Domain, RopeCase, rope_cases
from strategies.case import AXES_KINDS, DTYPES, LAYOUTS
from strategies.domain import STRIDE_KINDS, TAILS, stride_kinds, tail_kind

# A property draws this many by default, for each layout and dtype.
_EXAMPLES = 100
Region = Callable[[RopeCase], bool]
EVERYTHING = Domain(axes=AXES_KINDS)


@functools.cache
def drawn(domain: Domain) -> list[RopeCase]:
    """The cases that one property draws from a domain in a run, the same ones every time."""
    cases: list[RopeCase] = []
    for seeds, (layout, dtype) in enumerate(itertools.product(domain.layouts, domain.dtypes)):

        @seed(seeds)
        @settings(
            max_examples=_EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=rope_cases(domain, layout=layout, dtype=dtype))
        def collect(case: RopeCase) -> None:
            cases.append(case)

        collect()
    return cases


def _has_strides(kind: str) -> Region:
    if kind == "packed":
        return lambda case: case.packed
    return lambda case: kind in stride_kinds(case.q_strides)


def _positions(case: RopeCase) -> list[int]:
    return [p for row in case.positions_bn() for p in row]


# What must be drawn, and in which share of cases at least.
REGIONS: dict[str, tuple[Region, float]] = {
    **{layout: (lambda case, layout=layout: case.layout == layout, 0.3) for layout in LAYOUTS},
    **{dtype: (lambda case, dtype=dtype: case.dtype == dtype, 0.12) for dtype in DTYPES},
    **{f"{kind} strides": (_has_strides(kind), 0.01) for kind in STRIDE_KINDS},
    **{f"tail {kind}": (lambda case, kind=kind: tail_kind(case) == kind, 0.1) for kind in TAILS},
    "3 axes": (lambda case: case.rank == 3, 0.3),
    "4 axes": (lambda case: case.rank == 4, 0.3),
    "heads first": (lambda case: case.heads_first, 0.3),
    "in place": (lambda case: case.inplace, 0.3),
    "inverse": (lambda case: case.inverse, 0.3),
    "odd rot_half": (lambda case: case.rot_half % 2 == 1 and case.rot_half > 1, 0.15),
    "rot_half no power of two": (lambda case: case.rot_half & (case.rot_half - 1) != 0, 0.25),
    "head_dim 128, no tail": (lambda case: case.head_dim == 128 and case.tail == 0, 0.005),
    "no k": (lambda case: case.k_heads is None, 0.2),
    "grouped heads": (lambda case: bool(case.k_heads) and case.k_heads != case.q_heads, 0.15),
    "one k head": (lambda case: case.k_heads == 1 < case.q_heads, 0.03),
    "more than 32 heads": (lambda case: case.q_heads > 32, 0.005),
    "ragged": (lambda case: case.rank == 3 and len(case.requests) > 1, 0.15),
    "an empty request beside others": (lambda case: case.tokens > 0 and (0 in _lengths(case)), 0.02),
    "one token beside more": (lambda case: 1 in _lengths(case) and max(_lengths(case)) > 1, 0.05),
    "requests of equal length": (
        lambda case: case.rank == 3 and len(_lengths(case)) == 2 and len(set(_lengths(case))) == 1,
        0.01,
    ),
    "no tokens": (lambda case: case.batch * case.tokens == 0, 0.005),
    "a position twice": (lambda case: len(set(_positions(case))) < len(_positions(case)), 0.1),
    "a later start": (lambda case: any(start for start, _ in case.requests), 0.2),
    "last table row": (lambda case: case.table_slack == 0 and case.tokens > 0, 0.2),
    "rows with positions of their own": (
        lambda case: (
            case.rank == 4 and case.positions == "given" and len({s for s, n in case.requests if n}) > 1
        ),
        0.03,
    ),
    "int32 positions": (lambda case: case.positions_dtype == "int32", 0.15),
    "strided positions": (lambda case: case.positions_step > 1, 0.15),
    "implied positions": (lambda case: case.positions == "implied", 0.1),
    "expanded positions": (lambda case: case.positions == "expanded", 0.04),
    **{f"{kind} axes": (lambda case, kind=kind: case.axes == kind, 0.07) for kind in AXES_KINDS},
    "gathered table": (lambda case: case.table == "gathered", 0.08),
    "padded table": (lambda case: case.table_pad > 0, 0.2),
    "strided table": (lambda case: case.table_step > 1, 0.15),
    "16-bit table": (lambda case: case.table_dtype == "input" and case.dtype.endswith("16"), 0.1),
}
_RAGGED = ["ragged", "one token beside more", "requests of equal length", "an empty request beside others"]
_NOT_IMPLIED = [
    "int32 positions", "strided positions", "expanded positions",
    *(f"{kind} axes" for kind in AXES_KINDS[1:]),
]  # fmt: skip
# Regions that exclude each other by what they mean.
_NEVER_TOGETHER = {
    frozenset(pair)
    for group in (
        LAYOUTS,
        DTYPES,
        [f"tail {kind}" for kind in TAILS],
        ["3 axes", "4 axes"],
        [f"{kind} axes" for kind in AXES_KINDS],
        ["no k", "grouped heads"],
        ["no k", "one k head"],
        ["no k", "packed strides"],
        ["expand strides", "packed strides"],
        ["expand strides", "in place"],
    )
    for pair in itertools.combinations(group, 2)
} | {
    frozenset((region, other))
    for region, others in {
        "gathered table": _NOT_IMPLIED,
        "implied positions": _NOT_IMPLIED,
        "3 axes": ["expanded positions"],
        "4 axes": _RAGGED,
        "expanded positions": _RAGGED,
        "dense strides": [f"{kind} strides" for kind in STRIDE_KINDS if kind not in ("dense", "packed")],
        "head_dim 128, no tail": ["odd rot_half", "rot_half no power of two"],
        "16-bit table": ["float32", "float64"],
        "rows with positions of their own": [
            "3 axes", "implied positions", "expanded positions", "gathered table", "no tokens", *_RAGGED,
        ],
        "no tokens": ["last table row", "a position twice", *_RAGGED],
    }.items()
    for other in others
}  # fmt: skip


def _lengths(case: RopeCase) -> list[int]:
    return [length for _, length in case.requests]


@pytest.mark.parametrize("region", REGIONS)
def test_a_region_is_drawn_often_enough(region: str) -> None:
    belongs, least = REGIONS[region]
    cases = drawn(EVERYTHING)
    share = sum(map(belongs, cases)) / len(cases)
    assert share >= least, f"{share:.3f} of the cases"


def missing_pairs(cases: list[RopeCase]) -> set[frozenset[str]]:
    """Pairs of regions without a case, though twenty should be there if the two were independent."""
    inside = np.array([[belongs(case) for belongs, _ in REGIONS.values()] for case in cases])
    together = inside.T.astype(int) @ inside.astype(int)
    expected = np.outer(inside.mean(0), inside.mean(0)) * len(cases)
    names = list(REGIONS)
    return {
        frozenset((names[i], names[j]))
        for i, j in itertools.combinations(range(len(names)), 2)
        if together[i, j] == 0 and expected[i, j] >= 20
    }


def test_pairs_of_regions_are_drawn() -> None:
    assert missing_pairs(drawn(EVERYTHING)) - _NEVER_TOGETHER == set()


NARROW = Domain(
    layouts=("neox",), dtypes=("float16",), ranks=(3,), heads_first=(False,), tails=("none",),
    q_strides=("dense",), k_strides=("dense",), inplace=(False,), inverse=(False,), without_k=(False,),
    positions=("given",), position_dtypes=("int64",), position_steps=False, tables=("indexed",),
    table_dtypes=("float32",), table_strides=False, table_steps=False, free_tables=False,
)  # fmt: skip


def test_a_narrow_domain_draws_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn and thrown away: fewer choices make fewer draws."""
    draw, count = ConjectureData.draw, 0

    def counting(self: ConjectureData, *args: object, **options: object) -> object:
        nonlocal count
        count += 1
        return draw(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ConjectureData, "draw", counting)
    draws = []
    for domain in (EVERYTHING, NARROW):
        drawn.cache_clear()
        count = 0
        cases = drawn(domain)
        draws.append(count / len(cases))
    assert draws[1] < draws[0] * 0.75, draws
