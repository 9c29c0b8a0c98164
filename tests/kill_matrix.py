"""Mutant x property: which properties kill which mutant, after how many cases, with how small a case.

    python -m tests.kill_matrix [--jobs N] [NAME ...]

prints the matrix, for the mutants of these names or for all, and writes docs/kill-matrix.md for all.
"""

import argparse
import functools
import importlib
import itertools
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from strategies import Domain, RopeCase
from strategies.case import non_default

# The kernels read this when they are decorated.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from properties.failures import Failure
from properties.implementations import Implementation
from properties.interpreter import make_faithful
from properties.property import Property
from properties.test_large import FixedCases
from tests import table_kills
from tests.kill_report import DOCUMENT, Kill, Row, as_line, document, times
from tests.mutants import MUTANTS, Mutant, tables

FAMILIES = (
    "reference", "norm", "memory", "bitwise", "trace", "laws", "batch", "serving", "axes", "range", "errors",
    "large",
)  # fmt: skip
# Cases drawn over all layouts and dtypes before a property is said not to kill a mutant.
CASES = 60
# As many as in the ci profile for one layout and dtype, and as the suite draws for all of them.
_FEW, _MANY = 50, 400


# The family that kills most mutants of a kind, where that is not the first.
_LIKELY = {
    "RANGE": "range",
    "BIGIDX": "large",
    "OOBMEM": "trace",
    "RACE": "trace",
    "ALIAS": "memory",
}
# What no report names breaks a law; a law needs no reference to be broken.
_UNREPORTED = ("laws", "batch", "bitwise", "serving")


@functools.cache
def properties() -> dict[str, list[Property]]:
    """The properties of every family."""
    return {family: _properties_of(family) for family in FAMILIES}


@functools.cache
def gradient_properties() -> list[Property]:
    """The properties of gradients, which are for mutants that promise them."""
    return _properties_of("gradients")


def _properties_of(family: str) -> list[Property]:
    module = importlib.import_module(f"properties.test_{family}")
    return [value for value in vars(module).values() if isinstance(value, Property)]


def likely_first(mutant: Mutant) -> list[Property]:
    """All properties that may kill this mutant, those of the family that should do so first."""
    by_family = properties()
    if mutant.domain.gradients or mutant.domain.fullgraph:
        # Such a mutant is right forward.
        return gradient_properties()
    reported = (_LIKELY.get(mutant.kind, FAMILIES[0]),)
    likely = _UNREPORTED if mutant.report is None else reported
    order = (*likely, *(f for f in FAMILIES if f not in likely))
    return [prop for family in order for prop in by_family[family]]


