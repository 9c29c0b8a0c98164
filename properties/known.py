"""Failures of an implementation that are known: replayed, and not searched for again.

A file `<implementation>.json` lists them, each with the property and the kind of failure, a reason, the
minimal case, and the fields of that case that the fault needs:

    [{"property": "test_inputs_are_unmodified", "failure": "InputChanged", "reason": "...",
      "case": {"q_heads": 2}, "fields": ["q_heads"]}]

While a search goes on, a failure of this property and kind in a case with the same values in these fields
passes for known. The minimal case itself must fail as the entry says; once it does not, the entry is wrong.

A fault that spoils a whole region of sizes, whatever the property, or that may end the process there, has
"sizes" beside, each with its least and most: {"tokens": [1, 1]}. No property tries a case with these sizes;
of the region only the minimal case still runs. A size is any whole number of a RopeCase: tokens, batch,
q_heads, head_dim, rot_half, ...
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from properties import failures
from properties.failures import Failure
from strategies import Domain, Hole, RopeCase

BUNDLED = Path(__file__).parent / "known_failures"


@dataclass(frozen=True)
class KnownFailure:
    """One entry of a file of known failures.

    Attributes:
        property, failure: names of the property and of the class of the failure.
        reason: what is wrong, and where it is reported.
        case: the minimal case.
        fields: the fields of the case that the fault needs; none when it shows whatever they are.
        file: where the entry stands.
        hole: the sizes that no property tries, or None.
    """

    property: str
    failure: str
    reason: str
    case: RopeCase
    fields: tuple[str, ...]
    file: Path
    hole: Hole | None = None

    def covers(self, failure: Failure) -> bool:
        """Whether a failure is this one."""
        return (
            type(failure).__name__ == self.failure
            and failure.property.name == self.property
            and all(getattr(failure.case, name) == getattr(self.case, name) for name in self.fields)
        )


def known_failures(name: str, domain: Domain) -> tuple[KnownFailure, ...]:
    """What is known of the implementation with this name: by this project, and in ./known_failures.

    Raises:
        ValueError: an entry is not as it should be.
    """
    files = (BUNDLED / f"{name}.json", Path("known_failures") / f"{name}.json")
    return tuple(known for file in files if file.is_file() for known in _read(file, domain))


def _read(file: Path, domain: Domain) -> Iterator[KnownFailure]:
    for number, entry in enumerate(json.loads(file.read_text())):
        where = f"{file}, entry {number}"
        wanted = {"property", "failure", "reason", "case", "fields"}
        if set(entry) - {"sizes"} != wanted:
            raise ValueError(f"{where} has {sorted(entry)}, expected {sorted(wanted)}, and sizes or not")
        if not issubclass(getattr(failures, entry["failure"], object), Failure):
            raise ValueError(f"{where}: {entry['failure']!r} is no kind of failure")
        unknown = set(entry["fields"]) - {f.name for f in fields(RopeCase)}
        if unknown:
            raise ValueError(f"{where}: a case has no field {', '.join(sorted(unknown))}")
        case = RopeCase.from_json(json.dumps(entry["case"]))
        outside = domain.why_outside(case)
        if outside:
            raise ValueError(f"{where}: the case is outside the domain: {outside}")
        hole = _hole(entry, case, where) if "sizes" in entry else None
        names = tuple(entry["fields"])
        yield KnownFailure(entry["property"], entry["failure"], entry["reason"], case, names, file, hole)


def _hole(entry: dict[str, Any], case: RopeCase, where: str) -> Hole:
    """The hole that an entry's sizes make; the minimal case lies in it."""
    sizes = []
    for name, limits in entry["sizes"].items():
        if type(getattr(case, name, None)) is not int:
            raise ValueError(
                f"{where}: a case has no size {name!r}, expected a whole number as tokens, batch"
            )
        if not (isinstance(limits, list) and [type(n) for n in limits] == [int, int]):
            raise ValueError(f"{where}: {name} is {limits!r}, expected [least, most]")
        sizes.append((name, *limits))
    hole = Hole(entry["reason"], tuple(sizes))
    if not hole.holds(case):
        raise ValueError(f"{where}: the case does not have the sizes {entry['sizes']}")
    return hole
