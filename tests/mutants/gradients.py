"""Faults of the backward pass and of a compiled call; the forward pass of each is right."""

from collections.abc import Callable
from typing import Any

import torch

from rope import apply_rope
from tests.mutants.registry import mutant

Gradients = list[torch.Tensor | None]
# What the faulty backward pass is given: incoming gradients, (cos, sin, positions), options.
Backward = Callable[[Gradients, tuple[Any, ...], dict[str, Any]], Gradients]
_DOMAIN: dict[str, Any] = {"gradients": True, "inplace": (False,), "without_k": (False,)}


def right(grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]) -> Gradients:
    """The backward pass without a fault."""
    return list(apply_rope(*grads, *tables, **{**options, "inverse": not options["inverse"]}))  # type: ignore[arg-type]


class _Faulty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, tables: tuple[Any, ...], options: Any, backward: Backward) -> Any:
        ctx.given = tables, options
        ctx.faulty = backward
        return apply_rope(q, k, *tables, **options)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return *ctx.faulty(list(grads), *ctx.given), None, None, None


def backward(report: str | None, **domain: Any) -> Callable[[Backward], Backward]:
    """Register an implementation whose backward pass is this function."""

    def register(faulty: Backward) -> Backward:
        def call(q: Any, k: Any, cos: Any, sin: Any, positions: Any = None, **options: Any) -> Any:
            return _Faulty.apply(q, k, (cos, sin, positions), options, faulty)

        call.__name__ = faulty.__name__
        call.__doc__ = faulty.__doc__
        mutant("BACKWARD", report, "apply_rope", **(_DOMAIN | domain))(call)
        return faulty

    return register


def _tail(grad: torch.Tensor, tables: tuple[Any, ...], options: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The parts of a gradient that belong to dims which do not rotate."""
    start = options["rot_offset"]
    return grad[..., :start], grad[..., start + 2 * tables[0].shape[-1] :]


@backward("candle#3612")
def turns_the_same_way(grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]) -> Gradients:
    """The gradient is rotated forward once more. Trigger: any sin that is not 0."""
    return list(apply_rope(*grads, *tables, **options))  # type: ignore[arg-type]


@backward("flash-attention#569")
def not_rotated(grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]) -> Gradients:
    """The incoming gradient is passed on. Trigger: any angle that is not 0."""
    return [g.clone() for g in grads if g is not None]


@backward("apex#1750")
def tail_gradient_is_one(grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]) -> Gradients:
    """A test that sums the output cannot see it. Trigger: a tail."""
    result = right(grads, tables, options)
    for grad in result:
        for part in _tail(grad, tables, options):  # type: ignore[arg-type]
            part.fill_(1)
    return result


@backward(None)
def tail_gradient_missing(grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]) -> Gradients:
    """The tail's gradient is 0. Trigger: a tail."""
    result = right(grads, tables, options)
    for grad in result:
        for part in _tail(grad, tables, options):  # type: ignore[arg-type]
            part.zero_()
    return result


@backward("flash-attention#569")
def strides_of_the_gradient_ignored(
    grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]
) -> Gradients:
    """Incoming gradients are read as if dense. Trigger: a strided or expanded one."""
    read = []
    for grad in grads:
        assert grad is not None
        flat = grad.as_strided((grad.untyped_storage().nbytes() // grad.element_size(),), (1,), 0)
        index = grad.storage_offset() + torch.arange(grad.numel(), device=grad.device)
        # A GPU would read what lies there; wrapping keeps the process alive.
        read.append(flat[index % max(len(flat), 1)].view(grad.shape))
    return right(read, tables, options)  # type: ignore[arg-type]


@backward(None)
def only_the_first_k_head_has_one(
    grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]
) -> Gradients:
    """k's gradient goes to its first head. Trigger: more than one head of k."""
    q_grad, k_grad = right(grads, tables, options)
    assert k_grad is not None
    heads = options["head_axis"]
    k_grad.narrow(heads, 1, max(k_grad.shape[heads] - 1, 0)).zero_() if k_grad.shape[heads] else None
    return [q_grad, k_grad]


@backward(None)
def k_gradient_missing(grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]) -> Gradients:
    """Only q has a gradient. Trigger: any k."""
    return [right(grads, tables, options)[0], None]


