"""What the trace of a call shows: reads and writes out of bounds, races, and traffic."""

import math

import numpy as np

from properties.failures import ExtraTraffic, OutOfBoundsRead, OutOfBoundsWrite, RaceHazard
from properties.judge import Run
from properties.memory_map import OUTSIDE, Bools, Touched, elements


def check_reads(run: Run) -> None:
    """OutOfBoundsRead when a kernel loads V, or memory that belongs to no tensor of the call."""
    touched = Touched.by(run)
    bad = touched.load & ~touched.map.readable[touched.owner]
    of_v = bad & (touched.owner == touched.map.code["v"])
    if of_v.any():
        row = int(of_v.argmax())
        raise OutOfBoundsRead(
            f"{touched.who(row)} reads {touched.place(row)}, and V is no argument; {_count(touched, of_v)} "
            "of V are read",
            **touched.facts(row),
        )
    if bad.any():
        row = int(bad.argmax())
        raise OutOfBoundsRead(
            f"{touched.who(row)} reads {touched.place(row)}; {_count(touched, bad)} outside every tensor "
            "are read, expected none: mask the lanes that have no element",
            **touched.facts(row),
        )


def check_writes(run: Run) -> None:
    """OutOfBoundsWrite when a kernel stores anywhere but in the outputs, even what was there before."""
    touched = Touched.by(run)
    bad = touched.store & ~touched.map.writable[touched.owner]
    if bad.any():
        row = int(bad.argmax())
        raise OutOfBoundsWrite(
            f"{touched.who(row)} writes {touched.place(row)}; {_count(touched, bad)} outside "
            f"{'q and k' if run.case.inplace else 'the outputs'} are written, expected none",
            **touched.facts(row),
        )


def check_races(run: Run) -> None:
    """RaceHazard when the result hangs on the order of two accesses that nothing orders."""
    touched = Touched.by(run)
    for launch in np.unique(touched.launch):
        _check_programs(touched, touched.launch == launch)
    _check_lanes(touched)


def _check_programs(touched: Touched, launched: Bools) -> None:
    """No element is written by one program of a launch and touched by another."""
    stores = np.flatnonzero(launched & touched.store & ~touched.atomic & (touched.unit != OUTSIDE))
    writer = np.full(len(touched.map.owner), -1)
    writer[touched.unit[stores]] = stores
    last = writer[touched.unit]
    crossed = launched & (last >= 0) & (touched.program != touched.program[last])
    both_write = crossed & touched.store
    if both_write.any():
        row = int(both_write.argmax())
        raise RaceHazard(
            f"{touched.who(row)} and {touched.who(last[row])} both write {touched.place(row)}; "
            f"{_count(touched, both_write)} are written by more than one program",
            **touched.facts(row, last[row]),
        )
    if crossed.any():
        row = int(crossed.argmax())
        raise RaceHazard(
            f"{touched.who(row)} reads {touched.place(row)}, which {touched.who(last[row])} writes; "
            f"{_count(touched, crossed)} are read by one program and written by another",
            **touched.facts(row, last[row]),
        )


def _check_lanes(touched: Touched) -> None:
    """Between two barriers no element is stored twice, or loaded more than once and stored."""
    counted = (touched.unit != OUTSIDE) & ~touched.atomic
    _, key = np.unique(touched.phase * len(touched.map.owner) + touched.unit, return_inverse=True)
    loads = np.bincount(key[counted & touched.load], minlength=len(key))[key]
    stores = np.bincount(key[counted & touched.store], minlength=len(key))[key]
    rewritten = counted & (stores > 1)
    if rewritten.any():
        row = int(rewritten.argmax())
        raise RaceHazard(
            f"{touched.who(row)} writes {touched.place(row)} more than once; so it is with "
            f"{_count(touched, rewritten)}, and warps have no order",
            **touched.facts(row),
        )
    reloaded = counted & (loads > 1) & (stores > 0)
    if reloaded.any():
        row = int(reloaded.argmax())
        raise RaceHazard(
            f"{touched.who(row)} loads {touched.place(row)} more than once and writes it; so it is with "
            f"{_count(touched, reloaded)}. One warp may write before another has loaded: load each element "
            "once, or set a barrier between the loads and the store",
            **touched.facts(row),
        )


def _count(touched: Touched, rows: Bools) -> str:
    return elements(len(np.unique(touched.unit[rows])))


def traffic_ratio(run: Run) -> float:
    """Bytes that kernels moved from q and k and to the outputs, as a multiple of the least possible.

    The least is to read every rotated element once and to write it once, and the tail as well out of place.
    """
    touched, case = Touched.by(run), run.case
    codes = [code for name, code in touched.map.code.items() if name in ("q", "k", "q_out", "k_out")]
    counted = np.isin(touched.owner, codes)
    size = touched.map.unit_bytes[touched.unit]
    moved = int(size[counted & touched.load].sum() + size[counted & touched.store].sum())
    dims = 2 * case.rot_half + (0 if case.inplace else case.tail)
    heads = case.q_heads + (case.k_heads or 0)
    least = 2 * case.batch * case.tokens * heads * dims * run.arena.q.element_size()
    if least == 0:
        return math.inf if moved else 1.0
    return moved / least


def check_traffic(run: Run) -> None:
    """ExtraTraffic when kernels move more bytes of q and k than they must."""
    ratio = traffic_ratio(run)
    if ratio > 1:
        raise ExtraTraffic(
            f"the kernels moved {ratio:.4g} times the bytes of q and k that they must: each rotated element "
            f"once in and once out{'' if run.case.inplace else ', and the tail'}",
            ratio=ratio,
        )
