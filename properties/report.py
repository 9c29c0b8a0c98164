"""A counterexample as Markdown: short, exact, ready to be attached to a bug report."""

from dataclasses import dataclass, field
from typing import Any

from strategies import RopeCase
from strategies.case import non_default

_VERDICTS = {"passes": "passes", "fails": "fails", "skipped": "not tried"}


@dataclass
class Counterexample:
    """What is known about one failing case, as plain data that travels between processes.

    Attributes:
        implementation, spec: what failed, and what --impl loads it by (empty for one of this project).
        property, statement: the name of the property, and what it says.
        failure, title, message: the Failure's class, its title and its message.
        case: as JSON.
        test: id of the test that found it.
        search: the case was found by a search, which shrinks it.
        flaky: it did not fail every time.
        where: which elements are wrong, in words; None when no element is.
        text_map, svg_map: the same as pictures.
        diagnosis: a sentence per output.
        simplified, varied: (change, outcome) of a study, None when there was none.
        irrelevant, triggers: names of fields.
        study_finished: False when the study's time ran out.
        others: (implementation, outcome).
        script: of repro.py.
        script_kind: "kernel", "guarded" or "harness"; "" when none was tried.
        script_ran: exit status and last line of its run in a fresh process.
        command: replays the case in the harness; {path} is where the case lies.
        also: (test, case as repr, message) of other tests that found the same.
    """

    implementation: str
    spec: str
    property: str
    statement: str
    failure: str
    title: str
    message: str
    case: str
    test: str
    search: bool
    flaky: bool = False
    where: str | None = None
    text_map: str | None = None
    svg_map: str | None = None
    diagnosis: list[str] = field(default_factory=list)
    simplified: list[tuple[str, str]] | None = None
    varied: list[tuple[str, str]] = field(default_factory=list)
    irrelevant: list[str] = field(default_factory=list)
    triggers: list[str] = field(default_factory=list)
    study_finished: bool = True
    others: list[tuple[str, str]] = field(default_factory=list)
    script: str = ""
    script_kind: str = ""
    script_ran: tuple[int, str] | None = None
    command: str = ""
    also: list[tuple[str, str, str]] = field(default_factory=list)

    def folder(self) -> str:
        """Names the folder: implementation, property and failure."""
        return f"{self.implementation}-{self.property.removeprefix('test_')}-{self.failure}"

    def reproduced(self) -> bool:
        """Whether the script showed the fault; an uncaught error exits with 1 too, but says otherwise."""
        status, line = self.script_ran or (None, "")
        return status == 1 and line.startswith("FAULT:")

    def headline(self) -> str:
        """What is wrong with the simplest trigger, in a line."""
        values = non_default(RopeCase.from_json(self.case))
        shown = [n for n in values if n in self.triggers] if self.simplified is not None else list(values)
        trigger = ", ".join(f"{n}={values[n]!r}" for n in shown)
        return (
            f"{self.implementation}: {self.title} {f'with {trigger}' if trigger else 'on the simplest case'}"
        )


