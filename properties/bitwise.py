"""Agreement bit for bit: with the exact result rounded once, and of an implementation with itself."""

from dataclasses import fields, replace

import numpy as np
import torch

from properties.failures import Mismatch, NotDeterministic
from properties.judge import Run, call, execute
from properties.oracle import Exact
from strategies import Arena, RopeCase, Strides
from strategies.values import bits


def rounded_once(exact: Exact, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """What float32 arithmetic must give, bit for bit, and where it must.

    A product of two float16 numbers has 22 bits and one of two bfloat16 numbers 16, so float32 holds it
    unless it over- or underflows. Where both products are exact, fused or not, one addition rounds their
    sum to float32 and the store rounds that to the output: round16(round32(p + q)). The second rounding is
    part of the result: round16(p + q) is another number where p + q lies next to a tie of the output.

    Returns:
        The rotation in dtype, and a mask of the elements whose products are exact or not finite.
    """
    first, second = torch.from_numpy(exact.first), torch.from_numpy(exact.second)
    certain = torch.from_numpy(exact.rotated)
    for product in (first, second):
        certain = certain & ((product.float() == product) | product.isnan())
    return (first.float() + second.float()).to(dtype), certain


def check_rounded_once(run: Run) -> None:
    """Mismatch when a 16-bit output with a 16-bit table has other bits than the exact result rounded."""
    for name, out in run.outputs.items():
        expected, certain = rounded_once(run.exact(name), out.dtype)
        wrong = (certain & ~_same(out, expected)).numpy()
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise Mismatch(
                f"{name}_out at (batch, token, head, dim) {where} is {float(out[where])!r}, expected "
                f"{float(expected[where])!r} bit for bit, because both products are exact in float32; "
                f"{wrong.sum()} of {int(certain.sum())} elements differ",
                tensor=name,
                where=where,
                wrong=wrong,
                actual=float(out[where]),
                exact=float(expected[where]),
            )


def dense(case: RopeCase) -> RopeCase:
    """The same values in dense tensors of their own; expanded axes stay, they decide the values."""
    return replace(
        case,
        packed=False,
        table_pad=0,
        table_step=1,
        q_strides=Strides(expand=case.q_strides.expand),
        k_strides=Strides(expand=case.k_strides.expand),
    )


def without_k(case: RopeCase) -> RopeCase:
    """The same q alone."""
    return replace(case, k_heads=None, k_strides=Strides(), packed=False)


def k_as_q(case: RopeCase) -> RopeCase:
    """A call that is given the case's k in place of q."""
    strides = case.q_strides if case.packed else case.k_strides
    return without_k(replace(case, q_heads=case.k_heads or 0, q_strides=strides, packed=False))


def check_agreement(run: Run, partner: RopeCase) -> None:
    """NotDeterministic when a partner that must give the same bits gives others."""
    check_same_bits(run, execute(run.implementation, partner), _difference(run.case, partner))


def check_same_bits(run: Run, other: Run, difference: str) -> None:
    """NotDeterministic when another run, which differs as it says, has other bits."""
    for name, out in other.outputs.items():
        _compare(run, name, out, difference)


def check_k_alone(run: Run) -> None:
    """NotDeterministic when k rotated alone, as if it were q, has other bits than beside q."""
    arena = Arena(run.case, run.implementation.device)
    assert arena.k is not None
    arena.q, arena.k = arena.k, None
    returned, *_ = call(run.implementation, k_as_q(run.case), arena)
    out = returned[0] if isinstance(returned, tuple | list) else returned
    assert isinstance(out, torch.Tensor)
    _compare(run, "k", arena.bnhd(out.detach()).cpu(), "k alone")


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    # A NaN that was computed has a payload that the hardware chose.
    return (bits(a.contiguous()) == bits(b.contiguous())) | (a.isnan() & b.isnan())


def _compare(run: Run, name: str, other: torch.Tensor, difference: str) -> None:
    out = run.outputs[name]
    wrong = ~_same(out, other).numpy()
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise NotDeterministic(
            f"{name}_out at (batch, token, head, dim) {where} is {float(out[where])!r}, but "
            f"{float(other[where])!r} {difference}; {wrong.sum()} of {wrong.size} elements differ, expected "
            "the same bits",
            tensor=name,
            where=where,
            wrong=wrong,
            partner=difference,
        )


def _difference(case: RopeCase, partner: RopeCase) -> str:
    changed = [f.name for f in fields(case) if getattr(case, f.name) != getattr(partner, f.name)]
    values = ", ".join(f"{name}={getattr(partner, name)!r}" for name in changed)
    return f"with {values}" if changed else "in a second run"
