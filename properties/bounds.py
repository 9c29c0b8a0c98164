"""How close is close enough: one derived bound per element, no tolerance picked by hand.

For an exact result r = p + q of two products, float32 arithmetic (fused or not) and one rounding at the
store stay within

    E = u (|p| + |q|) + u (|r| + u (|p| + |q|)),    B = E + u_o (|r| + E) + eta_o / 2

where u and u_o are the unit roundoffs of the arithmetic and of the output and eta_o is the output's
smallest subnormal (Higham, Accuracy and Stability of Numerical Algorithms, chapters 2 and 3; Jeannerod,
Louvet, Muller, Math. Comp. 82, 2013). Errors are measured against |p| + |q|, never in units of the result:
under cancellation a correct kernel is hundreds of those away.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from properties.oracle import Array, Exact

# Unit roundoff, smallest subnormal, and the magnitude from which rounding gives infinity.
FORMATS = {
    "bfloat16": (2.0**-8, 2.0**-133, (2 - 2.0**-8) * 2.0**127),
    "float16": (2.0**-11, 2.0**-24, 65520.0),
    "float32": (2.0**-24, 2.0**-149, (2 - 2.0**-24) * 2.0**127),
    "float64": (2.0**-53, 2.0**-1074, np.finfo(np.float64).max),
}


@dataclass(frozen=True)
class Verdict:
    """The judgement of one tensor, element by element.

    Attributes:
        wrong: elements further from the exact value than their bound, or of another class.
        error: absolute error, infinity where the class is wrong.
        bound: the allowed error.
    """

    wrong: npt.NDArray[np.bool_]
    error: Array
    bound: Array

    def worst_ratio(self) -> float:
        """The largest error as a multiple of its bound."""
        return float(self.ratio().max(initial=0.0))

    def ratio(self) -> Array:
        """Every error as a multiple of its bound; infinity where the class is wrong."""
        with np.errstate(all="ignore"):
            ratio = np.where(self.error == 0, 0.0, self.error / self.bound)
        return np.where(self.wrong & np.isnan(ratio), np.inf, np.nan_to_num(ratio, nan=0.0, posinf=np.inf))


def error_bound(exact: Exact, dtype: str, compute: str = "float32") -> Array:
    """The allowed absolute error of every rotated element.

    Args:
        exact: the exact rotation.
        dtype: of the output.
        compute: "float32" for arithmetic in float32 (float64 for float64 outputs), "input" for
            arithmetic that rounds every operation to the output's dtype.
    """
    u_out, eta_out, _ = FORMATS[dtype]
    u, eta, _ = FORMATS[_arithmetic(dtype, compute)]
    with np.errstate(all="ignore"):
        products = np.abs(exact.first) + np.abs(exact.second)
        arithmetic = u * products + u * (np.abs(exact.value) + u * products) + 2 * (eta / 2)
        if _arithmetic(dtype, compute) == dtype:
            # The store rounds nothing more. Against float64 the oracle itself errs as much.
            return arithmetic * (2 if dtype == "float64" else 1) + eta_out
        return arithmetic + u_out * (np.abs(exact.value) + arithmetic) + eta_out / 2


def may_overflow(exact: Exact, dtype: str, compute: str = "float32") -> npt.NDArray[np.bool_]:
    """Where a correct implementation may give infinity or NaN, because a product or the result is huge."""
    largest = FORMATS[_arithmetic(dtype, compute)][2]
    with np.errstate(all="ignore"):
        products = (np.abs(exact.first) >= largest) | (np.abs(exact.second) >= largest)
        reach = np.abs(exact.value) + error_bound(exact, dtype, compute)
        return products | ~(reach < FORMATS[dtype][2])


def judge(actual: torch.Tensor, exact: Exact, dtype: str, compute: str = "float32") -> Verdict:
    """Judge the rotated dims of an output, (batch, token, head, dim); the tail is never wrong here."""
    out = actual.double().numpy()
    bound = error_bound(exact, dtype, compute)
    overflow = FORMATS[dtype][2]
    with np.errstate(all="ignore"):
        error = np.abs(out - exact.value)
        good = error <= bound
        good |= np.isnan(out) & np.isnan(exact.value)
        same_sign = np.signbit(out) == np.signbit(exact.value)
        good |= np.isinf(out) & same_sign & (np.abs(exact.value) + bound >= overflow)
        if not good.all():
            good |= _overflowed_like(out, exact, _arithmetic(dtype, compute))
        error = np.where(good & ~np.isfinite(error), 0.0, error)
    error = np.where(~good & np.isnan(error), np.inf, error)
    wrong = ~good & exact.rotated
    return Verdict(wrong, np.where(exact.rotated, error, 0.0), bound)


def _arithmetic(dtype: str, compute: str) -> str:
    return "float64" if dtype == "float64" else ("float32" if compute == "float32" else dtype)


def _overflowed_like(out: Array, exact: Exact, arithmetic: str) -> npt.NDArray[np.bool_]:
    """Where a product overflows the arithmetic: any non-finite result that some contraction gives."""
    largest = FORMATS[arithmetic][2]
    first, second = (
        np.where(np.abs(product) >= largest, np.copysign(np.inf, product), product)
        for product in (exact.first, exact.second)
    )
    overflows = (np.isinf(first) & np.isfinite(exact.first)) | (np.isinf(second) & np.isfinite(exact.second))
    same = np.zeros(out.shape, dtype=bool)
    for a, b in ((first, second), (exact.first, second), (first, exact.second)):
        total = a + b
        total = np.where(np.abs(total) >= largest, np.copysign(np.inf, total), total)
        same |= (out == total) & np.isinf(total)
        same |= np.isnan(out) & np.isnan(total)
    return overflows & same
