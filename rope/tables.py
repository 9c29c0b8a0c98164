"""The cos/sin table: positions times frequencies.

Pure functions: nothing is cached, registered or grown, so a table cannot go stale, be cast with a
model or be left uninitialised by a loader (docs/tables.md says why there is no table module).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rope.errors import RopeError
from rope.scaling import Rule, plain_frequencies

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_ROWS = 1 << 16  # rows built at once: bounds the float64 temporaries of a table of millions of rows


@dataclass(frozen=True, eq=False)
class RopeTable:
    """cos and sin for the positions 0 .. max_position - 1.

    Iterates as cos, sin: `cos, sin = rope_table(...)`, `apply_rope(q, k, *rope_table(...))`.

    Attributes:
        cos: float32, `(max_position, rot_dim // 2)`, with attention_factor multiplied in.
        sin: like cos.
        attention_factor: the rule's factor. It is part of cos and of sin already, so that q and k
            are both scaled by it and the scores by its square, as the models are trained.
        softmax_factor: not part of cos and sin: the caller multiplies it into the softmax scale.
            1 except for DeepSeek's models.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    attention_factor: float = 1.0
    softmax_factor: float = 1.0

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield self.cos
        yield self.sin


def rope_frequencies(
    rot_dim: int,
    base: float = 10000.0,
    *,
    rule: Rule | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Radians per position of each pair, `(rot_dim // 2,)` of `dtype`, on the CPU.

    Raises RopeError as `rope_table` does.
    """
    if not isinstance(rot_dim, int) or rot_dim < 0 or rot_dim % 2:
        raise RopeError(f"rot_dim must be an even number of dims, got {rot_dim!r}")
    if not isinstance(base, int | float) or not 1 < base < math.inf:
        raise RopeError(f"base (rope_theta) must be a number above 1, got {base!r}")
    with torch.inference_mode(False):
        if rule is None:
            return plain_frequencies(rot_dim, base, dtype)
        return rule.frequencies(rot_dim, base, dtype)


def rope_table(
    rot_dim: int,
    max_position: int,
    base: float = 10000.0,
    *,
    rule: Rule | None = None,
    precision: str = "float32",
    device: torch.device | str | None = None,
) -> RopeTable:
    """cos and sin of position * frequency for every position below max_position.

    Args:
        rot_dim: dims that rotate, even: int(head_dim * partial_rotary_factor), not head_dim.
        max_position: rows. Positions at or beyond it are outside the table.
        base: called rope_theta in configurations.
        rule: how the frequencies are stretched (rope.scaling); None uses them as they are.
        precision: "float32" computes frequencies and angles in float32, as the models were trained:
            the same bits as transformers 5.24 on the CPU. "float64" computes everything in float64
            and rounds once; docs/tables.md shows from which positions that matters.
        device: where the table goes; None is the CPU, whatever torch's default device is. The
            values are always computed on the CPU, so they do not depend on the device.

    Returns:
        A RopeTable of float32 tensors.

    Raises:
        RopeError: rot_dim odd or negative, max_position negative, base not above 1, an unknown
            precision, or a rule that does not fit rot_dim.
    """
    if not isinstance(max_position, int) or max_position < 0:
        raise RopeError(f"max_position must be a number of rows, got {max_position!r}")
    if precision not in _DTYPES:
        raise RopeError(f"precision must be one of {', '.join(_DTYPES)}, got {precision!r}")
    dtype = _DTYPES[precision]
    frequencies = rope_frequencies(rot_dim, base, rule=rule, dtype=dtype)
    factor = 1.0 if rule is None else rule.cos_sin_factor()
    # outside inference mode, so that training can save the table for its backward pass
    with torch.inference_mode(False):
        shape = (max_position, rot_dim // 2)
        cos = torch.empty(shape, dtype=torch.float32, device=device or "cpu")
        sin = torch.empty_like(cos)
        for start in range(0, max_position, _ROWS):
            stop = min(start + _ROWS, max_position)
            positions = torch.arange(start, stop, dtype=dtype, device="cpu")
            angles = positions[:, None] * frequencies
            cos[start:stop] = angles.cos() * factor
            sin[start:stop] = angles.sin() * factor
    return RopeTable(cos, sin, factor, 1.0 if rule is None else rule.softmax_factor())
