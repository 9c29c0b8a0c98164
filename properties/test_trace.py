"""Memory trace: what a Triton kernel loads and stores, seen at its addresses in the interpreter.

An implementation that runs no Triton kernel in the interpreter leaves no trace, and its tests are skipped.
"""

import pytest

from properties.implementations import Implementation
from properties.judge import Run, execute_once
from properties.property import rope_property
from properties.trace_checks import check_races, check_reads, check_traffic, check_writes
from strategies import RopeCase


@rope_property()
def test_reads_stay_inside(implementation: Implementation, case: RopeCase) -> None:
    """Nothing is read but the tensors of the call: no red zone, no stride gap, not V."""
    check_reads(_traced(implementation, case))


@rope_property()
def test_writes_stay_inside(implementation: Implementation, case: RopeCase) -> None:
    """Nothing is written but the outputs, not even with the bits it had."""
    check_writes(_traced(implementation, case))


@rope_property()
def test_no_race(implementation: Implementation, case: RopeCase) -> None:
    """The result does not hang on the order of programs or of warps."""
    check_races(_traced(implementation, case))


@rope_property()
def test_traffic_is_the_least_possible(implementation: Implementation, case: RopeCase) -> None:
    """Each rotated element is read once and written once, the tail too out of place, nothing else.

    More traffic is slow but not wrong, so only implementations that claim the least are held to it.
    """
    if not implementation.domain.least_traffic:
        pytest.skip(f"no claim: {implementation.name} does not claim the least traffic")
    check_traffic(_traced(implementation, case))


def _traced(implementation: Implementation, case: RopeCase) -> Run:
    """A run with a trace, or without one where there is nothing to rotate; skips the test otherwise."""
    run = execute_once(implementation, case)
    if run.trace is None and case.batch * case.tokens:
        pytest.skip(f"no trace: {implementation.name} ran no Triton kernel in the interpreter")
    return run
