"""The registry of mutants: one decorated function each."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from properties.implementations import Implementation
from strategies import Domain
from strategies.case import AXES_KINDS
from tests.mutants.base import Base, Steps

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mutant:
    """An implementation with one deliberate fault.

    Attributes:
        kind: as in the list of bug kinds.
        report: a public report of this kind of fault; None for a fault that nobody reported yet.
        replaces: the step of the base that the function stands for; "apply_rope" for all of them.
        function: the faulty step; its docstring says what triggers the fault.
        domain: what the mutant claims to support.
    """

    kind: str
    report: str | None
    replaces: str
    function: Callable[..., Any]
    domain: Domain = field(default_factory=Domain)

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    def fresh(self) -> Implementation:
        """The mutant in a process of its own: it remembers nothing."""
        if self.replaces == "apply_rope":
            return Implementation(self.name, self.function, self.domain)
        steps = replace(Steps(), **{self.replaces: self.function})
        return Implementation(self.name, Base(steps), self.domain)


MUTANTS: list[Mutant] = []


def mutant(kind: str, report: str | None, replaces: str, **domain: Any) -> Callable[[F], F]:
    """Register a function as the mutant that does this step of the base wrongly.

    Args:
        kind: as in the list of bug kinds.
        report: a public report of this kind, None when there is none.
        replaces: a field of Steps, whose arguments the function takes; or "apply_rope".
        domain: fields of Domain, where the mutant supports less than everything.
    """

    def register(function: F) -> F:
        MUTANTS.append(Mutant(kind, report, replaces, function, Domain(**({"refuses": True} | domain))))
        return function

    return register


def correct() -> Implementation:
    """The base without a fault."""
    return Implementation("base", Base(), Domain(axes=AXES_KINDS, refuses=True))
