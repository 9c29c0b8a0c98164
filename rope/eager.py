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
    axes: torch.Tensor | None,
    geometry: Geometry,
    *,
    inverse: bool,
) -> None:
    """Rotate q and k into q_out and k_out (which may be q and k); checks nothing."""
    cos, sin = _angles(q.dtype, cos, sin, positions, axes, geometry, inverse)
    for x, out in ((q, q_out), (k, k_out)):
        if x is not None and out is not None:
            _rotate_one(geometry.bnhd(x), geometry.bnhd(out), cos, sin, geometry)
            if out is not x:
                _copy_tail(geometry.bnhd(x), geometry.bnhd(out), geometry)


def rotated(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    geometry: Geometry,
    *,
    inverse: bool,
) -> tuple[torch.Tensor, torch.Tensor] | torch.Tensor:
    """The rotation as a function that writes nothing, so that torch.func can transform it."""
    cos, sin = _angles(q.dtype, cos, sin, positions, axes, geometry, inverse)
    q_out = _rotated_one(q, cos, sin, geometry)
    return q_out if k is None else (q_out, _rotated_one(k, cos, sin, geometry))


def pairs(bnhd: torch.Tensor, geometry: Geometry) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the second element of every pair, in the dtype of the arithmetic."""
    first, second = _pair_dims(geometry)
    compute = _compute_dtype(bnhd.dtype)
    return bnhd[..., first].to(compute), bnhd[..., second].to(compute)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _angles(
    dtype: torch.dtype,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    axes: torch.Tensor | None,
    geometry: Geometry,
    inverse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every token, for activations of this dtype."""
    compute = _compute_dtype(dtype)
    rows = None if positions is None else table_rows(positions, axes)
    cos = _per_token(cos, rows, geometry.tokens).to(compute)
    sin = _per_token(sin, rows, geometry.tokens).to(compute)
    return cos, -sin if inverse else sin


def table_rows(positions: torch.Tensor, axes: torch.Tensor | None) -> torch.Tensor:
    """The table row of each pair of each token, (.., tokens, rot_half); of all pairs, (.., tokens, 1),
    without axes. Negative for a pair on an axis that positions lack."""
    rows = positions.long()
    if axes is None:
        return rows.unsqueeze(-1)
    lacking = (axes < 0) | (axes >= rows.shape[0])
    return rows[axes.long().masked_fill(lacking, 0)].movedim(0, -1).masked_fill(lacking, -1)


def _per_token(table: torch.Tensor, rows: torch.Tensor | None, tokens: int) -> torch.Tensor:
    """Table rows as (batch or 1, tokens, 1, rot_half); NaN where a position is outside the table."""
    if rows is None:
        found = table if table.dim() == 3 else table[:tokens].unsqueeze(0)
        return found.unsqueeze(-2)
    outside = (rows < 0) | (rows >= table.shape[0])
    if table.shape[0] == 0:
        found = table.new_full((*rows.shape[:-1], table.shape[1]), float("nan"))
    else:
        rows = rows.masked_fill(outside, 0)
        # One row for all pairs is quicker to look up.
        if rows.shape[-1] == 1:
            found = table[rows.squeeze(-1)]
        else:
            found = table[rows, torch.arange(table.shape[1], device=table.device)]
        found = found.masked_fill(outside, float("nan"))
    return found.unsqueeze(-2) if found.dim() == 3 else found.unsqueeze(0).unsqueeze(-2)


def _rotate_one(
    x: torch.Tensor, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, geometry: Geometry
) -> None:
    first, second = _pair_dims(geometry)
    rotated_lo, rotated_hi = _rotated_pairs(x, cos, sin, geometry)
    out[..., first].copy_(rotated_lo)
    out[..., second].copy_(rotated_hi)


def _rotated_one(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    bnhd = geometry.bnhd(x)
    lo, hi = (part.to(x.dtype) for part in _rotated_pairs(bnhd, cos, sin, geometry))
    turned = (lo, hi) if geometry.layout == "neox" else (torch.stack((lo, hi), -1).flatten(-2),)
    start = geometry.rot_offset
    end = start + 2 * geometry.rot_half
    out = torch.cat((bnhd[..., :start], *turned, bnhd[..., end:]), -1)
    out = out.transpose(1, 2) if geometry.heads_first else out
    return out if x.dim() == 4 else out.squeeze(0)


def _rotated_pairs(
    bnhd: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, geometry: Geometry
) -> tuple[torch.Tensor, torch.Tensor]:
    lo, hi = pairs(bnhd, geometry)
    return lo * cos - hi * sin, hi * cos + lo * sin


def _pair_dims(geometry: Geometry) -> tuple[slice, slice]:
    """The dims of the first and of the second element of every pair."""
    start, half = geometry.rot_offset, geometry.rot_half
    end = start + 2 * half
    if geometry.layout == "neox":
        return slice(start, start + half), slice(start + half, end)
    return slice(start, end, 2), slice(start + 1, end, 2)


def _copy_tail(x: torch.Tensor, out: torch.Tensor, geometry: Geometry) -> None:
    start = geometry.rot_offset
    end = start + 2 * geometry.rot_half
    out[..., :start].copy_(x[..., :start])
    out[..., end:].copy_(x[..., end:])
