"""Reference equivalence: the rotation is the one of the definition."""

from properties.implementations import Implementation
from properties.judge import check_values, check_written, execute_once
from properties.property import rope_property
from strategies import RopeCase


@rope_property()
def test_matches_the_oracle(implementation: Implementation, case: RopeCase) -> None:
    """Every rotated element lies within its derived bound of the float64 rotation."""
    run = execute_once(implementation, case)
    check_written(run)
    check_values(run)