def render(found: Counterexample, environment: str) -> str:
    """The report of a counterexample.

    Args:
        found: what is known.
        environment: as torch.utils.collect_env tells it.
    """
    sections = [
        f"# {found.headline()}",
        _verdict(found),
        _reproduce(found),
        _where(found),
        _matters(found),
        _others(found),
        _also(found),
        f"## Replay in the harness\n\n```\n{found.command}\n```",
        f"<details><summary>Environment</summary>\n\n```\n{environment.strip()}\n```\n\n</details>",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _verdict(found: Counterexample) -> str:
    how = "found by a search and shrunk" if found.search else "given, then simplified"
    lines = [
        f"`{found.property}`: {found.statement}",
        f"It fails on this case ({how}):",
        f"```python\n{RopeCase.from_json(found.case)!r}\n```",
        in_words(RopeCase.from_json(found.case)),
        f"**{found.failure}**: {found.message}.",
    ]
    if found.failure == "Crash" and found.simplified is None:
        lines[1] = "The process dies in this case (met by a run, then simplified):"
    if found.flaky:
        lines.append("It did not fail every time that the same case ran.")
    if found.diagnosis:
        lines.append("**Diagnosis**: " + "\n".join(found.diagnosis))
    return "\n\n".join(lines)


def in_words(case: RopeCase) -> str:
    """What a case is, for readers who do not know its defaults."""
    spans = ", ".join(_span(start, length) for start, length in case.requests)
    parts = [
        f"{case.layout}, {case.dtype}",
        *([_counted(case.batch, "batch row")] if case.rank == 4 else []),
        f"{_counted(case.batch * case.tokens, 'token')} ({spans})",
        f"{_counted(case.q_heads, 'head')} of q",
        "no k" if case.k_heads is None else f"{_counted(case.k_heads, 'head')} of k",
        f"dims {case.rot_offset}..{case.rot_offset + 2 * case.rot_half - 1} of {case.head_dim} rotate",
        "in place" if case.inplace else "out of place",
        f"{case.table} table of {_counted(case.max_position, 'row')}",
        *([f"served in {_counted(len(case.steps), 'step')}: {_steps(case)}"] if case.steps else []),
    ]
    return f"In words: {', '.join(parts)}."


def _steps(case: RopeCase) -> str:
    """Which positions of which requests each step of a server rotates together."""
    steps = (" + ".join(f"request {r} {_span(first, n)}" for r, first, n in step) for step in case.steps)
    return " | ".join(steps)


def _span(start: int, length: int) -> str:
    if length < 2:
        return f"position {start}" if length else "empty request"
    return f"positions {start}..{start + length - 1}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _reproduce(found: Counterexample) -> str:
    if not found.script:
        return ""
    what = {
        "kernel": "It needs torch and the kernel only.",
        "guarded": "It needs torch and the kernel only; the fault shows with NaN around every tensor.",
        "harness": "It needs the harness: nothing smaller showed the fault.",
    }[found.script_kind]
    status, line = found.script_ran or (None, "")
    ran = f"In a fresh process it exited with {status}: `{line}`"
    if not found.reproduced():
        ran = f"**It did not show the fault**: in a fresh process it exited with {status}: `{line}`"
    return f"## Reproduce\n\n`python repro.py`. {what}\n{ran}\n\n```python\n{found.script.rstrip()}\n```"


def _where(found: Counterexample) -> str:
    if found.text_map is None:
        return ""
    picture = "\n\n![map of the wrong elements](map.svg)" if found.svg_map else ""
    return f"## Where\n\nWrong: {found.where}. `#` is a wrong element:\n\n```\n{found.text_map}\n```{picture}"


def _matters(found: Counterexample) -> str:
    if found.simplified is None:
        return ""
    parts = ["## What matters", "Each line changes the case above in one thing and runs it again."]
    if found.simplified:
        parts.append(_table("simplified to", found.simplified))
    passing = [(change, outcome) for change, outcome in found.varied if outcome != "fails"]
    if passing:
        parts.append(_table("changed to", passing))
    if found.irrelevant:
        parts.append(f"Does not matter (fails with every other value tried): {', '.join(found.irrelevant)}.")
    if not found.study_finished:
        parts.append("Time ran out before every field was tried.")
    return "\n\n".join(parts)


def _others(found: Counterexample) -> str:
    if not found.others:
        return ""
    return "## Other implementations on this case\n\n" + _table("implementation", found.others)


def _also(found: Counterexample) -> str:
    if not found.also:
        return ""
    lines = [f"- `{test}`: `{case}`: {message}" for test, case, message in found.also[:12]]
    if len(found.also) > 12:
        lines.append(f"- and {len(found.also) - 12} more")
    return "## Found by these tests too\n\n" + "\n".join(lines)


def _table(head: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {head} | result |", "|---|---|"]
    lines += [
        f"| `{name}` | {_VERDICTS.get(outcome, f'fails otherwise: {outcome}')} |" for name, outcome in rows
    ]
    return "\n".join(lines)


def from_data(data: dict[str, Any]) -> Counterexample:
    """The counterexample that a worker sent."""
    return Counterexample(**data)
