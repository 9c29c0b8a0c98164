"""What can be wrong, one class per kind of fault.

Hypothesis tells faults apart by exception type and line, so each kind has its own class and each check
raises it at a place of its own: two faults in one implementation give two counterexamples.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from properties.implementations import Implementation
    from properties.property import Property
    from strategies import RopeCase


class Failure(AssertionError):  # noqa: N818 (a failure of the property, not an error in it)
    """A property does not hold for a case.

    Attributes:
        title: what is wrong, in a few words.
        facts: what a report needs: the tensor, the worst element, counts, masks.
        property, implementation, case: what failed, set by the property that ran the case.
    """

    title = "a property does not hold"
    property: "Property"
    implementation: "Implementation"
    case: "RopeCase"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts


class Mismatch(Failure):
    """A rotated element is further from the exact value than its bound."""

    title = "wrong values"


class TailChanged(Failure):
    """A dim that does not rotate has other bits than the input."""

    title = "tail changed"


class ValueChanged(Failure):
    """V, which is never an argument, changed."""

    title = "V changed"


class InputChanged(Failure):
    """An input that must stay as it is changed: q or k out of place, a table, the positions."""

    title = "input changed"


class OutOfBoundsWrite(Failure):
    """Memory outside every tensor of the call changed."""

    title = "write outside every tensor"


class OutOfBoundsRead(Failure):
    """Memory outside every tensor of the call was read."""

    title = "read outside every tensor"


class UnwrittenOutput(Failure):
    """An element of an output was never written."""

    title = "output never written"


class RaceHazard(Failure):
    """Two programs, or two lanes without an order, touch one element and one of them writes it."""

    title = "race"


class ExtraTraffic(Failure):
    """A kernel that claims the least traffic moves more bytes of q and k than it must."""

    title = "more traffic than needed"


class NotDeterministic(Failure):
    """Two runs that must agree bit for bit do not."""

    title = "runs differ"


class WrongMetadata(Failure):
    """An output has another shape, dtype or device than its input, or is not what was promised."""

    title = "wrong output metadata"


class WrongGradient(Failure):
    """A gradient is wrong or missing."""

    title = "wrong gradient"


class MissingError(Failure):
    """Wrong input was accepted, or refused with an error that does not say so."""

    title = "wrong input accepted"


class Crash(Failure):
    """The implementation raised on input inside its domain, or took the process down."""

    title = "crash"
