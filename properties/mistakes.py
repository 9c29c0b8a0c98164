"""The known ways of getting RoPE wrong, one line each, as transformations of the oracle."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from properties.oracle import Array
from properties.scene import Angles, Dims, Prediction, Scene


@dataclass(frozen=True)
class Mistake:
    """A known way of getting RoPE wrong.

    Attributes:
        name: may hold {layout}, {other} (layout) and {dtype}.
        predict: what a kernel with it returns, or None where it makes no difference by construction.
    """

    name: str
    predict: Callable[[Scene], Prediction | None]


def _other(scene: Scene) -> tuple[Dims, Dims]:
    return scene.pairs(layout="gptj" if scene.case.layout == "neox" else "neox")


def _end(scene: Scene, offset: int) -> Prediction | None:
    return None if offset == scene.case.rot_offset else scene.rotate(read=scene.pairs(rot_offset=offset))


def _half_head(scene: Scene) -> Prediction | None:
    # Adjacent pairs have no distance that could be confused.
    neox = scene.case.layout == "neox"
    return scene.rotate(read=(scene.lo, scene.lo + scene.case.head_dim // 2)) if neox else None


def _k_like_q(scene: Scene, **how: Any) -> Prediction | None:
    return scene.strided(**how) if scene.name == "k" else None


def _before(x: Array, axis: int) -> Array:
    """Every row replaced by the one before it along an axis; the first stays."""
    return np.concatenate([x.take([0], axis), x.take(range(x.shape[axis] - 1), axis)], axis)


def _first(x: Any, axis: int) -> Any:
    return np.broadcast_to(x.take([0], axis), x.shape)


def _crossed(scene: Scene) -> Prediction | None:
    other = {"q": "k", "k": "q"}[scene.name]
    return scene.rotate(x=scene.arena.inputs[other].double().numpy()) if other in scene.arena.inputs else None


def _shifted(scene: Scene, by: int) -> Prediction | None:
    """Positions of the neighbour: by = 1 is the token before, -1 the token after."""
    clipped = np.clip(scene.n - by, 0, scene.n.size - 1)
    return scene.at(scene.rows[:, clipped])


def _on_axes(scene: Scene, change: Callable[[Dims], Dims]) -> Prediction | None:
    """The pairs read other axes, where positions have several."""
    return None if scene.axes is None else scene.at(scene.by_pair(change(scene.axes)))


def _swapped(scene: Scene, one: int, other: int) -> Prediction | None:
    return _on_axes(scene, lambda axes: np.where(axes == one, other, np.where(axes == other, one, axes)))


def _columns_by_section(scene: Scene) -> Prediction | None:
    if scene.axes is None:
        return None
    first = {axis: i for i, axis in reversed(list(enumerate(scene.axes.tolist())))}
    columns = scene.pair - np.array([first[axis] for axis in scene.axes.tolist()], dtype=np.int64)
    return scene.rotate(angles=scene.table(columns=columns))


MISTAKES = (
    Mistake("not rotated at all", lambda s: s.rotate(angles=Angles(np.ones(len(s.lo)), np.zeros(len(s.lo))))),
    Mistake("rotated twice", lambda s: s.rotate(x=s.done())),
    Mistake("the sign of sin flipped (the inverse rotation)", lambda s: s.rotate(signs=(1, -1))),
    Mistake("the sign of sin flipped in the first of each pair", lambda s: s.rotate(signs=(1, 1))),
    Mistake("the sign of sin flipped in the second of each pair", lambda s: s.rotate(signs=(-1, -1))),
    Mistake("cos and sin swapped", lambda s: s.rotate(angles=Angles(s.angles.sin, s.angles.cos))),
    Mistake("{other} pairs on a {layout} case", lambda s: s.rotate(read=_other(s))),
    Mistake(
        "{other} pairs on a {layout} case, stored in {layout} order",
        lambda s: s.rotate(read=_other(s), write=(s.lo, s.hi)),
    ),
    Mistake("the pair at head_dim / 2 instead of rot_half", _half_head),
    Mistake("the wrong end rotated", lambda s: _end(s, s.case.tail - s.case.rot_offset)),
    Mistake("rot_offset ignored", lambda s: _end(s, 0)),
    Mistake("the second of each pair from the rotated first", lambda s: s.rotate(x=s.partly_done(s.lo))),
    Mistake("the first of each pair from the rotated second", lambda s: s.rotate(x=s.partly_done(s.hi))),
    Mistake("the index of the token instead of its position", lambda s: s.at(s.token)),
    Mistake(
        "the index of the token in the whole batch instead of its position",
        lambda s: s.at(s.token + s.b[:, None] * s.n.size) if s.b.size > 1 else None,
    ),
    Mistake("the index of the token in its request, without the start", lambda s: s.at(s.from_start)),
    Mistake("the index of the head instead of the position", lambda s: s.at(s.token[..., None] * 0 + s.h)),
    Mistake("the index of the batch row instead of the position", lambda s: s.at(s.token * 0 + s.b[:, None])),
    Mistake("the position of the token before", lambda s: _shifted(s, 1)),
    Mistake("the position of the token after", lambda s: _shifted(s, -1)),
    Mistake("the position of the first token for all", lambda s: s.at(_first(s.rows, 1))),
    Mistake("the positions of the first batch row for all", lambda s: s.at(_first(s.rows, 0))),
    Mistake("the position one too low", lambda s: s.at(s.rows - 1)),
    Mistake("the position one too high", lambda s: s.at(s.rows + 1)),
    Mistake("axis 0 of the positions for every pair", lambda s: _on_axes(s, lambda axes: axes * 0)),
    Mistake("axes 1 and 2 of the positions swapped", lambda s: _swapped(s, 1, 2)),
    Mistake("axes 0 and 1 of the positions swapped", lambda s: _swapped(s, 0, 1)),
    Mistake("the axis of the pair before", lambda s: _on_axes(s, lambda a: a[np.maximum(s.pair - 1, 0)])),
    Mistake("the axes of the pairs sorted, interleaved sections as chunked", lambda s: _on_axes(s, np.sort)),
    Mistake("the exponent started again in each section", _columns_by_section),
    Mistake("positions read with stride 1", lambda s: s.positions_read()),
    Mistake("int64 positions read as int32", lambda s: s.positions_read(torch.int32)),
    Mistake("table rows taken as dense", lambda s: s.rotate(angles=s.table(row_stride=s.case.rot_half))),
    Mistake("table rows rot_dim apart", lambda s: s.rotate(angles=s.table(row_stride=2 * s.case.rot_half))),
    Mistake("table column 2i for pair i", lambda s: s.rotate(angles=s.table(columns=2 * s.pair))),
    Mistake("table column i // 2 for pair i", lambda s: s.rotate(angles=s.table(columns=s.pair // 2))),
    Mistake("table column of the dim instead of the pair", lambda s: s.wide_table()),
    Mistake(
        "the first batch row of a gathered table for all",
        lambda s: s.rotate(angles=s.table(s.token)) if s.case.table == "gathered" else None,
    ),
    Mistake("the table rounded to {dtype}", lambda s: s.rotate(angles=s.table(dtype=s.dtype))),
    Mistake("the table rounded to bfloat16", lambda s: s.rotate(angles=s.table(dtype=torch.bfloat16))),
    Mistake("products rounded to {dtype} before the sum", lambda s: s.rotate(rounded=True)),
    Mistake(
        "table and products rounded to {dtype} before the sum",
        lambda s: s.rotate(rounded=True, angles=s.table(dtype=s.dtype)),
    ),
    Mistake("truncated to {dtype} instead of rounded", lambda s: s.rotate(store=s.truncated)),
    Mistake("strides ignored, the tensor taken as contiguous", lambda s: s.strided()),
    Mistake("k read with the strides of q", lambda s: _k_like_q(s, like="q")),
    Mistake("k read with the head count of q", lambda s: _k_like_q(s, heads=s.case.q_heads)),
    Mistake("the values of q and k crossed", _crossed),
    Mistake("the row of the token before", lambda s: s.rotate(x=_before(s.x, 1))),
    Mistake("the row of the head before", lambda s: s.rotate(x=_before(s.x, 2))),
    Mistake("the row of the first token for all", lambda s: s.rotate(x=_first(s.x, 1))),
    Mistake("the row of the first head for all", lambda s: s.rotate(x=_first(s.x, 2))),
    Mistake("the tail of the token before", lambda s: s.rotate(tail=_before(s.x, 1))),
    Mistake("the tail of the head before", lambda s: s.rotate(tail=_before(s.x, 2))),
    Mistake("the tail of the first head for all", lambda s: s.rotate(tail=_first(s.x, 2))),
    Mistake("zeros in the tail", lambda s: s.rotate(tail=np.zeros_like(s.x))),
)  # fmt: skip
