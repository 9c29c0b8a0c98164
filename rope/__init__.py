"""Rotary Position Embedding: `from rope import apply_rope`."""

from rope.api import apply_rope
from rope.config import rope_table_from_config
from rope.errors import PositionError, RopeError, RopePrecisionWarning
from rope.positions import ragged_positions
from rope.tables import RopeTable, rope_table

__all__ = [
    "PositionError",
    "RopeError",
    "RopePrecisionWarning",
    "RopeTable",
    "apply_rope",
    "ragged_positions",
    "rope_table",
    "rope_table_from_config",
]
