"""Simplify a case that takes the process down: every attempt runs in a fork of a fresh process."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from properties.failures import Crash
from properties.implementations import Implementation, bundled
from properties.judge import execute
from properties.loading import load
from properties.study import simpler_cases
from strategies import RopeCase

_SECONDS = 20.0
_SECONDS_OF_ONE = 10


def simplest_death(implementation: Implementation, case: RopeCase) -> RopeCase:
    """The simplest case found that takes a process down like this one; the case itself when none does."""
    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    # The fork must be the first to touch the GPU.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "properties.deaths", implementation.spec, implementation.device],
            input=case.to_json(),
            capture_output=True,
            text=True,
            timeout=6 * _SECONDS,
            env=environment,
            check=True,
        )
        return RopeCase.from_json(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return case


def _simplify(implementation: Implementation, case: RopeCase) -> RopeCase:
    # What is slow the first time is slow in every fork, unless it happened before.
    torch.set_num_threads(1)
    execute(next(i for i in bundled("cpu") if i.name == "rope-eager"), RopeCase())
    end = time.monotonic() + _SECONDS
    changed = _dies(implementation, case)
    while changed:
        changed = False
        for simpler in simpler_cases(case):
            if time.monotonic() > end:
                return case
            if implementation.domain.why_outside(simpler) is None and _dies(implementation, simpler):
                case, changed = simpler, True
                break
    return case


def _dies(implementation: Implementation, case: RopeCase) -> bool:
    """Whether a process that runs the case ends by a signal, or is left unable to go on."""
    child = os.fork()
    if child == 0:
        _run(implementation, case)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) != signal.SIGALRM
    return os.WEXITSTATUS(status) == 1


def _run(implementation: Implementation, case: RopeCase) -> None:
    """Run the case and end the process: 1 for a crash of the implementation, else 0."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    # A core file of a process with torch in it takes longer than everything else here.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(_SECONDS_OF_ONE)
    try:
        execute(implementation, case)
    except Crash:
        os._exit(1)
    except BaseException:
        os._exit(0)
    os._exit(0)


if __name__ == "__main__":
    _given = RopeCase.from_json(sys.stdin.read())
    sys.stdout.write(_simplify(load(sys.argv[1], sys.argv[2]), _given).to_json())
