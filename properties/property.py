"""rope_property: turn a check into one Hypothesis test per implementation, layout and dtype."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from properties.failures import Failure
from properties.implementations import Implementation
from properties.known import KnownFailure
from properties.models import MODELS
from properties.record import note, running, shared_runs
from strategies import Domain, RopeCase, rope_cases

# How many runs of cases are kept for the properties that draw the same ones.
SHARED_RUNS = 64

Check = Callable[[Implementation, RopeCase], None]


@dataclass(frozen=True)
class Property:
    """A statement that must hold for every case of a domain.

    Attributes:
        check: raises a Failure when the statement does not hold for a case.
        narrowed: the values of Domain fields that the statement is about.
        cost: how many ordinary cases one case takes; a search tries as many fewer.
        draw: draws cases of a domain, of one layout and dtype where they are given.
        models: cases that always run where the domain holds them.
    """

    name: str
    check: Check
    narrowed: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    cost: int = 1
    draw: Callable[..., st.SearchStrategy[RopeCase]] = rope_cases
    models: Mapping[str, RopeCase] = field(default_factory=lambda: MODELS)

    @property
    def drawn_as(self) -> str:
        """The same for properties that draw the same cases of an implementation."""
        return f"{self.draw.__name__} {self.narrowed}"

    def domain(self, implementation: Implementation) -> Domain | None:
        """The cases to try: the implementation's domain as far as this property speaks of it."""
        kept: dict[str, Any] = {
            name: tuple(v for v in getattr(implementation.domain, name) if v in values)
            for name, values in self.narrowed.items()
        }
        return replace(implementation.domain, **kept) if all(kept.values()) else None

    def tests(
        self, implementation: Implementation, session: int | None = None
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """The tests of this property: an id and a function for each.

        Args:
            session: a number from which properties that draw alike draw the same cases, as long as so many
                runs can be shared; without it Hypothesis chooses.
        """
        domain = self.domain(implementation)
        if domain is None:
            return
        for layout in domain.layouts:
            for dtype in domain.dtypes:
                cases = self.draw(domain, layout=layout, dtype=dtype)
                search = self.search(implementation, cases)
                if session is not None:
                    few = settings().max_examples <= SHARED_RUNS
                    drawn = self.drawn_as if few else self.name
                    seed(zlib.crc32(f"{session} {drawn} {layout} {dtype}".encode()))(search)
                if self.cost > 1:
                    search = settings(max_examples=max(2, settings().max_examples // self.cost))(search)
                yield f"{implementation.name}-{layout}-{dtype}", search
        for model, case in self.models.items():
            inside = _inside(domain, case)
            if inside is not None:
                yield f"{implementation.name}-{model}", self.replay(implementation, inside)
        for number, known in enumerate(k for k in implementation.known if k.property == self.name):
            yield f"{implementation.name}-known-{number}", self.expect(implementation, known)

    def run(self, implementation: Implementation, case: RopeCase) -> None:
        """Check one case; a Failure says which property, implementation and case it belongs to."""
        with running(implementation.name, self.name, case):
            try:
                self.check(implementation, case)
            except Failure as failure:
                failure.property, failure.implementation, failure.case = self, implementation, case
                if runs := shared_runs():
                    runs.forget()
                raise

    def search(
        self, implementation: Implementation, cases: st.SearchStrategy[RopeCase]
    ) -> Callable[[], None]:
        """A Hypothesis test that looks for a counterexample among these cases."""

        def test(case: RopeCase) -> None:
            if any(hole.holds(case) for hole in implementation.domain.holes):
                note("cases left out as known")
                return
            try:
                self.run(implementation, case)
            except Failure as failure:
                if not any(known.covers(failure) for known in implementation.known):
                    raise
                note("cases failed as known")

        test.__name__ = test.__qualname__ = self.name
        return given(case=cases)(test)

    def replay(self, implementation: Implementation, case: RopeCase) -> Callable[[], None]:
        """A test of this one case; an expected failure when it fails as known."""

        def test() -> None:
            try:
                self.run(implementation, case)
            except Failure as failure:
                for known in implementation.known:
                    if known.covers(failure):
                        pytest.xfail(known.reason)
                raise

        test.__name__ = test.__qualname__ = self.name
        return test

    def expect(self, implementation: Implementation, known: KnownFailure) -> Callable[[], None]:
        """A test that a known failure is still there."""
        replay = self.replay(implementation, known.case)

        def test() -> None:
            replay()
            pytest.fail(
                f"{self.name} holds for {known.case}: take the entry out of {known.file}", pytrace=False
            )

        test.__name__ = test.__qualname__ = self.name
        return test


def rope_property(
    *,
    cost: int = 1,
    draw: Callable[..., st.SearchStrategy[RopeCase]] = rope_cases,
    models: Mapping[str, RopeCase] = MODELS,
    **narrowed: tuple[Any, ...],
) -> Callable[[Check], Property]:
    """Decorate a check to make it a property.

    Args:
        cost, draw, models: see Property.
        narrowed: values of Domain fields that the property is about; an implementation whose domain has
            none of them is not tried.
    """
    unknown = set(narrowed) - {f.name for f in fields(Domain)}
    if unknown:
        raise TypeError(f"Domain has no field {', '.join(sorted(unknown))}")

    def decorate(check: Check) -> Property:
        return Property(check.__name__, check, narrowed, cost, draw, models)

    return decorate


def is_of_property(item: pytest.Item) -> bool:
    """Whether a collected test comes from a property."""
    if not isinstance(item, pytest.Function):
        return False
    return isinstance(getattr(item.module, item.name.partition("[")[0], None), Property)


def _inside(domain: Domain, case: RopeCase) -> RopeCase | None:
    """The model's case in a dtype that the domain has, or None when the domain does not hold it."""
    if case.dtype not in domain.dtypes:
        case = replace(case, dtype=domain.dtypes[0])
    return case if domain.why_outside(case) is None else None
