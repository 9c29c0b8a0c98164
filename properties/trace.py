"""Every address that interpreted Triton kernels load from and store to.

Triton's interpreter runs kernels on the tensors themselves, so the pointers that its builder sees are
real addresses. It runs one program after another, so what would be a race on a GPU never shows in
values; it shows in the addresses.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime import interpreter

# The builder's methods that touch memory, and where their mask argument is. Loads, stores, block pointers
# and tensor descriptors of every other form go through these.
_TOUCHES: dict[str, tuple[str, int | None]] = {
    "create_masked_load": ("load", 1),
    "create_masked_store": ("store", 2),
    "create_atomic_rmw": ("atomic", 3),
    "create_atomic_cas": ("atomic", None),
}


class Access(NamedTuple):
    """One load, store or atomic instruction of one program.

    Attributes:
        kind: "load", "store" or "atomic".
        launch: number of the kernel launch within the call; launches run one after another.
        phase: counts launches and barriers; within one phase the lanes of a program have no order.
        program: the program's id on the three axes of the grid.
        size: bytes per lane.
        addresses: uint64, one per lane that the mask lets through.
    """

    kind: str
    launch: int
    phase: int
    program: tuple[int, int, int]
    size: int
    addresses: npt.NDArray[np.uint64]


@dataclass
class Trace:
    """The memory accesses of one call.

    Attributes:
        launches: how many kernels were launched.
        phases: how many launches and barriers there were.
        accesses: in the order in which the interpreter made them.
        arguments: tensors that were handed to a kernel. Holding them keeps their memory from being given
            to another tensor while the trace lives, so an address names one tensor only.
    """

    launches: int = 0
    phases: int = 0
    accesses: list[Access] = field(default_factory=list)
    arguments: list[torch.Tensor] = field(default_factory=list)


@contextlib.contextmanager
def recorded() -> Iterator[Trace]:
    """Record the accesses of every kernel that runs in Triton's interpreter inside this context.

    Works with any builder class, corrected or not, because the hooks sit on the builder itself.
    """
    trace = Trace()
    builder = interpreter.interpreter_builder
    hooks: dict[str, Any] = {
        name: _recording(trace, getattr(builder, name), kind, mask_at)
        for name, (kind, mask_at) in _TOUCHES.items()
    }
    hooks["create_barrier"] = _next_phase(trace, builder.create_barrier)
    launch = _launching(trace, interpreter.GridExecutor.__call__)
    with (
        mock.patch.multiple(builder, **hooks),
        mock.patch.object(interpreter.GridExecutor, "__call__", launch),
    ):
        yield trace


def _recording(trace: Trace, touch: Callable[..., Any], kind: str, mask_at: int | None) -> Callable[..., Any]:
    pointers_at = 1 if kind == "atomic" and mask_at is not None else 0  # the operation comes first

    def record(*operands: Any, **options: Any) -> Any:
        pointers = operands[pointers_at]
        # A mask is bools or, after some operations, 0 and 1; of a tensor descriptor it is a plain array,
        # whose .data is a buffer.
        kept = ... if mask_at is None else np.asarray(operands[mask_at].data, dtype=bool)
        addresses = pointers.data[kept].ravel()
        size = pointers.get_element_ty().primitive_bitwidth // 8
        program = interpreter.interpreter_builder.grid_idx
        trace.accesses.append(Access(kind, trace.launches - 1, trace.phases, program, size, addresses))
        return touch(*operands, **options)

    return record


def _next_phase(trace: Trace, barrier: Callable[[], Any]) -> Callable[[], Any]:
    def record() -> Any:
        trace.phases += 1
        return barrier()

    return record


def _launching(trace: Trace, launch: Callable[..., Any]) -> Callable[..., Any]:
    def record(executor: Any, *arguments: Any, **options: Any) -> Any:
        trace.launches += 1
        trace.phases += 1
        trace.arguments.extend(_tensors((*arguments, *options.values())))
        return launch(executor, *arguments, **options)

    return record


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    """The tensors in a kernel's argument: itself, those of a tuple, the base of a tensor descriptor."""
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _tensors(part)
    elif hasattr(argument, "base"):
        yield from _tensors(argument.base)
