"""Run an implementation under autograd, and the checks of its gradients.

A rotation R is linear, so the gradient of its input is the transposed rotation of the incoming gradient g:
R^T g, the rotation by the same cos and -sin. It is judged with the bounds of a rotation of g.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from properties.bounds import error_bound, judge, may_overflow
from properties.failures import Crash, MissingError, WrongGradient
from properties.implementations import Implementation
from properties.judge import call, check_metadata
from properties.oracle import Exact, exact_rotation, pair_dims
from properties.record import note_ratio
from strategies import Arena, RopeCase
from strategies.values import activation_dtype, bits, filled

Tensors = dict[str, torch.Tensor]


@dataclass
class Recorded:
    """One finished call whose outputs are recorded by autograd.

    Attributes:
        leaves: what the gradients are taken of, by the name of its tensor: q and k themselves, or in place
            the buffers that they are views of.
        live: q and k as the implementation got them.
        outputs: what it returned, by "q" and "k".
        before: a number made of q and k before the call, whose gradient needs their values.
    """

    implementation: Implementation
    case: RopeCase
    arena: Arena
    leaves: Tensors
    live: Tensors
    outputs: Tensors
    before: torch.Tensor

    def gradients(self, cotangents: Tensors) -> Tensors:
        """The gradients of q and k, (batch, token, head, dim) on the CPU; WrongGradient when one misses."""
        outputs = list(self.outputs.values())
        for name, out in self.outputs.items():
            if not out.requires_grad:
                raise WrongGradient(f"{name}_out does not require grad although {name} does", tensor=name)
        leaves = {id(leaf): leaf for leaf in self.leaves.values()}
        try:
            wanted, given = list(leaves.values()), list(cotangents.values())
            taken = torch.autograd.grad(outputs, wanted, given, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            raise Crash(f"the backward pass raised {type(error).__name__}: {error}") from error
        by_leaf = dict(zip(leaves, taken, strict=True))
        gradients = {}
        for name, leaf in self.leaves.items():
            gradient = by_leaf[id(leaf)]
            if gradient is None:
                raise WrongGradient(f"{name} has no gradient although {name}_out was used", tensor=name)
            if self.case.inplace:
                gradient = self._in_buffer(name, gradient)
            gradients[name] = self.arena.bnhd(gradient).detach().cpu()
        return gradients

    def _in_buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """The part of a buffer's gradient that belongs to q or k; WrongGradient when the rest is not 0."""
        guarded = next(g for g in self.arena.buffers if name in g.views)
        owned = [n for n in guarded.views if n in self.outputs]
        stray = gradient.cpu()[~guarded.owned(*owned)]
        if stray.count_nonzero():
            raise WrongGradient(f"memory outside {' and '.join(owned)} has a gradient in place", tensor=name)
        view = guarded.views[name]
        return gradient.as_strided(view.shape, view.stride(), view.storage_offset())


def record(implementation: Implementation, case: RopeCase) -> Recorded:
    """Run the case with q and k requiring grad; Crash when the call raises."""
    arena = Arena(case, implementation.device)
    names = ("q",) if case.k_heads is None else ("q", "k")
    leaves, live = _leaves_in_place(arena, names) if case.inplace else _leaves(arena, names)
    before = torch.stack([x.square().sum() for x in live.values()]).sum()
    arena.q, arena.k = live["q"], live.get("k")
    # Watching allocations would change nothing here, and hides a call from some tracers.
    returned, _, _ = call(replace(implementation, watched=False), case, arena)
    tensors: Any = (returned,) if isinstance(returned, torch.Tensor) else returned
    outputs = dict(zip(names, tensors, strict=True))
    for name, out in outputs.items():
        check_metadata(name, out, live[name], inplace=case.inplace)
    return Recorded(implementation, case, arena, leaves, live, outputs, before)


def _leaves(arena: Arena, names: tuple[str, ...]) -> tuple[Tensors, Tensors]:
    leaves = {name: getattr(arena, name).detach().requires_grad_() for name in names}
    return leaves, dict(leaves)


