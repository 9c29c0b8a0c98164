"""Laws of rotations: what must hold whatever the reference says."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from properties.implementations import Implementation
from properties.judge import Run, execute, execute_once
from properties.laws import Sizes, at_true_angles, check_close, check_equal, output, settled
from properties.oracle import angles, pair_dims
from properties.property import rope_property
from strategies import RopeCase

_LARGEST_POSITION_STEP = 7


@rope_property(cost=4)
def test_position_0_is_the_identity(implementation: Implementation, case: RopeCase) -> None:
    """At position 0 nothing turns, exactly: cos is 1 and sin is 0.

    For arithmetic that is within its bound but does more than two products and a sum.
    """
    one_token = tuple((0, min(length, 1)) for _, length in case.requests)
    case = replace(at_true_angles(case), requests=one_token)
    if implementation.domain.why_outside(case):
        return
    run = execute_once(implementation, case)
    for name, out in run.outputs.items():
        x = run.arena.inputs[name]
        finite = torch.from_numpy(_pair_is_finite(case, x))
        check_equal("position 0 is the identity", name, out, x, finite)


@rope_property(cost=4)
def test_inverse_undoes(implementation: Implementation, case: RopeCase) -> None:
    """Rotating back gives x (c^2 + s^2), c and s as passed. For an inverse that is another rotation."""
    if len(implementation.domain.inverse) < 2:
        pytest.skip(f"no partner: {implementation.name} has no inverse")
    there = execute_once(implementation, case)
    back = execute(implementation, replace(settled(case), inverse=not case.inverse), **_copied(there))
    cos, sin = angles(there.arena)
    for name in there.outputs:
        first, second = Sizes(there, name), Sizes(back, name)
        scale = np.ones((*cos.shape[:3], case.head_dim))
        for dims in pair_dims(case):
            scale[..., dims] = cos**2 + sin**2
        with np.errstate(all="ignore"):
            expected = first.x * scale
            allowed = second.turned(first.allowed) + second.allowed
        fits = first.fits & second.fits
        check_close("inverse", name, output(back, name), expected, allowed, fits)


@rope_property(cost=4, positions=("given",), tables=("indexed",))
def test_rotations_compose(implementation: Implementation, case: RopeCase) -> None:
    """R(d) R(p) = R(p + d). For a rotation whose angle does not grow with the position."""
    step = _step(case)
    case = at_true_angles(case, slack=step)
    if implementation.domain.why_outside(case):
        return
    first = execute_once(implementation, case)
    p = first.arena.inputs["positions"]
    second = execute(implementation, case, **_copied(first), positions=torch.full_like(p, step))
    both = execute(implementation, case, positions=p + step, **_inputs(first))
    for name in first.outputs:
        a, b, c = (Sizes(run, name) for run in (first, second, both))
        allowed = b.turned(a.allowed + a.off_angle) + b.allowed + b.off_angle + c.allowed + c.off_angle
        fits = a.fits & b.fits & c.fits
        check_close("composition", name, output(second, name), output(both, name), allowed, fits)


@rope_property(cost=4, positions=("given",), tables=("indexed",), without_k=(False,))
def test_scores_depend_on_position_differences(implementation: Implementation, case: RopeCase) -> None:
    """Moving q and k by one distance moves no attention score. For q and k that turn differently."""
    step = _step(case)
    case = at_true_angles(case, slack=step)
    if implementation.domain.why_outside(case) or not case.k_heads or case.q_heads % case.k_heads:
        return
    here = execute_once(implementation, case)
    moved = execute(implementation, case, positions=here.arena.inputs["positions"] + step, **_inputs(here))
    (score, error, fits), (moved_score, moved_error, moved_fits) = _scores(here), _scores(moved)
    check_close("relative position", "score", moved_score, score, error + moved_error, fits & moved_fits)


@rope_property(cost=4)
def test_scaling_by_two_is_exact(implementation: Implementation, case: RopeCase) -> None:
    """f(2 x) = 2 f(x), exactly, away from overflow and underflow. For steps that depend on magnitudes."""
    case = settled(case)
    if implementation.domain.why_outside(case):
        return
    run = execute_once(implementation, case)
    twice = {n: 2 * x for n, x in _inputs(run).items()}
    if any((x.isinf() & ~_inputs(run)[n].isinf()).any() for n, x in twice.items()):
        return  # an input overflows
    doubled = execute(implementation, case, **twice)
    for name, out in run.outputs.items():
        normal = torch.from_numpy(_products_are_normal(run, name)) & (
            out.abs() >= torch.finfo(out.dtype).tiny
        )
        check_equal("scaling by two", name, doubled.outputs[name], 2 * out, normal)


@rope_property(cost=4)
def test_is_additive(implementation: Implementation, case: RopeCase) -> None:
    """f(a + b) = f(a) + f(b) for a and b that split the dims between them. For what is not linear."""
    case = settled(case)
    if implementation.domain.why_outside(case):
        return
    whole = execute_once(implementation, case)
    in_a = torch.from_numpy(np.random.default_rng(case.seed).random(case.head_dim) < 0.5)
    x = _inputs(whole)
    parts = [
        execute(implementation, case, **{n: torch.where(mask, v, torch.zeros_like(v)) for n, v in x.items()})
        for mask in (in_a, ~in_a)
    ]
    for name in whole.outputs:
        sizes = [Sizes(run, name) for run in (whole, *parts)]
        with np.errstate(all="ignore"):
            total = output(parts[0], name) + output(parts[1], name)
        allowed = sizes[0].allowed + sizes[1].allowed + sizes[2].allowed
        fits = sizes[0].fits
        check_close("additivity", name, output(whole, name), total, allowed, fits)


@rope_property(cost=4)
def test_layouts_are_permutations_of_each_other(implementation: Implementation, case: RopeCase) -> None:
    """gptj(x) is neox of x with its dims permuted, exactly. For layouts that round differently."""
    if len(implementation.domain.layouts) < 2:
        pytest.skip(f"no partner: {implementation.name} has one layout")
    case = settled(case)
    other = replace(case, layout="gptj" if case.layout == "neox" else "neox")
    if implementation.domain.why_outside(case):
        return
    run = execute_once(implementation, case)
    mine, theirs = (torch.from_numpy(np.concatenate(pair_dims(c))) for c in (case, other))
    permuted = {}
    for name, x in _inputs(run).items():
        permuted[name] = x.clone()
        permuted[name][..., theirs] = x[..., mine]
    for name, out in execute(implementation, other, **permuted).outputs.items():
        restored = out.clone()
        restored[..., mine] = out[..., theirs]
        check_equal("layouts", name, run.outputs[name], restored)


@rope_property(cost=4)
def test_nan_and_infinity_stay_in_their_pair(implementation: Implementation, case: RopeCase) -> None:
    """One NaN or infinity changes its own pair at most. For products with 0 in place of masks."""
    case = settled(case)
    if implementation.domain.why_outside(case):
        return
    clean = execute_once(implementation, case)
    poisoned, touched = {}, {}
    for name, x in _inputs(clean).items():
        poisoned[name], touched[name] = x.clone(), torch.zeros(x.shape, dtype=torch.bool)
        if x.numel():
            at = np.unravel_index(case.seed % x.numel(), x.shape)
            poisoned[name][at] = float("nan") if case.seed % 2 else float("inf")
            lo, hi = pair_dims(case)
            pair = np.flatnonzero((lo == at[-1]) | (hi == at[-1]))
            for dim in {int(at[-1]), *lo[pair].tolist(), *hi[pair].tolist()}:
                touched[name][(*at[:-1], dim)] = True
    for name, out in execute(implementation, case, **poisoned).outputs.items():
        check_equal("NaN and infinity", name, out, clean.outputs[name], ~touched[name])


def _step(case: RopeCase) -> int:
    return 1 + case.seed % _LARGEST_POSITION_STEP


def _inputs(run: Run) -> dict[str, torch.Tensor]:
    """q and k as they were given."""
    return {name: run.arena.inputs[name] for name in run.outputs}


def _copied(run: Run) -> dict[str, torch.Tensor]:
    """The outputs, as inputs of another run."""
    return {name: out.clone() for name, out in run.outputs.items()}


def _pair_is_finite(case: RopeCase, x: torch.Tensor) -> np.ndarray:
    finite = np.isfinite(x.double().numpy())
    lo, hi = pair_dims(case)
    finite[..., lo] &= finite[..., hi]
    finite[..., hi] = finite[..., lo]
    return finite


def _products_are_normal(run: Run, name: str) -> np.ndarray:
    """Where both products are zero or normal numbers, and twice the result is finite."""
    exact = run.exact(name)
    dtype = run.outputs[name].dtype
    if run.implementation.domain.compute == "float32" and dtype != torch.float64:
        dtype = torch.float32
    # A fused step keeps the last bits of a product, which must not be subnormal either.
    least = 2 * torch.finfo(dtype).tiny / torch.finfo(dtype).eps
    with np.errstate(all="ignore"):
        normal = Sizes(run, name).fits & exact.rotated
        for product in (exact.first, exact.second):
            normal &= (product == 0) | (np.abs(product) >= least)
    return normal


def _scores(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q.k of every head and two tokens of a row, its error against exact rotations, where it is judged."""
    group = run.case.q_heads // (run.case.k_heads or 1)
    q, k = output(run, "q"), np.repeat(output(run, "k"), group, axis=2)
    of_q, of_k = Sizes(run, "q"), Sizes(run, "k")
    q_error = of_q.allowed + of_q.off_angle
    k_error = np.repeat(of_k.allowed + of_k.off_angle, group, axis=2)

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("bihd,bjhd->bhij", a, b)

    with np.errstate(all="ignore"):
        score = dot(q, k)
        error = dot(np.abs(q), k_error) + dot(q_error, np.abs(k)) + dot(q_error, k_error)
        # Sums of head_dim products in float64.
        error += run.case.head_dim * 2.0**-52 * dot(np.abs(q), np.abs(k))
    q_fits = np.asarray(of_q.fits.all(axis=-1))
    k_fits = np.repeat(np.asarray(of_k.fits.all(axis=-1)), group, axis=2)
    fits = q_fits.transpose(0, 2, 1)[:, :, :, None] & k_fits.transpose(0, 2, 1)[:, :, None, :]
    return score, error, fits
