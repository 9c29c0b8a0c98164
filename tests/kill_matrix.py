"""Mutant x property: which properties kill which mutant, after how many cases, with how small a case.

    python -m tests.kill_matrix [NAME ...]

prints the matrix, for the mutants of these names or for all, and writes docs/kill-matrix.md for all.
"""

import argparse
import importlib
import os
import statistics
import time
import warnings
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from strategies import RopeCase
from strategies.case import non_default

# The kernels read this when they are decorated.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from properties.failures import Failure
from properties.implementations import Implementation
from properties.interpreter import make_faithful
from properties.property import Property
from properties.test_large import FixedCases
from tests.mutants import MUTANTS, Mutant

FAMILIES = (
    "reference", "norm", "memory", "bitwise", "trace", "laws", "batch", "serving", "range", "errors", "large",
)  # fmt: skip
DOCUMENT = Path(__file__).parent.parent / "docs" / "kill-matrix.md"
# Cases drawn over all layouts and dtypes before a property is said not to kill a mutant.
CASES = 60


# The family that kills most mutants of a kind, where that is not the first.
_LIKELY = {"RANGE": "range", "BIGIDX": "large", "OOBMEM": "trace", "RACE": "trace", "ALIAS": "memory"}


def properties() -> dict[str, list[Property]]:
    """The properties of every family."""
    modules = {family: importlib.import_module(f"properties.test_{family}") for family in FAMILIES}
    return {
        family: [value for value in vars(module).values() if isinstance(value, Property)]
        for family, module in modules.items()
    }


def likely_first(mutant: Mutant) -> list[Property]:
    """All properties, those of the family that should kill this mutant first."""
    by_family = properties()
    # What no report names breaks a law; a law needs no reference to be broken.
    likely = (
        ("laws", "batch", "serving") if mutant.report is None else (_LIKELY.get(mutant.kind, FAMILIES[0]),)
    )
    order = (*likely, *(family for family in FAMILIES if family not in likely))
    return [prop for family in order for prop in by_family[family]]


@dataclass(frozen=True)
class Kill:
    """How one property killed one mutant.

    Attributes:
        failure: the class of the failure.
        cases: how many cases it took.
        seconds: until the first failure, without shrinking.
        case: the case that failed; the smallest that was found when shrinking was asked for.
    """

    failure: str
    cases: int
    seconds: float
    case: RopeCase


def search(
    prop: Property, implementation: Implementation, *, cases: int = CASES, shrink: bool = False
) -> Kill | None:
    """Look for a failure of this property; None when no case of so many shows one."""
    domain = prop.domain(implementation)
    if domain is None:
        return None
    drawn = prop.draw(domain)
    if isinstance(prop, FixedCases):
        inside = [case for _, case in prop.cases if not domain.why_outside(case)]
        if not inside:
            return None
        drawn = st.sampled_from(inside)
    started, tried = time.perf_counter(), 0
    kills: list[Kill] = []

    def test(case: RopeCase) -> None:
        nonlocal tried
        tried += 1
        try:
            prop.check(implementation, case)
        except Failure as failure:
            seconds = time.perf_counter() - started
            kills.append(Kill(type(failure).__name__, tried, seconds, case))
            raise

    profile = settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=shrink,
    )
    search_for = seed(zlib.crc32(prop.name.encode()))(profile(given(case=drawn)(test)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            search_for()
        # A mutant that remembers does not fail twice on one case, which Hypothesis calls flaky.
        except* (Failure, Flaky, pytest.skip.Exception):
            pass
    if not kills:
        return None
    return replace(kills[0], case=min((kill.case for kill in kills), key=_size))


def _size(case: RopeCase) -> tuple[int, int, int]:
    """How much there is to read in a case: fields that differ from the simplest, elements, its text."""
    elements = case.batch * case.tokens * (case.q_heads + (case.k_heads or 0)) * case.head_dim
    return len(non_default(case)), elements, len(repr(case))


@dataclass(frozen=True)
class Row:
    """One mutant's row: the kills by property, and the smallest case under the first of them."""

    mutant: Mutant
    kills: dict[str, Kill]
    smallest: RopeCase | None


def measure(mutant: Mutant) -> Row:
    """Try every property on one mutant."""
    kills: dict[str, Kill] = {}
    smallest = None
    for prop in likely_first(mutant):
        kill = search(prop, mutant.fresh())
        if kill is None:
            continue
        kills[prop.name] = kill
        if smallest is None:
            shrunk = search(prop, mutant.fresh(), shrink=True)
            smallest = shrunk.case if shrunk else kill.case
    return Row(mutant, kills, smallest)


def as_line(row: Row) -> str:
    """One line of the printed matrix."""
    killers = ", ".join(f"{name.removeprefix('test_')} ({kill.cases})" for name, kill in row.kills.items())
    return f"{row.mutant.kind:9} {row.mutant.name:48} {killers or 'SURVIVES'}"


def document(rows: list[Row]) -> str:
    """The published matrix, in Markdown."""
    kills = [next(iter(row.kills.values())) for row in rows if row.kills]
    seconds = sorted(kill.seconds for kill in kills) or [0.0]
    only = {
        name: [row.mutant.name for row in rows if set(row.kills) == {name}]
        for name in dict.fromkeys(name for row in rows for name in row.kills)
    }
    lines = [
        "# Kill matrix",
        "",
        "Every mutant in `tests/mutants/` is one deliberate fault, after a kind of public bug report. A",
        f"property kills it when one of {CASES} cases, drawn over all layouts and dtypes, shows a failure.",
        "The suite draws more: as many for every layout and dtype, and the shapes of models. Measured by",
        "`make kill-matrix`.",
        "",
        f"{len(rows)} mutants, {len(kills)} killed. Seconds to the first kill: median "
        f"{statistics.median(seconds):.2f}, slowest {seconds[-1]:.2f}.",
        "",
        "| kind | mutant | report | killed by (cases needed) | seconds | smallest case |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        killers = ", ".join(f"{n.removeprefix('test_')} ({k.cases})" for n, k in row.kills.items())
        first = next(iter(row.kills.values()), None)
        lines.append(
            f"| {row.mutant.kind} | {row.mutant.name} | {row.mutant.report or 'none'} | "
            f"{killers or '**survives**'} | {f'{first.seconds:.2f}' if first else ''} | `{row.smallest!r}` |"
        )
    lines += [
        "",
        "## What each property kills",
        "",
        "| property | mutants killed | killed by no other property |",
        "|---|---|---|",
    ]
    for family in properties().values():
        for prop in family:
            count = sum(prop.name in row.kills for row in rows)
            lines.append(f"| {prop.name} | {count} | {', '.join(only.get(prop.name, []))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure which properties kill which mutants.")
    parser.add_argument("names", nargs="*", help="mutants to measure; all when none is named")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    make_faithful()
    rows = []
    for mutant in MUTANTS:
        if not names or mutant.name in names:
            rows.append(measure(mutant))
            print(as_line(rows[-1]), flush=True)
    if not names:
        DOCUMENT.write_text(document(rows))


if __name__ == "__main__":
    main()
