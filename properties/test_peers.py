"""Equivalence with the forms that users know: the Hugging Face function and complex multiplication."""

import numpy as np
import pytest
import torch

from properties.bounds import may_overflow
from properties.failures import Mismatch
from properties.implementations import Implementation
from properties.judge import Run, execute_once
from properties.property import rope_property
from strategies import RopeCase


@rope_property(
    layouts=("neox",),
    dtypes=("float32", "float16"),
    tails=("none",),
    inverse=(False,),
    without_k=(False,),
)
def test_matches_hugging_face(implementation: Implementation, case: RopeCase) -> None:
    """neox equals transformers' Llama `apply_rotary_pos_emb` on the same values and tables.

    Run in float64 it is met within the derived bound. Run as its users do, with float32 tables, it is met
    within 1e-3 in float16 where no product is above 1000, by what computes in float32.
    """
    llama = pytest.importorskip(
        "transformers.models.llama.modeling_llama", reason="needs transformers (extra: peers)"
    )
    run = execute_once(implementation, case)
    cos, sin = (torch.cat([run.arena.inputs[name].double()] * 2, dim=-1) for name in ("cos", "sin"))
    q, k = run.arena.inputs["q"], run.arena.inputs["k"]
    exact = llama.apply_rotary_pos_emb(q.double(), k.double(), cos, sin, unsqueeze_dim=2)
    usual = llama.apply_rotary_pos_emb(q, k, cos.float(), sin.float(), unsqueeze_dim=2)
    for name, theirs, rounded in zip(("q", "k"), exact, usual, strict=True):
        _compare(run, name, theirs.numpy(), run.verdict(name).bound, "Hugging Face in float64")
        if case.dtype == "float16" and implementation.domain.compute == "float32":
            products = np.abs(run.exact(name).first) + np.abs(run.exact(name).second)
            within = np.where(products < 1e3, 1e-3 + 1e-3 * np.abs(rounded.double().numpy()), np.inf)
            _compare(run, name, rounded.double().numpy(), within, "Hugging Face")


@rope_property(layouts=("gptj",), inverse=(False,))
def test_matches_complex_multiplication(implementation: Implementation, case: RopeCase) -> None:
    """gptj equals each pair read as a complex number times cos + i sin (RoFormer, section 3.2.1)."""
    run = execute_once(implementation, case)
    angle = torch.complex(run.arena.inputs["cos"].double(), run.arena.inputs["sin"].double())
    rotated = slice(case.rot_offset, case.rot_offset + 2 * case.rot_half)
    for name in run.outputs:
        x = run.arena.inputs[name].double()
        number = torch.view_as_complex(x[..., rotated].unflatten(-1, (case.rot_half, 2)).clone())
        expected = x.clone()
        expected[..., rotated] = torch.view_as_real(number * angle.unsqueeze(2)).flatten(-2)
        _compare(run, name, expected.numpy(), run.verdict(name).bound, "complex multiplication")


def _compare(run: Run, name: str, theirs: np.ndarray, allowed: np.ndarray, peer: str) -> None:
    """Mismatch where an output misses a peer's finite result by more than is allowed."""
    exact = run.exact(name)
    huge = may_overflow(exact, run.case.dtype, run.implementation.domain.compute)
    with np.errstate(all="ignore"):
        missed = ~(np.abs(run.outputs[name].double().numpy() - theirs) <= allowed)
    missed &= np.isfinite(theirs) & exact.rotated & ~huge
    if missed.any():
        where = tuple(int(i) for i in np.argwhere(missed)[0])
        raise Mismatch(
            f"{name}_out at {where} is {float(run.outputs[name][where])!r}, {peer} gives "
            f"{float(theirs[where])!r}: further apart than {allowed[where]:.3g}",
            tensor=name,
            where=where,
            wrong=missed,
        )
