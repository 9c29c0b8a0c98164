"""Faults of addressing: strides, heads, axes, and what a launch covers."""

from dataclasses import replace

import torch

from tests.mutants import base
from tests.mutants.base import Call
from tests.mutants.registry import mutant

# --- QKWIRE


@mutant("QKWIRE", "sglang#20559", "run")
def k_given_the_heads_of_q(call: Call) -> dict[str, torch.Tensor]:
    """The loop over k runs to q's head count. Trigger: grouped heads."""
    if call.k is None or call.heads(call.q) == call.heads(call.k):
        return base.run(call)
    heads = call.heads(call.q)

    def load(call: Call, x: torch.Tensor, dims: torch.Tensor) -> torch.Tensor:
        flat = base.memory(x)
        return flat[base.inside(call.offsets(x, dims, heads), flat)]

    def store(call: Call, out: torch.Tensor, dims: torch.Tensor, values: torch.Tensor) -> None:
        flat = base.memory(out)
        flat[base.inside(call.offsets(out, dims, heads), flat)] = values.to(out.dtype)

    return base.run(replace(call, steps=replace(call.steps, run=base.run, load=load, store=store)))
