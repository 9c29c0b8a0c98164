"""Input that must be refused: how to make it from a valid call, and what a refusal leaves behind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from properties.failures import InputChanged, MissingError
from properties.implementations import Implementation
from properties.judge import call_options
from strategies import Arena, RopeCase

# RopeError is a ValueError; an implementation of another project may say it in its own way.
REFUSALS = (ValueError, TypeError, NotImplementedError)


@dataclass
class Arguments:
    """The arguments of one call, to be spoilt."""

    q: Any
    k: Any
    cos: Any
    sin: Any
    positions: Any
    options: dict[str, Any]


def arguments(case: RopeCase, arena: Arena) -> Arguments:
    """The arguments of the case's call."""
    return Arguments(arena.q, arena.k, arena.cos, arena.sin, arena.positions, call_options(case, arena))


def check_refused(implementation: Implementation, arena: Arena, spoilt: Arguments, what: str) -> None:
    """MissingError unless the call refuses its input; InputChanged when it wrote before it refused."""
    a = spoilt
    try:
        implementation.call(a.q, a.k, a.cos, a.sin, a.positions, **a.options)
    except REFUSALS as refusal:
        if not str(refusal):
            raise MissingError(f"{what}: {type(refusal).__name__} without a word") from refusal
    except Exception as other:
        raise MissingError(
            f"{what}: raised {type(other).__name__} ({other}), expected a ValueError that says what is wrong"
        ) from other
    else:
        raise MissingError(f"{what}: accepted, expected an error")
    for guarded in arena.buffers:
        changed = int(guarded.changed().sum())
        if changed:
            names = " and ".join(guarded.views)
            raise InputChanged(f"{what}: refused, but {changed} elements of {names} or around it changed")


Spoil = Callable[[Arguments], object]

# Each entry makes one thing of a valid call wrong; it returns False where the call has no such thing.
SPOILERS: dict[str, Spoil] = {}


def _spoiler(function: Spoil) -> Spoil:
    SPOILERS[function.__name__.removeprefix("_").replace("_", " ")] = function
    return function


@_spoiler
def _q_is_a_list(a: Arguments) -> None:
    a.q = a.q.tolist()


@_spoiler
def _cos_is_none(a: Arguments) -> None:
    a.cos = None


@_spoiler
def _q_holds_integers(a: Arguments) -> None:
    a.q = a.q.to(torch.int64)


@_spoiler
def _q_holds_complex_numbers(a: Arguments) -> None:
    a.q = a.q.to(torch.complex64)


@_spoiler
def _k_has_another_dtype(a: Arguments) -> bool:
    if a.k is None:
        return False
    a.k = a.k.to(torch.float16 if a.k.dtype == torch.float32 else torch.float32)
    return True


@_spoiler
def _sin_has_another_dtype(a: Arguments) -> None:
    a.sin = a.sin.to(torch.float16 if a.sin.dtype == torch.float32 else torch.float32)


@_spoiler
def _tables_hold_integers(a: Arguments) -> None:
    a.cos, a.sin = a.cos.to(torch.int32), a.sin.to(torch.int32)


@_spoiler
def _tables_are_wider_than_q(a: Arguments) -> bool:
    a.cos, a.sin = a.cos.double(), a.sin.double()
    return bool(a.q.dtype != torch.float64)


@_spoiler
def _positions_are_floats(a: Arguments) -> bool:
    if a.positions is None:
        return False
    a.positions = a.positions.float()
    return True


@_spoiler
def _positions_are_bytes(a: Arguments) -> bool:
    if a.positions is None:
        return False
    a.positions = a.positions.to(torch.uint8)
    return True


@_spoiler
def _one_position_missing(a: Arguments) -> bool:
    if a.positions is None or a.positions.shape[-1] == 0:
        return False
    a.positions = a.positions[..., 1:]
    return True


@_spoiler
def _positions_have_a_third_axis(a: Arguments) -> bool:
    if a.positions is None:
        return False
    a.positions = a.positions[None, None]
    return True


@_spoiler
def _q_has_two_axes(a: Arguments) -> None:
    a.q = a.q.flatten(0, -2) if a.q.numel() else a.q.reshape(-1, a.q.shape[-1])


@_spoiler
def _q_has_five_axes(a: Arguments) -> None:
    a.q = a.q.reshape(*[1] * (5 - a.q.dim()), *a.q.shape)


@_spoiler
def _k_has_another_rank(a: Arguments) -> bool:
    if a.k is None:
        return False
    a.k = a.k[None] if a.k.dim() == 3 else a.k.flatten(0, 1)
    return True


