"""Judge mutants of source files by the properties, each in a process of its own, which it may ruin."""

import importlib
import itertools
import linecache
import multiprocessing
import operator
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from multiprocessing import connection
from pathlib import Path
from types import CodeType
from typing import Any

# Cases per property: most mutants die of the first few, so every property gets those before any gets more.
# The last are drawn as the suite draws, for each layout and dtype: cases of one search resemble each other.
ROUNDS = (4, 20, 200)
# The families that kill most, in few cases.
_FIRST = ("reference", "range", "trace", "memory", "large")
# Seconds in which an implementation must come back from one call.
_PATIENCE = 30.0
# Mutants for which it pays to prepare.
_MANY = 20
_HARNESS = ("properties.interpreter", "properties.loading", "tests.kill_matrix")
_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Task:
    """A source file to judge in place of the one on disk.

    Attributes:
        name: of the verdict.
        file: the file on disk.
        source: the text to run instead.
        specs: the implementations that run it, as --impl takes them.
        rounds: cases per property; later rounds are for what has survived the earlier ones.
    """

    name: str
    file: str
    source: str
    specs: tuple[str, ...]
    rounds: tuple[int, ...] = ROUNDS


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant.

    Attributes:
        name: of the task.
        outcome: "killed" by a failure; "died" with its process; "hung" in a call; "survived".
        family: of the property that failed, or in which the process died or hung.
        killer: that property.
        failure: the class of the failure, and for an accident what it says.
        seconds: until the verdict.
    """

    name: str
    outcome: str
    family: str = ""
    killer: str = ""
    failure: str = ""
    seconds: float = 0.0


def judged(tasks: Iterable[Task], jobs: int) -> Iterator[Verdict]:
    """The verdicts, as they come: file after file, so many processes at a time."""
    file_of = operator.attrgetter("file")
    # The kernels read this when they are decorated.
    os.environ["TRITON_INTERPRET"] = "1"
    _import("torch", "torch._dynamo", "numpy", "triton", "triton.language", "hypothesis", "pytest")
    for file, of_file in itertools.groupby(sorted(tasks, key=file_of), file_of):
        verdicts, theirs = _fork.Pipe(duplex=False)
        # A process of its own, since what it imports depends on the file.
        process = _fork.Process(target=_judge_file, args=(Path(file).resolve(), deque(of_file), jobs, theirs))
        process.start()
        theirs.close()
        while True:
            try:
                yield verdicts.recv()
            except EOFError:
                break
        process.join()


def _import(*names: str) -> None:
    for name in names:
        importlib.import_module(name)


def _judge_file(path: Path, waiting: deque[Task], jobs: int, verdicts: Any) -> None:
    """Judge mutants of one file, every one in a process of its own."""
    if not _harness_imports(path):
        _import(*_HARNESS)
        if len(waiting) > _MANY:
            _warm_up(waiting[0].specs)
    running: list[_Worker] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_Worker(waiting.popleft()))
        connection.wait([worker.pipe for worker in running], timeout=1)
        for worker in list(running):
            verdict = worker.verdict()
            if verdict is not None:
                running.remove(worker)
                verdicts.send(verdict)


def _warm_up(specs: tuple[str, ...]) -> None:
    """Try every property on something correct, so that workers start with all that needs no mutant.

    Cases are drawn once for a domain; here for those of the bundled implementations.
    """
    from properties.implementations import bundled
    from tests.kill_matrix import properties, search
    from tests.mutants.base import Base

    base = Base()
    correct = [
        replace(implementation, call=lambda *args, tile=None, **options: base(*args, **options))
        for implementation in bundled("cpu")
        if implementation.name in specs
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for implementation, prop in itertools.product(correct, itertools.chain(*properties().values())):
            search(prop, implementation, cases=max(1, ROUNDS[0] // prop.cost))


def _harness_imports(path: Path) -> bool:
    """Whether this file is among what the properties import, tried in another process."""

    def probe() -> None:
        _import(*_HARNESS)
        loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        os._exit(any(file and Path(file).resolve() == path for file in loaded))

    process = _fork.Process(target=probe)
    process.start()
    process.join()
    return process.exitcode != 0


class _Worker:
    """A process that judges one task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.pipe, theirs = _fork.Pipe(duplex=False)
        self.process = _fork.Process(target=_work, args=(task, theirs), daemon=True)
        self.process.start()
        # The pipe ends when the worker does.
        theirs.close()
        self.started = self.heard = time.monotonic()
        self.property = ("", "")

    def verdict(self) -> Verdict | None:
        """The verdict, when there is one."""
        while self.pipe.poll():
            self.heard = time.monotonic()
            try:
                word, *facts = self.pipe.recv()
            except EOFError:
                self.process.join()
                return self._verdict("died", f"exit code {self.process.exitcode}")
            if word == "property":
                self.property = tuple(facts)
            elif word != "alive":
                self.process.join()
                return self._verdict(word, *facts)
        if time.monotonic() - self.heard > _PATIENCE:
            self.process.kill()
            return self._verdict("hung")
        return None

    def _verdict(self, outcome: str, failure: str = "") -> Verdict:
        where = self.property if outcome != "survived" else ("", "")
        return Verdict(self.task.name, outcome, *where, failure, round(time.monotonic() - self.started, 2))


