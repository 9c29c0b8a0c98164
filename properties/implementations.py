"""Implementations under test, and the bundled ones."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Optional
from unittest import mock

import torch

from rope import api, apply_rope
from strategies import Domain
from strategies.case import AXES_KINDS

if TYPE_CHECKING:
    from properties.known import KnownFailure


@dataclass(frozen=True)
class Implementation:
    """A callable under test with the domain it claims.

    Attributes:
        name: as reports and test ids show it.
        call: takes what apply_rope takes and returns what it returns. It is given every keyword
            of apply_rope but validate, and `tile` when the domain lists tiles.
        domain: the cases it supports.
        device: where its tensors live; --impl puts it on the device of the session.
        spec: what --impl loads it by, "package.module:attribute" or "path/file.py:attribute"; the
            attribute is an Implementation or a callable.
        package: the distribution it comes from, whose version is shown; empty when that says nothing.
        watched: whether what it allocates is laid between red zones. torch.compile runs a function
            uncompiled while anything watches PyTorch's calls, so a compiled one says False.
        missing: why it cannot run here, or None.
        against: the implementation that judges it beside the oracle, or None.
        same_bits: whether it must have the bits of that one.
        known: its known failures.
    """

    name: str
    call: Callable[..., Any]
    domain: Domain = field(default_factory=Domain)
    device: str = "cpu"
    spec: str = ""
    package: str = ""
    watched: bool = True
    missing: str | None = None
    against: Optional["Implementation"] = None
    same_bits: bool = False
    known: "tuple[KnownFailure, ...]" = ()


def bundled(device: str) -> list[Implementation]:
    """The implementations of this project, on this device."""
    tiles = ((16, 8), (1, 1), (1, 4), (2, 2), (4, 16))
    everything = Domain(axes=AXES_KINDS, refuses=True)
    ours = replace(everything, tiles=(None, *tiles), least_traffic=True, gradients=True, fullgraph=True)
    return [
        Implementation("rope", _rope_with_tile, ours, device, spec="rope:apply_rope"),
        Implementation(
            "rope-eager",
            rope_eager,
            everything,
            "cpu",
            spec="properties.implementations:rope_eager",
        ),
    ]


def _rope_with_tile(*args: Any, tile: tuple[int, int] | None = None, **options: Any) -> Any:
    # Imported late: the kernels read TRITON_INTERPRET when they are decorated.
    from rope.launch import Tile, forced_tile

    # On a flat grid, which otherwise only tensors have that are too large for many cases.
    with forced_tile(Tile(*tile, flat=True) if tile else None):
        return apply_rope(*args, **options)


def _nowhere(*_: Any) -> bool:
    return False


def rope_eager(*args: Any, **options: Any) -> Any:
    """apply_rope in plain PyTorch, whatever else this machine could run."""
    with mock.patch.object(api, "_kernels_run_on", _nowhere):
        return apply_rope(*args, **options)


def default_device() -> str:
    """The GPU when there is one; the CPU, with the Triton kernels interpreted, when there is none."""
    return "cuda" if torch.cuda.is_available() else "cpu"