@backward(None, positions=("given", "shared"), starts=True)
def positions_forgotten(grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]) -> Gradients:
    """The backward pass counts tokens from 0. Trigger: positions other than 0, 1, 2, ..."""
    cos, sin, positions = tables
    counted = torch.arange(positions.shape[-1], device=positions.device) % max(len(cos), 1)
    return right(grads, (cos, sin, counted.expand_as(positions)), options)


@backward(None, dtypes=("float32",))
def gradient_through_bfloat16(
    grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]
) -> Gradients:
    """Gradients are rounded on the way. Trigger: float32."""
    rounded: Gradients = [g.bfloat16().float() for g in grads if g is not None]
    return right(rounded, tables, options)


@backward(None)
def forward_flag_forgotten(grads: Gradients, tables: tuple[Any, ...], options: dict[str, Any]) -> Gradients:
    """Always rotates back. Trigger: inverse, whose gradient is the forward rotation."""
    return list(apply_rope(*grads, *tables, **{**options, "inverse": True}))  # type: ignore[arg-type]


@mutant("BACKWARD", "flash-attention#569", "apply_rope", gradients=True, inplace=(False,))
def detached(q: Any, k: Any, cos: Any, sin: Any, positions: Any = None, **options: Any) -> Any:
    """The outputs have no history. Trigger: any input that requires grad."""
    with torch.no_grad():
        return apply_rope(q, k, cos, sin, positions, **options)


@mutant("BACKWARD", "unsloth#5001", "apply_rope", gradients=True, inplace=(True,))
def changed_behind_autograds_back(
    q: Any, k: Any, cos: Any, sin: Any, positions: Any = None, **options: Any
) -> Any:
    """q and k are written through .data: no history, no new version. Trigger: in place under autograd."""
    apply_rope(q.data, None if k is None else k.data, cos, sin, positions, **options)
    return q if k is None else (q, k)


@mutant("BACKWARD", None, "apply_rope", gradients=True, inplace=(True,))
def version_not_counted(q: Any, k: Any, cos: Any, sin: Any, positions: Any = None, **options: Any) -> Any:
    """The returned tensors have the right history, q and k keep the old one. Trigger: in place."""
    names = [x for x in (q, k) if x is not None]
    rotated = apply_rope(q, k, cos, sin, positions, **{**options, "inplace": False})
    outputs = (rotated,) if k is None else rotated
    written = tuple(_Written.apply(out, x.data) for out, x in zip(outputs, names, strict=True))
    return written[0] if k is None else written


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return target.copy_(out).as_strided(target.shape, target.stride(), target.storage_offset())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, None]:  # type: ignore[override]
        return grad, None


@mutant("DTYPE", "torchtitan#2575", "apply_rope", fullgraph=True, inplace=(False,))
def another_precision_when_compiled(
    q: Any, k: Any, cos: Any, sin: Any, positions: Any = None, **options: Any
) -> Any:
    """A compiled call rounds its table to bfloat16. Trigger: torch.compile with a float32 table."""
    if torch.compiler.is_compiling():
        cos, sin = cos.bfloat16().to(cos.dtype), sin.bfloat16().to(sin.dtype)
    return apply_rope(q, k, cos, sin, positions, **options)


@mutant("DTYPE", None, "apply_rope", fullgraph=True, inplace=(False,))
def breaks_the_graph(q: Any, k: Any, cos: Any, sin: Any, positions: Any = None, **options: Any) -> Any:
    """Reads a number of a tensor on the host. Trigger: torch.compile of a whole graph."""
    if cos.numel() and float(cos.flatten()[0]) > 2:
        return apply_rope(q, k, cos, sin, positions, **options)
    return apply_rope(q, k, cos, sin, positions, **options)
