"""Faults of memory: what is written, when, and what else."""

import torch

from tests.mutants import base
from tests.mutants.base import Call, memory
from tests.mutants.registry import mutant

# --- FUSE


@mutant("FUSE", "flashinfer#793", "run")
def v_rotated(call: Call) -> dict[str, torch.Tensor]:
    """Rotates the heads behind k too, which are v's. Trigger: q, k and v packed in one buffer, in place."""
    outputs = base.run(call)
    if call.k is None or not call.inplace or memory(call.k).data_ptr() != memory(call.q).data_ptr():
        return outputs
    cos, sin = call.steps.angles(call, call.steps.positions(call))
    head = call.steps.strides(call, call.k)[2]
    v = call.k.as_strided(call.k.shape, call.k.stride(), call.k.storage_offset() + head * call.heads(call.k))
    if v.numel():
        call.steps.rotate(call, "v", v, v, cos, sin)
    return outputs
