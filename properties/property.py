"""rope_property: turn a check into one Hypothesis test per implementation, layout and dtype."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from properties.failures import Failure
from properties.implementations import Implementation
from properties.models import MODELS
from properties.record import running
from strategies import Domain, RopeCase, rope_cases

Check = Callable[[Implementation, RopeCase], None]


@dataclass(frozen=True)
class Property:
    """A statement that must hold for every case of a domain.

    Attributes:
        check: raises a Failure when the statement does not hold for a case.
        narrowed: the values of Domain fields that the statement is about.
    """

    name: str
    check: Check
    narrowed: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def domain(self, implementation: Implementation) -> Domain | None:
        """The cases to try: the implementation's domain as far as this property speaks of it."""
        kept: dict[str, Any] = {
            name: tuple(v for v in getattr(implementation.domain, name) if v in values)
            for name, values in self.narrowed.items()
        }
        return replace(implementation.domain, **kept) if all(kept.values()) else None

    def tests(self, implementation: Implementation) -> Iterator[tuple[str, Callable[[], None]]]:
        """The tests of this property: an id and a function for each."""
        domain = self.domain(implementation)
        if domain is None:
            return
        for layout in domain.layouts:
            for dtype in domain.dtypes:
                cases = rope_cases(domain, layout=layout, dtype=dtype)
                yield f"{implementation.name}-{layout}-{dtype}", self.search(implementation, cases)
        for model, case in MODELS.items():
            inside = _inside(domain, case)
            if inside is not None:
                yield f"{implementation.name}-{model}", self.replay(implementation, inside)

    def run(self, implementation: Implementation, case: RopeCase) -> None:
        """Check one case; a Failure says which property, implementation and case it belongs to."""
        with running(implementation.name, self.name, case):
            try:
                self.check(implementation, case)
            except Failure as failure:
                failure.property, failure.implementation, failure.case = self, implementation, case
                raise

    def search(
        self, implementation: Implementation, cases: st.SearchStrategy[RopeCase]
    ) -> Callable[[], None]:
        """A Hypothesis test that looks for a counterexample among these cases."""

        def test(case: RopeCase) -> None:
            self.run(implementation, case)

        test.__name__ = test.__qualname__ = self.name
        return given(case=cases)(test)

    def replay(self, implementation: Implementation, case: RopeCase) -> Callable[[], None]:
        """A test of this one case."""

        def test() -> None:
            self.run(implementation, case)

        test.__name__ = test.__qualname__ = self.name
        return test


def rope_property(**narrowed: tuple[Any, ...]) -> Callable[[Check], Property]:
    """Decorate a check to make it a property.

    Args:
        narrowed: values of Domain fields that the property is about; an implementation whose domain has
            none of them is not tried.
    """
    unknown = set(narrowed) - {f.name for f in fields(Domain)}
    if unknown:
        raise TypeError(f"Domain has no field {', '.join(sorted(unknown))}")

    def decorate(check: Check) -> Property:
        return Property(check.__name__, check, narrowed)

    return decorate


def _inside(domain: Domain, case: RopeCase) -> RopeCase | None:
    """The model's case in a dtype that the domain has, or None when the domain does not hold it."""
    if case.dtype not in domain.dtypes:
        case = replace(case, dtype=domain.dtypes[0])
    return case if domain.why_outside(case) is None else None
