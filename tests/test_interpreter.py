"""Triton's interpreter computes bfloat16 as PyTorch does, and would not without the corrections.

Each case runs a kernel in the interpreter and compares every element with PyTorch: the same bits, or NaN in
both. A case that names a correction must fail when that correction alone is taken away, so a Triton that no
longer needs one fails here and says which.
"""

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from properties.interpreter import FaithfulBuilder, FaithfulReduceOps, FaithfulScanOps, make_faithful

REDUCTIONS = {"ReduceOps": FaithfulReduceOps, "ScanOps": FaithfulScanOps}
INTERPRETED = triton.knobs.runtime.interpret
TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])

# NumPy warns of inf - inf and of overflow; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def _faithful(request: pytest.FixtureRequest) -> None:
    if INTERPRETED:
        make_faithful()
    elif request.function is not test_in_a_process_that_interprets:
        pytest.skip("kernels are compiled in this process; test_in_a_process_that_interprets runs this")


@pytest.mark.skipif(INTERPRETED, reason="this process interprets kernels: the other tests run in it")
def test_in_a_process_that_interprets() -> None:
    root = pathlib.Path(__file__).parent.parent
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@triton.jit
def elementwise(x_ptr, y_ptr, z_ptr, out_ptr, count, operation: tl.constexpr, block: tl.constexpr):
    i = tl.arange(0, block)
    mask = i < count
    x = tl.load(x_ptr + i, mask=mask)
    y = tl.load(y_ptr + i, mask=mask)
    z = tl.load(z_ptr + i, mask=mask)
    tl.store(out_ptr + i, operation(x, y, z), mask=mask)


@triton.jit
def first(x, y, z):
    return x


@triton.jit
def to_bfloat16(x, y, z):
    return x.to(tl.bfloat16)


@triton.jit
def to_bfloat16_toward_zero(x, y, z):
    return x.to(tl.bfloat16, fp_downcast_rounding="rtz")


@triton.jit
def constant(x, y, z):
    return tl.full(x.shape, 0.1, tl.bfloat16)


@triton.jit
def plus_scalar(x, y, z):
    return x + 0.1


@triton.jit
def add(x, y, z):
    return x + y


@triton.jit
def sub(x, y, z):
    return x - y


@triton.jit
def mul(x, y, z):
    return x * y


@triton.jit
def div(x, y, z):
    return x / y


@triton.jit
def neg(x, y, z):
    return -x


@triton.jit
def absolute(x, y, z):
    return tl.abs(x)


@triton.jit
def fma(x, y, z):
    return tl.fma(x, y, z)


@triton.jit
def rotate(x, y, z):
    return x * z - y * z


@triton.jit
def maximum(x, y, z):
    return tl.maximum(x, y)


@triton.jit
def minimum(x, y, z):
    return tl.minimum(x, y)


