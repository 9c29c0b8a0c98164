"""Mutation score: how many automatic mutants of a source file the properties kill.

    python -m tests.mutation_score

mutates the bundled kernels, their launch and the eager version, prints the score and writes
docs/mutation-score.md. For a kernel of yours:

    python -m tests.mutation_score --file my_kernel.py --impl my_kernel.py:my_rope

Every mutant runs in a process of its own, on the CPU, Triton kernels in the interpreter. The exit code is 1
when a mutant survives that is not listed as equivalent, or a listed one does not.
"""

import argparse
import json
import random
import sys
import tomllib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutation_judge import ROUNDS, Task, Verdict, judged
from tests.mutation_report import Result, described, document, summary
from tests.mutator import Mutant, mutants

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "mutation-score.md"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.toml"
KEPT = ROOT / "build" / "mutation-score.jsonl"


@dataclass(frozen=True)
class Target:
    """A source file, and what to judge its mutants by.

    Attributes:
        file: the source file, as mutant ids name it.
        specs: implementations that run it, as --impl takes them; a failure of any kills a mutant.
        functions: the functions to mutate, all when empty.
    """

    file: str
    specs: tuple[str, ...]
    functions: tuple[str, ...] = ()

    def mutants(self) -> list[Mutant]:
        return mutants(Path(self.file).read_text(), self.file, self.functions)

    def task(self, name: str, source: str, rounds: tuple[int, ...]) -> Task:
        # A mutant that cannot be imported would die of nothing.
        compile(source, self.file, "exec")
        return Task(name, self.file, source, self.specs, rounds)


BUNDLED: tuple[Target, ...] = (
    Target("rope/eager.py", ("rope-eager", "tests.transformed:transformed")),
    # What decides about results, and can be reached without a GPU and 2**31 programs.
    Target(
        "rope/launch.py",
        ("rope",),
        ("rotate", "_plan", "_blocks", "_tail_side", "_in_units", "_block"),
    ),
    Target("rope/kernels.py", ("rope",)),
)


def reviewed(path: Path) -> dict[str, str]:
    """The mutants that no caller can tell from the original: the reason by id."""
    groups = tomllib.loads(path.read_text())["equivalent"] if path.exists() else []
    return {name: group["reason"].strip() for group in groups for name in group["mutants"]}


def chosen(
    targets: Sequence[Target], sample: int | None, seed: int, equivalent: dict[str, str]
) -> list[tuple[Target, Mutant]]:
    """The mutants to judge: all, or a sample of those that are not listed."""
    everything = [(target, mutant) for target in targets for mutant in target.mutants()]
    if sample is None:
        return everything
    unlisted = [(target, mutant) for target, mutant in everything if mutant.id not in equivalent]
    return random.Random(seed).sample(unlisted, min(sample, len(unlisted)))


def require_existing(equivalent: Iterable[str], targets: Iterable[Target]) -> None:
    """SystemExit when a mutant of these files is listed that no rule makes."""
    for target in targets:
        existing = {mutant.id for mutant in mutants(Path(target.file).read_text(), target.file)}
        gone = [name for name in equivalent if name.startswith(f"{target.file}:") and name not in existing]
        if gone:
            raise SystemExit("\n".join(["listed as equivalent, but made by no rule:", *gone]))


def require_alive(targets: Iterable[Target], jobs: int) -> None:
    """SystemExit when a file fails as it is, so that its mutants would die of that."""
    for verdict in judged((t.task(t.file, Path(t.file).read_text(), ROUNDS[:1]) for t in targets), jobs):
        if verdict.outcome != "survived":
            raise SystemExit(f"{described(verdict)}: without a change. Mend it, or narrow its domain")


def judge(
    to_judge: list[tuple[Target, Mutant]], equivalent: dict[str, str], kept: Path, jobs: int
) -> list[Result]:
    """Judge the mutants of which nothing is kept from an earlier run.

    Args:
        equivalent: mutants listed as such, which are not searched thoroughly.
        kept: JSON lines, one verdict each with a checksum of the mutated file.
    """
    known: dict[tuple[int, str], Verdict] = {}
    for line in kept.read_text().splitlines() if kept.exists() else ():
        facts = json.loads(line)
        checksum, verdict = facts.pop("checksum"), Verdict(**facts)
        # One that survived may die of what the properties have learnt since.
        if verdict.outcome != "survived" or verdict.name in equivalent:
            known[checksum, verdict.name] = verdict
    keys = {mutant.id: (zlib.crc32(mutant.source.encode()), mutant.id) for _, mutant in to_judge}
    tasks = [
        target.task(mutant.id, mutant.source, ROUNDS[:1] if mutant.id in equivalent else ROUNDS)
        for target, mutant in to_judge
        if keys[mutant.id] not in known
    ]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a") as file:
        for number, verdict in enumerate(judged(tasks, jobs), 1):
            print(f"{number}/{len(tasks)} {described(verdict)}", flush=True)
            known[keys[verdict.name]] = verdict
            print(json.dumps({"checksum": keys[verdict.name][0]} | asdict(verdict)), file=file, flush=True)
    sources = {target.file: Path(target.file).read_text() for target, _ in to_judge}
    return [
        Result(mutant, target.file, sources[target.file], known[keys[mutant.id]], equivalent.get(mutant.id))
        for target, mutant in to_judge
    ]


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    if bool(options.file) != bool(options.impl) or (options.function and not options.file):
        parser.error("--file and --impl go together, and --function with them")
    targets = BUNDLED
    if options.file:
        targets = (Target(options.file, tuple(options.impl), tuple(options.function)),)
    equivalent = reviewed(options.equivalent)
    require_existing(equivalent, targets)
    to_judge = chosen(targets, options.sample, options.seed, equivalent)
    require_alive(dict.fromkeys(target for target, _ in to_judge), options.jobs)
    results = judge(to_judge, equivalent, options.kept, options.jobs)
    print(summary(results))
    if options.sample is None and not options.file:
        DOCUMENT.write_text(document(results))
    sys.exit(any(result.survives or (result.killed and result.reason) for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation_score", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--file", help="a source file to mutate in place of the bundled ones")
    add("--impl", action="append", default=[], help="with --file: what runs it, as for pytest; repeatable")
    add(
        "--function",
        action="append",
        default=[],
        help="with --file: a function to mutate, not all; repeatable",
    )
    add("--equivalent", type=Path, default=EQUIVALENT, help="the reviewed list of equivalent mutants, TOML")
    add("--sample", type=int, metavar="N", help="judge N mutants only, none of those listed as equivalent")
    add("--seed", type=int, default=0, help="which sample")
    add("--jobs", type=int, default=2, help="processes at a time")
    add(
        "--kept",
        type=Path,
        default=KEPT,
        help="verdicts of earlier runs, not judged again; delete it to begin anew",
    )
    return parser


if __name__ == "__main__":
    main()