def _work(task: Task, pipe: Any) -> None:
    """Look for a failure, and tell the pipe how far it is."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        for family, name, attempt in _attempts(task, lambda: pipe.send(("alive",))):
            pipe.send(("property", family, name))
            failure = attempt()
            if failure is not None:
                pipe.send(("killed", failure))
                return
    except Exception as accident:  # of the check or the import: a test that ends so has failed
        pipe.send(("killed", f"{type(accident).__name__}: {accident}"))
        return
    pipe.send(("survived",))


def _attempts(task: Task, beat: Callable[[], None]) -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """Every property in every round: its family, its name and what looks for a failure."""
    _put_in_place(task.file, task.source)
    import torch

    from properties.interpreter import make_faithful
    from properties.loading import load
    from strategies.case import DTYPES, LAYOUTS
    from tests.kill_matrix import properties, search

    torch.set_num_threads(1)
    make_faithful()
    implementations = [load(spec, "cpu") for spec in task.specs]

    def beating(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            beat()
            return call(*arguments, **options)

        return called

    for implementation in implementations:
        if implementation.missing is not None:
            raise RuntimeError(f"{implementation.name} {implementation.missing}")
    implementations = [replace(i, call=beating(i.call)) for i in implementations]
    families = properties()
    for cases in task.rounds:
        if cases == ROUNDS[-1]:
            implementations = [variant for i in implementations for variant in _by_layout_and_dtype(i)]
            cases //= len(LAYOUTS) * len(DTYPES)
        for family in dict.fromkeys((*_FIRST, *families)):
            for prop, implementation in itertools.product(families[family], implementations):

                def attempt(prop=prop, implementation=implementation, cases=cases):  # type: ignore[no-untyped-def]
                    kill = search(prop, implementation, cases=max(1, cases // prop.cost))
                    return None if kill is None else kill.failure

                yield family, prop.name, attempt


def _by_layout_and_dtype(implementation: Any) -> list[Any]:
    domain = implementation.domain
    pairs = itertools.product(domain.layouts, domain.dtypes)
    return [replace(implementation, domain=replace(domain, layouts=(a,), dtypes=(b,))) for a, b in pairs]


def _put_in_place(file: str, source: str) -> None:
    """Import this source wherever the file is imported, for the rest of the process."""
    path = Path(file).resolve()
    read = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        if Path(loader.path).resolve() != path:
            return read(loader, fullname)
        # Triton reads the source of a kernel; no time stamp, so that nobody looks for it on disk.
        linecache.cache[loader.path] = (len(source), None, source.splitlines(keepends=True), loader.path)
        return compile(source, loader.path, "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
