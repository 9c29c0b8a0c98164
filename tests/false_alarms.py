"""False alarms: search correct implementations with random cases until so many have run; none may fail.

    python -m tests.false_alarms --cases 200000 --jobs 2
    python -m tests.false_alarms --cases 1000000 --jobs 16 --impl rope --relatives 999    (compiled, on a GPU)

A run is a list of short searches, each with a seed of its own counted from --seed, so that the same numbers
try the same cases again, whatever the number of processes. Properties that draw alike search together and
share the runs of their cases; as in the summary of pytest, each of them counts its cases. Exits 1 when a case
fails.
"""

import argparse
import functools
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

# The kernels read this when they are decorated.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from properties.failures import Failure
from properties.implementations import Implementation, default_device
from properties.interpreter import make_faithful
from properties.loading import load
from properties.property import Property
from properties.record import Journal, Record, SharedRuns, recording
from properties.test_large import FixedCases
from strategies import RopeCase
from strategies.case import FILLS

# Cases of one search; a property that runs an implementation several times per case tries as many fewer.
_CASES = 100
# Kept for the other properties of a search, which take one case after the other.
_SHARED_RUNS = 4
_PROGRESS_SECONDS = 30.0


@dataclass(frozen=True)
class Search:
    """One search: the cases that this seed draws for some properties and an implementation.

    Attributes:
        properties: names of some that draw alike.
        relatives: so many more cases of one that is drawn, with other values in the same tensors; fewer of
            a property that runs an implementation several times per case. A GPU compiles a kernel for nearly
            every shape that is drawn, which takes longer than to run hundreds of them.
    """

    implementation: str
    properties: tuple[str, ...]
    seed: int
    relatives: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a search ended.

    Attributes:
        cases: how many ran, counted for each property.
        drawn: how many were drawn.
        failure: what failed, in a line, or None.
        silent: the properties that do not speak of this implementation here.
    """

    search: Search
    cases: int = 0
    drawn: int = 0
    failure: str | None = None
    silent: tuple[str, ...] = ()


@functools.cache
def properties() -> dict[str, Property]:
    """All properties that search, by name."""
    found = {}
    for path in sorted((Path(__file__).parent.parent / "properties").glob("test_*.py")):
        module = __import__(f"properties.{path.stem}", fromlist=["*"])
        for name, value in vars(module).items():
            if isinstance(value, Property) and not isinstance(value, FixedCases):
                found[name] = value
    return found


def alike(names: Iterable[str]) -> list[tuple[str, ...]]:
    """The properties in groups that draw the same cases."""
    groups: dict[Any, list[str]] = {}
    for name in names:
        prop = properties()[name]
        groups.setdefault((type(prop), prop.drawn_as, prop.cost), []).append(name)
    return [tuple(group) for group in groups.values()]


def run(search: Search) -> Outcome:
    """Run one search on this process's device."""
    tried = {name: properties()[name] for name in search.properties}
    first, implementation = next(iter(tried.values())), _implementation(search.implementation)
    domain = first.domain(implementation)
    if domain is None:
        return Outcome(search, silent=search.properties)
    ran = drawn = 0

    def test(case: RopeCase) -> None:
        nonlocal ran, drawn
        drawn += 1
        # Every search begins with the simplest case, which needs no relatives.
        more = search.relatives // first.cost if drawn > 1 else 0
        for each in (case, *relatives(case, more)):
            for name, prop in list(tried.items()):
                try:
                    prop.run(implementation, each)
                    ran += 1
                except pytest.skip.Exception:
                    del tried[name]

    profile = settings(
        # Short where there are relatives: what is not finished at the end is lost.
        max_examples=2 if search.relatives else max(1, _CASES // first.cost),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    failed = None
    journal = Journal(Path(tempfile.gettempdir(), f"rope-false-alarms-{os.getpid()}.json"))
    with recording(Record(journal, SharedRuns(_SHARED_RUNS))):
        try:
            seed(search.seed)(profile(given(case=first.draw(domain))(test)))()
        except Failure as failure:
            name = f"{failure.property.name}: {type(failure).__name__}"
            failed = f"{name}: {failure} in {failure.case!r}"
    journal.close()
    return Outcome(search, ran, drawn, failed, tuple(set(search.properties) - set(tried)))


def relatives(case: RopeCase, count: int) -> Iterator[RopeCase]:
    """Cases with other values of q and k, and tables of angles, which are made once for all."""
    values = random.Random(case.to_json())
    for _ in range(count):
        yield replace(case, fill=values.choice(FILLS), seed=values.randrange(1 << 20), table_fill="angles")


def _implementation(spec: str) -> Implementation:
    device = default_device()
    if device == "cuda":
        # Spread the processes over the GPUs.
        device = f"cuda:{os.getpid() % torch.cuda.device_count()}"
    return load(spec, device)


def searches(specs: list[str], names: list[str], first_seed: int, relatives: int = 0) -> Iterator[Search]:
    """Every property of every implementation, again and again, each group with the next seed."""
    pairs = itertools.cycle(itertools.product(specs, alike(names)))
    for number, (spec, group) in enumerate(pairs, first_seed):
        yield Search(spec, group, number, relatives)


def _prepare() -> None:
    torch.set_num_threads(1)
    make_faithful()


def outcomes(todo: Iterator[Search], jobs: int, silent: set[tuple[str, str]]) -> Iterator[Outcome]:
    """Run searches in so many processes, without those of pairs in `silent`, in the order they end."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), _prepare) as pool:
        running: set[Future[Outcome]] = set()
        try:
            while True:
                while len(running) < 2 * jobs:
                    search = next(todo)
                    names = tuple(n for n in search.properties if (search.implementation, n) not in silent)
                    if names:
                        running.add(pool.submit(run, replace(search, properties=names)))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            # What is under way may take a minute, and nobody waits for it.
            for worker in active_children():
                worker.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="tests.false_alarms"
    )
    parser.add_argument("--cases", type=int, default=200_000, help="how many to run (default: 200000)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    parser.add_argument("--seed", type=int, default=0, help="of the first search (default: 0)")
    parser.add_argument(
        "--relatives",
        type=int,
        default=0,
        help="so many more cases of one that is drawn, with other values in its tensors (default: 0)",
    )
    parser.add_argument(
        "--impl", action="append", metavar="SPEC", help="as in pytest (default: rope-eager, and rope)"
    )
    parser.add_argument(
        "--property", action="append", metavar="NAME", help="only this one (default: all of them)"
    )
    arguments = parser.parse_args()
    names = arguments.property or list(properties())
    unknown = set(names) - set(properties())
    if unknown:
        parser.error(f"no property is called {', '.join(sorted(unknown))}")
    specs = arguments.impl or ["rope-eager", "rope"]

    started = shown = time.monotonic()
    silent: set[tuple[str, str]] = set()
    cases, drawn, highest, failures = 0, 0, arguments.seed, []
    pairs = {(spec, name) for spec in specs for name in names}
    todo = searches(specs, names, arguments.seed, arguments.relatives)
    for outcome in outcomes(todo, arguments.jobs, silent):
        search = outcome.search
        cases, drawn, highest = cases + outcome.cases, drawn + outcome.drawn, max(highest, search.seed)
        silent |= {(search.implementation, name) for name in outcome.silent}
        if outcome.failure:
            failures.append(search)
            print(f"FAILURE of {search}: {outcome.failure}", flush=True)
        now = time.monotonic()
        if now - shown > _PROGRESS_SECONDS:
            shown = now
            print(f"{cases} cases, {cases / (now - started):.0f} per second", flush=True)
        if cases >= arguments.cases or now - started > 60 * arguments.minutes or silent >= pairs:
            break
    seconds = time.monotonic() - started
    print(
        f"{cases} cases ({drawn} drawn) of {', '.join(specs)} on {default_device()} in {seconds:.0f} s "
        f"({cases / seconds:.0f} per second, {arguments.jobs} processes), "
        f"seeds {arguments.seed} to {highest}: {len(failures)} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
