"""Capture a call in a CUDA graph and replay it with other values in its tensors."""

from dataclasses import replace

import torch

from properties.failures import Crash
from properties.implementations import Implementation
from properties.judge import Run, call, call_options
from strategies import Arena, RopeCase
from strategies.arena import fetched


def execute_replayed(implementation: Implementation, case: RopeCase) -> Run:
    """The run of a replay: captured on the case's tensors, which then hold other values and positions.

    Raises:
        Crash: the call raised, or cannot be captured: it allocates outside the graph's pool, or waits.
    """
    quiet = replace(implementation, watched=False)
    # A first launch compiles its kernel, which a capture does not allow.
    call(quiet, case, Arena(case, implementation.device))
    captured = Arena(case, implementation.device)
    options = call_options(case, captured)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.device(captured.device), torch.cuda.graph(graph):
            returned = implementation.call(
                captured.q, captured.k, captured.cos, captured.sin, captured.positions, **options
            )
    except Exception as error:
        raise Crash(f"capture raised {type(error).__name__}: {error}") from error
    other = other_values(case, implementation.device)
    for mine, theirs in zip(captured.buffers, other.buffers, strict=True):
        mine.buffer.copy_(theirs.buffer)
    graph.replay()
    torch.cuda.synchronize(captured.device)
    tensors = (returned,) if isinstance(returned, torch.Tensor) else returned
    names = ("q",) if case.k_heads is None else ("q", "k")
    given = dict(zip(names, tensors, strict=True))
    outputs = {name: captured.bnhd(out.detach()).cpu() for name, out in given.items()}
    after = fetched([mine.buffer for mine in captured.buffers])
    return Run(implementation, case, other, given, outputs, [], after)


def other_values(case: RopeCase, device: str) -> Arena:
    """The same tensors with other values, and given positions in the opposite order."""
    # By 4: the positions keep the number of their axes, and the tensors their sizes.
    case = replace(case, seed=case.seed + 4)
    if case.positions == "implied":
        return Arena(case, device)
    positions = Arena(case).inputs["positions"].flip(-1)
    return Arena(case, device, positions=positions)
