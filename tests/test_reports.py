"""Reports: three planted faults give three reports, word for word; --replay; a process that dies."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis.errors import FlakyFailure

# Modules: a property in this namespace would run.
from properties import repro, test_errors, test_gradients, test_reference, test_trace
from properties.counterexamples import analyse, describe, failures_in
from properties.failures import Failure, Mismatch, UnwrittenOutput
from properties.implementations import Implementation, bundled, default_device
from properties.loading import load
from properties.record import Journal, Record, last_case, recording
from properties.replay import case_of
from properties.report import in_words, render
from properties.study import simplify
from strategies import Domain, RopeCase

ROOT = Path(__file__).parents[1]
ON_GPU = torch.cuda.is_available()
GOLDENS = ROOT / "tests" / "goldens"
# The report of each fault: where --impl finds it, and what repairs it.
FAULTS = {
    "wrong_sign-matches_the_oracle-Mismatch": ("WRONG_SIGN", "turned=1", "turned=-1"),
    "over_read-reads_stay_inside-OutOfBoundsRead": ("OVER_READ", "read_too_far=1", "read_too_far=0"),
    "unwritten_row-matches_the_oracle-UnwrittenOutput": ("UNWRITTEN_ROW", "left_out=1 if", "left_out=0 if"),
}
REPORTS = tuple(FAULTS)
# The property that finds each, and a case as a search meets it.
MET = RopeCase(requests=((3, 2), (0, 1)), q_heads=3, k_heads=3, rot_half=2, table_fill="ramp", fill="normal")
FINDS = (
    test_reference.test_matches_the_oracle,
    test_trace.test_reads_stay_inside,
    test_reference.test_matches_the_oracle,
)
DYING = """
import os
from properties.implementations import Implementation, rope_eager
from strategies import Domain

def rope(q, *arguments, **options):
    if len(q) > 2:
        os.abort()
    return rope_eager(q, *arguments, **options)

DOMAIN = Domain(
    layouts=("neox",),
    dtypes=("float32",),
    ranks=(3,),
    heads_first=(False,),
    tails=("none",),
    head_dims=(4,),
)
ROPE = Implementation("dying", rope, DOMAIN)
"""
# The same on a GPU: a store to where no memory is, after which the process can run nothing more there.
DYING_ON_GPU = """
import triton
import triton.language as tl

@triton.jit
def kernel(x, far):
    # No layout: one element, far outside of everything.
    tl.store(x + far, 1.0)
""" + DYING.replace("os.abort()", "kernel[(1,)](q, 1 << 44)")
# A read that changes no output is seen in the interpreter alone, which takes tensors of the CPU.
TRACED = {"TRITON_INTERPRET": "1"}


def on_this_checkout(**variables: str) -> dict[str, str]:
    """The environment of a process that imports this checkout and is no part of this test run."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return environment | {"PYTHONPATH": os.pathsep.join(paths)} | variables


