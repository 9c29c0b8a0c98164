"""RoPE over several position axes: which axis each pair reads, and tables of vision towers."""

from collections.abc import Sequence

import torch

from rope.errors import PositionError, RopeError
from rope.tables import RopeTable, rope_table


def mrope_axes(section: Sequence[int], interleaved: bool = False) -> torch.Tensor:
    """The position axis each pair reads, `(rot_half,)` int64 on the CPU.

    Pair i of a token turns by positions[axes[i], token] * omega_i: the axis changes, the exponent of
    omega_i does not start again.

    Args:
        section: pairs of each axis, `mrope_section` of the configuration; for Qwen-VL time, height,
            width. The sum is rot_half.
        interleaved: False: the pairs of one axis are contiguous (Qwen2-VL), any number of axes. True
            (Qwen3-VL): with three axes, height at pairs 1, 4, 7 ..., width at 2, 5, 8 ..., time at
            all others.

    Raises:
        RopeError: a negative count, or an interleaved section that is not three axes or cannot give
            height and width every third pair.
    """
    counts = list(section)
    if not counts or any(not isinstance(count, int) or count < 0 for count in counts):
        raise RopeError(f"section must count the pairs of each axis, got {section!r}")
    if not interleaved:
        axes_of_pairs = [axis for axis, count in enumerate(counts) for _ in range(count)]
        return torch.tensor(axes_of_pairs, dtype=torch.int64, device="cpu")
    if len(counts) != 3:
        raise RopeError(f"an interleaved section has three axes (time, height, width), got {section!r}")
    axes = torch.zeros(sum(counts), dtype=torch.int64, device="cpu")
    for axis in (1, 2):
        axes[axis : 3 * counts[axis] : 3] = axis
        given = int((axes == axis).sum())
        if given != counts[axis]:
            raise RopeError(
                f"interleaved section {section!r}: every third of {sum(counts)} pairs leaves {given} for "
                f"axis {axis}, not {counts[axis]}"
            )
    return axes


def vision_rope_table(
    rot_dim: int,
    max_position: int,
    base: float = 10000.0,
    *,
    precision: str = "float32",
    device: torch.device | str | None = None,
) -> RopeTable:
    """The table of a vision tower that turns half its pairs by the row and half by the column.

    Unlike mRoPE the exponent starts again at the second half: both halves have the frequencies of a
    table of rot_dim // 2 dims. Read it with `vision_axes(rot_dim)`.

    Args:
        rot_dim: head_dim of the tower, a multiple of 4.
        max_position, base, precision, device: as for `rope_table`; max_position must exceed every row
            and column of the grid.

    Raises:
        RopeError: as `rope_table`, or rot_dim not a multiple of 4.
    """
    _check_vision(rot_dim)
    cos, sin = rope_table(rot_dim // 2, max_position, base, precision=precision, device=device)
    return RopeTable(torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))


def vision_axes(rot_dim: int) -> torch.Tensor:
    """`(rot_dim // 2,)`: 0 (the row) for the first half of the pairs, 1 (the column) for the second."""
    _check_vision(rot_dim)
    return mrope_axes((rot_dim // 4, rot_dim // 4))


def gather_axes(table: RopeTable, positions: torch.Tensor, axes: torch.Tensor) -> RopeTable:
    """cos and sin of each token with every pair read at the position of its own axis.

    Plain indexing, for kernels without several axes, for any device: synchronises with the host.

    Args:
        table: `(max_position, rot_half)`.
        positions: `(axes, tokens)` or `(axes, batch, tokens)`, int32 or int64.
        axes: `(rot_half,)`, from `mrope_axes` or `vision_axes`.

    Returns:
        A RopeTable of `(tokens, rot_half)` or `(batch, tokens, rot_half)`; the latter is what
        `apply_rope(..., positions=None)` takes.

    Raises:
        PositionError: a position outside the table.
        RopeError: axes that do not fit the table or the positions.
    """
    max_position, rot_half = table.cos.shape
    if axes.shape != (rot_half,):
        raise RopeError(f"axes has shape {tuple(axes.shape)}, the table needs ({rot_half},)")
    if rot_half and int(axes.max()) >= positions.shape[0]:
        raise RopeError(
            f"axes reads position axis {int(axes.max())}, positions has {positions.shape[0]} axes"
        )
    if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < max_position:
        raise PositionError(
            f"positions reach from {int(positions.min())} to {int(positions.max())}, the table from 0 to "
            f"{max_position - 1}"
        )
    rows = positions.long()[axes.to(positions.device)].movedim(0, -1)
    pairs = torch.arange(rot_half, device=table.cos.device)
    return RopeTable(
        table.cos[rows, pairs], table.sin[rows, pairs], table.attention_factor, table.softmax_factor
    )


def _check_vision(rot_dim: int) -> None:
    if not isinstance(rot_dim, int) or rot_dim < 0 or rot_dim % 4:
        raise RopeError(f"rot_dim of a vision tower must be a multiple of 4, got {rot_dim!r}")
