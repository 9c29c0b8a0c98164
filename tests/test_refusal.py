"""apply_rope answers every kind of wrong input with RopeError, never with an error from further down."""

import pytest

from properties.refusal import SPOILERS, arguments
from rope import RopeError, apply_rope
from strategies import Arena, RopeCase

# Between them every kind of wrong input can be made.
CASES = (
    RopeCase(requests=((3, 4),), q_heads=4, k_heads=2, rot_half=4, tail=3, fill="ramp"),
    RopeCase(requests=((3, 4),), rot_half=4, axes="chunked", fill="ramp"),
    RopeCase(
        rank=4, requests=((0, 4),), q_heads=4, k_heads=2, rot_half=4, positions="implied", heads_first=True
    ),
)


@pytest.mark.parametrize("what", SPOILERS)
def test_every_kind_of_wrong_input_raises_rope_error(what: str) -> None:
    made = 0
    for case in CASES:
        arena = Arena(case)
        spoilt = arguments(case, arena)
        if SPOILERS[what](spoilt) is not False:
            made += 1
            a = spoilt
            with pytest.raises(RopeError):
                apply_rope(a.q, a.k, a.cos, a.sin, a.positions, **a.options)
    assert made


def test_at_least_20_kinds() -> None:
    assert len(SPOILERS) >= 20
