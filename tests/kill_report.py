"""The kill matrix as text: a line per mutant, and docs/kill-matrix.md."""

import functools
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "kill-matrix.md"


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
    case: str


@dataclass(frozen=True)
class Row:
    """One mutant's row: the kills by property, and the smallest case under the first of them."""

    kind: str
    name: str
    report: str | None
    kills: dict[str, Kill]
    smallest: str | None

    @property
    def first(self) -> Kill | None:
        return next(iter(self.kills.values()), None)


def as_line(row: Row) -> str:
    """One line of the printed matrix."""
    seconds = f"{row.first.seconds:6.2f} s" if row.first else ""
    return f"{row.kind:9} {row.name:48} {seconds:8} {_killers(row) or 'SURVIVES'}"


def times(rows: list[Row]) -> str:
    """Seconds to the first kill, in a sentence."""
    first = {row.name: row.first.seconds for row in rows if row.first}
    slowest = max(first, key=lambda name: first[name], default="")
    return (
        f"{len(rows)} mutants, {len(first)} killed. "
        f"Seconds to the first kill: median {statistics.median(first.values() or [0.0]):.2f}, slowest "
        f"{first.get(slowest, 0.0):.2f} ({slowest})."
    )


def document(rows: list[Row], families: dict[str, list[str]], cases: int) -> str:
    """The published matrix, in Markdown.

    Args:
        families: the names of the properties, by family.
        cases: that a property may take.
    """
    lines = [
        "# Kill matrix",
        "",
        "Every mutant in `tests/mutants/` is one deliberate fault, after a kind of public bug report.",
        f"A property kills it when one of {cases} cases, drawn over all layouts and dtypes, shows a failure;",
        f"one of {cases // 2} for properties that run the mutant several times per case. Where none does,",
        "all get 400 until one does. The suite draws more: as many for every layout and dtype, and shapes",
        "of models. Faults of gradients are right forward and meet the properties of gradients only; faulty",
        "tables meet the checks of what they stand for. Measured by `make kill-matrix`.",
        "",
        times(rows),
        "",
        "| kind | mutant | report | killed by (cases needed) | seconds | smallest case |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.kind} | {row.name} | {row.report or 'none'} | {_killers(row) or '**survives**'} | "
            f"{f'{row.first.seconds:.2f}' if row.first else ''} | `{row.smallest}` |"
        )
    lines += [
        "",
        "## What each family kills alone",
        "",
        "| family | mutants killed | killed by no other family |",
        "|---|---|---|",
    ]
    for family, names in families.items():
        killed = [row for row in rows if set(row.kills) & set(names)]
        alone = [row.name for row in killed if set(row.kills) <= set(names)]
        lines.append(f"| {family} | {len(killed)} | {_few(alone)} |")
    lines += [
        "",
        "## What each property kills",
        "",
        "| family | property | mutants killed | killed by no other property |",
        "|---|---|---|---|",
    ]
    for family, names in families.items():
        for name in names:
            killed = [row for row in rows if name in row.kills]
            alone = [row.name for row in killed if set(row.kills) == {name}]
            lines.append(f"| {family} | {name} | {len(killed)} | {_few(alone)} |")
    return "\n".join(lines) + "\n"


@functools.cache
def published() -> dict[str, dict[str, int]]:
    """Which properties kill each mutant, and how many cases they needed, by the published matrix."""
    kills = {}
    for line in DOCUMENT.read_text().splitlines():
        cells = line.split(" | ")
        if len(cells) == 6:
            found = re.findall(r"(\w+) \((\d+)\)", cells[3])
            kills[cells[1]] = {f"test_{name}": int(cases) for name, cases in found}
    return kills


def _killers(row: Row) -> str:
    return ", ".join(f"{name.removeprefix('test_')} ({kill.cases})" for name, kill in row.kills.items())


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
