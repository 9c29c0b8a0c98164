"""Faults of positions: which token stands where."""

import torch

from tests.mutants import base
from tests.mutants.base import Call
from tests.mutants.registry import mutant

# --- RAGPOS


@mutant("RAGPOS", "flash-attention 2800efc7", "positions")
def token_index_for_position(call: Call) -> torch.Tensor:
    """Trigger: a request that does not start at position 0, or is not the first."""
    return torch.arange(call.tokens).expand(call.batch, -1)
