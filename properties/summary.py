"""The table at the end of a run: property, cases run, worst error / bound, verdict, time."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from properties.counterexamples import RECORD


@dataclass
class Line:
    """The tests of one property on one implementation.

    Attributes:
        cases: how many cases ran; 0 for tests that are no properties.
        worst_ratio: the largest error as a multiple of its bound, or None when nothing was measured.
        passed, failed, skipped: how many tests.
        seconds: all tests together.
        notes: what else a reader must know, as "no trace".
    """

    implementation: str
    property: str
    cases: int = 0
    worst_ratio: float | None = None
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def verdict(self) -> str:
        """In words."""
        tests = self.passed + self.failed + self.skipped
        if self.failed:
            return f"FAILS in {self.failed} of {tests} tests"
        if not self.passed:
            return "not tried"
        return "holds" if not self.skipped else f"holds, {self.skipped} of {tests} tests skipped"


class Summary:
    """The part of the plugin that tallies tests; the tally travels in their reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.lines: dict[tuple[str, str], Line] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        record = item.stash.get(RECORD, None)
        if call.when == "call" and record is not None and record.property is not None:
            report.tally = {
                "implementation": record.implementation,
                "property": record.property,
                "cases": record.cases,
                "worst_ratio": record.worst_ratio,
                "notes": record.notes,
            }
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        tally = getattr(report, "tally", None)
        if tally is None:
            return
        line = self.lines.setdefault(
            (tally["implementation"], tally["property"]), Line(tally["implementation"], tally["property"])
        )
        setattr(line, report.outcome, getattr(line, report.outcome) + 1)
        line.cases += tally["cases"]
        line.seconds += report.duration
        if tally["worst_ratio"] is not None:
            line.worst_ratio = max(tally["worst_ratio"], line.worst_ratio or 0.0)
        notes = [*tally["notes"]]
        if report.skipped and isinstance(report.longrepr, tuple):
            notes.append(report.longrepr[2].removeprefix("Skipped: ").partition(":")[0])
        line.notes += [n for n in notes if n not in line.notes]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        path = self.config.getoption("--summary-json")
        if path:
            Path(path).write_text(json.dumps([_plain(line) for line in self._sorted()], indent=1) + "\n")
        if not self.lines:
            return
        terminalreporter.section("properties")
        for text in table(self._sorted()):
            terminalreporter.write_line(text)

    def _sorted(self) -> list[Line]:
        return [self.lines[key] for key in sorted(self.lines)]


def table(lines: list[Line]) -> list[str]:
    """The table as text, a line per property and implementation."""
    head = ("implementation", "property", "cases", "worst error / bound", "verdict", "time")
    rows = [
        (
            line.implementation,
            line.property,
            str(line.cases),
            "" if line.worst_ratio is None else f"{line.worst_ratio:.3g}",
            ", ".join([line.verdict(), *line.notes]),
            f"{line.seconds:.1f} s",
        )
        for line in lines
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    right = (2, 3, 5)
    return [
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def _plain(line: Line) -> dict[str, Any]:
    """A line for JSON, which has no infinity."""
    ratio = line.worst_ratio
    finite = ratio if ratio is None or math.isfinite(ratio) else str(ratio)
    return asdict(line) | {"worst_ratio": finite, "verdict": line.verdict()}
