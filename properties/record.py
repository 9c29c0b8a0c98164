"""What a test does while it runs: how many cases, how close to their bounds, which one is running, and the
runs that it shares with the tests beside it."""

import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from strategies import RopeCase


class Journal:
    """A file that holds the running case, so that it is known when the process dies in it.

    Every case is written before its launch and erased after it, in less than 0.1 ms.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    @contextlib.contextmanager
    def holding(self, implementation: str, property_name: str, case: RopeCase) -> Iterator[None]:
        """The case is in the file inside this context."""
        head = json.dumps({"implementation": implementation, "property": property_name})
        os.pwrite(self._file, f"{head}\n{case.to_json()}".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Remove the file: this process did not die."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class LastCase:
    """The case in which a process died."""

    implementation: str
    property: str
    case: RopeCase


def last_case(path: Path) -> LastCase | None:
    """The case that a dead process left in its journal, or None when it died elsewhere."""
    try:
        head, _, case = path.read_text().partition("\n")
    except FileNotFoundError:
        return None
    if not head:
        return None
    names = json.loads(head)
    return LastCase(names["implementation"], names["property"], RopeCase.from_json(case))


T = TypeVar("T")


class SharedRuns:
    """The last runs of a session, so that properties which draw the same cases run each of them once.

    Args:
        most: how many runs are kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[Any, tuple[object, Any]] = OrderedDict()

    def get(self, implementation: object, case: RopeCase, run: Callable[[], T]) -> T:
        """The kept run of this case, or a new one."""
        key = (id(implementation), case)
        if key in self._kept:
            self._kept.move_to_end(key)
        else:
            # Beside the implementation, whose id no other object has as long as it lives.
            self._kept[key] = (implementation, run())
            if len(self._kept) > self.most:
                self._kept.popitem(last=False)
        return self._kept[key][1]

    def forget(self) -> None:
        """Drop all runs, after a failure: whether it happens again is for new runs to say."""
        self._kept.clear()


@dataclass
class Record:
    """The tally of one test.

    Attributes:
        journal: where the running case is written down.
        runs: what the test shares with others, or None.
        implementation, property: their names, or None when no property ran.
        cases: how many cases ran.
        worst_ratio: the largest error as a multiple of its bound, or None when nothing was measured.
        notes: what a reader of the summary must know, as "no trace".
    """

    journal: Journal
    runs: SharedRuns | None = None
    implementation: str | None = None
    property: str | None = None
    cases: int = 0
    worst_ratio: float | None = None
    notes: list[str] = field(default_factory=list)


_current: ContextVar[Record | None] = ContextVar("record of the running test", default=None)


@contextlib.contextmanager
def recording(record: Record) -> Iterator[None]:
    """Tally what happens inside in this record."""
    token = _current.set(record)
    try:
        yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def running(implementation: str, property_name: str, case: RopeCase) -> Iterator[None]:
    """One case runs inside: it is counted, and on disk as long as it runs."""
    record = _current.get()
    if record is None:
        yield
        return
    record.implementation, record.property = implementation, property_name
    record.cases += 1
    with record.journal.holding(implementation, property_name, case):
        yield


def shared_runs() -> SharedRuns | None:
    """The runs that the running test shares with others, or None outside of such a test."""
    record = _current.get()
    return None if record is None else record.runs


def note_ratio(ratio: float) -> None:
    """Note an error as a multiple of its bound for the running test's summary."""
    record = _current.get()
    if record is not None:
        record.worst_ratio = max(ratio, record.worst_ratio or 0.0)


def note(text: str) -> None:
    """Note something that a reader of the running test's summary must know, once."""
    record = _current.get()
    if record is not None and text not in record.notes:
        record.notes.append(text)
