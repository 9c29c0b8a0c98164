"""Rotary Position Embedding: `from rope import apply_rope`."""

from rope.api import apply_rope
from rope.errors import PositionError, RopeError, RopePrecisionWarning
from rope.positions import ragged_positions

__all__ = [
    "PositionError",
    "RopeError",
    "RopePrecisionWarning",
    "apply_rope",
    "ragged_positions",
]
