"""What a mutation score says: in a few lines, and as a page of the documentation."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.mutation_judge import ROUNDS, Verdict
from tests.mutator import OPERATORS, Mutant


@dataclass(frozen=True)
class Result:
    """One mutant and what became of it.

    Attributes:
        file: the file that was mutated.
        original: its text.
        reason: why the mutant is equivalent, when it is listed so.
    """

    mutant: Mutant
    file: str
    original: str
    verdict: Verdict
    reason: str | None

    @property
    def killed(self) -> bool:
        return self.verdict.outcome != "survived"

    @property
    def survives(self) -> bool:
        """Whether it lives and nobody has said why."""
        return not self.killed and self.reason is None

    @property
    def told(self) -> str:
        """Its id without the file, and its diff."""
        return f"{self.mutant.id.removeprefix(self.file + ':')}\n{self.mutant.diff(self.original)}"


def summary(results: list[Result]) -> str:
    """The score, and every mutant that lives without a reason, or is dead although it has one."""
    lines = [_sentence(results)]
    for result in results:
        if result.survives:
            lines += ["", f"SURVIVES {result.file}: {result.told}"]
        elif result.killed and result.reason is not None:
            lines += [f"LISTED as equivalent but {_fate(result)}: {result.mutant.id}"]
    return "\n".join(lines)


def described(verdict: Verdict) -> str:
    """One line for one verdict."""
    return f"{verdict.outcome:8} {verdict.killer} {verdict.failure} ({verdict.seconds} s) {verdict.name}"


def _fate(result: Result) -> str:
    return f"{result.verdict.outcome} by {result.verdict.killer}"


def _sentence(results: list[Result]) -> str:
    counts = _counts(results)
    judged = counts["mutants"] - counts["equivalent"]
    share = 100 * counts["killed"] / judged if judged else 100.0
    return (
        f"{counts['mutants']} mutants: {counts['killed']} killed, {counts['equivalent']} equivalent, "
        f"{counts['survive']} survive. Score: {counts['killed']} of {judged}, {share:.1f} %."
    )


def _counts(results: Iterable[Result]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for result in results:
        counts["mutants"] += 1
        counts["killed" if result.killed else "equivalent" if result.reason else "survive"] += 1
    return counts


def document(results: list[Result]) -> str:
    """The published page, in Markdown."""
    seconds = sorted(result.verdict.seconds for result in results if result.killed)
    return "\n".join(
        [
            "# Mutation score",
            "",
            "Every rule below changes the bundled sources wherever it applies: another expression, or a",
            "statement left out. Each of these mutants is judged by every property until the first failure,",
            f"with {ROUNDS[0]} cases per property, then {ROUNDS[1]}, then {ROUNDS[2]} over all layouts and",
            "dtypes. One that survives them all and is not proven equivalent is a hole in the properties.",
            "Measured by `make mutation-score`; [mutation testing](mutation-testing.md) does the same to a",
            "kernel of yours.",
            "",
            _sentence(results),
            "Seconds to the kill, the start of a process included: "
            f"median {statistics.median(seconds):.1f}, slowest {seconds[-1]:.1f}.",
            "",
            *_by_file(results),
            "",
            *_by_operator(results),
            "",
            *_by_family(results),
            "",
            *_alive(results),
        ]
    )


def _by_file(results: list[Result]) -> list[str]:
    lines = ["| file | mutants | killed | equivalent | survive |", "|---|---|---|---|---|"]
    for file in dict.fromkeys(result.file for result in results):
        lines.append(_row(f"`{file}`", [r for r in results if r.file == file]))
    return lines


def _row(name: str, results: list[Result]) -> str:
    counts = _counts(results)
    return (
        f"| {name} | "
        + " | ".join(str(counts[c]) for c in ("mutants", "killed", "equivalent", "survive"))
        + " |"
    )


def _by_operator(results: list[Result]) -> list[str]:
    lines = [
        "## Rules",
        "",
        "| rule | what it puts | mutants | killed | equivalent | survive |",
        "|---|---|---|---|---|---|",
    ]
    for name, function in OPERATORS.items():
        what = " ".join((function.__doc__ or "").split()).replace("|", "\\|")
        lines.append(_row(f"{name} | {what}", [r for r in results if r.mutant.operator == name]))
    return lines


def _by_family(results: list[Result]) -> list[str]:
    """Which family of properties killed first."""
    files = list(dict.fromkeys(result.file for result in results))
    kills: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        if result.killed:
            kills[_cause(result.verdict)][result.file] += 1
    lines = [
        "## What killed them",
        "",
        "The family of the first property that failed, in the order in which they are tried; a later one",
        "may kill as well. A crash is a call that raised. A process dies of addresses not its own.",
        "",
        f"| cause | {' | '.join(f'`{file}`' for file in files)} |",
        f"|---|{'---|' * len(files)}",
    ]
    ordered = sorted(kills.items(), key=lambda item: -item[1].total())
    return lines + [f"| {c} | {' | '.join(str(counts[f]) for f in files)} |" for c, counts in ordered]


def _cause(verdict: Verdict) -> str:
    if verdict.outcome != "killed":
        return {"died": "the process died", "hung": "a call did not end"}[verdict.outcome]
    if verdict.failure == "Crash" or not verdict.family:
        return "crash"
    return f"{verdict.family}"


def _alive(results: list[Result]) -> list[str]:
    lines = ["## Survivors", ""]
    survivors = [result for result in results if result.survives]
    if not survivors:
        lines.append("None but these, which no caller can tell from the original.")
    for result in survivors:
        lines += [f"`{result.file}`, no reason known:", "", "```diff", *result.told.splitlines(), "```", ""]
    by_reason: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.reason is not None and not result.killed:
            by_reason[result.reason].append(result)
    for reason, alive in by_reason.items():
        lines += ["", reason, "", "```diff"]
        for result in alive:
            lines += [f"# {result.mutant.id}", *result.mutant.diff(result.original).splitlines()]
        lines.append("```")
    return [*lines, ""]
