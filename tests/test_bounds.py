"""The bounds are sound and nearly tight: correct arithmetic stays inside and comes close, faulty does not.

A million elements in four dtypes, in half of which the two products cancel as far as the table can express,
in every order of rounding that a correct kernel can have: two products and a sum, or either product fused
with it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from properties.bounds import Verdict, error_bound, judge
from properties.oracle import Exact

DTYPES = ("float16", "bfloat16", "float32", "float64")
ELEMENTS = 1 << 18  # of each dtype: a million and some in all

Numbers = npt.NDArray[np.floating[Any]]


class Elements(NamedTuple):
    """Elements x * c + y * s, in the dtype of the arithmetic."""

    x: Numbers
    c: Numbers
    y: Numbers
    s: Numbers

    def exact(self) -> Exact:
        x, c, y, s = (v.astype(np.float64) for v in self)
        return Exact(x * c + y * s, x * c, y * s, np.ones(len(x), dtype=bool))


@functools.cache
def drawn(dtype: str) -> Elements:
    """Activations of this dtype and tables of float32 (float64), in which every second sum cancels."""
    rng = np.random.default_rng(7)
    wide = np.float64 if dtype == "float64" else np.float32
    spread = 8 if dtype == "float16" else 40
    scale = 2.0 ** rng.integers(-spread, spread, ELEMENTS)
    x, y = (
        rounded(dtype, scale * rng.uniform(1, 2, ELEMENTS) * rng.choice([-1, 1], ELEMENTS)).astype(wide)
        for _ in "xy"
    )
    c, s = (rng.uniform(-1, 1, ELEMENTS).astype(wide) for _ in "cs")
    s[::2] = (-x.astype(np.float64) * c / y)[::2]
    return Elements(x, c, y, s)


def rounded(dtype: str, values: Numbers) -> Numbers:
    """Values rounded to a dtype, held in their own."""
    tensor = torch.from_numpy(values)
    return tensor.to(getattr(torch, dtype)).to(tensor.dtype).numpy()


def unfused(e: Elements) -> Numbers:
    return e.x * e.c + e.y * e.s


def fused_first(e: Elements) -> Numbers:
    return fma(e.x, e.c, e.y * e.s)


def fused_second(e: Elements) -> Numbers:
    return fma(e.y, e.s, e.x * e.c)


def fma(a: Numbers, b: Numbers, c: Numbers) -> Numbers:
    """a * b + c rounded once, from operations that round each (Boldo and Melquiond, "Emulation of FMA and
    correctly rounded sums", 2008)."""
    product, product_error = two_product(a, b)
    low, low_error = two_sum(c, product_error)
    high, high_error = two_sum(product, low)
    return high + odd_sum(high_error, low_error)


def two_sum(a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """a + b exactly, as its rounding and the rest (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def two_product(a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """a * b exactly, as its rounding and the rest (Dekker, with Veltkamp's splitting)."""
    factor = a.dtype.type(2 ** ((np.finfo(a.dtype).nmant + 2) // 2) + 1)

    def split(v: Numbers) -> tuple[Numbers, Numbers]:
        high = factor * v - (factor * v - v)
        return high, v - high

    product = a * b
    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, rest


def odd_sum(a: Numbers, b: Numbers) -> Numbers:
    """a + b rounded to odd: an inexact sum ends in a 1 bit."""
    total, rest = two_sum(a, b)
    even = total.view(np.int64 if total.dtype == np.float64 else np.int32) % 2 == 0
    return np.where((rest != 0) & even, np.nextafter(total, np.copysign(np.inf, rest)), total).astype(a.dtype)


CORRECT = (unfused, fused_first, fused_second)


def judged(dtype: str, result: Numbers, elements: Elements, compute: str = "float32") -> Verdict:
    out = torch.from_numpy(result).to(getattr(torch, dtype))
    return judge(out, elements.exact(), dtype, compute)


def test_half_of_the_elements_cancel() -> None:
    for dtype in DTYPES:
        exact = drawn(dtype).exact()
        cancelled = np.abs(exact.value) < 2.0**-20 * (np.abs(exact.first) + np.abs(exact.second))
        assert 0.5 <= cancelled.mean() < 0.51


def test_the_fused_emulation_rounds_once() -> None:
    e = drawn("float32")
    wide = [v.astype(np.float64) for v in e]
    # float64 holds a product of two float32 numbers exactly, and rounding its sum to odd spares a tie.
    once = odd_sum(wide[0] * wide[1], (e.y * e.s).astype(np.float64)).astype(np.float32)
    assert np.array_equal(fused_first(e), once)
    assert not np.array_equal(unfused(e), once)


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_correct_arithmetic_stays_inside_and_comes_close(dtype: str) -> None:
    elements = drawn(dtype)
    worst = {f.__name__: judged(dtype, f(elements), elements).worst_ratio() for f in CORRECT}
    assert max(worst.values()) <= 1, worst
    assert max(worst.values()) > 0.9, worst


def test_correct_float64_arithmetic_stays_inside_and_comes_close() -> None:
    elements = drawn("float64")
    products = two_product(elements.x, elements.c), two_product(elements.y, elements.s)
    total, rest = two_sum(products[0][0], products[1][0])
    rest = rest + (products[0][1] + products[1][1])
    # Half of the bound is for the oracle, whose float64 errs as the kernel's does.
    half = error_bound(elements.exact(), "float64") / 2
    worst = {}
    for correct in CORRECT:
        result = correct(elements)
        assert judged("float64", result, elements).worst_ratio() <= 1
        worst[correct.__name__] = float((np.abs((result - total) - rest) / half).max())
    assert 0.9 < max(worst.values()) <= 1, worst


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_arithmetic_in_the_input_dtype_has_a_bound_of_its_own(dtype: str) -> None:
    elements = Elements(*(rounded(dtype, v) for v in drawn(dtype)))
    products = rounded(dtype, elements.x * elements.c), rounded(dtype, elements.y * elements.s)
    result = products[0] + products[1]
    assert 0.9 < judged(dtype, result, elements, compute="input").worst_ratio() <= 1
    assert judged(dtype, result, elements).wrong.mean() > 0.1


def rounded_product(dtype: str, e: Elements) -> Numbers:
    return rounded(dtype, e.x * e.c) + rounded(dtype, e.y * e.s)


def truncation(dtype: str, e: Elements) -> Numbers:
    result = unfused(e)
    nearest = rounded(dtype, result)
    toward_zero = torch.from_numpy(nearest).to(getattr(torch, dtype))
    away = np.abs(nearest) > np.abs(result)
    patterns = toward_zero.view(torch.int16).numpy()
    return torch.from_numpy(patterns - away).view(toward_zero.dtype).float().numpy()


def table_in_16_bit(dtype: str, e: Elements) -> Numbers:
    return unfused(e._replace(c=rounded(dtype, e.c), s=rounded(dtype, e.s)))


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("fault", [rounded_product, truncation, table_in_16_bit])
def test_faulty_arithmetic_goes_outside(fault: Callable[[str, Elements], Numbers], dtype: str) -> None:
    elements = drawn(dtype)
    verdict = judged(dtype, fault(dtype, elements), elements)
    assert verdict.worst_ratio() > 1.9
    assert verdict.wrong.mean() > 0.1


@pytest.mark.parametrize("fault", [rounded_product, table_in_16_bit])
def test_16_bit_steps_in_float32_results_go_outside(fault: Callable[[str, Elements], Numbers]) -> None:
    elements = drawn("float32")
    assert judged("float32", fault("bfloat16", elements), elements).wrong.mean() > 0.4


@pytest.mark.skipif(np.finfo(np.longdouble).maxexp <= 1024, reason="no type wider than float64 here")
def test_overflow_of_float64_is_told_from_an_infinite_input() -> None:
    huge, table = np.finfo(np.float64).max, 1.25
    overflowing = np.array([huge, -huge]), np.array([np.inf, -np.inf])
    out = torch.tensor([np.inf, np.nan], dtype=torch.float64)
    for values, infinity_is_right in zip(overflowing, (True, False), strict=True):
        first = values[:1].astype(np.longdouble) * table
        second = values[1:].astype(np.longdouble) * table
        with np.errstate(all="ignore"):
            exact = Exact(first + second, first, second, np.ones(1, dtype=bool))
        assert judge(out[:1], exact, "float64").wrong[0] == (not infinity_is_right)
        assert not judge(out[1:], exact, "float64").wrong[0]