def _leaves_in_place(arena: Arena, names: tuple[str, ...]) -> tuple[Tensors, Tensors]:
    """A leaf cannot change in place: q and k are views of a copy of their buffer, which is the leaf."""
    leaves, live = {}, {}
    for guarded in arena.buffers:
        mine = [name for name in guarded.views if name in names]
        if not mine:
            continue
        leaf = guarded.buffer.detach().requires_grad_()
        flat = leaf.clone()
        for name in mine:
            view = guarded.views[name]
            leaves[name] = leaf
            live[name] = flat.as_strided(view.shape, view.stride(), view.storage_offset())
    return {name: leaves[name] for name in names}, {name: live[name] for name in names}


def cotangents(recorded: Recorded, heads: int | None = None) -> Tensors:
    """Random incoming gradients, dense in the axis order of the outputs.

    Args:
        heads: how many heads have values of their own; the first of them repeats. None means all.
    """
    case = recorded.case
    result = {}
    for name, out in recorded.outputs.items():
        values = filled(name, out.numel(), activation_dtype(case), "normal", 2 * case.seed + 1)
        g = recorded.arena.bnhd(values.view(out.shape))
        if heads is not None:
            g.copy_(g[:, :, :heads].clone().expand_as(g))
        result[name] = values.view(out.shape).to(out.device)
    return result


def transposed_rotation(recorded: Recorded, name: str, g: torch.Tensor) -> Exact:
    """The exact gradient of q or k for the incoming gradient g."""
    arena = copy.copy(recorded.arena)
    arena.case = replace(recorded.case, inverse=not recorded.case.inverse)
    arena.inputs = {**arena.inputs, name: arena.bnhd(g).cpu()}
    return exact_rotation(arena, name)


def check_vector_jacobian_product(recorded: Recorded) -> None:
    """WrongGradient when a gradient is further from R^T g than its bound, or on the tail is not g."""
    given = cotangents(recorded)
    for name, gradient in recorded.gradients(given).items():
        exact = transposed_rotation(recorded, name, given[name])
        verdict = judge(gradient, exact, recorded.case.dtype, recorded.implementation.domain.compute)
        note_ratio(verdict.worst_ratio())
        if verdict.wrong.any():
            where = tuple(int(i) for i in np.argwhere(verdict.wrong)[0])
            raise WrongGradient(
                f"the gradient of {name}[batch, token, head, dim = {where}] is {float(gradient[where])!r}, "
                f"exact {float(exact.value[where])!r} within {verdict.bound[where]:.3g}; "
                f"{verdict.wrong.sum()} of {verdict.wrong.size} elements are wrong",
                tensor=name,
                where=where,
                wrong=verdict.wrong,
            )
        incoming = recorded.arena.bnhd(given[name]).cpu()
        changed = (gradient != incoming).numpy() & ~exact.rotated
        if changed.any():
            where = tuple(int(i) for i in np.argwhere(changed)[0])
            raise WrongGradient(
                f"the gradient of {name}[batch, token, head, dim = {where}], which does not rotate, is "
                f"{float(gradient[where])!r}, expected the incoming {float(incoming[where])!r}",
                tensor=name,
                where=where,
                wrong=changed,
            )


def check_adjoint(recorded: Recorded) -> None:
    """WrongGradient when <R x, g> and <x, R^T g> of a pair differ by more than the errors allow."""
    given = cotangents(recorded)
    gradients = recorded.gradients(given)
    rules = (recorded.case.dtype, recorded.implementation.domain.compute)
    lo, hi = pair_dims(recorded.case)
    for name, gradient in gradients.items():
        forward = exact_rotation(recorded.arena, name)
        backward = transposed_rotation(recorded, name, given[name])
        x = recorded.arena.inputs[name].double().numpy()
        y = recorded.arena.bnhd(recorded.outputs[name].detach()).cpu().double().numpy()
        g = recorded.arena.bnhd(given[name]).cpu().double().numpy()
        back = gradient.double().numpy()
        with np.errstate(all="ignore"):
            difference = y * g - x * back
            slack = error_bound(forward, *rules) * np.abs(g) + error_bound(backward, *rules) * np.abs(x)
            # The products and their sums round in double.
            size = np.abs(forward.value * g) + np.abs(x * backward.value)
            slack += (size + slack) * 2.0**-50 + 2.0**-1070
            gap = np.abs(difference[..., lo] + difference[..., hi])
            allowed = slack[..., lo] + slack[..., hi]
            huge = may_overflow(forward, *rules) | may_overflow(backward, *rules)
            # The oracle of float64 is wider than the double that the products above are made in.
            total = (size[..., lo] + size[..., hi] + allowed).astype(np.float64)
            comparable = ~(huge[..., lo] | huge[..., hi]) & np.isfinite(total)
            wrong = ~(gap <= allowed) & comparable
        if wrong.any():
            *row, pair = (int(i) for i in np.argwhere(wrong)[0])
            raise WrongGradient(
                f"<R x, g> and <x, R^T g> of pair {pair} of {name}[batch, token, head = {tuple(row)}] differ "
                f"by {gap[(*row, pair)]:.3g}, allowed {allowed[(*row, pair)]:.3g}",
                tensor=name,
                where=(*row, int(lo[pair])),
            )


