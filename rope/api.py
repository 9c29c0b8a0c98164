"""apply_rope: check, choose the backend, rotate."""

import functools
import os
from types import ModuleType

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from rope import autograd, eager, operators, repeated
from rope.checks import PLAIN_TYPES, Options, check_call, check_in_place, check_position_range
from rope.errors import RopeError

# Short ways to what an eager call asks every time: decoding waits for the host.
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_is_active = torch._C._are_functorch_transforms_active
_increment_version = torch._C._increment_version

Rotated = tuple[torch.Tensor, torch.Tensor] | torch.Tensor


def apply_rope(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    *,
    axes: torch.Tensor | None = None,
    layout: str = "neox",
    rot_dim: int | None = None,
    rot_offset: int = 0,
    head_axis: int = -2,
    inplace: bool = False,
    inverse: bool = False,
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor] | torch.Tensor:
    """Rotate q and k by their tokens' positions, in one launch.

    Each pair (lo, hi) of a token at position p becomes (lo*c - hi*s, hi*c + lo*s) with c = cos[p, i] and
    s = sin[p, i] for pair i (Su et al., RoFormer, arXiv:2104.09864). The arithmetic is float32 (float64
    for float64 inputs) with one rounding at the store.

    Args:
        q: `(tokens, q_heads, head_dim)` or `(batch, tokens, q_heads, head_dim)`; float16, bfloat16,
            float32 or float64; any strides.
        k: like q with its own number of heads and its own strides, or None.
        cos: `(max_position, rot_dim // 2)`, any strides; or `(batch, tokens, rot_dim // 2)`, already
            gathered per token, with positions=None. float32 expected (float64 with float64 inputs); a
            16-bit table works and warns once.
        sin: like cos.
        positions: `(tokens,)`, or `(batch, tokens)` for 4 axes; int32 or int64, any strides. None means
            0, 1, 2, ... in each batch row.
        axes: `(rot_dim // 2,)`, int32 or int64: for positions with several axes (time, height, width: mRoPE,
            vision), the one that each pair reads, from `rope.axes.mrope_axes`. positions then have one more
            axis before the others, `(axes, tokens)` or `(axes, batch, tokens)`, and pair i of a token turns
            by row positions[axes[i], token].
        layout: "neox" pairs element i with i + rot_dim // 2, "gptj" pairs 2i with 2i + 1.
        rot_dim: dims that rotate, even; None means 2 * cos.shape[-1].
        rot_offset: first dim that rotates. The other dims (the tail) keep their bits.
        head_axis: -2, or the axis before the tokens: 1 for `(batch, heads, tokens, head_dim)`, 0 for
            `(heads, tokens, head_dim)`.
        inplace: write into q and k and return them. Refused where q or k overlaps itself or the other.
        inverse: rotate back (negated sin).
        validate: on CUDA, synchronise and raise for a position outside the table, or for a pair on an axis
            that positions lack. Without it every pair that would turn by one becomes NaN. On the CPU the
            check is free and always made.

    Returns:
        (q_out, k_out), or q_out alone when k is None.

    Raises:
        RopeError: wrong input; nothing was written.
        PositionError: a position outside the table, where it is checked; nothing was written.
        RopePrecisionWarning: (a warning, once) cos and sin are in a 16-bit dtype.
    """
    watched = is_compiling() or _is_transformed() or (_dispatch_modes() and operators.is_traced())
    if not (watched or validate or axes is not None):
        given = (inplace, layout, rot_dim, rot_offset, head_axis, inverse)
        outputs = repeated.rotate(q, k, cos, sin, positions, given)
        if outputs is not None:
            return outputs
    if watched or not _are_plain((q, cos, sin), k, positions, axes):
        options = Options(layout, rot_dim, rot_offset, head_axis, inverse, validate)
        return _rotate_traced(q, k, cos, sin, positions, axes, inplace, options)
    if torch.is_grad_enabled() and autograd.is_needed(q, k, cos, sin):
        options = Options(layout, rot_dim, rot_offset, head_axis, inverse, validate)
        return autograd.rotate(q, k, cos, sin, positions, axes, inplace, options)
    return rotate_unrecorded(
        q, k, cos, sin, positions, axes, inplace, layout, rot_dim, rot_offset, head_axis, inverse, validate
    )


def rotate_unrecorded(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    inplace: bool,
    layout: str,
    rot_dim: int | None,
    rot_offset: int,
    head_axis: int,
    inverse: bool,
    validate: bool,
) -> Rotated:
    """apply_rope on tensors that hold memory, without a history."""
    geometry = check_call(q, k, cos, sin, positions, axes, layout, rot_dim, rot_offset, head_axis)
    if positions is not None and (validate or not q.is_cuda):
        check_position_range(positions, axes, cos.shape[0])
    if inplace:
        check_in_place(q, k, geometry)
        # Autograd must see that a tensor which another node saved has changed.
        _increment_version((q,) if k is None else (q, k))
        q_out, k_out = q, k
    else:
        q_out = torch.empty_like(q)
        k_out = None if k is None else torch.empty_like(k)
    rotate = _launch().rotate if _kernels_run_on(q) else eager.rotate
    plan = rotate(q, k, q_out, k_out, cos, sin, positions, axes, geometry, inverse=inverse)
    if plan is not None and k is not None and positions is not None and axes is None and not validate:
        given = (inplace, layout, rot_dim, rot_offset, head_axis, inverse)
        repeated.remember(q, k, cos, sin, positions, given, geometry, plan)
    return q_out if k_out is None else (q_out, k_out)


def _are_plain(required: tuple[torch.Tensor, ...], *optional: torch.Tensor | None) -> bool:
    """Whether the tensors are memory to work on."""
    return all(type(x) in PLAIN_TYPES for x in required) and all(
        x is None or type(x) in PLAIN_TYPES for x in optional
    )


def _is_transformed() -> bool:
    """Whether torch.func or forward-mode AD is at work."""
    return _functorch_is_active() or forward_ad._current_level >= 0


# What torch.compiler.assume_constant_result does, without importing the compiler: two seconds for everyone.
_is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _rotate_traced(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    inplace: bool,
    options: Options,
) -> Rotated:
    """apply_rope under torch.compile and other tracers, torch.func, forward-mode AD, tensor subclasses."""
    if is_compiling():
        if _is_transformed():
            raise RopeError(
                "apply_rope inside a torch.func transform or forward-mode AD inside torch.compile is not "
                "supported: transform without compiling, or compile without transforming"
            )
        return operators.rotate(q, k, cos, sin, positions, axes, inplace, options)
    geometry = check_call(q, k, cos, sin, positions, axes, *options[:4])
    if _is_transformed():
        if inplace:
            raise RopeError(
                "inplace=True inside a torch.func transform or forward-mode AD, which would lose the "
                "change: pass inplace=False"
            )
        return eager.rotated(q, k, cos, sin, positions, axes, geometry, inverse=options.inverse)
    return operators.rotate(q, k, cos, sin, positions, axes, inplace, options)


def _kernels_run_on(q: torch.Tensor) -> bool:
    if q.is_cuda:
        return True
    return q.is_cpu and "TRITON_INTERPRET" in os.environ and bool(_launch().interpreted())


@functools.cache
def _launch() -> ModuleType:
    # Imported late, because the kernels read TRITON_INTERPRET when they are decorated: a program that
    # sets it before its first call is in time, one that sets it later keeps the eager implementation.
    from rope import launch

    return launch
