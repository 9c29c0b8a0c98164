"""Counterexamples are small: for planted faults, the largest acceptable shrunk case."""

from dataclasses import dataclass

import pytest

from properties.failures import Failure
from properties.study import simplify
from strategies.case import RopeCase, Strides, non_default
from tests.kill_matrix import properties, search
from tests.mutants import MUTANTS

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Limit:
    """The largest acceptable shrunk case of one mutant under one property.

    Attributes:
        fields: how many fields may differ from the simplest case; a fault needs some to show at all.
    """

    mutant: str
    prop: str
    tokens: int = 1
    q_heads: int = 1
    rot_half: int = 1
    tail: int = 0
    fields: int = 3


LIMITS = (
    # A sin that is not 0 needs position 1; a value that is not 0, ones. The search can rest at two tokens
    # from position 0, because one at position 1 is simpler in length and not in start.
    Limit("sin_sign_flipped", "test_matches_the_oracle", tokens=2),
    Limit("halves_and_pairs_swapped", "test_matches_the_oracle", rot_half=2, fields=5),
    Limit("first_dims_rotate_instead_of_the_last", "test_matches_the_oracle", tail=1, fields=5),
    Limit("partner_half_a_head_away", "test_matches_the_oracle", tail=2, fields=4),
    Limit("token_index_for_position", "test_matches_the_oracle", tokens=2),
    Limit("counted_from_the_first_token", "test_matches_the_oracle", tokens=2, fields=3),
    Limit("stored_without_a_cast", "test_matches_the_oracle", fields=1),
    # Out of place the copied tail hides it. Packed, the search can rest at many heads.
    Limit(
        "padding_lanes_overwrite_the_tail",
        "test_tail_is_bit_identical",
        q_heads=33,
        rot_half=3,
        tail=1,
        fields=6,
    ),
    Limit("last_dim_taken_for_dense", "test_matches_the_oracle", fields=4),
    Limit("v_rotated", "test_v_is_unmodified", tokens=2, fields=5),
    Limit("front_of_the_tail_not_copied", "test_tail_is_bit_identical", tail=2, fields=4),
    Limit("position_clamped", "test_a_position_outside_the_table_is_refused", fields=1),
    Limit("heads_beyond_a_block_forgotten", "test_matches_the_oracle", q_heads=35, fields=5),
)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.mutant)
def test_the_shrunk_case_is_small(limit: Limit) -> None:
    mutant = next(m for m in MUTANTS if m.name == limit.mutant)
    prop = next(p for family in properties().values() for p in family if p.name == limit.prop)
    implementation = mutant.fresh()
    kill = search(prop, implementation, cases=400, shrink=True)
    assert kill is not None
    with pytest.raises(Failure) as failed:
        prop.run(implementation, eval(kill.case, {"RopeCase": RopeCase, "Strides": Strides}))
    # As a report does with what the search has left.
    case = simplify(failed.value).case
    assert case.batch * case.tokens <= limit.tokens, case
    assert case.q_heads <= limit.q_heads, case
    assert case.rot_half <= limit.rot_half, case
    assert case.tail <= limit.tail, case
    assert len(non_default(case)) <= limit.fields, case
