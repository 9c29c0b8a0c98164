"""docs/check-your-kernel.md does what it says: its examples run through the properties."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "docs" / "examples"


@pytest.mark.parametrize("spec", ["same_contract.py:my_rope", "vllm_like.py:vllm_like"])
def test_the_examples_hold(spec: str) -> None:
    files = ["test_reference.py", "test_memory.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-reports"]
    command += [f"properties/{file}" for file in files]
    command += ["--impl", f"docs/examples/{spec}", "--hypothesis-profile=dev", "-k", "gptj-bfloat16"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "check-your-kernel.md").read_text()
    adapter = (EXAMPLES / "vllm_like.py").read_text().partition("vllm_like = Implementation(")[2]
    assert adapter in page
    assert "rotary_embedding(positions, q.flatten(1), k.flatten(1), q.shape[-1], cache" in page