def run_pytest(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, on the properties of this checkout."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "-p", "no:randomly", "--hypothesis-profile=ci", "-q"],
        cwd=folder,
        env=on_this_checkout(**variables),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def run_script(folder: Path, report: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, f"counterexamples/{report}/repro.py"],
        cwd=folder,
        env=on_this_checkout(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run under xdist on a kernel with three faults: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted_faults.py").write_text((ROOT / "tests/planted_faults.py").read_text())
    names = [name for name, _, _ in FAULTS.values()]
    if not ON_GPU:
        return folder, run_on_planted(folder, "summary.json", names)
    printed = run_on_planted(folder, "summary.json", [name for name in names if name != "OVER_READ"])
    return folder, printed + run_on_planted(folder, "traced.json", ["OVER_READ"], "--device=cpu", **TRACED)


def run_on_planted(folder: Path, summary: str, names: list[str], *options: str, **variables: str) -> str:
    """Run two properties on some of the faults; every fault fails one of them. What was printed."""
    done = run_pytest(
        folder,
        *("-n", "2", f"{ROOT}/properties/test_reference.py", f"{ROOT}/properties/test_trace.py"),
        *(f"--impl=planted_faults.py:{name}" for name in names),
        *("-k", "oracle or reads_stay", "--summary-json", summary, *options),
        **variables,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_three_faults_give_three_reports(planted: tuple[Path, str]) -> None:
    folder, printed = planted
    assert sorted(p.name for p in (folder / "counterexamples").iterdir()) == sorted(REPORTS)
    for report in REPORTS:
        assert f"counterexamples/{report}/report.md" in printed


@pytest.mark.parametrize("report", REPORTS)
def test_the_report_is_the_golden_one(report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a fixed case, so that the golden does not hang on what a search happens to draw."""
    if ON_GPU and "OVER_READ" in FAULTS[report]:
        pytest.skip("only the interpreter sees a read that changes no output, and kernels are compiled here")
    (tmp_path / "planted_faults.py").write_text((ROOT / "tests/planted_faults.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    implementation = load(f"planted_faults.py:{FAULTS[report][0]}", default_device())
    tried = FINDS[REPORTS.index(report)]
    with recording(Record(Journal(tmp_path / "running.json"))):
        with pytest.raises(Failure) as raised:
            tried.run(implementation, MET)
        simplest = simplify(raised.value)
        found = describe(simplest, "properties/test_x.py::test_x[x]", search=False)
        analyse(found, simplest, [implementation, *bundled(default_device())])
    assert found.folder() == report
    text = render(found, "(of this machine)")
    golden = GOLDENS / f"{report}.md"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(text)
    assert text == golden.read_text(), "run with UPDATE_GOLDENS=1 when the change is meant"


# Faults that a plain script cannot show: an implementation, the property that finds it, a case.
IN_THE_HARNESS = {
    "RaceHazard": ("partner_loaded_separately", test_trace.test_no_race, RopeCase(inplace=True)),
    "ExtraTraffic": (
        "partner_loaded_separately",
        test_trace.test_traffic_is_the_least_possible,
        RopeCase(fill="ramp"),
    ),
    "WrongGradient": (
        "not_rotated",
        test_gradients.test_gradient_is_the_transposed_rotation,
        RopeCase(requests=((1, 1),)),
    ),
    "MissingError": (
        "full_width_table_guessed_at",
        test_errors.test_wrong_input_is_refused,
        RopeCase(k_heads=None, seed=3),
    ),
}


@pytest.mark.skipif(ON_GPU, reason="races and traffic are seen in the interpreter, and kernels are compiled")
@pytest.mark.parametrize("failure", IN_THE_HARNESS)
def test_a_fault_that_no_plain_script_shows_is_replayed(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, tried, case = IN_THE_HARNESS[failure]
    (tmp_path / "faulty.py").write_text(
        "from dataclasses import replace\nfrom tests.mutants import MUTANTS\n"
        f"found = next(m for m in MUTANTS if m.name == {name!r}).fresh()\n"
        "FAULTY = replace(found, domain=replace(found.domain, least_traffic=True))\n"
    )
    # Where the command of the report runs.
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    implementation = load(f"{tmp_path}/faulty.py:FAULTY", "cpu")
    with recording(Record(Journal(tmp_path / "running.json"))):
        with pytest.raises(Failure) as raised:
            tried.run(implementation, case)
        found = describe(raised.value, f"properties/test_x.py::{tried.name}[x]", search=False)
        analyse(found, raised.value, [implementation], seconds=0.1)
    assert (found.failure, found.script_kind) == (failure, "harness")
    assert found.script_ran == (1, "FAULT: the replay fails")
    assert repro.NEEDS_HARNESS[failure].split()[0] in render(found, "(of this machine)")


@pytest.mark.parametrize("report", REPORTS)
def test_the_script_tells_broken_from_repaired(planted: tuple[Path, str], report: str) -> None:
    folder, _ = planted
    status, line = run_script(folder, report)
    assert status == 1
    assert line.startswith("FAULT: ")
    assert line.count("\n") == 1
    broken = (folder / "planted_faults.py").read_text()
    _, fault, repair = FAULTS[report]
    repaired = broken.replace(fault, repair)
    assert repaired != broken
    (folder / "planted_faults.py").write_text(repaired)
    try:
        assert run_script(folder, report) == (0, "OK: the fault is gone\n")
    finally:
        (folder / "planted_faults.py").write_text(broken)


def test_the_case_is_loaded_by_plain_parsing(planted: tuple[Path, str]) -> None:
    for report in REPORTS:
        text = (planted[0] / "counterexamples" / report / "case.json").read_text()
        assert RopeCase.from_json(text).to_json() == text


def test_the_map_is_an_svg(planted: tuple[Path, str]) -> None:
    from xml.etree import ElementTree

    for report in (REPORTS[0], REPORTS[2]):
        picture = ElementTree.parse(planted[0] / "counterexamples" / report / "map.svg").getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"


def test_the_summary_counts_cases(planted: tuple[Path, str]) -> None:
    folder, printed = planted
    told = [line for path in folder.glob("*.json") for line in json.loads(path.read_text())]
    lines = {(line["implementation"], line["property"]): line for line in told}
    assert len(lines) == 6
    oracle = lines["wrong_sign", "test_matches_the_oracle"]
    assert oracle["cases"] > 10
    assert float(oracle["worst_ratio"]) > 1
    assert oracle["verdict"] == "FAILS in 1 of 1 tests"
    assert lines["over_read", "test_matches_the_oracle"]["verdict"] == "holds"
    assert lines["over_read", "test_reads_stay_inside"]["worst_ratio"] is None
    assert "worst error / bound" in printed


def test_replay_runs_the_case_through_every_property_that_takes_it(planted: tuple[Path, str]) -> None:
    folder, _ = planted
    case = f"counterexamples/{REPORTS[0]}/case.json"
    chosen = f"{ROOT}/properties/test_reference.py", f"{ROOT}/properties/test_memory.py"
    options = "--impl", "planted_faults.py:WRONG_SIGN", "--no-reports", "--replay", case
    done = run_pytest(folder, *chosen, *options, "-vv")
    results = dict(re.findall(r"::(\w+)\[wrong_sign-replay\] (\w+)", done.stdout))
    assert results == {
        "test_matches_the_oracle": "FAILED",
        "test_v_is_unmodified": "PASSED",
        "test_inputs_are_unmodified": "PASSED",
        "test_nothing_else_is_written": "PASSED",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "holds no valid case: not a case: no valid JSON"),
        ('"RopeCase()"', "holds no valid case: case is str, expected an object"),
        ('{"heads": 3}', "holds no valid case: case has no field 'heads'"),
        ('{"layout": "__import__(\'os\').abort()"}', "holds no valid case: layout is"),
        (
            '{"dtype": "float16"}',
            "takes RopeCase(dtype='float16'): mine: dtype is 'float16'",
        ),
    ],
)
def test_a_file_that_is_no_case_is_a_usage_error(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(text)
    mine = Implementation("mine", lambda: None, Domain(dtypes=("float32",)))
    with pytest.raises(pytest.UsageError, match=re.escape(said)):
        case_of(str(path), [mine])


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match="cannot be read"):
        case_of(str(tmp_path / "case.json"), [])


def test_a_worker_that_dies_leaves_a_report(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    oracle = f"{ROOT}/properties/test_reference.py"
    done = run_pytest(
        tmp_path, "-n", "1", oracle, "--impl", "dying.py:ROPE", "-k", "neox", "--max-worker-restart=0"
    )
    assert_died(tmp_path, done.stdout, "worker gw0 died while ")


def test_a_run_that_dies_leaves_its_case_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    oracle = f"{ROOT}/properties/test_reference.py", "-c", "pytest.ini", "-p", "properties.plugin"
    died = run_pytest(tmp_path, *oracle, "--impl", "dying.py:ROPE", "-k", "neox")
    assert died.returncode < 0
    done = run_pytest(tmp_path, *oracle, "--impl", "dying.py:ROPE", "-k", "nothing")
    said = re.search(
        r"An earlier run ended while dying ran test_matches_the_oracle on .*--replay (\S+)", done.stdout
    )
    assert said is not None, done.stdout
    assert RopeCase.from_json(Path(said[1]).read_text()).tokens > 2


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_an_illegal_access_on_the_gpu_leaves_a_report(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING_ON_GPU)
    oracle = f"{ROOT}/properties/test_reference.py"
    done = run_pytest(tmp_path, "-n", "1", oracle, "--impl", "dying.py:ROPE", "-k", "neox")
    report = tmp_path / "counterexamples" / "dying-matches_the_oracle-Crash"
    assert f"counterexamples/{report.name}/report.md" in done.stdout, done.stdout
    text = (report / "report.md").read_text()
    assert "worker gw0 died while " in text
    assert re.search("In a fresh process it exited with 1: `FAULT: .*illegal memory access", text), text
    assert RopeCase.from_json((report / "case.json").read_text()).tokens == 3


def assert_died(folder: Path, printed: str, message: str) -> None:
    report = "dying-matches_the_oracle-Crash"
    assert f"counterexamples/{report}/report.md" in printed
    text = (folder / "counterexamples" / report / "report.md").read_text()
    assert message in text
    assert "In a fresh process it exited with 1: `FAULT: the process died of signal 6`" in text
    case = RopeCase.from_json((folder / "counterexamples" / report / "case.json").read_text())
    assert case.tokens == 3
    # Where every attempt has to start CUDA anew, fewer fit into the time.
    assert ON_GPU or case == RopeCase(requests=((0, 3),), rot_half=2)


def test_the_journal_holds_the_running_case_and_costs_little(tmp_path: Path) -> None:
    case = RopeCase(requests=((0, 2), (17, 4)), q_heads=4, fill="normal", seed=3)
    journal = Journal(tmp_path / "running.json")
    with journal.holding("rope", "test_x", case):
        last = last_case(journal.path)
        assert last is not None
        assert (last.implementation, last.property, last.case) == ("rope", "test_x", case)
    assert last_case(journal.path) is None
    best = min(timed(journal, case) for _ in range(200))
    assert best < 0.2e-3
    journal.close()
    assert not journal.path.exists()


def timed(journal: Journal, case: RopeCase) -> float:
    start = time.perf_counter()
    with journal.holding("rope", "test_x", case):
        pass
    return time.perf_counter() - start


def test_a_case_is_told_in_words() -> None:
    case = RopeCase(requests=((5, 1), (0, 3)), q_heads=4, tail=2, inplace=True)
    assert in_words(case) == (
        "In words: neox, float32, 4 tokens (position 5, positions 0..2), 4 heads of q, 1 head of k, "
        "dims 0..1 of 4 rotate, in place, indexed table of 6 rows."
    )


def test_every_failure_of_a_group_is_found_once() -> None:
    first, second = Mismatch("a"), UnwrittenOutput("b")
    group = ExceptionGroup("Hypothesis found 2 distinct failures", [first, ValueError(), second])
    assert list(failures_in(group)) == [(first, False), (second, False)]
    assert list(failures_in(FlakyFailure("flaky", [first]))) == [(first, True)]