@_spoiler
def _k_has_another_head_dim(a: Arguments) -> bool:
    if a.k is None:
        return False
    a.k = torch.cat((a.k, a.k), -1)
    return bool(a.q.shape[-1])


@_spoiler
def _k_has_one_token_more(a: Arguments) -> bool:
    if a.k is None:
        return False
    tokens = a.q.dim() - (2 if a.options["head_axis"] != -2 else 3)
    a.k = torch.cat((a.k, a.k.new_zeros(*a.k.shape[:tokens], 1, *a.k.shape[tokens + 1 :])), tokens)
    return True


@_spoiler
def _sin_is_one_row_short(a: Arguments) -> bool:
    if len(a.sin) == 0:
        return False
    a.sin = a.sin[:-1]
    return True


@_spoiler
def _table_holds_every_angle_twice(a: Arguments) -> bool:
    a.cos, a.sin = torch.cat((a.cos, a.cos), -1), torch.cat((a.sin, a.sin), -1)
    return bool(a.cos.shape[-1])


@_spoiler
def _table_has_one_axis(a: Arguments) -> None:
    a.cos, a.sin = a.cos.reshape(-1), a.sin.reshape(-1)


@_spoiler
def _table_has_four_axes(a: Arguments) -> None:
    a.cos, a.sin = (t.reshape(*[1] * (4 - t.dim()), *t.shape) for t in (a.cos, a.sin))


@_spoiler
def _gathered_table_beside_positions(a: Arguments) -> bool:
    if a.positions is None or a.cos.dim() != 2:
        return False
    a.cos, a.sin = a.cos[None], a.sin[None]
    return True


@_spoiler
def _axes_without_positions(a: Arguments) -> bool:
    a.positions = None
    return "axes" in a.options


@_spoiler
def _axes_beside_positions_in_one_row(a: Arguments) -> bool:
    if "axes" not in a.options:
        return False
    a.positions = a.positions.flatten()
    return True


@_spoiler
def _positions_of_several_axes_without_axes(a: Arguments) -> bool:
    # With as many axes as batch rows, (axes, tokens) is (batch, tokens).
    axes = a.options.pop("axes", None)
    return axes is not None and not (a.q.dim() == 4 and a.positions.shape[:-1] == a.q.shape[:1])


@_spoiler
def _axes_hold_floats(a: Arguments) -> bool:
    if "axes" not in a.options:
        return False
    a.options["axes"] = a.options["axes"].float()
    return True


@_spoiler
def _one_axis_missing(a: Arguments) -> bool:
    if "axes" not in a.options or not len(a.options["axes"]):
        return False
    a.options["axes"] = a.options["axes"][1:]
    return True


@_spoiler
def _unknown_layout(a: Arguments) -> None:
    a.options["layout"] = "interleaved"


@_spoiler
def _odd_rot_dim(a: Arguments) -> None:
    a.options["rot_dim"] += 1


@_spoiler
def _negative_rot_dim(a: Arguments) -> None:
    a.options["rot_dim"] = -2


@_spoiler
def _rot_dim_is_not_the_table_s(a: Arguments) -> None:
    a.options["rot_dim"] += 2


@_spoiler
def _rot_offset_past_the_tail(a: Arguments) -> None:
    a.options["rot_offset"] = a.q.shape[-1] - a.options["rot_dim"] + 1


@_spoiler
def _negative_rot_offset(a: Arguments) -> None:
    a.options["rot_offset"] = -1


@_spoiler
def _head_axis_is_head_dim(a: Arguments) -> None:
    a.options["head_axis"] = -1


@_spoiler
def _head_axis_past_the_last(a: Arguments) -> None:
    a.options["head_axis"] = 4


@_spoiler
def _in_place_on_an_expanded_axis(a: Arguments) -> bool:
    a.options["inplace"] = True
    a.q = a.q[..., :1, :1, :].expand(a.q.shape) if a.q.numel() else a.q
    return a.q.shape[-3] * a.q.shape[-2] > 1 and a.q.numel() > 0


@_spoiler
def _in_place_on_q_twice(a: Arguments) -> bool:
    a.options["inplace"] = True
    a.k = a.q
    return bool(a.q.numel())


@_spoiler
def _tables_on_another_device(a: Arguments) -> None:
    a.cos, a.sin = a.cos.to("meta"), a.sin.to("meta")


@_spoiler
def _more_tokens_than_rows(a: Arguments) -> bool:
    if a.positions is not None or a.cos.dim() != 2 or len(a.cos) == 0:
        return False
    tokens = a.q.shape[-2 if a.options["head_axis"] != -2 else -3]
    if tokens == 0:
        return False
    a.cos, a.sin = a.cos[: tokens - 1], a.sin[: tokens - 1]
    return True