@triton.jit
def clamp(x, y, z):
    return tl.clamp(x, tl.minimum(y, z), tl.maximum(y, z), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def less(x, y, z):
    return (x < y).to(tl.float32)


@triton.jit
def less_equal(x, y, z):
    return (x <= y).to(tl.float32)


@triton.jit
def greater(x, y, z):
    return (x > y).to(tl.float32)


@triton.jit
def greater_equal(x, y, z):
    return (x >= y).to(tl.float32)


@triton.jit
def equal(x, y, z):
    return (x == y).to(tl.float32)


@triton.jit
def not_equal(x, y, z):
    return (x != y).to(tl.float32)


@triton.jit
def less_to_bfloat16(x, y, z):
    return (x < y).to(tl.bfloat16)


@triton.jit
def select(x, y, z):
    return tl.where((x < y) & (x == x), x, y)


@triton.jit
def total(x, y, z):
    return tl.sum(x, axis=0)


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def reduced(x, y, z):
    return tl.reduce(x, 0, plus)


@triton.jit
def largest(x, y, z):
    return tl.max(x, axis=0)


@triton.jit
def index_of_smallest(x, y, z):
    return tl.argmin(x, axis=0)


@triton.jit
def running_total(x, y, z):
    return tl.cumsum(x, axis=0)


@triton.jit
def dot(x, y, z):
    return tl.dot(x.reshape(16, 16), y.reshape(16, 16)).reshape(256)


class Case(NamedTuple):
    """A kernel's operation, its operands, and what PyTorch says comes out.

    correction: what makes it right in Triton, from version `since` and before version `until`; None where
    Triton needs none.
    """

    operation: triton.JITFunction
    operands: tuple[torch.Tensor, ...]
    expected: torch.Tensor
    correction: str | None = None
    since: tuple[int, int] = (3, 6)
    until: tuple[int, int] = (99, 0)

    def run(self) -> torch.Tensor:
        x, y, z = (*self.operands, *self.operands[:1] * 2)[:3]
        out = torch.empty_like(self.expected)
        block = triton.next_power_of_2(x.numel())
        elementwise[(1,)](x, y, z, out, x.numel(), operation=self.operation, block=block)
        return out

    def wrong(self) -> torch.Tensor:
        """Indices of the elements that differ from PyTorch."""
        integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        bits = integers[self.expected.element_size()]
        out = self.run()
        same = out.view(bits) == self.expected.view(bits)
        return (~(same | (out.isnan() & self.expected.isnan()))).nonzero().flatten()


def nearest_bfloat16(exact: torch.Tensor) -> torch.Tensor:
    """The bfloat16 nearest to a finite float64; of two as near, the even one.

    By comparing distances, since PyTorch rounds twice on the way from float64 to bfloat16. To round, inf is
    2^128, as in IEEE 754.
    """
    bits = exact.to(torch.bfloat16).view(torch.int16) + torch.tensor([[-1], [0], [1]], dtype=torch.int16)
    values = bits.view(torch.bfloat16).double()
    values = torch.where(values.isinf(), values.sign() * 2.0**128, values)
    distance = (values - exact).abs().nan_to_num(nan=torch.inf)
    nearest = distance == distance.min(dim=0).values
    preference = nearest.int() * (2 - (bits & 1))
    return bits.gather(0, preference.argmax(dim=0, keepdim=True))[0].view(torch.bfloat16)


GENERATOR = torch.Generator().manual_seed(0)
PATTERNS = torch.arange(-(2**15), 2**15, dtype=torch.int16)
EVERY = PATTERNS.view(torch.bfloat16)
SHUFFLED = EVERY[torch.randperm(2**16, generator=GENERATOR)]
TENTH = torch.tensor(0.1).to(torch.bfloat16)


def normal(count: int) -> torch.Tensor:
    return torch.randn(count, generator=GENERATOR).to(torch.bfloat16)


def integers(low: int, high: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(low, high + 1, (count,), generator=GENERATOR).to(dtype)


def conversions_to_bfloat16() -> Iterator[tuple[str, Case]]:
    # At, just off and between every bfloat16 and every midpoint: ties, carries, subnormals, inf and NaN.
    offsets = torch.tensor([0, 1, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xC000, 0xFFFF], dtype=torch.int32)
    singles = ((PATTERNS.int()[:, None] << 16) | offsets).flatten().view(torch.float32)
    rounded = singles.to(torch.bfloat16)
    yield "float32 stored", Case(first, (singles,), rounded, "cast_impl")
    yield "float32 cast", Case(to_bfloat16, (singles,), rounded.float(), "cast_impl")

    truncated = (singles.view(torch.int32) & ~0xFFFF).view(torch.float32)
    truncated = torch.where(singles.isnan(), singles, truncated).to(torch.bfloat16)
    yield "toward zero", Case(to_bfloat16_toward_zero, (singles,), truncated, "create_fp_to_fp")

    finite = singles[singles.isfinite()].double()[::9]
    doubles = torch.cat([finite, finite * (1 + 2.0**-40), finite * (1 - 2.0**-40)])
    yield "float64 stored", Case(first, (doubles,), nearest_bfloat16(doubles), "cast_impl")
    extremes = [torch.inf, -torch.inf, torch.nan, 1e300, -1e300, 1e-300, -1e-300, 5e-324, 0.0, -0.0]
    doubles = torch.tensor(extremes, dtype=torch.float64)
    yield "float64 extremes", Case(first, (doubles,), doubles.to(torch.bfloat16), "cast_impl")
    halves = PATTERNS.view(torch.float16)
    yield "float16 stored", Case(first, (halves,), halves.to(torch.bfloat16), "cast_impl")

    for dtype in (torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        high = 1 if dtype == torch.bool else min(torch.iinfo(dtype).max, 2**53)
        low = 0 if dtype in (torch.bool, torch.uint8) else -high
        values = integers(low, high, 2**12, dtype)
        if dtype in (torch.int32, torch.int64):
            values[0] = (257 << 20) + 1  # one more than a tie; float32 cannot tell it from the tie
        stored = nearest_bfloat16(values.double())
        yield f"{dtype} stored".removeprefix("torch."), Case(first, (values,), stored, "cast_impl")

    constants = TENTH.expand(8).contiguous()
    yield "constant", Case(constant, (normal(8),), constants, "get_bf16", until=(3, 9))


def conversions_from_bfloat16() -> Iterator[tuple[str, Case]]:
    yield "to float32", Case(first, (EVERY,), EVERY.float(), "cast_impl")
    yield "to float64", Case(first, (EVERY,), EVERY.double(), "cast_impl")
    yield "to float16", Case(first, (EVERY,), EVERY.half())
    fits = EVERY[EVERY.abs() < 2**31]
    yield "to int32", Case(first, (fits,), fits.int())


def arithmetic() -> Iterator[tuple[str, Case]]:
    x, y = EVERY, SHUFFLED
    yield "add", Case(add, (x, y), x + y, "binary_op")
    yield "sub", Case(sub, (x, y), x - y, "binary_op")
    yield "mul", Case(mul, (x, y), x * y, "binary_op")
    yield "div", Case(div, (x, y), x / y, "cast_impl")
    yield "plus scalar", Case(plus_scalar, (x,), x + TENTH, "binary_op")
    yield "abs", Case(absolute, (x,), x.abs())
    # Not zero, whose sign depends on the version: Triton before 3.8 negates by subtracting from 0.
    yield "neg", Case(neg, (x[x != 0],), -x[x != 0], "unary_op", since=(3, 8))

    a, b, c = normal(2**14), normal(2**14), normal(2**14)
    yield "three roundings", Case(rotate, (a, b, c), a * c - b * c, "binary_op")
    # Triton before 3.9 promotes these three to float32.
    yield "maximum", Case(maximum, (a, b), torch.maximum(a, b), "binary_op", since=(3, 9))
    yield "minimum", Case(minimum, (a, b), torch.minimum(a, b), "binary_op", since=(3, 9))
    clamped = torch.clamp(a, torch.minimum(b, c), torch.maximum(b, c))
    yield "clamp", Case(clamp, (a, b, c), clamped, "create_clampf", since=(3, 9))

    # 1.0625^2 is a tie; an addend that float32 would lose decides it.
    a = torch.cat([a, torch.full((2,), 1.0625).to(a)])
    b = torch.cat([b, torch.full((2,), 1.0625).to(b)])
    c = torch.cat([c, torch.tensor([2.0**-30, -(2.0**-30)]).to(c)])
    rounded_once = nearest_bfloat16(a.double() * b.double() + c.double())
    yield "fma", Case(fma, (a, b, c), rounded_once, "create_fma")

    left, right = (integers(-2, 2, 256, torch.bfloat16) for _ in range(2))
    product = (left.float().view(16, 16) @ right.float().view(16, 16)).flatten()
    yield "dot", Case(dot, (left, right), product, "create_dot")


def comparisons() -> Iterator[tuple[str, Case]]:
    x, y = EVERY, SHUFFLED.clone()
    y[::2] = x[::2]
    yield "less", Case(less, (x, y), (x < y).float(), "binary_op")
    yield "less or equal", Case(less_equal, (x, y), (x <= y).float(), "binary_op")
    yield "greater", Case(greater, (x, y), (x > y).float(), "binary_op")
    yield "greater or equal", Case(greater_equal, (x, y), (x >= y).float(), "binary_op")
    yield "equal", Case(equal, (x, y), (x == y).float(), "binary_op")
    yield "not equal", Case(not_equal, (x, y), (x != y).float(), "binary_op")
    yield "less as bfloat16", Case(less_to_bfloat16, (x, y), (x < y).to(torch.bfloat16), "binary_op")
    yield "select", Case(select, (x, y), torch.where((x < y) & (x == x), x, y), "binary_op")


def reductions() -> Iterator[tuple[str, Case]]:
    def everywhere(scalar: torch.Tensor) -> torch.Tensor:
        return scalar.expand(256).contiguous()

    row = normal(256)
    summed = nearest_bfloat16(everywhere(row.double().sum()))
    yield "sum", Case(total, (row,), summed, "ReduceOps")
    yield "reduce", Case(reduced, (row,), summed, "ReduceOps")
    broken = row.clone()
    broken[7] = torch.nan
    yield "sum of NaN", Case(total, (broken,), everywhere(broken.sum()), "ReduceOps")
    yield "max", Case(largest, (row,), everywhere(row.max()))
    # Triton before 3.9 promotes these two to float32.
    yield "argmin", Case(index_of_smallest, (row,), everywhere(row.argmin().int()), "ReduceOps", since=(3, 9))
    steps = integers(-8, 8, 256, torch.bfloat16)
    running = nearest_bfloat16(steps.double().cumsum(0))
    yield "cumsum", Case(running_total, (steps,), running, "ScanOps", since=(3, 9))


CASES = dict(
    [
        *conversions_to_bfloat16(),
        *conversions_from_bfloat16(),
        *arithmetic(),
        *comparisons(),
        *reductions(),
    ]
)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_pytorch(name: str) -> None:
    case = CASES[name]
    wrong = case.wrong()
    if wrong.numel():
        at = int(wrong[0])
        operands = [operand[at].item() for operand in case.operands]
        pytest.fail(
            f"{wrong.numel()} of {case.expected.numel()} elements differ from PyTorch; the first, of "
            f"{operands}, is {case.run()[at].item()} and should be {case.expected[at].item()}"
        )


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.correction])
def test_needs_its_correction(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    if case.correction in REDUCTIONS:
        monkeypatch.setattr(interpreter, case.correction, REDUCTIONS[case.correction].__bases__[1])
    else:
        monkeypatch.delattr(FaithfulBuilder, case.correction)
    try:
        right = case.wrong().numel() == 0
    except triton.runtime.errors.InterpreterError:
        right = False
    needed = case.since <= TRITON < case.until
    assert right != needed, (
        f"Triton {triton.__version__} gets this {'right' if right else 'wrong'} without {case.correction}; "
        "correct the case's versions, and drop the correction once no version needs it"
    )


def test_every_correction_has_a_case_that_needs_it() -> None:
    methods = {name for name in vars(FaithfulBuilder) if not name.startswith("__")}
    assert {case.correction for case in CASES.values()} - {None} == methods | set(REDUCTIONS)


def test_moving_values_keeps_every_bit() -> None:
    moved = Case(first, (EVERY,), EVERY).run()
    assert torch.equal(moved.view(torch.int16), PATTERNS)


def test_a_second_call_changes_nothing() -> None:
    make_faithful()
    assert type(interpreter.interpreter_builder) is FaithfulBuilder
    assert (interpreter.ReduceOps, interpreter.ScanOps) == (FaithfulReduceOps, FaithfulScanOps)


def test_does_nothing_when_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    original = FaithfulBuilder.__base__
    monkeypatch.setattr(interpreter.interpreter_builder, "__class__", original)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    make_faithful()
    assert type(interpreter.interpreter_builder) is original
