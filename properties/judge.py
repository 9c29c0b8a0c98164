"""Run an implementation on a case, and the checks that properties are made of."""

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from properties.allocations import WatchedAllocations
from properties.bounds import Verdict, error_bound, judge, may_overflow
from properties.failures import (
    Crash,
    InputChanged,
    Mismatch,
    OutOfBoundsWrite,
    TailChanged,
    UnwrittenOutput,
    ValueChanged,
    WrongMetadata,
)
from properties.implementations import Implementation
from properties.oracle import Exact, angles, exact_rotation, pair_dims
from properties.record import note_ratio, shared_runs
from properties.trace import Trace, recorded
from strategies import Arena, RopeCase
from strategies.arena import UNWRITTEN, Guarded, fetched
from strategies.values import bits


@dataclass
class Run:
    """One finished call.

    Attributes:
        outputs: by "q" and "k", on the CPU in (batch, token, head, dim).
        given: what the implementation returned for each, as it came.
        allocations: what the implementation allocated.
        after: the contents of every guarded buffer, those of the arena first, on the CPU.
        trace: what its Triton kernels loaded and stored, or None when none ran in the interpreter on the
            arena's own memory.
    """

    implementation: Implementation
    case: RopeCase
    arena: Arena
    given: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]
    allocations: list[Guarded]
    after: list[torch.Tensor]
    trace: Trace | None = None

    @cached_property
    def changed(self) -> list[tuple[Guarded, torch.Tensor]]:
        """Every guarded buffer, those of the arena first, with the elements that the call changed."""
        buffers = self.arena.buffers + self.allocations
        return [(g, g.changed(after)) for g, after in zip(buffers, self.after, strict=True)]

    def exact(self, name: str) -> Exact:
        """The exact rotation of one tensor."""
        return exact_rotation(self.arena, name)

    def verdict(self, name: str) -> Verdict:
        """The judgement of one output."""
        compute = self.implementation.domain.compute
        return judge(self.outputs[name], self.exact(name), self.case.dtype, compute)


def call_options(case: RopeCase, arena: Arena) -> dict[str, Any]:
    """The keyword arguments of the call that a case describes."""
    options: dict[str, Any] = {
        "layout": case.layout,
        "rot_dim": 2 * case.rot_half,
        "rot_offset": case.rot_offset,
        "head_axis": case.head_axis,
        "inplace": case.inplace,
        "inverse": case.inverse,
    }
    if arena.axes is not None:
        options["axes"] = arena.axes
    if case.tile is not None:
        options["tile"] = case.tile
    return options


def call(implementation: Implementation, case: RopeCase, arena: Arena) -> tuple[object, list[Guarded], Trace]:
    """Call the implementation on an arena, watching what it allocates and touches; Crash when it raises."""
    options = call_options(case, arena)
    try:
        with recorded() as trace, WatchedAllocations(enabled=implementation.watched) as watched:
            returned = implementation.call(arena.q, arena.k, arena.cos, arena.sin, arena.positions, **options)
        if arena.device.type == "cuda":
            torch.cuda.synchronize(arena.device)
    except Exception as error:
        if arena.device.type == "cuda" and _is_lost(arena.device):
            # No later case could run here. A dead worker is replaced, and its last case is on disk.
            print(f"{implementation.name} left the GPU unusable: {error}", file=sys.stderr, flush=True)
            os.abort()
        raise Crash(f"raised {type(error).__name__}: {error}") from error
    return returned, watched.guarded, trace


def _is_lost(device: torch.device) -> bool:
    """Whether an illegal access has made the device unusable for the rest of the process."""
    try:
        torch.cuda.synchronize(device)
    except Exception:
        return True
    return False


def execute(implementation: Implementation, case: RopeCase, **values: torch.Tensor) -> Run:
    """Run the case, with other values where given as Arena takes them.

    Raises:
        Crash: the call raised.
        WrongMetadata: it returned the wrong thing.
    """
    return execute_on(implementation, case, Arena(case, implementation.device, **values))


def execute_once(implementation: Implementation, case: RopeCase) -> Run:
    """As execute, for a run that is only looked at: properties that draw the same case share it."""
    runs = shared_runs()
    if runs is None:
        return execute(implementation, case)
    return runs.get(implementation, case, lambda: execute(implementation, case))


