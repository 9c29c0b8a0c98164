"""The truth: a float64 rotation of the same rounded inputs, by the definition, element by element.

Shares no code with rope/: NumPy, explicit index arithmetic, and the tables as they were passed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strategies import Arena, RopeCase

Array = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Exact:
    """One tensor's exact rotation, in (batch, token, head, dim) of all dims.

    Attributes:
        value: the exact result; the input itself on the tail.
        first, second: the two signed products whose sum is the result; (input, 0) on the tail.
        rotated: which dims rotate, (head_dim,).
    """

    value: Array
    first: Array
    second: Array
    rotated: npt.NDArray[np.bool_]


def pair_dims(case: RopeCase) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The dims of the first and of the second element of every pair."""
    pair = np.arange(case.rot_half)
    if case.layout == "neox":
        return case.rot_offset + pair, case.rot_offset + pair + case.rot_half
    return case.rot_offset + 2 * pair, case.rot_offset + 2 * pair + 1


def angles(arena: Arena) -> tuple[Array, Array]:
    """cos and sin of every token, (batch, token, 1, pair), as the implementation should read them."""
    cos = arena.inputs["cos"].double().numpy()[:, :, None, :]
    sin = arena.inputs["sin"].double().numpy()[:, :, None, :]
    return cos, -sin if arena.case.inverse else sin


def exact_rotation(arena: Arena, name: str) -> Exact:
    """The exact rotation of "q" or "k" of this arena."""
    x = arena.inputs[name].double().numpy()
    cos, sin = angles(arena)
    if arena.case.dtype == "float64":
        # Wider where the machine has it, so that an overflow of float64 is told from an infinite input.
        x, cos, sin = (a.astype(np.longdouble) for a in (x, cos, sin))
    lo_dims, hi_dims = pair_dims(arena.case)
    lo, hi = x[..., lo_dims], x[..., hi_dims]
    first, second = x.copy(), np.zeros_like(x)
    with np.errstate(all="ignore"):
        first[..., lo_dims], second[..., lo_dims] = lo * cos, -(hi * sin)
        first[..., hi_dims], second[..., hi_dims] = hi * cos, lo * sin
        value = x.copy()
        rotated = np.zeros(arena.case.head_dim, dtype=bool)
        rotated[lo_dims] = rotated[hi_dims] = True
        value[..., rotated] = (first + second)[..., rotated]
    return Exact(value, first, second, rotated)
