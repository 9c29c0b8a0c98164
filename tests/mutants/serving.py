"""Faults of what is kept from one call to the next: only a server, which uses its memory again, sees them."""

import torch

from tests.mutants import base
from tests.mutants.base import Call
from tests.mutants.registry import mutant


def _seen(call: Call, x: torch.Tensor) -> bool:
    """Whether the call before this one had a tensor of this size in this memory."""
    before = call.kept.get("before")
    # Held until the next call, so that nothing else can come to lie there in between.
    call.kept["before"] = x
    return before is not None and (before.data_ptr(), before.shape) == (x.data_ptr(), x.shape)


@mutant("STATE", "LightX2V#1132", "positions")
def positions_known_by_their_address(call: Call) -> torch.Tensor:
    """Positions are read once per memory and size, as a step of preparation that looks costly.

    Trigger: as many tokens in the same memory, at other positions.
    """
    if call.positions is None or not _seen(call, call.positions):
        call.kept["rows"] = base.positions(call).clone()
    return call.kept["rows"]


@mutant("RAGPOS", None, "positions")
def same_batch_taken_for_decoding(call: Call) -> torch.Tensor:
    """A batch of the same size in the same memory is the last one, one token later.

    Trigger: a chunk of a prompt, a preempted request, another order.
    """
    rows = base.positions(call)
    if call.positions is not None and _seen(call, call.positions):
        rows = (call.kept["rows"] + 1).clamp(max=max(call.cos.shape[-2] - 1, 0))
    call.kept["rows"] = rows.clone()
    return rows


@mutant("FUSE", None, "run")
def memory_rotated_once(call: Call) -> dict[str, torch.Tensor]:
    """A guard against rotating twice knows what it has rotated by its memory.

    Trigger: in place, new values in the memory of the call before.
    """
    call.steps.check(call)
    if call.inplace and _seen(call, call.q):
        return {name: call.given(name) for name in call.names}
    return base.run(call)
