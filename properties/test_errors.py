"""The error contract: wrong input raises an error and changes nothing."""

import pytest

from properties.implementations import Implementation
from properties.property import rope_property
from properties.refusal import SPOILERS, arguments, check_refused
from strategies import Arena, RopeCase

_NAMES = tuple(SPOILERS)


@rope_property()
def test_wrong_input_is_refused(implementation: Implementation, case: RopeCase) -> None:
    """A valid call with one thing spoilt is refused before anything is written. For missing checks."""
    if not implementation.domain.refuses:
        pytest.skip(f"no claim: {implementation.name} does not promise to refuse wrong input")
    # Every case tries several, so that few cases try all.
    for i in range(6):
        name = _NAMES[(case.seed * 6 + i) % len(_NAMES)]
        arena = Arena(case, implementation.device)
        spoilt = arguments(case, arena)
        if SPOILERS[name](spoilt) is not False:
            check_refused(implementation, arena, spoilt, name)
