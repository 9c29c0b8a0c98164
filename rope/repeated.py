"""The short way of a call that repeats the last one, as every layer of a model makes it.

All that apply_rope works out about a call follows from its options and from the sizes, strides, dtypes and
devices of its tensors. Where those are the last call's, only pointers are new, and a decoding step waits for
the host no longer than a launch takes.
"""

from typing import Any, NamedTuple

import torch

from rope import api
from rope.checks import PLAIN_TYPES, Geometry, check_position_range, room

# torch.compile's own check that tensors have the types, sizes, strides, dtypes and devices of earlier ones:
# for five tensors it costs as much host time as reading the shapes of two. A private name, so perhaps absent.
_TensorGuards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)
_increment_version = torch._C._increment_version
# Bits of a pointer that is no multiple of the widest access, which another compiled kernel serves.
_UNALIGNED = 16 - 1


class _Call(NamedTuple):
    options: tuple[Any, ...]
    guard: Any
    requires_grad: bool
    room: tuple[int, int]
    plan: Any


_last: _Call | None = None


def rotate(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    options: tuple[Any, ...],
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """apply_rope, where the call is like the last one; None, with nothing written, where it is not."""
    last = _last
    if last is None or k is None or positions is None or options != last.options:
        return None
    try:
        # A guard ends the process at a nested tensor.
        if q.is_nested or k.is_nested or cos.is_nested or sin.is_nested or positions.is_nested:
            return None
    except AttributeError:
        return None
    if not last.guard.check(q, k, cos, sin, positions) or (last.requires_grad and torch.is_grad_enabled()):
        return None
    plan = last.plan
    if plan.device < 0:
        if not api._kernels_run_on(q):
            return None
        check_position_range(positions, None, cos.shape[0])
    q_at, k_at, cos_at, sin_at = q.data_ptr(), k.data_ptr(), cos.data_ptr(), sin.data_ptr()
    positions_at = positions.data_ptr()
    inplace = options[0]
    if inplace:
        q_out, k_out, q_out_at, k_out_at = q, k, q_at, k_at
        if -last.room[0] < k_at - q_at < last.room[1]:
            return None
    else:
        q_out, k_out = torch.empty_like(q), torch.empty_like(k)
        q_out_at, k_out_at = q_out.data_ptr(), k_out.data_ptr()
    if (q_at | k_at | q_out_at | k_out_at | cos_at | sin_at | positions_at) & _UNALIGNED:
        return None
    if inplace:
        _increment_version((q, k))
    plan.launch(
        (q, k, cos, sin, positions, q_out, k_out),
        (q_at, k_at, cos_at, sin_at, positions_at, q_out_at, k_out_at),
    )
    return q_out, k_out


def remember(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    options: tuple[Any, ...],
    geometry: Geometry,
    plan: Any,
) -> None:
    """Keep how this call was launched, for the next one."""
    global _last
    tensors = (q, k, cos, sin, positions)
    if _TensorGuards is None or any(type(x) not in PLAIN_TYPES or x.data_ptr() & _UNALIGNED for x in tensors):
        return
    requires_grad = any(x.requires_grad for x in tensors)
    apart = room(q, k, geometry) if options[0] else (0, 0)
    _last = _Call(options, _guard(tensors, geometry), requires_grad, apart, plan)


def forget() -> None:
    """Take the long way next time."""
    global _last
    _last = None


def _guard(tensors: tuple[torch.Tensor, ...], geometry: Geometry) -> Any:
    """The guard that these tensors pass; they differ in what no geometry depends on, but a guard does."""
    state = (torch.is_inference_mode_enabled(), *((x.requires_grad, x.is_inference()) for x in tensors))
    guard = geometry.kept.get(state)
    if guard is None or not guard.check(*tensors):
        sizes = [list(x.shape) for x in tensors]
        strides = [list(x.stride()) for x in tensors]
        guard = _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        geometry.kept[state] = guard
    return guard
