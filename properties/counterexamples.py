"""From a failing test to a folder with a report: analysed where the test ran, written by the controller."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils import collect_env

from properties import diagnosis, repro
from properties.deaths import simplest_death
from properties.error_map import svg_map, text_map
from properties.failures import Crash, Failure
from properties.implementations import Implementation
from properties.judge import execute
from properties.loading import SpecError, resolve
from properties.property import SHARED_RUNS, is_of_property
from properties.record import Journal, LastCase, Record, SharedRuns, last_case, recording
from properties.replay import taken
from properties.report import Counterexample, from_data, render
from properties.study import run, simplify, study
from strategies import RopeCase

FOLDER = "counterexamples"
RECORD = pytest.StashKey[Record]()
_SCRIPT_SECONDS = 120
# For the study of one case; and, of all, after which a process studies its cases only briefly.
_SECONDS_OF_ONE = 10.0
_SECONDS = 120.0
_TENSORS = ("q", "k", "v", "cos", "sin", "positions", "axes")
# Hardware lines that say nothing about a kernel.
_NOISE = ("Flags:", "Vulnerability ", "BogoMIPS", "NUMA node")


def failures_in(error: BaseException) -> Iterator[tuple[Failure, bool]]:
    """The failures that a test raised, and whether Hypothesis found them flaky."""
    if isinstance(error, Failure):
        yield error, False
    elif isinstance(error, BaseExceptionGroup):
        flaky = type(error).__name__.startswith("Flaky")
        for inner in error.exceptions:
            for failure, inner_flaky in failures_in(inner):
                yield failure, flaky or inner_flaky


def describe(failure: Failure, test: str, *, search: bool, flaky: bool = False) -> Counterexample:
    """What the failure itself says, without running anything again."""
    implementation, case = failure.implementation, failure.case
    statement = (failure.property.check.__doc__ or "").strip().partition("\n")[0]
    return Counterexample(
        implementation=implementation.name,
        spec=implementation.spec,
        property=failure.property.name,
        statement=statement,
        failure=type(failure).__name__,
        title=failure.title,
        message=str(failure).rstrip("."),
        case=case.to_json(),
        test=test,
        search=search,
        flaky=flaky,
        command=_replay_command(test, implementation),
    )


def _replay_command(test: str, implementation: Implementation) -> str:
    folder = test.partition("::")[0].rpartition("/")[0] or "."
    spec = f"--impl {shlex.quote(implementation.spec)} " if implementation.spec else ""
    against = f"--against {shlex.quote(implementation.against.spec)} " if implementation.against else ""
    return f"pytest {folder}/ {spec}{against}--replay {{path}}"


def analyse(
    found: Counterexample,
    failure: Failure,
    implementations: list[Implementation],
    seconds: float = _SECONDS_OF_ONE,
) -> None:
    """Run the case in other ways and fill in what they show; its fields are studied for some seconds."""
    implementation, case, tried = failure.implementation, failure.case, failure.property
    _map(found, failure)
    if found.failure in ("Mismatch", "TailChanged", "NotDeterministic"):
        found.diagnosis = [d.sentence() for d in diagnosis.diagnose(implementation, case)]
    studied = study(tried, implementation, case, found.failure, seconds)
    found.simplified = [(c.change, c.outcome) for c in studied.simplified]
    found.varied = [(c.change, c.outcome) for c in studied.varied]
    found.irrelevant, found.triggers = studied.irrelevant(), studied.triggers()
    found.study_finished = studied.finished
    for other in implementations:
        if other.name == implementation.name or other.missing is not None:
            continue
        domain = tried.domain(other)
        if domain is not None and domain.why_outside(taken(domain, case)) is None:
            outcome = run(tried, other, taken(domain, case))
            found.others.append((other.name, "fails" if outcome == found.failure else outcome))
    # Memory outside every tensor is named by the tensor that it lies beside.
    beside = re.search(rf"\b({'|'.join(_TENSORS)})\[", found.message)
    around = failure.facts.get("tensor") or (beside and beside[1])
    _script(found, implementation, case, around=around if around in _TENSORS else None)


def _map(found: Counterexample, failure: Failure) -> None:
    wrong = failure.facts.get("wrong")
    if not isinstance(wrong, np.ndarray) or wrong.ndim != 4:
        return
    name = failure.facts["tensor"]
    ratio = None
    if isinstance(failure, Failure) and "ratio" in failure.facts:
        with contextlib.suppress(Failure):
            ratio = execute(failure.implementation, failure.case).verdict(name).ratio()
    found.where = f"{name}_out, {diagnosis.where_wrong(wrong)}"
    found.text_map = text_map(wrong)
    title = f"{name}_out: {wrong.sum()} of {wrong.size} elements are wrong"
    found.svg_map = svg_map(wrong, ratio if ratio is None or ratio.shape == wrong.shape else None, title)


def _script(
    found: Counterexample,
    implementation: Implementation,
    case: RopeCase,
    *,
    around: str | None = None,
    died: bool = False,
) -> None:
    """Find the smallest script that shows the fault in a fresh process.

    Args:
        around: the tensor whose surroundings matter, when one does.
        died: the fault takes the process down.
    """
    title = f"{found.headline()}."
    candidates = []
    source = _source(implementation, case)
    if source is not None and found.failure not in repro.NEEDS_HARNESS:
        candidates = [
            (kind, repro.script(source, case, found.failure, title, guarded=guarded, died=died))
            for kind, guarded in (("kernel", _needed(found.failure, around)), ("guarded", _TENSORS))
        ]
    command = [*shlex.split(found.command)[1:-2], "-k", found.property, "--no-reports", "--replay"]
    candidates.append(("harness", repro.harness_script(command, found.failure, title, case)))
    tried = set()
    for kind, text in candidates:
        if text in tried:
            continue
        tried.add(text)
        found.script, found.script_kind, found.script_ran = text, kind, _fresh(text, found.case)
        if found.reproduced():
            return


def _needed(failure: str, around: str | None) -> tuple[str, ...]:
    """The tensors whose surroundings a script must watch to see the fault at all."""
    if failure == "ValueChanged":
        return ("v",)
    if failure in ("OutOfBoundsRead", "OutOfBoundsWrite"):
        return (around,) if around else _TENSORS
    return ()


def _source(implementation: Implementation, case: RopeCase) -> repro.Source | None:
    """Where a script imports the kernel from; None when it cannot be imported."""
    try:
        loaded = resolve(implementation.spec)
    except (SpecError, ImportError):
        return None
    where, _, attribute = implementation.spec.rpartition(":")
    suffix = ""
    if isinstance(loaded, Implementation):
        # The function itself where it has a name, so that the script shows no wrapper.
        name = getattr(loaded.call, "__name__", "")
        named = name.isidentifier() and _resolves_to(f"{where}:{name}", loaded.call)
        attribute, suffix = (name, "") if named else (attribute, ".call")
    elif case.tile is not None and implementation.call is not loaded:
        where, attribute = "properties.implementations", "_rope_with_tile"
    cpu_only = implementation.device == "cpu" and implementation.name == "rope-eager"
    return repro.Source(f"{where}:{attribute}", suffix, implementation.domain.compute, cpu_only)


def _resolves_to(spec: str, expected: object) -> bool:
    try:
        return resolve(spec) is expected
    except SpecError:
        return False


def _fresh(text: str, case: str) -> tuple[int, str]:
    """Run a script in a process of its own: exit status and last line of output."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "repro.py")
        path.write_text(text)
        Path(folder, "case.json").write_text(case)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV_"))}
        try:
            done = subprocess.run(
                [sys.executable, str(path)],
                capture_output=True,
                text=True,
                timeout=_SCRIPT_SECONDS,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, f"no end within {_SCRIPT_SECONDS} s"
        lines = (
            done.stdout if done.returncode == 1 and done.stdout else done.stdout + done.stderr
        ).splitlines()
        return done.returncode, (lines[-1] if lines else "").replace(folder, ".")


class Counterexamples:
    """The part of the plugin that turns failing tests into folders, and remembers what a process died in.

    A process that runs tests analyses its failures and hands plain data to the controller in the test's
    report; the controller, which without xdist is the same process, writes the folders.
    """

    def __init__(self, config: pytest.Config, implementations: list[Implementation]) -> None:
        self.config = config
        self.implementations = implementations
        self.is_worker = hasattr(config, "workerinput")
        self.written: dict[str, Counterexample] = {}
        self._runs = SharedRuns(SHARED_RUNS)
        self._analysed: dict[str, int] = {}
        self._environment = ""
        self._spent = 0.0
        self._notes: list[str] = []
        self._folder = Path(config.invocation_params.dir, FOLDER)
        self._journals = Path(tempfile.mkdtemp(prefix="rope-journals-")) if not self.is_worker else None
        self._left_over = Path(config.rootpath, ".pytest_cache", "rope")
        if self.is_worker:
            path = Path(config.workerinput["rope_journal"])  # type: ignore[attr-defined]
        else:
            path = self._left_over / f"running-{os.getpid()}.json"
        try:
            self.journal = Journal(path)
        except OSError:  # a folder that cannot be written to: no later run will find the case
            self.journal = Journal(Path(tempfile.mkdtemp(prefix="rope-journal-")) / path.name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        item.stash[RECORD] = Record(self.journal, self._runs if is_of_property(item) else None)
        with recording(item.stash[RECORD]):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        if call.when == "call" and call.excinfo is not None and not self.config.getoption("--no-reports"):
            search = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
            with recording(Record(self.journal)):
                report.counterexamples = [
                    asdict(self._found(failure, item.nodeid, search, flaky))
                    for failure, flaky in failures_in(call.excinfo.value)
                    if hasattr(failure, "case")
                ]
        return report

    def _found(self, failure: Failure, test: str, search: bool, flaky: bool) -> Counterexample:
        """Describe a failure; simplify and analyse it when its case is the simplest of its kind so far."""
        found = describe(failure, test, search=search, flaky=flaky)
        if len(found.case) < self._analysed.get(found.folder(), sys.maxsize):
            start = time.monotonic()
            seconds = _SECONDS_OF_ONE if self._spent < _SECONDS else 1.0
            simplest = simplify(failure, seconds)
            found = describe(simplest, test, search=search, flaky=flaky)
            self._analysed[found.folder()] = len(found.case)
            analyse(found, simplest, self.implementations, seconds)
            self._spent += time.monotonic() - start
        return found

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not self.is_worker:
            for data in getattr(report, "counterexamples", ()):
                self._write(from_data(data))

    def _write(self, found: Counterexample) -> None:
        """Write a folder, or add to the one that is there; of two the better analysed and simpler stays."""
        before = self.written.get(found.folder())
        if before is not None:
            keep, other = sorted((before, found), key=lambda c: (not c.script, len(c.case)))
            case = repr(RopeCase.from_json(other.case))
            keep.also = [*before.also, (other.test, case, other.message)]
            found = keep
        self.written[found.folder()] = found
        self._environment = self._environment or environment()
        folder = self._folder / found.folder()
        folder.mkdir(parents=True, exist_ok=True)
        command = found.command
        found.command = command.replace("{path}", f"{FOLDER}/{found.folder()}/case.json")
        (folder / "report.md").write_text(render(found, self._environment))
        found.command = command
        (folder / "case.json").write_text(found.case)
        (folder / "repro.py").write_text(found.script)
        if found.svg_map is not None:
            (folder / "map.svg").write_text(found.svg_map)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for text in self._notes:
            terminalreporter.write_line(text)
        if not self.written:
            return
        terminalreporter.section("counterexamples")
        for name, found in self.written.items():
            terminalreporter.write_line(f"{FOLDER}/{name}/report.md")
            terminalreporter.write_line(f"    {found.headline()}")
            for sentence in found.diagnosis:
                terminalreporter.write_line(f"    {sentence}")

    def pytest_unconfigure(self) -> None:
        self.journal.close()
        if self._journals is not None:
            shutil.rmtree(self._journals, ignore_errors=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        assert self._journals is not None
        node.workerinput["rope_journal"] = str(self._journals / f"{node.gateway.id}.json")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        died = last_case(Path(report.node.workerinput["rope_journal"]))
        if died is not None:
            self._died(died, crashitem, f"worker {report.node.gateway.id} died")
            report.longrepr = f"{report.longrepr}, on {died.case!r}"

    def pytest_sessionstart(self) -> None:
        """Name the case that an earlier run without xdist ended in: nobody was left to do it."""
        if self.is_worker:
            return
        for path in self._left_over.glob("running-*.json"):
            pid = int(path.stem.partition("-")[2])
            if pid == os.getpid() or _alive(pid):
                continue
            died = last_case(path)
            path.unlink(missing_ok=True)
            if died is not None:
                # It may as well have been killed from outside, so no report is made of it.
                kept = path.with_name(f"ended-{pid}.json")
                kept.write_text(died.case.to_json())
                self._notes.append(
                    f"An earlier run ended while {died.implementation} ran {died.property} on {died.case!r}. "
                    f"If it died by itself, replay it in a worker, which gives a report: -n 1 --replay {kept}"
                )

    def _died(self, died: LastCase, test: str, what: str) -> None:
        """Write the report of a case that took its process down."""
        implementation = next((i for i in self.implementations if i.name == died.implementation), None)
        if implementation is None or self.config.getoption("--no-reports"):
            return
        case = simplest_death(implementation, died.case)
        found = Counterexample(
            implementation=died.implementation,
            spec=implementation.spec,
            property=died.property,
            statement="the call comes back",
            failure=Crash.__name__,
            title="the process dies",
            message=f"{what} while {died.case!r} ran" if case != died.case else f"{what} while this case ran",
            case=case.to_json(),
            test=test,
            search=False,
            command=_replay_command(test or "properties/", implementation),
        )
        _script(found, implementation, case, died=True)
        self._write(found)


def environment() -> str:
    """torch.utils.collect_env without the lines about hardware that kernels never meet."""
    lines = collect_env.get_pretty_env_info().splitlines()
    return "\n".join(line for line in lines if not line.startswith(_NOISE))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
