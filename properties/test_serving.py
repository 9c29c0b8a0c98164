"""Continuous batching: a server that rotates its requests piece by piece, in memory that it uses again."""

import copy
from dataclasses import replace

import torch

from properties.failures import NotDeterministic
from properties.implementations import Implementation
from properties.judge import execute_on
from properties.property import rope_property
from strategies import Arena, RopeCase
from strategies.serving import serving_cases

Chunk = tuple[int, int, int]  # of a step: request, first position, length
Steps = tuple[tuple[Chunk, ...], ...]


@rope_property(
    cost=6,
    draw=serving_cases,
    models={},
    ranks=(3,),
    positions=("given",),
    tables=("indexed",),
    tiles=(None,),
)
def test_served_requests_come_out_as_alone(implementation: Implementation, case: RopeCase) -> None:
    """Requests that prefill in chunks, decode, are preempted and resume come out as each does alone.

    Bit for bit, in every step. q, k and positions lie in the same memory from step to step, under the same
    table, as in a server. For what a kernel keeps between its calls.
    """
    if implementation.domain.why_outside(case):
        return
    whole = Arena(case, implementation.device)
    steps = case.steps or _at_once(case)
    alone = [_alone(implementation, case, whole, request) for request in range(len(case.requests))]
    server = _Server(implementation, case, whole, steps)
    for number, chunks in enumerate(steps):
        outputs = server.step(chunks)
        done = 0
        for request, first, length in chunks:
            skipped = first - case.requests[request][0]
            for name, out in outputs.items():
                expected = alone[request][name][:, skipped : skipped + length]
                where = f"request {request}, positions {first}..{first + length - 1}, in step {number}"
                what = f"{name}_out of {where},"
                _require_equal(name, what, out[:, done : done + length], expected)
            done += length


def _at_once(case: RopeCase) -> Steps:
    """The one step of a case without steps: every request whole."""
    return (tuple((i, start, length) for i, (start, length) in enumerate(case.requests) if length),)


class _Server:
    """The memory of a server: one batch as large as its largest step, one table."""

    def __init__(self, implementation: Implementation, case: RopeCase, whole: Arena, steps: Steps) -> None:
        self.implementation, self.case, self.whole = implementation, case, whole
        most = max(sum(length for _, _, length in step) for step in steps)
        batch = _of_one(case, 0, most)
        self.memory = Arena(batch, implementation.device)
        self.memory.cos, self.memory.sin = whole.cos, whole.sin

    def step(self, chunks: tuple[Chunk, ...]) -> dict[str, torch.Tensor]:
        """Write these chunks into the batch, one after the other, and rotate it."""
        tokens = [
            _offset(self.case, request) + n - self.case.requests[request][0]
            for request, first, length in chunks
            for n in range(first, first + length)
        ]
        batch = copy.copy(self.memory)
        axis = 1 if self.case.heads_first else 0
        for name in ("q", "k", "positions"):
            memory = getattr(self.memory, name)
            if memory is not None:
                along = -1 if name == "positions" else axis
                view = memory.narrow(along, 0, len(tokens))
                values = self.whole.inputs[name]
                values = values[..., 0, tokens] if name == "positions" else values[0, tokens]
                view.copy_(values.transpose(0, 1) if along == 1 else values)
                setattr(batch, name, view)
        return execute_on(self.implementation, _of_one(self.case, 0, len(tokens)), batch).outputs


def _alone(
    implementation: Implementation, case: RopeCase, whole: Arena, request: int
) -> dict[str, torch.Tensor]:
    """The outputs of one request, whole and in memory of its own."""
    first, (start, length) = _offset(case, request), case.requests[request]
    names = ("q",) if case.k_heads is None else ("q", "k")
    values = {name: whole.inputs[name][:, first : first + length] for name in names}
    arena = Arena(_of_one(case, start, length), implementation.device, **values)
    arena.cos, arena.sin = whole.cos, whole.sin
    return execute_on(implementation, arena.case, arena).outputs


def _of_one(case: RopeCase, start: int, length: int) -> RopeCase:
    """The case with one request, in one call."""
    return replace(case, requests=((start, length),), steps=())


def _offset(case: RopeCase, request: int) -> int:
    """Where a request begins on the token axis on which all lie whole."""
    return sum(length for _, length in case.requests[:request])


def _require_equal(name: str, what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    wrong = ~((actual == expected) | (actual.isnan() & expected.isnan()))
    if wrong.any():
        where = tuple(int(i) for i in wrong.nonzero()[0])
        raise NotDeterministic(
            f"{what} has {float(actual[where])!r} at (batch, token, head, dim) {where}, alone "
            f"{float(expected[where])!r}; {int(wrong.sum())} of {wrong.numel()} elements differ, expected "
            "the same bits",
            tensor=name,
            where=where,
            wrong=wrong.numpy(),
        )
