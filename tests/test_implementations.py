"""What --impl loads, and what it says when it cannot."""

import sys
from pathlib import Path

import pytest

from properties import loading
from properties.loading import SpecError, load, load_all
from strategies import Domain

FILE = """
from properties.implementations import Implementation
from strategies import Domain

import neighbour


def my_rope(q, k, cos, sin, positions=None, **options):
    return neighbour.rotate(q, k)


number = 3
narrow = Implementation("my kernel [v2]", my_rope, Domain(layouts=("neox",)))
on_gpu = Implementation("gpu", my_rope, Domain(needs="cuda"))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with kernels, called like a module of the standard library."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "types.py"
    path.write_text(FILE)
    (tmp_path / "neighbour.py").write_text("def rotate(q, k):\n    return q, k\n")
    return path


def test_a_function_of_a_file_supports_everything(file: Path) -> None:
    loaded = load(f"{file}:my_rope", "cpu")
    assert loaded.name == "types.my_rope"
    assert loaded.domain == Domain()
    assert loaded.call(1, 2, 3, 4) == (1, 2)
    assert loaded.spec == f"{file}:my_rope"


def test_a_function_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are found from the current directory, as with `python -m pytest`."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "kernels.py").write_text("def rope(*args, **options):\n    return 7\n")
    loaded = load("a_package.kernels:rope", "cpu")
    assert (loaded.name, loaded.call()) == ("a_package.kernels.rope", 7)


def test_an_implementation_keeps_its_domain(file: Path) -> None:
    loaded = load(f"{file}:narrow", "cuda:1")
    assert loaded.domain.layouts == ("neox",)
    assert loaded.device == "cuda:1"
    assert loaded.name == "my-kernel-v2"  # safe in a file name and in a test id


@pytest.mark.parametrize("name", ["rope", "rope-eager"])
def test_bundled_ones_load_by_name_and_by_spec(name: str) -> None:
    by_name = load(name, "cpu")
    assert by_name.name == name
    assert load(by_name.spec, "cpu").domain == by_name.domain


def test_names_are_unique(file: Path) -> None:
    names = [i.name for i in load_all([f"{file}:narrow", "rope", f"{file}:narrow"], "cpu")]
    assert names == ["my-kernel-v2", "rope", "my-kernel-v2-2"]


def test_a_missing_gpu_is_no_error(file: Path) -> None:
    assert load(f"{file}:on_gpu", "cpu").missing == "needs a CUDA device"
    assert load(f"{file}:on_gpu", "cuda:0").missing is None


def test_a_missing_package_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loading.ADAPTERS, "peer", "no_such_package.rope:rope")
    missing = load("peer", "cpu")
    assert missing.missing == "No module named 'no_such_package'"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_package.mod:fn", "'no_such_package.mod:fn' cannot be imported: ModuleNotFoundError"),
        ("rope:rope_of_dreams", "rope has no 'rope_of_dreams', but apply_rope"),
        ("nowhere/kernels.py:fn", "there is no file "),
        ("rope.api", "names no implementation: expected package.module:function"),
        ("rope.checks:LAYOUTS", "is tuple, expected a function called like rope.apply_rope"),
    ],
)
def test_what_does_not_load_says_why(spec: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        load(spec, "cpu")
    assert message in str(raised.value)


def test_a_module_that_fails_to_import_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    with pytest.raises(SpecError, match="cannot be imported: ZeroDivisionError"):
        load(f"{path}:fn", "cpu")
