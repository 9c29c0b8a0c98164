"""Differential mode: one implementation judged by another, given with --against, beside the oracle."""

from dataclasses import dataclass

import numpy as np

from properties.bounds import may_overflow
from properties.failures import Mismatch
from properties.implementations import Implementation
from properties.judge import Run, execute
from properties.property import Property
from strategies import Domain, RopeCase
from strategies.values import bits


@dataclass(frozen=True)
class Differential(Property):
    """A property of two implementations, tried where the domains of both hold the case."""

    def domain(self, implementation: Implementation) -> Domain | None:
        other = implementation.against
        return None if other is None else implementation.domain.common(other.domain)


def _agree(implementation: Implementation, case: RopeCase) -> None:
    """Both give the same rotation of the same bits, and the same tail.

    Within the sum of their bounds, or bit for bit with --bitwise. Where both meet the oracle the bounded
    form follows; where it fails, the message says which of the two is nearer to the exact value.
    """
    assert implementation.against is not None
    run, other = execute(implementation, case), execute(implementation.against, case)
    for name, out in run.outputs.items():
        theirs = other.outputs[name]
        same = (
            (bits(out.contiguous()) == bits(theirs.contiguous())) | (out.isnan() & theirs.isnan())
        ).numpy()
        wrong = ~same if implementation.same_bits else ~same & ~_near(run, other, name)
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            exact = float(run.exact(name).value[where])
            mine, yours = float(out[where]), float(theirs[where])
            here, there = (np.nan_to_num(abs(x - exact), nan=np.inf) for x in (mine, yours))
            nearer = implementation if here < there else implementation.against
            raise Mismatch(
                f"{name}_out at (batch, token, head, dim) {where} is {mine!r}, {implementation.against.name} "
                f"gives {yours!r}; exact {exact!r}, nearer is {nearer.name}; {wrong.sum()} of {wrong.size} "
                f"elements differ by more than {'nothing' if implementation.same_bits else 'their bounds'}",
                tensor=name,
                where=where,
                wrong=wrong,
                actual=mine,
                exact=exact,
                partner=implementation.against.name,
            )


def _near(run: Run, other: Run, name: str) -> np.ndarray:
    """Where two outputs lie within the sum of their bounds, or may overflow; never in the tail."""
    exact = run.exact(name)
    allowed = run.verdict(name).bound + other.verdict(name).bound
    huge = may_overflow(exact, run.case.dtype, run.implementation.domain.compute)
    huge |= may_overflow(exact, run.case.dtype, other.implementation.domain.compute)
    with np.errstate(all="ignore"):
        difference = np.abs(run.outputs[name].double().numpy() - other.outputs[name].double().numpy())
    return exact.rotated & ((difference <= allowed) | huge)


test_agrees_with_the_other = Differential("test_agrees_with_the_other", _agree)
