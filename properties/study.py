"""Which fields of a failing case matter: measured by changing one at a time and running the case again."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from properties.failures import Failure
from properties.implementations import Implementation
from properties.property import Property
from strategies import RopeCase, Strides
from strategies.case import default_of, non_default

# Values to try for a field that has its simplest value.
_OTHERS: dict[str, tuple[Any, ...]] = {
    "layout": ("gptj",),
    "dtype": ("bfloat16", "float16", "float64"),
    "rank": (4,),
    "requests": (((0, 3),), ((5, 1),), ((0, 2), (3, 2))),
    "q_heads": (2, 3),
    "k_heads": (None, 2),
    "rot_half": (2, 5),
    "tail": (3,),
    "heads_first": (True,),
    "packed": (True,),
    "q_strides": (Strides(token_pad=1), Strides(dim_step=2), Strides(offset=1)),
    "k_strides": (Strides(token_pad=1), Strides(dim_step=2), Strides(offset=1)),
    "inplace": (True,),
    "inverse": (True,),
    "positions": ("implied", "shared"),
    "positions_dtype": ("int32",),
    "positions_step": (2,),
    "axes": ("chunked", "interleaved"),
    "table": ("gathered",),
    "table_dtype": ("input",),
    "table_fill": ("ramp", "normal"),
    "table_slack": (2,),
    "table_pad": (3,),
    "table_step": (2,),
    "attention_factor": (1.25,),
    "fill": ("ones", "ramp", "normal"),
}
# What else has to change for a case to stay valid when a field does.
_WITH: dict[str, dict[str, Any]] = {
    "tail": {"rot_offset": 0},
    "rank": {"positions": "given"},
    "k_heads": {"packed": False, "k_strides": Strides()},
    "packed": {"k_strides": Strides()},
    "table": {"positions": "implied", "positions_dtype": "int64", "positions_step": 1},
    "positions": {"rank": 4},
    "requests": {"positions": "given", "table": "indexed"},
}


@dataclass(frozen=True)
class Change:
    """One change of a failing case, and what came of it.

    Attributes:
        field: that was changed.
        change: the fields with their new values, as in a call.
        outcome: "passes", "fails", or the class of another Failure.
    """

    field: str
    change: str
    outcome: str


@dataclass(frozen=True)
class Study:
    """What changing one field at a time showed.

    Attributes:
        simplified: fields that differ from the simplest case, each set to its simplest value.
        varied: fields at their simplest value, each set to a few others.
        finished: False when time ran out first.
    """

    simplified: tuple[Change, ...]
    varied: tuple[Change, ...]
    finished: bool

    def triggers(self) -> list[str]:
        """The fields without whose value the case passes."""
        return [c.field for c in self.simplified if c.outcome != "fails"]

    def irrelevant(self) -> list[str]:
        """The fields that fail with every value that was tried."""
        names = dict.fromkeys(c.field for c in (*self.simplified, *self.varied))
        every = [*self.simplified, *self.varied]
        return [n for n in names if all(c.outcome == "fails" for c in every if c.field == n)]


def study(
    tried: Property, implementation: Implementation, case: RopeCase, failure: str, seconds: float = 10.0
) -> Study:
    """Change every field of a failing case and run it again, for at most about this long."""
    end = time.monotonic() + seconds
    domain = tried.domain(implementation)
    found: dict[bool, list[Change]] = {True: [], False: []}
    finished = True
    for name, simplified, changed in _changes(case):
        if domain is None or domain.why_outside(changed) is not None:
            continue
        if time.monotonic() > end:
            finished = False
            break
        outcome = run(tried, implementation, changed)
        if outcome != "skipped":
            found[simplified].append(
                Change(name, _difference(case, changed), "fails" if outcome == failure else outcome)
            )
    return Study(tuple(found[True]), tuple(found[False]), finished)


def simplify(failure: Failure, seconds: float = 10.0) -> Failure:
    """The failure of the simplest case that fails alike, reached by simplifying one field at a time.

    For cases that no search has shrunk, and for what a search has left.
    """
    end = time.monotonic() + seconds
    tried, implementation = failure.property, failure.implementation
    simplest, changed = failure, True
    while changed:
        changed = False
        for simpler in simpler_cases(simplest.case):
            domain = tried.domain(implementation)
            if domain is None or domain.why_outside(simpler) is not None:
                continue
            if time.monotonic() > end:
                return simplest
            try:
                tried.run(implementation, simpler)
            except type(failure) as again:
                simplest, changed = again, True
                break
            except (Failure, pytest.skip.Exception):
                continue
            except Exception:
                # What an implementation raises on its way to the fault is another fault.
                continue
    return simplest


def simpler_cases(case: RopeCase) -> Iterator[RopeCase]:
    """Cases that differ in one field, which is simpler."""
    for name, value in non_default(case).items():
        default = default_of(next(f for f in fields(case) if f.name == name))
        steps = [default]
        if name == "requests":
            steps += [((0, sum(length for _, length in value)),)]
            steps += [((0, length),) for _, length in value] + [((start, 1),) for start, _ in value]
            steps += [value[:i] + value[i + 1 :] for i in range(len(value))]
            steps += [tuple((start, min(length, most)) for start, length in value) for most in (2, 3)]
            steps += [tuple((start, length - length // 2) for start, length in value)]
            steps += [tuple((start, max(length - 1, 0)) for start, length in value)]
            steps += [tuple((start // 2, length) for start, length in value)]
        elif type(value) is int and type(default) is int:
            steps += [n for n in (default + 1, (value + default) // 2) if n < value]
        elif name == "k_heads" and value is not None:
            steps += [n for n in (2, value // 2) if 0 < n < value]
        elif name == "steps":
            steps += [value[:i] + value[i + 1 :] for i in range(len(value))]
            steps += [
                (*value[:i], step[:j] + step[j + 1 :], *value[i + 1 :])
                for i, step in enumerate(value)
                for j in range(len(step))
            ]
        elif name == "fill":
            steps += ["ones", "ramp"] if value not in ("ones", "ramp") else []
        for step in steps:
            if step != value:
                yield from (changed for _, _, changed in _changed(case, name, step, simplified=True))


def run(tried: Property, implementation: Implementation, case: RopeCase) -> str:
    """Run a case: "passes", "skipped", or the class of what was raised."""
    try:
        tried.run(implementation, case)
    except Failure as failure:
        return type(failure).__name__
    except pytest.skip.Exception:
        return "skipped"
    except Exception as error:
        return type(error).__name__
    return "passes"


def _changes(case: RopeCase) -> Iterator[tuple[str, bool, RopeCase]]:
    """Field, whether it is set to its simplest value, and the changed case; simplifications first."""
    set_already = non_default(case)
    for f in fields(case):
        if f.name in set_already:
            yield from _changed(case, f.name, default_of(f), simplified=True)
    for f in fields(case):
        if f.name not in set_already:
            for value in _OTHERS.get(f.name, ()):
                yield from _changed(case, f.name, value, simplified=False)


def _changed(
    case: RopeCase, name: str, value: Any, *, simplified: bool
) -> Iterator[tuple[str, bool, RopeCase]]:
    for more in ({}, _WITH.get(name, {})):
        try:
            yield name, simplified, replace(case, **{name: value, **more})
            return
        except ValueError:
            continue


def _difference(case: RopeCase, changed: RopeCase) -> str:
    names = [f.name for f in fields(case) if getattr(case, f.name) != getattr(changed, f.name)]
    return ", ".join(f"{name}={getattr(changed, name)!r}" for name in names)