def check_gradient_strides(recorded: Recorded) -> None:
    """WrongGradient when incoming gradients of equal values in other memory give other bits."""
    for what, dense, strided in _layouts(recorded):
        expected, actual = recorded.gradients(dense), recorded.gradients(strided)
        for name, gradient in actual.items():
            wrong = (bits(gradient.contiguous()) != bits(expected[name].contiguous())).numpy()
            if wrong.any():
                where = tuple(int(i) for i in np.argwhere(wrong)[0])
                raise WrongGradient(
                    f"with {what} incoming gradient that of {name}[batch, token, head, dim = {where}] is "
                    f"{float(gradient[where])!r}, with a dense one {float(expected[name][where])!r}; "
                    f"{wrong.sum()} of {wrong.size} elements differ",
                    tensor=name,
                    where=where,
                    wrong=wrong,
                )


def _layouts(recorded: Recorded) -> list[tuple[str, Tensors, Tensors]]:
    """Pairs of equal incoming gradients: dense, and in memory of a kind that a training step makes."""
    dense = cotangents(recorded)
    layouts = [("a strided", dense, {name: _strided(g) for name, g in dense.items()})]
    if not all(g.numel() for g in dense.values()):
        return layouts
    if recorded.case.seed % 2:
        return [*layouts, ("a stride-0", *_constant(dense))]
    axis = -3 if recorded.case.heads_first else -2
    one = cotangents(recorded, heads=1)
    expanded = {name: g.narrow(axis, 0, 1).expand_as(g) for name, g in one.items()}
    return [*layouts, ("an expanded", one, expanded)]


def _strided(g: torch.Tensor) -> torch.Tensor:
    """The same values with heads and tokens in the other order in memory and every second element NaN."""
    swapped = g.transpose(-2, -3)
    return torch.stack((swapped, torch.full_like(swapped, torch.nan)), -1)[..., 0].transpose(-2, -3)


def _constant(like: Tensors) -> tuple[Tensors, Tensors]:
    """Ones, dense and as the backward pass of a sum makes them: one number with stride 0 on every axis."""
    dense = {name: torch.ones_like(g) for name, g in like.items()}
    return dense, {name: g.flatten()[0].expand_as(g) for name, g in dense.items()}


def check_in_place_contract(recorded: Recorded) -> None:
    """q and k themselves carry the new history, and a backward pass that needs their old values raises.

    Raises:
        WrongGradient: the gradient through q or k is not the one through what was returned.
        MissingError: a backward pass ran with values that had changed since it saved them.
    """
    if not recorded.live["q"].numel():
        return
    given = cotangents(recorded)
    expected = recorded.gradients(given)
    for name, gradient in replace(recorded, outputs=recorded.live).gradients(given).items():
        if not torch.equal(bits(gradient.contiguous()), bits(expected[name].contiguous())):
            raise WrongGradient(
                f"{name} was rotated in place, but its gradient is not the one of {name}_out: its history "
                "does not have the rotation",
                tensor=name,
            )
    try:
        torch.autograd.grad(recorded.before, list(recorded.leaves.values()), retain_graph=True)
    except RuntimeError:
        return
    raise MissingError(
        "q and k were saved for a backward pass, then changed in place, and that backward pass ran with the "
        "changed values: their version counters did not move"
    )
