"""Outside its domain an implementation that says it refuses raises a clear error, and changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from properties.failures import InputChanged, MissingError
from properties.implementations import Implementation
from properties.property import Property
from properties.refusal import arguments
from strategies import Arena, Domain, RopeCase, Strides
from strategies.case import AXES_KINDS

# One change each. What depends on the changed field is set along with it.
_CHANGES: tuple[dict[str, Any], ...] = (
    {"layout": "neox"},
    {"layout": "gptj"},
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "float16"},
    {"dtype": "float64"},
    {"heads_first": True},
    {"heads_first": False},
    {"rot_half": 3},
    {"tail": 0, "rot_offset": 0},
    {"tail": 2, "rot_offset": 0},
    {"tail": 2, "rot_offset": 2},
    {"tail": 2, "rot_offset": 1},
    {"q_strides": Strides(dim_pad=1), "packed": False},
    {"q_strides": Strides(dim_step=2), "packed": False},
    {"q_strides": Strides(head_pad=1), "packed": False},
    {"q_strides": Strides(token_pad=1), "packed": False},
    {"q_strides": Strides(order="nbhd"), "packed": False},
    {"k_strides": Strides(dim_pad=1), "packed": False},
    {"k_strides": Strides(dim_step=2), "packed": False},
    {"packed": True, "k_strides": Strides()},
    {"inplace": True},
    {"inplace": False},
    {"inverse": True},
    {"k_heads": None, "k_strides": Strides(), "packed": False},
    {"positions_dtype": "int32"},
    {"positions_step": 2},
    {"axes": "chunked"},
    {"table": "gathered", "positions": "implied", "axes": "none"},
    {"table_dtype": "input"},
    {"table_pad": 1},
    {"table_step": 2},
)
# What a library raises on purpose; an IndexError or ZeroDivisionError is an accident.
_REFUSALS = (ValueError, TypeError, NotImplementedError, RuntimeError, AssertionError)
# Fields of Domain that are claims and not input.
_CLAIMS = (
    "compute",
    "least_traffic",
    "tiles",
    "needs",
    "refuses",
    "gradients",
    "fullgraph",
    "captured",
    "holes",
)


def just_outside(domain: Domain, case: RopeCase) -> Iterator[RopeCase]:
    """Cases that differ from this one in one respect and that the domain does not claim."""
    domain = replace(domain, holes=())
    for change in _CHANGES:
        try:
            other = replace(case, **change)
        except ValueError:
            continue
        if domain.why_outside(other) is not None:
            yield other


@dataclass(frozen=True)
class Refusal(Property):
    """A property of implementations that refuse what lies outside their domain, where something does."""

    def domain(self, implementation: Implementation) -> Domain | None:
        domain = implementation.domain
        everything = replace(Domain(axes=AXES_KINDS), **{name: getattr(domain, name) for name in _CLAIMS})
        return domain if domain.refuses and domain != everything else None


def _refused(implementation: Implementation, case: RopeCase) -> None:
    """Every case just outside is refused, before anything is written."""
    for outside in just_outside(implementation.domain, case):
        reason = implementation.domain.why_outside(outside)
        arena = Arena(outside, implementation.device)
        a = arguments(outside, arena)
        try:
            implementation.call(a.q, a.k, a.cos, a.sin, a.positions, **a.options)
        except _REFUSALS as refusal:
            if not str(refusal):
                raise MissingError(
                    f"{reason}: {type(refusal).__name__} without a word", outside=outside
                ) from None
        except Exception as accident:
            raise MissingError(
                f"{reason}: raised {type(accident).__name__} ({accident}), expected an error that says so",
                outside=outside,
            ) from accident
        else:
            raise MissingError(f"{reason}: accepted, expected an error; {outside}", outside=outside)
        for guarded in arena.buffers:
            if guarded.changed().any():
                names = " and ".join(guarded.views)
                raise InputChanged(f"{reason}: refused, but {names} or around it changed", outside=outside)


test_outside_the_domain_is_refused = Refusal("test_outside_the_domain_is_refused", _refused)