def search(
    prop: Property, implementation: Implementation, *, cases: int = CASES, shrink: bool = False
) -> Kill | None:
    """Look for a failure of this property; None when no case of so many shows one."""
    domain = prop.domain(implementation)
    if domain is None:
        return None
    cases = max(4, cases // prop.cost) if prop.cost > 10 else cases
    if shrink:
        return _shrunk(prop, implementation, domain, cases)
    started, drawing = time.perf_counter(), 0.0
    for tried, (case, seconds) in enumerate(_drawn(prop, domain, cases), 1):
        drawing += seconds
        try:
            prop.check(implementation, case)
        except Failure as failure:
            spent = time.perf_counter() - started + drawing
            return Kill(type(failure).__name__, tried, spent, repr(case))
        except pytest.skip.Exception:
            return None
    return None


_cache: dict[tuple[str, Domain, int], list[tuple[RopeCase, float]]] = {}


def _drawn(prop: Property, domain: Domain, cases: int) -> list[tuple[RopeCase, float]]:
    """The cases of a search and what drawing each took, in seconds; drawn once for all implementations."""
    key = (prop.name, domain, cases)
    if key not in _cache:
        _cache[key] = drawn = []
        last = time.perf_counter()

        def collect(case: RopeCase) -> None:
            nonlocal last
            now = time.perf_counter()
            drawn.append((case, now - last))
            last = now

        _search(prop, domain, cases, collect, Phase.generate)
    return _cache[key]


def _shrunk(prop: Property, implementation: Implementation, domain: Domain, cases: int) -> Kill | None:
    """The smallest failing case that shrinking finds."""
    kills: list[Kill] = []
    smallest: list[RopeCase] = []
    started, tried = time.perf_counter(), 0

    def test(case: RopeCase) -> None:
        nonlocal tried
        tried += 1
        try:
            prop.check(implementation, case)
        except Failure as failure:
            kills.append(Kill(type(failure).__name__, tried, time.perf_counter() - started, repr(case)))
            smallest.append(case)
            raise

    _search(prop, domain, cases, test, Phase.generate, Phase.shrink)
    return replace(kills[0], case=repr(min(smallest, key=_size))) if kills else None


def _search(
    prop: Property, domain: Domain, cases: int, test: Callable[[RopeCase], None], *phases: Phase
) -> None:
    strategy = prop.draw(domain)
    if isinstance(prop, FixedCases):
        inside = [case for _, case in prop.cases if not domain.why_outside(case)]
        if not inside:
            return
        strategy = st.sampled_from(inside)
    profile = settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    search_for = seed(zlib.crc32(prop.name.encode()))(profile(given(case=strategy)(test)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            search_for()
        # A mutant that remembers does not fail twice on one case, which Hypothesis calls flaky.
        except* (Failure, Flaky, pytest.skip.Exception):
            pass


def _size(case: RopeCase) -> tuple[int, int, int]:
    """How much there is to read in a case: fields that differ from the simplest, elements, its text."""
    elements = case.batch * case.tokens * (case.q_heads + (case.k_heads or 0)) * case.head_dim
    return len(non_default(case)), elements, len(repr(case))


def first_killer(mutant: Mutant) -> tuple[Property, Kill] | None:
    """The first property that kills a mutant.

    Each tries a few cases; a mutant that outlives all gets many.
    """
    for cases, prop in itertools.product((_FEW, _MANY), likely_first(mutant)):
        kill = search(prop, mutant.fresh(), cases=cases)
        if kill is not None:
            return prop, kill
    return None


def cases_for(prop: Property) -> int:
    """How many cases a property gets: one that runs several times per case sees more in each."""
    return CASES if prop.cost == 1 else CASES // 2


def dies_again(mutant: Mutant, needed: dict[str, int]) -> bool:
    """Whether a mutant dies under a property that killed it before, by the cases that each needed, or any.

    What Hypothesis draws depends on what else is imported, so another run needs other cases.
    """
    killers = [prop for prop in likely_first(mutant) if prop.name in needed]
    killers.sort(key=lambda prop: (isinstance(prop, FixedCases), needed[prop.name] * prop.cost))
    for few in (True, False):
        for prop in killers:
            if search(prop, mutant.fresh(), cases=cases_for(prop) if few else _MANY) is not None:
                return True
    return first_killer(mutant) is not None


def measure(mutant: Mutant) -> Row:
    """Try every property on one mutant."""
    kills: dict[str, Kill] = {}
    smallest = None
    for prop in likely_first(mutant):
        kill = search(prop, mutant.fresh(), cases=cases_for(prop))
        if kill is None:
            continue
        kills[prop.name] = kill
        if smallest is None:
            shrunk = search(prop, mutant.fresh(), shrink=True)
            smallest = shrunk.case if shrunk else kill.case
    rare = None if kills else first_killer(mutant)
    if rare is not None:
        kills[rare[0].name], smallest = rare[1], rare[1].case
    return Row(mutant.kind, mutant.name, mutant.report, kills, smallest)


def measure_table(mutant: tables.Mutant) -> Row:
    """Try every check of what a faulty table stands for."""
    kills = {}
    for prop in table_kills.applicable(mutant):
        kill = table_kills.search(prop, mutant, cases=CASES)
        if kill is not None:
            kills[prop.name] = kill
    first = next(iter(kills.values()), None)
    report = (mutant.make.__doc__ or "").partition(":")[0].partition(",")[0]
    return Row(mutant.kind, mutant.name, report, kills, first.case if first else None)


def prepare() -> None:
    """Make a process ready to run mutants."""
    torch.set_num_threads(1)
    make_faithful()


def _measured(name: str) -> Row:
    for mutant in MUTANTS:
        if mutant.name == name:
            return measure(mutant)
    return measure_table(next(mutant for mutant in tables.MUTANTS if mutant.name == name))


def in_processes(work: Callable[[Any], Any], items: Iterable[Any], jobs: int) -> Iterator[Any]:
    """The results of this work for every item, in order, from so many processes."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), prepare) as pool:
        yield from pool.map(work, items)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure which properties kill which mutants.")
    parser.add_argument("names", nargs="*", help="mutants to measure; all when none is named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    arguments = parser.parse_args()
    every = [mutant.name for mutant in (*MUTANTS, *tables.MUTANTS)]
    unknown = set(arguments.names) - set(every)
    if unknown:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    rows = []
    for row in in_processes(_measured, arguments.names or every, arguments.jobs):
        rows.append(row)
        print(as_line(row), flush=True)
    if not arguments.names:
        families = {family: [p.name for p in props] for family, props in properties().items()}
        families["gradients"] = [prop.name for prop in gradient_properties()]
        families["tables"] = list(table_kills.PROPERTIES)
        DOCUMENT.write_text(document(rows, families, CASES))
        print(times(rows))


if __name__ == "__main__":
    main()
