"""Norm preservation: a rotation changes directions, not lengths."""

from properties.implementations import Implementation
from properties.judge import check_norms, execute_once
from properties.property import rope_property
from strategies import RopeCase


@rope_property()
def test_norm_is_preserved(implementation: Implementation, case: RopeCase) -> None:
    """Every pair, and every head, keeps its length times the norm of its (cos, sin)."""
    check_norms(execute_once(implementation, case))
