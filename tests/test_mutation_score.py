"""Automatic mutants: every rule does what it says, ids last, and a share of the mutants dies in every run."""

import json
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest

from tests.mutation_judge import Verdict
from tests.mutation_report import Result, document, summary
from tests.mutation_score import BUNDLED, EQUIVALENT, ROOT, reviewed
from tests.mutator import OPERATORS, Mutant, mutants

_PARAMETERS = "a, b, q, k, cos, sin, lo, hi, rows, mask, BLOCK_T, BLOCK_H"


def _made(rule: str, code: str) -> list[str]:
    """What a rule makes of the last of these lines."""
    body = textwrap.indent(code, "    ")
    source = f"import tl\n\n\ndef f({_PARAMETERS}):\n{body}\n"
    return [m.source.splitlines()[-1].strip() for m in mutants(source, "f.py") if m.operator == rule]


@pytest.mark.parametrize(
    ("rule", "code", "expected"),
    [
        ("swap operator", "return a + b", ["return (a - b)"]),
        ("swap operator", "return a // b", ["return (a % b)", "return (a * b)"]),
        ("swap operator", "return a < b", ["return (a <= b)", "return (a >= b)"]),
        ("swap operator", "return a & b", ["return (a | b)"]),
        ("swap operator", "return a and b", ["return (a or b)"]),
        ("swap operator", "a += b", ["a -= b"]),
        ("swap operator", "return (a + b) * 2", ["return (a + b + 2)", "return ((a - b)) * 2"]),
        ("swap operands", "return a - b", ["return (b - a)"]),
        ("swap operands", "return a + b", []),
        ("swap operands", "return a if b else k", ["return (k if b else a)"]),
        ("swap operands", "return g(a, b, 1)", ["return g(b, a, 1)"]),
        ("swap operands", "return tl.fma(a, b, k)", ["return tl.fma(a, k, b)"]),
        ("swap operands", "return (a, b, b)", ["return (b, a, b)"]),
        ("swap operands", "return a[:, None]", ["return a[None, :]"]),
        ("drop operand", "return a + b * k", ["return a", "return (b * k)", "return a + b", "return a + k"]),
        ("drop operand", "return a & (b < k)", ["return a", "return (b < k)"]),
        ("drop operand", "return a or b or k", ["return (b or k)", "return (a or k)", "return (a or b)"]),
        ("drop mask", "return tl.load(rows, mask=mask, other=0)", ["return tl.load(rows)"]),
        (
            "change other",
            "return tl.load(rows, mask=mask, other=0)",
            ["return tl.load(rows, mask=mask)", "return tl.load(rows, mask=mask, other=1)"],
        ),
        ("shift constant", "return a[0]", ["return a[1]", "return a[-1]"]),
        ("shift constant", "return a * -1", ["return a * 0", "return a * -2"]),
        ("shift constant", "return a * 1.5", []),
        ("shift index", "return arange(0, a)", ["return (arange(0, a) + 1)", "return (arange(0, a) - 1)"]),
        ("shift index", "return a < b", ["return (a < b - 1)"]),
        ("shift index", "return a[b:]", ["return a[:]", "return a[b + 1:]"]),
        ("exchange name", "return q + 1", ["return k + 1"]),
        ("exchange name", "return g(cos)", ["return g(sin)"]),
        ("exchange name", "return BLOCK_T", ["return BLOCK_H"]),
        ("exchange name", "return rows + 1", []),
        ("exchange name", "return a.cos + a.sin", ["return a.sin + a.sin", "return a.cos + a.cos"]),
        ("drop cast", "return a.to(tl.int64) + b", ["return a + b"]),
        ("drop sign", "return -a", ["return a"]),
        ("drop sign", "return not a", ["return a"]),
        ("negate condition", "return a if b else k", ["return a if (not b) else k"]),
        ("drop choice", "return tl.where(a, b, k)", ["return b", "return k"]),
        ("drop choice", "return min(a, b)", ["return a", "return b"]),
        ("flip flag", "return True", ["return False"]),
        ("drop statement", "tl.store(rows, a)", ["pass"]),
        ("drop statement", "a = b", ["pass"]),
        ("drop statement", "new = b + 1", []),
        ("drop statement", "new = b\nnew += a", ["pass"]),
    ],
)  # fmt: skip
def test_a_rule_makes_what_it_says(rule: str, code: str, expected: list[str]) -> None:
    assert _made(rule, code) == expected


def test_every_rule_has_an_example() -> None:
    marks = test_a_rule_makes_what_it_says.pytestmark  # type: ignore[attr-defined]
    assert {example[0] for example in marks[0].args[1]} == set(OPERATORS)


def test_messages_annotations_and_docstrings_stay() -> None:
    source = (
        'def f(a: "1 + 1"):\n    """1 + 1"""\n    b: "1 + 1" = a\n    raise ValueError(f"{1 + 1}", 1 + 1)\n'
    )
    with pytest.raises(ValueError, match="nothing"):
        mutants(source, "f.py")


