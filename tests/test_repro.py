"""Scripts: their tensors are those of the case, and a correct kernel passes every one of them."""

import contextlib
import io
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given

from properties.repro import Source, script
from properties.repro_checks import CHECKS
from properties.repro_tensors import TensorWriter
from strategies import Arena, Domain, RopeCase, rope_cases
from strategies.case import AXES_KINDS
from strategies.values import bits

EAGER = Source("properties.implementations:rope_eager", cpu_only=True)  # quick
TENSORS = ("q", "k", "v", "cos", "sin", "positions", "axes")
SHOWN = sorted({"Mismatch", *CHECKS} - {"OutOfBoundsRead"})


@given(case=rope_cases(Domain(axes=AXES_KINDS)))
@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_makes_the_tensors_of_the_case(guarded: bool, case: RopeCase) -> None:
    namespace: dict[str, object] = {"torch": torch, "device": "cpu"}
    exec(TensorWriter(case, "rope", "float32", guarded=TENSORS if guarded else ()).tensors(), namespace)
    arena = Arena(case)
    for name in ("q", "k", "cos", "sin", "positions", "axes"):
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
@given(case=rope_cases(Domain(axes=AXES_KINDS)))
def test_a_correct_kernel_passes(failure: str, case: RopeCase) -> None:
    text = script(EAGER, case, failure, "title", guarded=("v",))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), deterministic_restored():
        exec(compile(text, "repro.py", "exec"), {"__name__": "__main__", "__file__": "repro.py"})
    assert printed.getvalue() == "OK: the fault is gone\n"


@pytest.mark.parametrize(
    ("failure", "kernel", "said"),
    [
        (
            "Mismatch",
            "wrong_sign",
            "FAULT: q_out[batch 0, token 0, head 2, dim 1] is -1.3254456520080566",
        ),
        ("UnwrittenOutput", "unwritten", "FAULT: q_out[batch 0, token 0, head 0, dim 0] was never written"),
        ("TailChanged", "tail_changed", "FAULT: k_out[batch 0, token 0, head 0, dim 3] does not rotate"),
        ("InputChanged", "input_changed", "FAULT: elements of cos were changed: 4"),
        ("ValueChanged", "value_changed", "FAULT: elements of v were changed, and V is no argument: 1"),
        ("OutOfBoundsWrite", "written_before_q", "FAULT: elements outside q and k and v were written: 1"),
        ("OutOfBoundsWrite", "written_past_the_output", "FAULT: elements outside an output were written: 1"),
        ("WrongMetadata", "wrong_dtype", "FAULT: q_out is ((2, 3, 4), torch.float64"),
        ("Crash", "raises", "FAULT: raised ValueError: no"),
    ],
)
def test_a_script_shows_its_fault(failure: str, kernel: str, said: str) -> None:
    packed = failure in ("ValueChanged", "OutOfBoundsWrite")
    case = RopeCase(requests=((2, 2),), q_heads=3, k_heads=2, tail=2, packed=packed, fill="ramp")
    text = script(Source(f"tests.single_faults:{kernel}", cpu_only=True), case, failure, "t", guarded=("v",))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), deterministic_restored(), pytest.raises(SystemExit) as ended:
        exec(compile(text, "repro.py", "exec"), {"__name__": "__main__", "__file__": "repro.py"})
    assert ended.value.code == 1
    assert printed.getvalue().startswith(said)
    assert printed.getvalue().count("\n") == 1


@contextlib.contextmanager
def deterministic_restored() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
