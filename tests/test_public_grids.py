"""The grids of public tests: a correct implementation passes them, a wrong one does not."""

from dataclasses import replace

import pytest
import torch

from strategies import RopeCase
from tests.mutants import MUTANTS
from tests.mutants.registry import correct
from tests.public_grids import GRIDS, Point, Trial, points


@pytest.mark.parametrize("grid", GRIDS)
def test_a_correct_implementation_passes(grid: str) -> None:
    assert all(Trial(point).passes(correct()) for point in points(grid)[::20])


@pytest.mark.parametrize("grid", GRIDS)
def test_a_grid_sees_a_wrong_sign(grid: str) -> None:
    mutant = next(m for m in MUTANTS if m.name == "sin_sign_flipped")
    assert not all(Trial(point).passes(mutant.fresh()) for point in points(grid))


def test_a_tolerance_lets_through_what_it_allows() -> None:
    """A tenth, as Liger's test allows in bfloat16, hides an error of a hundredth."""
    case = RopeCase(dtype="bfloat16", rot_half=4, q_heads=2, requests=((0, 3),), fill="normal")
    point = Point(case, lambda out, expected: torch.allclose(out, expected, rtol=1e-5, atol=1e-1))
    strict = replace(point, close=torch.equal)
    mutant = next(m for m in MUTANTS if m.name == "off_by_a_hundredth")
    assert Trial(point).passes(mutant.fresh())
    assert not Trial(strict).passes(mutant.fresh())
