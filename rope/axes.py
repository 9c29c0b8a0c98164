"""RoPE over several position axes: which axis each pair reads, and tables of vision towers."""

from collections.abc import Sequence

import torch

from rope.errors import RopeError
from rope.tables import RopeTable, rope_table


def mrope_axes(
    section: Sequence[int], interleaved: bool = False, *, device: torch.device | str | None = None
) -> torch.Tensor:
    """The position axis each pair reads, `(rot_half,)` int64: the `axes` of `apply_rope`.

    Pair i of a token turns by positions[axes[i], token] * omega_i: the axis changes, the exponent of
    omega_i does not start again.

    Args:
        section: pairs of each axis, `mrope_section` of the configuration; for Qwen-VL time, height,
            width. The sum is rot_half.
        interleaved: False: the pairs of one axis are contiguous (Qwen2-VL), any number of axes. True
            (Qwen3-VL): with three axes, height at pairs 1, 4, 7 ..., width at 2, 5, 8 ..., time at
            all others.
        device: where the tensor goes; None is the CPU, whatever torch's default device is.

    Raises:
        RopeError: a negative count, or an interleaved section that is not three axes or cannot give
            height and width every third pair.
    """
    counts = list(section)
    if not counts or any(not isinstance(count, int) or count < 0 for count in counts):
        raise RopeError(f"section must count the pairs of each axis, got {section!r}")
    if not interleaved:
        axes_of_pairs = [axis for axis, count in enumerate(counts) for _ in range(count)]
        return torch.tensor(axes_of_pairs, dtype=torch.int64, device=device or "cpu")
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
    return axes.to(device or "cpu")


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
    table of rot_dim // 2 dims. Rotate with positions (row, column) and `axes=vision_axes(rot_dim)`.

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


def vision_axes(rot_dim: int, *, device: torch.device | str | None = None) -> torch.Tensor:
    """`(rot_dim // 2,)`: 0 (the row) for the first half of the pairs, 1 (the column) for the second."""
    _check_vision(rot_dim)
    return mrope_axes((rot_dim // 4, rot_dim // 4), device=device)


def _check_vision(rot_dim: int) -> None:
    if not isinstance(rot_dim, int) or rot_dim < 0 or rot_dim % 4:
        raise RopeError(f"rot_dim of a vision tower must be a multiple of 4, got {rot_dim!r}")
