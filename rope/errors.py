"""What apply_rope and its helpers raise and warn."""


class RopeError(ValueError):
    """Wrong input. The message says what was given, what was expected and what to do.

    Raised before anything is written.
    """


class PositionError(RopeError):
    """A position lies outside the cos/sin table. The message names token, position and table length."""


class RopePrecisionWarning(UserWarning):
    """A cos/sin table in a 16-bit dtype. The message says how far that moves a rotated value, and from which
    position on rows repeat, where they do."""
