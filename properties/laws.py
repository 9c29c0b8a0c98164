"""What laws need beside the oracle: runs that follow from runs, and bounds that follow from sizes alone.

A rotation by (c, s) turns errors a of its input into at most |c| a_lo + |s| a_hi, and adds its own error,
which properties.bounds derives from |c x_lo| + |s x_hi|. So no law here knows what the result should be.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from properties.bounds import FORMATS, error_bound, may_overflow
from properties.failures import Mismatch
from properties.judge import Run
from properties.oracle import Array, Exact, angles, pair_dims
from strategies import RopeCase
from strategies.values import table_dtype

_DOUBLE = 2.0**-53


def settled(case: RopeCase) -> RopeCase:
    """The case with room for values of its own in every element: nothing expanded, nothing poked."""
    strides = {name: replace(getattr(case, name), expand="") for name in ("q_strides", "k_strides")}
    return replace(case, **strides, pokes=())


def at_true_angles(case: RopeCase, slack: int = 0) -> RopeCase:
    """The settled case with a table of cosines and sines, this many rows longer."""
    slack += case.table_slack
    return replace(settled(case), table_fill="angles", attention_factor=1.0, table_slack=slack)


def spread(case: RopeCase, amount: Array, cos: Array, sin: Array) -> Array:
    """|c| a_lo + |s| a_hi for the first, |c| a_hi + |s| a_lo for the second element of every pair."""
    lo, hi = pair_dims(case)
    cos, sin = np.abs(cos), np.abs(sin)
    result = amount.copy()
    result[..., lo] = cos * amount[..., lo] + sin * amount[..., hi]
    result[..., hi] = cos * amount[..., hi] + sin * amount[..., lo]
    return result


class Sizes:
    """How far one output may be from the exact rotation of its input, knowing sizes only.

    Attributes:
        x: the input.
        allowed: the largest error of the output against the table as passed; 0 on the tail.
        off_angle: what the rounding of the table adds, against true cosines and sines.
        fits: where nothing is near an overflow, or not finite.
    """

    def __init__(self, run: Run, name: str) -> None:
        case = run.case
        self.run = run
        self.x = run.arena.inputs[name].double().numpy()
        self.cos, self.sin = angles(run.arena)
        lo, hi = pair_dims(case)
        rotated = np.zeros(case.head_dim, dtype=bool)
        rotated[lo] = rotated[hi] = True
        rules = (case.dtype, run.implementation.domain.compute)
        with np.errstate(all="ignore"):
            size = np.abs(self.x)
            products = spread(case, size, self.cos, self.sin)
            bound = error_bound(Exact(products, products, np.zeros_like(products), rotated), *rules)
            self.allowed = np.where(rotated, bound, 0.0)
            huge = may_overflow(Exact(8 * products, 8 * products, products, rotated), *rules)
            self.fits = ~huge & np.isfinite(products)
            self.fits[..., lo] &= self.fits[..., hi]
            self.fits[..., hi] = self.fits[..., lo]
            unit, smallest, _ = FORMATS[str(table_dtype(case)).removeprefix("torch.")]
            # The angle itself comes from at most four roundings of a double, and its cosine from one more.
            position = run.arena.inputs["positions"].double().numpy()
            position = (position if position.ndim == 2 else position.max(0))[:, :, None, None]
            doubles = (4 * position + 2) * _DOUBLE
            pair_size = spread(case, size, np.ones_like(self.cos), np.ones_like(self.sin))
            off = unit / (1 - unit) * products + (smallest / 2 + doubles) * pair_size
            self.off_angle = np.where(rotated, off, 0.0)

    def turned(self, amount: Array) -> Array:
        """What errors of the input become in the output, whatever the rounding of the table did."""
        unit = FORMATS[str(table_dtype(self.run.case)).removeprefix("torch.")][0]
        return spread(self.run.case, amount, self.cos / (1 - unit), self.sin / (1 - unit))


def output(run: Run, name: str) -> Array:
    """One output in float64."""
    return run.outputs[name].double().numpy()


def check_close(
    law: str, name: str, actual: Array, expected: Array, allowed: Array, fits: npt.NDArray[np.bool_]
) -> None:
    """Mismatch where two numbers that a law makes equal are further apart than their errors allow."""
    with np.errstate(all="ignore"):
        # The comparison itself rounds in float64.
        allowed = allowed + 8 * _DOUBLE * (np.abs(actual) + np.abs(expected))
        error = np.abs(actual - expected)
        wrong = fits & np.isfinite(expected) & np.isfinite(allowed) & ~(error <= allowed)
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise Mismatch(
            f"{law}: {name} at {where} is {float(actual[where])!r}, expected {float(expected[where])!r} "
            f"within {float(allowed[where]):.3g}; {wrong.sum()} of {wrong.size} elements differ",
            tensor=name,
            where=where,
            wrong=wrong,
            actual=float(actual[where]),
            exact=float(expected[where]),
        )


def check_equal(
    law: str, name: str, actual: torch.Tensor, expected: torch.Tensor, holds: torch.Tensor | None = None
) -> None:
    """Mismatch where two tensors that a law makes equal are not; `holds` masks where the law speaks.

    NaN equals NaN, and the zeros equal each other: their sign depends on how a sum of products is fused.
    """
    wrong = ~((actual == expected) | (actual.isnan() & expected.isnan()))
    if holds is not None:
        wrong &= holds
    if wrong.any():
        where = tuple(int(i) for i in wrong.nonzero()[0])
        raise Mismatch(
            f"{law}: {name} at {where} is {float(actual[where])!r}, expected "
            f"{float(expected[where])!r} exactly; {int(wrong.sum())} of {wrong.numel()} elements differ",
            tensor=name,
            where=where,
            wrong=wrong.numpy(),
            actual=float(actual[where]),
            exact=float(expected[where]),
        )
