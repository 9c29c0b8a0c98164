"""The contract of apply_rope in the forms that other functions take."""

from collections.abc import Callable

import torch

Rotate = Callable[[torch.Tensor, "int | torch.Tensor", torch.Tensor | None], torch.Tensor]


def full_width(table: torch.Tensor) -> torch.Tensor:
    """The table beside itself, `(..., rot_dim)`, in memory that the harness watches over."""
    half = table.shape[-1]
    wide = torch.empty((*table.shape[:-1], 2 * half), dtype=table.dtype, device=table.device)
    wide[..., :half] = table
    wide[..., half:] = table
    return wide


def cos_then_sin(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """One table, `(max_position, rot_dim)`: cos, then sin; in memory that the harness watches over."""
    half = cos.shape[-1]
    both = torch.empty((len(cos), 2 * half), dtype=cos.dtype, device=cos.device)
    both[:, :half] = cos
    both[:, half:] = sin
    return both


def token_positions(q: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """Positions `(tokens,)` of q `(tokens, heads, head_dim)`, where None means 0, 1, 2, ..."""
    return torch.arange(len(q), device=q.device) if positions is None else positions


def by_sequence(x: torch.Tensor, positions: torch.Tensor | None, rotate: Rotate) -> torch.Tensor:
    """Rotate x with a function that takes a first position per sequence instead of positions.

    Args:
        x: `(tokens, heads, head_dim)`, many sequences; or `(batch, tokens, heads, head_dim)`, one a row.
        positions: as in apply_rope.
        rotate: called with x, the first positions and cu_seqlens `(sequences + 1,)` int32; or with x, the
            first positions and None, where x has one sequence in each row.
    """
    if x.dim() == 4:
        if positions is None or not positions.numel():
            return rotate(x, 0, None)
        if not (positions.diff(dim=-1) == 1).all():
            rows = [
                by_sequence(row, p, rotate) for row, p in zip(x, positions.expand(x.shape[:2]), strict=True)
            ]
            return x if rows[0].data_ptr() == x.data_ptr() else torch.stack(rows)
        if positions.dim() == 1:
            return rotate(x, int(positions[0]), None)
        return rotate(x, positions[:, 0], None)
    positions = token_positions(x, positions)
    follows = positions.diff() == 1
    first = torch.cat([positions.new_zeros(1), 1 + (~follows).nonzero().flatten()])[: len(positions)]
    cu_seqlens = torch.cat([first, first.new_tensor([len(positions)])]).int()
    return rotate(x, positions[first], cu_seqlens)
