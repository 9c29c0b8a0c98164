"""Gradients of apply_rope.

A rotation is linear in q and k, so its gradient is the inverse rotation of the incoming gradient: only the
tables and the positions are kept for it, never q or k. cos and sin get theirs, when they ask for one, from
a reduction in plain PyTorch, and only then q and k are kept as well.
"""

from typing import Any

import torch

from rope import api, eager
from rope.checks import Geometry, Options, check_call
from rope.errors import RopeError

Gradient = torch.Tensor | None


def is_needed(q: torch.Tensor, k: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether a gradient may be asked for."""
    return q.requires_grad or cos.requires_grad or sin.requires_grad or (k is not None and k.requires_grad)


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
    """apply_rope with a history; RopeError, before anything is written, where autograd allows none."""
    if not inplace:
        return _Rotation.apply(q, k, cos, sin, positions, axes, options)
    if cos.requires_grad or sin.requires_grad:
        raise RopeError(
            "inplace=True overwrites q and k, which the gradient of cos and sin needs: pass inplace=False, "
            "or cos.detach() and sin.detach()"
        )
    targets = {name: x for name, x in (("q", q), ("k", k)) if x is not None and x.requires_grad}
    for name, x in targets.items():
        _check_recordable(name, x)
    with torch.no_grad():
        api.apply_rope(q, k, cos, sin, positions, axes=axes, inplace=True, **options._asdict())
    # Autograd can move the history of a view for one output of a node only.
    together = not any(x._is_view() for x in targets.values())
    for group in [tuple(targets.values())] if together else [(x,) for x in targets.values()]:
        _RotationInPlace.apply(*group, cos, sin, positions, axes, options)
    return q if k is None else (q, k)


def _check_recordable(name: str, x: torch.Tensor) -> None:
    base = x._base if x._is_view() else x
    if base is not None and base.is_leaf and base.requires_grad:
        raise RopeError(
            f"inplace=True but {name} is a leaf that requires grad, or a view of one: pass inplace=False, or "
            "call under torch.no_grad()"
        )
    autograd = torch._C._autograd
    if x._is_view() and autograd._get_creation_meta(x) != autograd.CreationMeta.DEFAULT:
        raise RopeError(
            f"inplace=True but {name} is one of several views that one function returned (split, chunk, "
            "unbind), or a view made under no_grad: autograd cannot record a change of it. Slice instead, "
            "qkv[..., a:b], or pass inplace=False"
        )


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor | None,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor | None,
        axes: torch.Tensor | None,
        options: Options,
    ) -> tuple[torch.Tensor, torch.Tensor] | torch.Tensor:
        outputs = api.apply_rope(q, k, cos, sin, positions, axes=axes, **options._asdict())
        ctx.options = options
        ctx.set_materialize_grads(False)
        of_table = cos.requires_grad or sin.requires_grad
        ctx.save_for_backward(cos, sin, positions, axes, *((q, k) if of_table else ()))
        if k is not None and not of_table and not (q.requires_grad and k.requires_grad):
            ctx.mark_non_differentiable(outputs[1] if q.requires_grad else outputs[0])
        return outputs

    @staticmethod
    def backward(ctx: Any, q_grad: Gradient, k_grad: Gradient = None) -> tuple[Gradient, ...]:
        cos, sin, positions, axes, *inputs = ctx.saved_tensors
        of_q, of_k, of_cos, of_sin = ctx.needs_input_grad[:4]
        wanted = (q_grad if of_q else None, k_grad if of_k else None)
        q_in, k_in = _rotated_back(wanted, cos, sin, positions, axes, ctx.options)
        cos_in = sin_in = None
        if of_cos or of_sin:
            cos_in, sin_in = _table_gradients(
                inputs[0], inputs[1], q_grad, k_grad, cos, sin, positions, axes, ctx.options
            )
        return q_in, k_in, cos_in if of_cos else None, sin_in if of_sin else None, None, None, None


class _RotationInPlace(torch.autograd.Function):
    """The history of tensors that were rotated already."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, ...]:
        # Rotated tensors first: where one is a view, autograd takes the first input to be it.
        *rotated, cos, sin, positions, axes, ctx.options = arguments
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(cos, sin, positions, axes)
        ctx.mark_dirty(*rotated)
        return tuple(rotated)

    @staticmethod
    def backward(ctx: Any, *grads: Gradient) -> tuple[Gradient, ...]:
        cos, sin, positions, axes = ctx.saved_tensors
        return *_rotated_back(grads, cos, sin, positions, axes, ctx.options), None, None, None, None, None


def _rotated_back(
    grads: tuple[Gradient, ...],
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    options: Options,
) -> tuple[Gradient, ...]:
    """The gradients that arrive, rotated the other way in one launch; differentiable itself."""
    present = [grad for grad in grads if grad is not None]
    if not present:
        return grads
    back = {**options._asdict(), "inverse": not options.inverse, "validate": False}
    first, second = present[0], present[1] if len(present) == 2 else None
    rotated = api.apply_rope(first, second, cos, sin, positions, axes=axes, **back)
    outputs = iter((rotated,) if isinstance(rotated, torch.Tensor) else rotated)
    return tuple(None if grad is None else next(outputs) for grad in grads)


def _table_gradients(
    q: torch.Tensor,
    k: torch.Tensor | None,
    q_grad: Gradient,
    k_grad: Gradient,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    options: Options,
) -> tuple[Gradient, Gradient]:
    """Gradients of cos and sin in plain PyTorch: sums over the heads, and over tokens with one row."""
    geometry = check_call(q, k, cos, sin, positions, axes, *options[:4])
    of_cos = of_sin = None
    for x, grad in ((q, q_grad), (k, k_grad)):
        if x is None or grad is None:
            continue
        lo, hi = eager.pairs(geometry.bnhd(x), geometry)
        lo_grad, hi_grad = eager.pairs(geometry.bnhd(grad), geometry)
        cos_part = (lo_grad * lo + hi_grad * hi).sum(-2)
        sin_part = (hi_grad * lo - lo_grad * hi).sum(-2)
        of_cos = cos_part if of_cos is None else of_cos + cos_part
        of_sin = sin_part if of_sin is None else of_sin + sin_part
    if of_cos is None or of_sin is None:
        return None, None
    if options.inverse:
        of_sin = -of_sin
    return (
        _sum_over_tokens(of_cos, cos, positions, axes, geometry),
        _sum_over_tokens(of_sin, sin, positions, axes, geometry),
    )


def _sum_over_tokens(
    per_token: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    geometry: Geometry,
) -> torch.Tensor:
    """(batch, token, pair) summed into the rows of the table; a token outside the table has no row."""
    if table.dim() == 3:
        return per_token.to(table.dtype)
    max_position = table.shape[0]
    if positions is None:
        padding = (0, 0, 0, max_position - geometry.tokens)
        return torch.nn.functional.pad(per_token.sum(0), padding).to(table.dtype)
    rows = eager.table_rows(positions, axes)
    inside = (rows >= 0) & (rows < max_position)
    if rows.dim() == 2:
        per_token = per_token.sum(0)
    per_token = torch.where(inside, per_token, 0)
    rows = torch.where(inside, rows, 0)
    total = per_token.new_zeros(max(max_position, 1), geometry.rot_half)
    if axes is None:
        total = total.index_add(0, rows.flatten(), per_token.flatten(0, -2))
    else:
        pair = torch.arange(geometry.rot_half, device=rows.device)
        at = (rows * geometry.rot_half + pair).flatten()
        total = total.flatten().index_add(0, at, per_token.flatten()).view(total.shape)
    return total[:max_position].to(table.dtype)
