"""The project's own tests: one with the strategies, one property of the harness."""

import torch
from hypothesis import given, settings
from sample_package.kernels import domain, rotate

from properties.test_reference import test_matches_the_oracle  # noqa: F401
from strategies import Arena, rope_cases


@settings(max_examples=20)
@given(case=rope_cases(domain))
def test_tokens_do_not_see_each_other(case):
    arena = Arena(case)
    together = rotate(arena.q, arena.cos, arena.sin, arena.positions)
    for i in range(len(together)):
        alone = rotate(arena.q[i : i + 1], arena.cos, arena.sin, arena.positions[i : i + 1])
        assert torch.equal(alone[0].nan_to_num(), together[i].nan_to_num())
