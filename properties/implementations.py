"""Implementations under test, and the registry that finds them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from rope import api, apply_rope
from strategies import Domain


@dataclass(frozen=True)
class Implementation:
    """A callable under test with the domain it claims.

    Attributes:
        name: as reports and test ids show it.
        call: takes what apply_rope takes and returns what it returns. It is given every keyword
            of apply_rope but validate, and `tile` when the domain lists tiles.
        domain: the cases it supports.
        device: where its tensors live.
    """

    name: str
    call: Callable[..., Any]
    domain: Domain = field(default_factory=Domain)
    device: str = "cpu"


def bundled(device: str) -> list[Implementation]:
    """The implementations of this project, on this device."""
    tiles = ((16, 8), (1, 1), (1, 4), (2, 2), (4, 16))
    return [
        Implementation("rope", _rope_with_tile, Domain(tiles=(None, *tiles), least_traffic=True), device),
        Implementation("rope-eager", _rope_eager, Domain(), "cpu"),
    ]


def _rope_with_tile(*args: Any, tile: tuple[int, int] | None = None, **options: Any) -> Any:
    # Imported late: the kernels read TRITON_INTERPRET when they are decorated.
    from rope.launch import Tile, forced_tile

    with forced_tile(Tile(*tile) if tile else None):
        return apply_rope(*args, **options)


def _rope_eager(*args: Any, **options: Any) -> Any:
    with mock.patch.object(api, "_kernels_run_on", return_value=False):
        return apply_rope(*args, **options)


def default_device() -> str:
    """The GPU when there is one; the CPU, with the Triton kernels interpreted, when there is none."""
    return "cuda" if torch.cuda.is_available() else "cpu"
