"""The contract of apply_rope in plain PyTorch: runs on any device, shares no arithmetic with the kernels."""

import torch

from rope.checks import Geometry


def rotate(
    q: torch.Tensor,
    k: torch.Tensor | None,
    q_out: torch.Tensor,
    k_out: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    geometry: Geometry,
    *,
    inverse: bool,
) -> None:
    """Rotate q and k into q_out and k_out (which may be q and k); checks nothing."""
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    cos = _per_token(cos, positions, geometry.tokens).to(compute)
    sin = _per_token(sin, positions, geometry.tokens).to(compute)
    if inverse:
        sin = -sin
    for x, out in ((q, q_out), (k, k_out)):
        if x is not None and out is not None:
            _rotate_one(geometry.bnhd(x), geometry.bnhd(out), cos, sin, geometry)
            if out is not x:
                _copy_tail(geometry.bnhd(x), geometry.bnhd(out), geometry)


def _per_token(table: torch.Tensor, positions: torch.Tensor | None, tokens: int) -> torch.Tensor:
    """Table rows as (batch or 1, tokens, 1, rot_half); NaN where a position is outside the table."""
    if positions is None:
        rows = table if table.dim() == 3 else table[:tokens].unsqueeze(0)
        return rows.unsqueeze(-2)
    index = positions.long()
    outside = (index < 0) | (index >= table.shape[0])
    if table.shape[0] == 0:
        rows = table.new_full((*index.shape, table.shape[1]), float("nan"))
    else:
        rows = table[index.masked_fill(outside, 0)].masked_fill(outside.unsqueeze(-1), float("nan"))
    return rows.unsqueeze(-2) if rows.dim() == 3 else rows.unsqueeze(0).unsqueeze(-2)


def _rotate_one(
    x: torch.Tensor, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, geometry: Geometry
) -> None:
    start, half = geometry.rot_offset, geometry.rot_half
    end = start + 2 * half
    if geometry.layout == "neox":
        first, second = slice(start, start + half), slice(start + half, end)
    else:
        first, second = slice(start, end, 2), slice(start + 1, end, 2)
    lo = x[..., first].to(cos.dtype)
    hi = x[..., second].to(cos.dtype)
    rotated_lo = lo * cos - hi * sin
    rotated_hi = hi * cos + lo * sin
    out[..., first].copy_(rotated_lo)
    out[..., second].copy_(rotated_hi)


def _copy_tail(x: torch.Tensor, out: torch.Tensor, geometry: Geometry) -> None:
    start = geometry.rot_offset
    end = start + 2 * geometry.rot_half
    out[..., :start].copy_(x[..., :start])
    out[..., end:].copy_(x[..., end:])
