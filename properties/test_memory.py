"""The memory contract: what a call may change, and that it changes nothing else."""

from properties.implementations import Implementation
from properties.judge import check_inputs, check_red_zones, check_tail, check_v, execute_once
from properties.property import rope_property
from strategies import RopeCase


@rope_property(tails=("after", "before", "both"))
def test_tail_is_bit_identical(implementation: Implementation, case: RopeCase) -> None:
    """Dims that do not rotate keep their bits, in place and out of place, NaN payloads included."""
    check_tail(execute_once(implementation, case))


@rope_property()
def test_v_is_unmodified(implementation: Implementation, case: RopeCase) -> None:
    """V keeps every byte, beside q and k in one packed buffer and in a buffer of its own."""
    check_v(execute_once(implementation, case))


@rope_property()
def test_inputs_are_unmodified(implementation: Implementation, case: RopeCase) -> None:
    """Tables, positions and, out of place, q and k keep every byte."""
    check_inputs(execute_once(implementation, case))


@rope_property()
def test_nothing_else_is_written(implementation: Implementation, case: RopeCase) -> None:
    """Memory around every tensor and in its stride gaps keeps every byte."""
    check_red_zones(execute_once(implementation, case))
