"""Scripts: their tensors are those of the case, and a correct kernel passes every one of them."""

import contextlib
import io

import pytest
import torch
from hypothesis import given

from properties.repro import Source, script
from properties.repro_checks import CHECKS
from properties.repro_tensors import TensorWriter
from strategies import Arena, Domain, RopeCase, rope_cases
from strategies.values import bits

EAGER = Source("properties.implementations:rope_eager", cpu_only=True)  # quick
TENSORS = ("q", "k", "v", "cos", "sin", "positions")
SHOWN = sorted({"Mismatch", *CHECKS} - {"OutOfBoundsRead"})


@given(case=rope_cases(Domain()))
@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_makes_the_tensors_of_the_case(guarded: bool, case: RopeCase) -> None:
    namespace: dict[str, object] = {"torch": torch, "device": "cpu"}
    exec(TensorWriter(case, "rope", "float32", guarded=TENSORS if guarded else ()).tensors(), namespace)
    arena = Arena(case)
    for name in ("q", "k", "cos", "sin", "positions"):
        expected, made = getattr(arena, name), namespace.get(name)
        if expected is None:
            continue
        assert isinstance(made, torch.Tensor)
        assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
        assert made.stride() == expected.stride() or not expected.numel() or made.is_contiguous()
        # A NaN written as a number keeps no payload.
        same = (bits(made) == bits(expected)) | ((made != made) & (expected != expected))
        assert same.all(), name
        if guarded:
            assert made.storage_offset() == expected.storage_offset()


@pytest.mark.parametrize("failure", SHOWN)
@given(case=rope_cases(Domain()))
def test_a_correct_kernel_passes(failure: str, case: RopeCase) -> None:
    text = script(EAGER, case, failure, "title", guarded=("v",))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), deterministic_restored():
        exec(compile(text, "repro.py", "exec"), {"__name__": "__main__", "__file__": "repro.py"})
    assert printed.getvalue() == "OK: the fault is gone\n"


@contextlib.contextmanager
def deterministic_restored():
    before = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
