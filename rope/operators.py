"""apply_rope as operators of PyTorch, which compilers and tracers keep whole.

A plain eager call never comes here: an operator costs host time that the launch does not need.
"""

from typing import Any

import torch
from torch.autograd import forward_ad

from rope import api, autograd
from rope.checks import Options, check_call
from rope.errors import RopeError

_ARGUMENTS = (
    "Tensor cos, Tensor sin, Tensor? positions, Tensor? axes, str layout, SymInt? rot_dim, "
    "SymInt rot_offset, int head_axis, bool inverse, bool validate"
)
_LIBRARY = torch.library.Library("rope", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define(f"rotate(Tensor q, Tensor? k, {_ARGUMENTS}) -> Tensor[]", tags=_TAGS)
_LIBRARY.define(f"rotate_(Tensor(a!) q, Tensor(b!)? k, {_ARGUMENTS}) -> ()", tags=_TAGS)

_TRACERS = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)


def rotate(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    inplace: bool,
    options: Options,
) -> "api.Rotated":
    """apply_rope through the operators."""
    if inplace:
        torch.ops.rope.rotate_(q, k, cos, sin, positions, axes, *options)
        return q if k is None else (q, k)
    outputs = torch.ops.rope.rotate(q, k, cos, sin, positions, axes, *options)
    return outputs[0] if k is None else (outputs[0], outputs[1])


def is_traced() -> bool:
    """Whether a fake, functional or proxy mode is active."""
    return any(torch._C._get_dispatch_mode(tracer) is not None for tracer in _TRACERS)


def _refuse_forward_mode() -> None:
    if forward_ad._current_level >= 0:
        raise RopeError(
            "the operators of rope have no forward-mode derivative: call apply_rope, without torch.compile"
        )


def _listed(outputs: "api.Rotated") -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


def _rotate(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    *options: Any,
) -> list[torch.Tensor]:
    return _listed(api.rotate_unrecorded(q, k, cos, sin, positions, axes, False, *options))


def _rotate_in_place(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    *options: Any,
) -> None:
    api.rotate_unrecorded(q, k, cos, sin, positions, axes, True, *options)


def _rotate_fake(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    *options: Any,
) -> list[torch.Tensor]:
    check_call(q, k, cos, sin, positions, axes, *Options(*options)[:4])
    return [torch.empty_like(x) for x in (q, k) if x is not None]


def _rotate_in_place_fake(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    *options: Any,
) -> None:
    check_call(q, k, cos, sin, positions, axes, *Options(*options)[:4])


def _rotate_recorded(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    *options: Any,
) -> list[torch.Tensor]:
    _refuse_forward_mode()
    if torch.is_grad_enabled() and autograd.is_needed(q, k, cos, sin):
        return _listed(autograd.rotate(q, k, cos, sin, positions, axes, False, Options(*options)))
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.rope.rotate(q, k, cos, sin, positions, axes, *options)


def _rotate_in_place_recorded(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    *options: Any,
) -> None:
    _refuse_forward_mode()
    if torch.is_grad_enabled() and autograd.is_needed(q, k, cos, sin):
        autograd.rotate(q, k, cos, sin, positions, axes, True, Options(*options))
        return
    with torch._C._AutoDispatchBelowAutograd():
        torch.ops.rope.rotate_(q, k, cos, sin, positions, axes, *options)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("rotate", _rotate, _key)
    _LIBRARY.impl("rotate_", _rotate_in_place, _key)
_LIBRARY.impl("rotate", _rotate_recorded, "Autograd")
_LIBRARY.impl("rotate_", _rotate_in_place_recorded, "Autograd")
torch.library.register_fake("rope::rotate", _rotate_fake, lib=_LIBRARY)
torch.library.register_fake("rope::rotate_", _rotate_in_place_fake, lib=_LIBRARY)
