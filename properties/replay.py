"""--replay: one case from a file, through every property and every implementation that takes it."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from properties.implementations import Implementation
from properties.property import Property
from strategies import Domain, RopeCase


def case_of(path: str | None, implementations: Iterable[Implementation]) -> RopeCase | None:
    """The case in a file, or None without one; nothing in the file is evaluated.

    Raises:
        pytest.UsageError: there is no such file, it holds no valid case, or no implementation takes it.
    """
    if path is None:
        return None
    try:
        case = RopeCase.from_json(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"--replay: {path} cannot be read: {error}") from error
    except (ValueError, TypeError) as error:
        raise pytest.UsageError(f"--replay: {path} holds no valid case: {error}") from error
    reasons = {i.name: i.missing or i.domain.why_outside(taken(i.domain, case)) for i in implementations}
    if all(reasons.values()):
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise pytest.UsageError(f"--replay: no implementation takes {case!r}: {told}")
    return case


def replay_tests(
    tried: Property, implementation: Implementation, case: RopeCase
) -> list[tuple[str, Callable[[], None]]]:
    """The test of this case, when it lies in what the property says about the implementation."""
    domain = tried.domain(implementation)
    if implementation.missing is not None or domain is None:
        return []
    case = taken(domain, case)
    if domain.why_outside(case) is not None:
        return []
    return [(f"{implementation.name}-replay", tried.replay(implementation, case))]


def taken(domain: Domain, case: RopeCase) -> RopeCase:
    """The case as an implementation is given it: a tile is for those whose tile can be forced."""
    return case if case.tile in domain.tiles else replace(case, tile=None)