def test_a_named_function_alone_is_mutated() -> None:
    source = "class A:\n    def f(self, a):\n        return a + 1\n\n\ndef g(a):\n    return a + 1\n"
    assert {m.id.split(":")[1] for m in mutants(source, "f.py")} == {"A.f", "g"}
    assert {m.id.split(":")[1] for m in mutants(source, "f.py", ["A.f"])} == {"A.f"}
    with pytest.raises(ValueError, match=r"no function h, but A\.f, g"):
        mutants(source, "f.py", ["h"])


def _ids(source: str) -> list[str]:
    return [mutant.id for mutant in mutants(source, "f.py")]


def test_ids_do_not_depend_on_lines() -> None:
    source = "def f(a):\n    return a + 1\n"
    moved = "# ü\nimport os\n\n\ndef g():\n    return os\n\n\ndef f(a):\n    # Why.\n    return a + 1  # ü\n"
    assert _ids(source) == _ids(moved)
    assert "f.py:f:swap operator:a + 1 -> a - 1" in _ids(source)


def test_equal_code_is_told_apart_by_number() -> None:
    ids = _ids("def f(a):\n    b = a + 1\n    return b, a + 1\n")
    assert "f.py:f:swap operator:a + 1 -> a - 1 #2" in ids
    assert len(set(ids)) == len(ids)


def test_bytes_before_the_change_count_as_letters() -> None:
    (mutant,) = (m for m in mutants('def f(a):\n    return "ü", -a\n', "f.py") if m.operator == "drop sign")
    assert mutant.source.splitlines()[1] == '    return "ü", a'


def test_there_are_several_hundred_and_every_reviewed_one_exists() -> None:
    ids = [mutant.id for target in BUNDLED for mutant in target.mutants()]
    assert len(set(ids)) == len(ids) > 500
    assert sorted(set(reviewed(EQUIVALENT)) - set(ids)) == []


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


_SHARE = """
import sys
from pathlib import Path
from tests.mutation_score import BUNDLED, EQUIVALENT, chosen, judge, reviewed, summary

to_judge = chosen(BUNDLED, 6, int(sys.argv[1]), reviewed(EQUIVALENT))
print(summary(judge(to_judge, {}, Path(sys.argv[2]), 2)))
"""


def test_a_share_of_the_automatic_mutants_dies(tmp_path: Path) -> None:
    """Six of them, others after every change of the sources."""
    seed = zlib.crc32("".join(Path(ROOT, target.file).read_text() for target in BUNDLED).encode())
    finished = _python("-c", _SHARE, str(seed), str(tmp_path / "kept"))
    assert "6 mutants: 6 killed" in finished.stdout, finished.stdout + finished.stderr


_OUTCOMES = """
import json
from pathlib import Path
from tests import mutation_judge
from tests.mutation_judge import Task, judged

mutation_judge._PATIENCE = 3.0
file = "docs/examples/same_contract.py"
source = Path(file).read_text()
start = "    out = x if inplace"
changes = {
    "survived": "",
    "killed": "    x = -x\\n",
    "died": "    import os; os.abort()\\n",
    "hung": "    while True: pass\\n",
}
tasks = [
    Task(name, file, source.replace(start, change + start), (file + ":my_rope",), (3,))
    for name, change in changes.items()
]
tasks.append(Task("killed", file, "1 / 0", (file + ":my_rope",)))
print(json.dumps([(v.name, v.outcome, v.failure) for v in judged(tasks, 2)]))
"""


def test_outcomes_are_told_apart() -> None:
    """A wrong result, a dead process and a call that does not end; without a change nothing fails."""
    finished = _python("-c", _OUTCOMES)
    verdicts = json.loads(finished.stdout)
    assert len(verdicts) == 5, finished.stderr
    assert all(name == outcome for name, outcome, _ in verdicts), verdicts
    assert {failure for _, _, failure in verdicts} > {"Mismatch", "exit code -6"}


def _result(outcome: str, reason: str | None) -> Result:
    (mutant,) = (m for m in mutants("def f(a):\n    return -a\n", "f.py") if m.operator == "drop sign")
    verdict = Verdict(mutant.id, outcome, "norm" * (outcome == "killed"), "test_norm", "Mismatch", 1.0)
    return Result(mutant, "f.py", "def f(a):\n    return -a\n", verdict, reason)


def test_the_summary_names_who_lives_without_a_reason_and_who_is_dead_with_one() -> None:
    fine = [_result("killed", None), _result("survived", "a is 0")]
    assert summary(fine) == "2 mutants: 1 killed, 1 equivalent, 0 survive. Score: 1 of 1, 100.0 %."
    assert "SURVIVES f.py: f:drop sign:-a -> a\n-    return -a\n+    return a" in summary(
        [*fine, _result("survived", None)]
    )
    assert "LISTED as equivalent but killed by test_norm" in summary([*fine, _result("killed", "a is 0")])


def test_the_page_shows_the_reason_and_the_change() -> None:
    page = document([_result("killed", None), _result("survived", "a is 0")])
    assert "| `f.py` | 2 | 1 | 1 | 0 |" in page
    assert "| norm | 1 |" in page
    assert "a is 0\n\n```diff\n# f.py:f:drop sign:-a -> a\n-    return -a\n+    return a\n```" in page


def test_a_mutant_shows_what_changed() -> None:
    mutant = Mutant("id", "rule", "a\nB\nc\n")
    assert mutant.diff("a\nb\nc\n") == "-b\n+B"
