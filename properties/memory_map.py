"""Whose memory a trace's addresses are: every address becomes an element of a tensor of the call."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from properties.judge import Run
from properties.trace import Access

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

OUTSIDE = -1  # the unit of every address outside all memory of the call
_NOBODY, _WORKSPACE = 0, 1  # owners that are no tensor of the call; the tensors follow


class MemoryMap:
    """Which tensor owns what, in all memory that a call may know of.

    Memory is counted in units: the elements of each buffer, numbered through all buffers. A workspace is
    memory that the implementation allocated and that is no output.

    Attributes:
        tensors: by name; q, k, v and the outputs in (batch, token, head, dim).
        code: each tensor's number as an owner.
        owner: the owner of each unit; the last entry stands for OUTSIDE.
        unit_bytes: the size of each unit.
        readable, writable: by owner, whether a kernel may read or write there.
    """

    def __init__(self, run: Run) -> None:
        self.tensors = _tensors(run)
        self.code = {name: i for i, name in enumerate(self.tensors, start=_WORKSPACE + 1)}
        outputs = ("q", "k") if run.case.inplace else ("q_out", "k_out")
        self.readable = np.array([False, True, *(name != "v" for name in self.tensors)])
        self.writable = np.array([False, True, *(name in outputs for name in self.tensors)])
        arguments = run.trace.arguments if run.trace else []
        guarded = [g.buffer for g in run.arena.buffers + run.allocations]
        self._number([*guarded, *self.tensors.values(), *arguments])
        self._own(run, arguments, {buffer.untyped_storage().data_ptr() for buffer in guarded})

    def _number(self, tensors: list[torch.Tensor]) -> None:
        """Number the units of every storage that one of these tensors lives in."""
        storages: dict[int, tuple[int, int]] = {}
        for tensor in tensors:
            storage, size = tensor.untyped_storage(), tensor.element_size()
            if storage.nbytes():
                _, smallest = storages.get(storage.data_ptr(), (0, size))
                storages[storage.data_ptr()] = storage.nbytes(), min(size, smallest)
        laid = sorted((address, nbytes, size) for address, (nbytes, size) in storages.items())
        self._address, self._bytes, self._size = np.array(laid, dtype=np.int64).T
        self._count = self._bytes // self._size
        self._first = np.cumsum(self._count) - self._count
        self.unit_bytes = np.append(np.repeat(self._size, self._count), 0)

    def _own(self, run: Run, arguments: list[torch.Tensor], guarded: set[int]) -> None:
        self.owner = np.full(len(self.unit_bytes), _NOBODY, dtype=np.int8)
        for tensor in arguments:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in guarded:
                self.owner[self._buffer(self._region(storage.data_ptr()))] = _WORKSPACE
        for allocation in run.allocations:
            self.owner[self.units(allocation.views["output"])] = _WORKSPACE
        for name, tensor in self.tensors.items():
            self.owner[self.units(tensor)] = self.code[name]

    def _region(self, address: int) -> int:
        return int(np.searchsorted(self._address, address, side="right")) - 1

    def _buffer(self, region: int) -> slice:
        return slice(self._first[region], self._first[region] + self._count[region])

    def units(self, tensor: torch.Tensor) -> Ints:
        """The first unit of every element of a tensor, in the tensor's shape."""
        units = np.zeros(tensor.shape, dtype=np.int64)
        if units.size == 0:
            return units
        region = self._region(tensor.data_ptr())
        size = self._size[region]
        units += self._first[region] + (tensor.data_ptr() - self._address[region]) // size
        steps = np.array(tensor.stride()) * (tensor.element_size() // size)
        for index, step in zip(np.ogrid[tuple(slice(n) for n in tensor.shape)], steps, strict=True):
            units += index * step
        return units

    def locate(self, addresses: Ints, sizes: Ints) -> tuple[Ints, Ints]:
        """The units that accesses touch, and which access each of these units belongs to."""
        region = np.searchsorted(self._address, addresses, side="right") - 1
        at = addresses - self._address[region]
        inside = (region >= 0) & (at + sizes <= self._bytes[region])
        first = at // self._size[region]
        count = np.where(inside, (at + sizes - 1) // self._size[region] - first + 1, 1)
        which = np.repeat(np.arange(len(addresses)), count)
        step = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        return np.where(inside[which], (self._first[region] + first)[which] + step, OUTSIDE), which

    def index(self, unit: int) -> tuple[str | None, tuple[int, ...] | None]:
        """The tensor that owns a unit and the index in it; None and None where no tensor does."""
        owner = int(self.owner[unit])
        if owner <= _WORKSPACE:
            return None, None
        name = list(self.tensors)[owner - _WORKSPACE - 1]
        return name, tuple(int(i) for i in np.argwhere(self.units(self.tensors[name]) == unit)[0])

    def _axes(self, name: str, dims: int) -> tuple[str, ...]:
        if name == "positions" and "axes" in self.tensors:
            return ("axis", "batch", "token") if dims == 3 else ("axis", "token")
        if name == "positions":
            return ("batch", "token")[-dims:]
        if name == "axes":
            return ("pair",)
        if name in ("cos", "sin"):
            return ("row", "pair") if dims == 2 else ("batch", "token", "pair")
        return ("batch", "token", "head", "dim")

    def place(self, unit: int) -> str:
        """Where a unit lies, in words."""
        name, where = self.index(unit)
        if name is not None and where is not None:
            named = zip(self._axes(name, len(where)), where, strict=True)
            return f"{name}[{', '.join(f'{axis} {i}' for axis, i in named)}]"
        if self.owner[unit] == _WORKSPACE:
            return "a workspace"
        if unit == OUTSIDE:
            return "memory outside every buffer of the call"
        buffer = self._buffer(int(np.searchsorted(self._first, unit, side="right")) - 1)
        owned = buffer.start + np.flatnonzero(self.owner[buffer])
        before = owned[owned < unit]
        if len(before):
            where_not = "in a stride gap" if before[-1] != owned[-1] else "outside"
            return f"{elements(unit - before[-1])} past {self.place(before[-1])}, {where_not}"
        if len(owned):
            return f"{elements(owned[0] - unit)} before {self.place(owned[0])}, outside"
        return "the red zone of an empty tensor"


@dataclass(frozen=True)
class Touched:
    """Every unit that the kernels of a call touched, one row for each time.

    Attributes:
        unit: which unit, or OUTSIDE.
        owner: its owner in the map.
        access: which access of the trace.
        load, store: whether the access loads, and whether it stores; an atomic does both.
        atomic: whether the access is an atomic.
        launch, phase: of the access.
        program: the program, as a number.
    """

    map: MemoryMap
    accesses: list[Access]
    unit: Ints
    owner: Ints
    access: Ints
    load: Bools
    store: Bools
    atomic: Bools
    launch: Ints
    phase: Ints
    program: Ints

    @classmethod
    def by(cls, run: Run) -> "Touched":
        """What a run's trace shows; nothing when it has none."""
        memory = MemoryMap(run)
        accesses = run.trace.accesses if run.trace else []
        lanes = np.array([a.addresses.size for a in accesses], dtype=np.int64)
        addresses = np.concatenate([np.zeros(0, dtype=np.uint64), *(a.addresses for a in accesses)])
        sizes = np.repeat(np.array([a.size for a in accesses], dtype=np.int64), lanes)
        unit, lane = memory.locate(addresses.astype(np.int64), sizes)
        access = np.repeat(np.arange(len(accesses)), lanes)[lane]
        programs = {program: i for i, program in enumerate(dict.fromkeys(a.program for a in accesses))}

        def column(values: Iterable[Any], dtype: type = np.int64) -> npt.NDArray[Any]:
            return np.array(list(values), dtype=dtype)[access]

        return cls(
            map=memory,
            accesses=accesses,
            unit=unit,
            owner=memory.owner[unit].astype(np.int64),
            access=access,
            load=column((a.kind != "store" for a in accesses), bool),
            store=column((a.kind != "load" for a in accesses), bool),
            atomic=column((a.kind == "atomic" for a in accesses), bool),
            launch=column(a.launch for a in accesses),
            phase=column(a.phase for a in accesses),
            program=column(programs[a.program] for a in accesses),
        )

    def place(self, row: int) -> str:
        """Where a row's unit lies, in words."""
        return self.map.place(int(self.unit[row]))

    def who(self, row: int) -> str:
        """The program behind a row, in words."""
        access = self.accesses[self.access[row]]
        launch = f" of launch {access.launch}" if self.accesses[-1].launch else ""
        return f"program {access.program}{launch}"

    def facts(self, *rows: int) -> dict[str, Any]:
        """What a report needs of these rows, which share a unit: the tensor, the index, the programs."""
        tensor, where = self.map.index(int(self.unit[rows[0]]))
        programs = [self.accesses[self.access[row]].program for row in rows]
        return {"tensor": tensor, "where": where, "programs": programs}


def elements(count: int) -> str:
    """A number of elements in words."""
    return "1 element" if count == 1 else f"{count} elements"


def _tensors(run: Run) -> dict[str, torch.Tensor]:
    """The tensors of the call by name; in place the outputs are q and k."""
    arena = run.arena
    tensors = {}
    if not run.case.inplace:
        tensors = {f"{name}_out": arena.bnhd(out.detach()) for name, out in run.given.items()}
    # Inputs come last and so own what an output shares with them.
    for guarded in arena.buffers:
        for name, view in guarded.views.items():
            tensors[name] = arena.bnhd(view) if name in ("q", "k", "v") else view
    return tensors
