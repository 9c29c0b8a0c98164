"""Positions of the tokens of a ragged batch."""

import torch

from rope.checks import POSITION_DTYPES
from rope.errors import RopeError


def ragged_positions(
    cu_seqlens: torch.Tensor, starts: torch.Tensor | None = None, total: int | None = None
) -> torch.Tensor:
    """Position of every token of a ragged batch: its index in its own request plus the request's start.

    Args:
        cu_seqlens: `(requests + 1,)`, int32 or int64: where each request starts on the token axis, then
            the end of the last; first 0, never decreasing (an empty request repeats its value).
        starts: `(requests,)`, same dtype family: position of each request's first token, for requests
            that continue a cached prefix; None means 0 for all.
        total: length of the token axis. Given, nothing synchronises with the host, and tokens past the
            last request (padding of a fixed-size batch) get position 0. None reads it from cu_seqlens.

    Returns:
        `(total,)` positions on the device and in the dtype of cu_seqlens.

    Raises:
        RopeError: a wrong dtype, shape or device.
    """
    _check(cu_seqlens, starts, total)
    if total is None:
        total = int(cu_seqlens[-1])
    token = torch.arange(total, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    request = torch.searchsorted(cu_seqlens.contiguous(), token, right=True) - 1
    requests = cu_seqlens.numel() - 1
    if requests == 0:
        return torch.zeros_like(token)
    live = request < requests
    request = request.clamp(max=requests - 1)
    position = token - cu_seqlens[request]
    if starts is not None:
        position = position + starts[request].to(position.dtype)
    return position.masked_fill(~live, 0)


def _check(cu_seqlens: torch.Tensor, starts: torch.Tensor | None, total: int | None) -> None:
    for name, value in (("cu_seqlens", cu_seqlens), ("starts", starts)):
        if value is None:
            continue
        if not isinstance(value, torch.Tensor):
            raise RopeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
        if value.dtype not in POSITION_DTYPES or value.dim() != 1:
            raise RopeError(
                f"{name} has dtype {value.dtype} and shape {tuple(value.shape)}, expected one axis of "
                "torch.int32 or torch.int64"
            )
    if cu_seqlens.numel() == 0:
        raise RopeError("cu_seqlens is empty, expected (requests + 1,) values starting with 0")
    if starts is not None and starts.numel() != cu_seqlens.numel() - 1:
        raise RopeError(
            f"starts has {starts.numel()} values, expected {cu_seqlens.numel() - 1}, one per request of "
            "cu_seqlens"
        )
    if starts is not None and starts.device != cu_seqlens.device:
        raise RopeError(f"starts is on {starts.device} but cu_seqlens is on {cu_seqlens.device}")
    if total is not None and total < 0:
        raise RopeError(f"total is {total}, expected the length of the token axis or None")
