"""A script that shows one fault with torch and the kernel alone: tensors by formula, the oracle inlined."""

import json
import textwrap
from collections.abc import Collection
from dataclasses import dataclass

from properties.repro_checks import CHECKS, check_values
from properties.repro_tensors import TensorWriter
from strategies import RopeCase

# Faults that a plain script cannot show, and why.
NEEDS_HARNESS = {
    "RaceHazard": "On a GPU the result of a race depends on timing, and Triton's interpreter runs one "
    "program after another, so no output shows it",
    "ExtraTraffic": "No output shows how often memory is read and written",
    "WrongGradient": "The derivative is checked against the harness's own",
    "MissingError": "What has to be refused is written down in the harness",
}


@dataclass(frozen=True)
class Source:
    """Where the kernel comes from.

    Attributes:
        spec: "package.module:function" or "path/file.py:function".
        attribute: what to call on the function's name, as ".call" of an Implementation; usually empty.
        compute: arithmetic that the implementation claims, as in Domain.
        cpu_only: it does not run on a GPU.
    """

    spec: str
    attribute: str = ""
    compute: str = "float32"
    cpu_only: bool = False


def script(
    source: Source,
    case: RopeCase,
    failure: str,
    title: str,
    *,
    guarded: Collection[str] = (),
    died: bool = False,
) -> str:
    """The text of a script that exits 1 with one line while the fault is there, and 0 when it is gone.

    Args:
        failure: the class of the Failure.
        title: first line of the script.
        guarded: names of the tensors that lie between red zones of NaN.
        died: the fault takes the process down.
    """
    function = source.spec.rpartition(":")[2]
    writer = TensorWriter(case, function, source.compute, guarded=guarded)
    checks = CHECKS.get(failure, check_values)
    parts = [
        f'"""{title}\n\n{_wrapped(repr(case))}\n\n'
        'Needs torch and the kernel. Exits 1 while the fault is there, 0 when it is gone.\n"""\n',
        _imports(source, failure, died),
        writer.tensors(),
        checks(writer),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def harness_script(command: list[str], failure: str, title: str, case: RopeCase) -> str:
    """A script that replays the case.json beside it in the harness, for faults that nothing smaller shows.

    Args:
        command: arguments of pytest, without the path of the case, which comes last.
    """
    reason = NEEDS_HARNESS.get(failure, "A script without the harness did not show this fault")
    return f'''"""{title}

{_wrapped(repr(case))}

{_wrapped(reason + ". This script runs the harness.")}
Exits 1 while the fault is there, 0 when it is gone.
"""

import pathlib
import subprocess
import sys

COMMAND = {command!r}

case = pathlib.Path(__file__).with_name("case.json")
done = subprocess.run(
    [sys.executable, "-m", "pytest", *COMMAND, str(case)], capture_output=True, text=True
)
if done.returncode > 1:
    sys.exit(done.stdout + done.stderr)
died = f"FAULT: the replay died of signal {{-done.returncode}}"
print({{0: "OK: the replay passes", 1: "FAULT: the replay fails"}}.get(done.returncode, died))
sys.exit(done.returncode != 0)
'''


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _imports(source: Source, failure: str, died: bool) -> str:
    module, _, function = source.spec.rpartition(":")
    traced = failure == "OutOfBoundsRead"
    lines = ["import os"]
    lines += ["import subprocess"] if died else []
    lines += ["import sys", ""]
    lines += ["import numpy as np"] if traced else []
    lines += ["import torch", ""]
    if traced:
        lines += [
            "# Addresses are seen in Triton's interpreter, which must be on before the kernel is imported."
        ]
        lines += ['os.environ["TRITON_INTERPRET"] = "1"', 'device = "cpu"']
    elif source.cpu_only:
        lines += ['device = "cpu"']
    else:
        lines += ['device = "cuda" if torch.cuda.is_available() else "cpu"']
        lines += ["# Without a GPU Triton interprets; it reads this when the kernel is imported."]
        lines += ['os.environ.setdefault("TRITON_INTERPRET", "0" if device == "cuda" else "1")']
    if module.endswith(".py"):
        folder, _, file = module.rpartition("/")
        folders = [folder, "."] if folder else ["."]
        lines += [f"sys.path[:0] = {json.dumps(folders)}  # seen from where the harness ran"]
        module = file.removesuffix(".py")
    else:
        lines += ['sys.path.insert(0, ".")']
    lines += [f"from {module} import {function}  # noqa: E402", ""]
    if source.attribute:
        lines += [f"{function} = {function}{source.attribute}", ""]
    if died:
        lines += [
            'if "--child" not in sys.argv:',
            '    child = subprocess.run([sys.executable, __file__, "--child"])',
            "    if child.returncode < 0:",
            '        print(f"FAULT: the process died of signal {-child.returncode}")',
            "        sys.exit(1)",
            "    sys.exit(child.returncode)",
            "",
        ]
    return "\n".join(lines)