def execute_on(implementation: Implementation, case: RopeCase, arena: Arena) -> Run:
    """As execute, on tensors that are there already."""
    returned, allocations, trace = call(implementation, case, arena)
    names = ("q",) if case.k_heads is None else ("q", "k")
    tensors = (returned,) if isinstance(returned, torch.Tensor) else returned
    if not isinstance(tensors, tuple | list) or len(tensors) != len(names):
        raise WrongMetadata(
            f"returned {_describe(returned)}, expected {' and '.join(n + '_out' for n in names)}"
        )
    given = dict(zip(names, tensors, strict=True))
    for name, out in given.items():
        check_metadata(name, out, getattr(arena, name), inplace=case.inplace)
    buffers = [guarded.buffer for guarded in arena.buffers + allocations]
    on_cpu = fetched([*(arena.bnhd(out.detach()) for out in given.values()), *buffers])
    outputs = dict(zip(given, on_cpu, strict=False))
    # Tensors on a GPU are copied for the interpreter, to addresses that say nothing.
    seen = trace if trace.launches and arena.device.type == "cpu" else None
    return Run(implementation, case, arena, given, outputs, allocations, on_cpu[len(outputs) :], seen)


def _describe(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def check_metadata(name: str, out: object, source: torch.Tensor, *, inplace: bool) -> None:
    """WrongMetadata unless the output has its input's shape, dtype and device, and its memory in place."""
    if not isinstance(out, torch.Tensor):
        raise WrongMetadata(f"{name}_out is {_describe(out)}, expected a tensor", tensor=name)
    for what in ("shape", "dtype", "device"):
        actual, expected = getattr(out, what), getattr(source, what)
        if actual != expected:
            raise WrongMetadata(f"{name}_out has {what} {actual}, expected {expected}", tensor=name)
    if inplace and (out.data_ptr(), out.stride()) != (source.data_ptr(), source.stride()):
        raise WrongMetadata(f"inplace=True but {name}_out is not {name}", tensor=name)


def check_written(run: Run) -> None:
    """UnwrittenOutput when an output still holds the mark of memory that nobody wrote."""
    for name, out in run.outputs.items():
        unwritten = (bits(out) == UNWRITTEN[out.dtype]).numpy()
        if unwritten.any():
            where = _first(unwritten)
            raise UnwrittenOutput(
                f"{_place(name, where)} was never written, nor were {unwritten.sum() - 1} other elements "
                f"of {unwritten.size}",
                tensor=name,
                where=where,
                wrong=unwritten,
            )


def check_values(run: Run) -> None:
    """Mismatch when a rotated element is further from the exact value than its bound."""
    for name, out in run.outputs.items():
        verdict = run.verdict(name)
        note_ratio(verdict.worst_ratio())
        if verdict.wrong.any():
            ratio = np.where(verdict.wrong, verdict.ratio(), -1.0)
            where = tuple(int(i) for i in np.unravel_index(ratio.argmax(), ratio.shape))
            exact = float(run.exact(name).value[where])
            raise Mismatch(
                f"{_place(name, where)} is {float(out[where])!r}, exact {exact!r}: error "
                f"{verdict.error[where]:.3g} is {ratio[where]:.3g} times its bound "
                f"{verdict.bound[where]:.3g}; "
                f"{verdict.wrong.sum()} of {verdict.wrong.size} elements are wrong",
                tensor=name,
                where=where,
                wrong=verdict.wrong,
                actual=float(out[where]),
                exact=exact,
                ratio=float(ratio[where]),
                bound=float(verdict.bound[where]),
            )


def check_norms(run: Run) -> None:
    """Mismatch when a pair, or a head, is longer or shorter than its input times the table's norm."""
    for name, out in run.outputs.items():
        _check_norm(run, name, out.double().numpy())


def _check_norm(run: Run, name: str, out: np.ndarray) -> None:
    exact = run.exact(name)
    rules = (run.case.dtype, run.implementation.domain.compute)
    bound, huge = error_bound(exact, *rules), may_overflow(exact, *rules)
    x = run.arena.inputs[name].double().numpy()
    cos, sin = angles(run.arena)
    lo, hi = pair_dims(run.case)
    with np.errstate(all="ignore"):
        expected = np.sqrt(cos**2 + sin**2) * np.hypot(x[..., lo], x[..., hi])
        actual = np.hypot(out[..., lo], out[..., hi])
        # The measurement itself rounds in float64: a few operations per pair, one per pair and head.
        slack = np.hypot(bound[..., lo], bound[..., hi]) * (1 + 2.0**-50) + expected * 2.0**-50
        # Infinity has no length to preserve; that it comes where it must is for the oracle to say.
        comparable = ~(huge[..., lo] | huge[..., hi]) & np.isfinite(expected)
        pair_wrong = comparable & ~(np.abs(actual - expected) <= slack)
        heads = np.hypot.reduce(actual, axis=-1), np.hypot.reduce(expected, axis=-1)
        head_slack = np.hypot.reduce(slack, axis=-1) + heads[1] * run.case.rot_half * 2.0**-52
        head_comparable = comparable.all(-1) & np.isfinite(heads[1])
        head_wrong = head_comparable & ~(np.abs(heads[0] - heads[1]) <= head_slack)
    if pair_wrong.any():
        *row, pair = (int(i) for i in np.argwhere(pair_wrong)[0])
        raise Mismatch(
            f"the norm of pair {pair} of {_row(name, tuple(row))} is {actual[(*row, pair)]!r}, expected "
            f"{expected[(*row, pair)]!r} within {slack[(*row, pair)]:.3g}",
            tensor=name,
            where=(*row, int(lo[pair])),
        )
    if head_wrong.any():
        row = [int(i) for i in np.argwhere(head_wrong)[0]]
        raise Mismatch(f"the norm of {_row(name, tuple(row))} changed", tensor=name, where=(*row, 0))


def check_tail(run: Run) -> None:
    """TailChanged when a dim that does not rotate has other bits than its input."""
    rotated = torch.from_numpy(run.exact("q").rotated)
    for name, out in run.outputs.items():
        changed = bits(out) != bits(run.arena.inputs[name].contiguous())
        changed &= ~rotated
        if changed.any():
            where = _first(changed.numpy())
            raise TailChanged(
                f"{_place(name, where)} lies outside the rotated dims and is {float(out[where])!r}, expected "
                f"the input {float(run.arena.inputs[name][where])!r} bit for bit; {int(changed.sum())} "
                "elements changed",
                tensor=name,
                where=where,
                wrong=changed.numpy(),
            )


def check_v(run: Run) -> None:
    """ValueChanged when any byte of V changed."""
    for guarded, changed in run.changed:
        if "v" in guarded.views:
            hit = changed & guarded.owned("v")
            if hit.any():
                raise ValueChanged(f"{int(hit.sum())} elements of V changed")


def check_inputs(run: Run) -> None:
    """InputChanged when something changed that the call had to leave alone."""
    for guarded, changed in run.changed[: len(run.arena.buffers)]:
        if not changed.any():
            continue
        for name in guarded.views:
            if name == "v" or (name in ("q", "k") and run.case.inplace):
                continue
            hit = changed & guarded.owned(name)
            if hit.any():
                raise InputChanged(f"{int(hit.sum())} elements of {name} changed", tensor=name)


def check_red_zones(run: Run) -> None:
    """OutOfBoundsWrite when memory outside every tensor changed: around them, or in a stride gap."""
    for guarded, changed in run.changed:
        if not changed.any():
            continue
        names = list(guarded.views)
        hit = changed & ~guarded.owned(*names)
        if hit.any():
            at = int(hit.nonzero()[0]) - int(guarded.views[names[0]].storage_offset())
            raise OutOfBoundsWrite(
                f"{int(hit.sum())} elements outside {' and '.join(names)} were written, the first at "
                f"offset {at} from the first element of {names[0]}",
                tensor=names[0],
            )


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _row(name: str, where: tuple[int, ...]) -> str:
    batch, token, head = where
    return f"{name}[batch {batch}, token {token}, head {head}]"


def _place(name: str, where: tuple[int, ...]) -> str:
    batch, token, head, dim = where
    return f"{name}_out[batch {batch}, token {token}, head {head}, dim {dim}]"
