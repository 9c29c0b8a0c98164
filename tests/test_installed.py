"""The installed distribution works outside the checkout: from another project and another environment."""

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample project beside a virtual environment that has the wheel, and this environment's packages."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    for name in ("rope", "strategies", "properties"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, source)
    _run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", ".", cwd=source)
    _run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # A path in a .pth file brings packages, but not what they install in .pth files: no editable checkout.
    (packages / "first.pth").write_text("\n".join(site.getsitepackages()))
    (wheel,) = source.glob("*.whl")
    _run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel, cwd=folder)
    shutil.copytree(ROOT / "tests" / "sample_project", folder / "project")
    shutil.rmtree(source)
    return folder / "project"


def _run(*command: object, cwd: Path, status: int = 0) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRITON_INTERPRET")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=kept, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def _pytest(project: Path, *arguments: str, status: int = 0) -> str:
    python = project.parent / "venv" / "bin" / "python"
    return _run(python, "-m", "pytest", "-q", "--no-reports", *arguments, cwd=project, status=status)


def test_the_wheel_is_what_runs(project: Path) -> None:
    code = (
        "import rope, strategies, properties.known as k; print(rope.__file__, strategies.__file__, k.BUNDLED)"
    )
    shown = _run(project.parent / "venv" / "bin" / "python", "-c", code, cwd=project)
    assert shown.count(str(project.parent / "venv")) == 3


def test_the_adapters_and_their_data_are_installed(project: Path) -> None:
    installed = project.parent / "venv" / "lib"
    for name in ("adapters/*.py", "known_failures/*.json"):
        assert {p.name for p in installed.glob(f"*/*/properties/{name}")} == {
            p.name for p in (ROOT / "properties").glob(name)
        }


@pytest.mark.parametrize(("kernel", "status", "outcome"), [("right", 0, "passed"), ("wrong", 1, "Mismatch")])
def test_the_properties_run_on_its_kernel(project: Path, kernel: str, status: int, outcome: str) -> None:
    spec = f"sample_package.kernels:{kernel}"
    arguments = ["-p", "properties.plugin", "--pyargs", "properties.test_reference", "--impl", spec]
    shown = _pytest(project, *arguments, "--hypothesis-profile=dev", "-k", "gptj-float32", status=status)
    assert outcome in shown


def test_its_own_suite_uses_strategies_and_properties(project: Path) -> None:
    shown = _pytest(project, "tests", "--impl", "sample_package.kernels:right", "-k", "float32 or tokens")
    assert "2 passed" in shown
