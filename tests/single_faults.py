"""Kernels with one fault each, one for every kind of script."""

from typing import Any

import torch

from properties.implementations import rope_eager


def wrong_sign(*arguments: Any, inverse: bool, **options: Any) -> Any:
    return rope_eager(*arguments, inverse=not inverse, **options)


def unwritten(q: torch.Tensor, k: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    return torch.empty_like(q), rope_eager(q, k, *arguments, **options)[1]


def tail_changed(*arguments: Any, **options: Any) -> Any:
    outputs = rope_eager(*arguments, **options)
    outputs[1][..., -1] += 1
    return outputs


def input_changed(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, *arguments: Any, **options: Any
) -> Any:
    outputs = rope_eager(q, k, cos, *arguments, **options)
    cos.mul_(2)
    return outputs


def value_changed(q: torch.Tensor, k: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    """Of a packed buffer."""
    k.as_strided((1,), (1,), k.storage_offset() + k.shape[-2] * k.shape[-1]).fill_(7)
    return rope_eager(q, k, *arguments, **options)


def written_before_q(q: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    q.as_strided((1,), (1,), q.storage_offset() - 1).fill_(7)
    return rope_eager(q, *arguments, **options)


def written_past_the_output(q: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    outputs = rope_eager(q, *arguments, **options)
    out = torch.empty_like(q).copy_(outputs[0])
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(7)
    return out, outputs[1]


def wrong_dtype(*arguments: Any, **options: Any) -> Any:
    return tuple(x.double() for x in rope_eager(*arguments, **options))


def raises(*_: Any, **__: Any) -> Any:
    raise ValueError("no")
