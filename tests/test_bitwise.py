"""The bitwise properties pass what is right and name what is not."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from properties import test_bitwise as properties
from properties.bitwise import rounded_once
from properties.failures import Failure, Mismatch, NotDeterministic
from properties.implementations import Implementation, bundled
from properties.oracle import Exact
from properties.property import Property
from strategies import Domain, RopeCase, Strides

EAGER = next(i for i in bundled("cpu") if i.name == "rope-eager")
CASE = RopeCase(requests=((3, 2),), q_heads=2, k_heads=2, rot_half=4, fill="normal", seed=1)
SIXTEEN_BIT = replace(CASE, dtype="bfloat16", table_dtype="input")


def exact(first: list[float], second: list[float]) -> Exact:
    p, q = np.array(first), np.array(second)
    with np.errstate(invalid="ignore"):
        return Exact(p + q, p, q, np.ones(len(first), dtype=bool))


def test_the_store_rounds_what_float32_holds() -> None:
    # 3 * 683 / 2048 is a tie of float16 between 1 and 1 + 2**-10; the second product breaks it, but is too
    # small for float32 to keep.
    tie = 3 * 683 / 2048
    value, certain = rounded_once(exact([tie, tie], [2.0**-30, 2.0**-20]), torch.float16)
    assert value.tolist() == [1.0, 1 + 2.0**-10]
    assert certain.tolist() == [True, True]


def test_subnormal_and_non_finite_results_are_certain() -> None:
    tiny, inf = 2.0**-133, float("inf")
    value, certain = rounded_once(exact([tiny, inf, inf, 3e38], [tiny, 1.0, -inf, 3e38]), torch.bfloat16)
    assert value[:2].tolist() == [2 * tiny, inf]
    assert value[2].isnan()
    assert value[3] == inf
    # 3e38 is no float32, so no product of two bfloat16 numbers that float32 holds.
    assert certain.tolist() == [True, True, True, False]


def test_products_that_float32_does_not_hold_are_not_judged() -> None:
    overflow, underflow = 2.0**129, (1 + 2.0**-7) * 2.0**-146
    _, certain = rounded_once(exact([overflow, underflow], [1.0, 0.0]), torch.bfloat16)
    assert certain.tolist() == [False, False]


def wrong_when(condition: Callable[..., bool], *args: Any, **options: Any) -> Any:
    """rope-eager, with the last bit of one element of each output changed when the condition holds."""
    outputs = EAGER.call(*args, **options)
    if condition(*args, **options):
        for out in outputs if isinstance(outputs, tuple) else (outputs,):
            patterns = out.view(torch.int32 if out.dtype == torch.float32 else torch.int16)
            patterns[(0,) * out.dim()] ^= 1
    return outputs


def fails(check: Property, case: RopeCase, condition: Callable[..., bool]) -> Failure | None:
    check.check(EAGER, case)
    broken = Implementation("broken", functools.partial(wrong_when, condition), Domain(tiles=(None, (1, 1))))
    try:
        check.check(broken, case)
    except Failure as failure:
        return failure
    return None


class Sometimes:
    """True at every second call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: Any, **__: Any) -> bool:
        self.calls += 1
        return self.calls % 2 == 0


STRIDED = replace(CASE, q_strides=Strides(dim_step=2), k_strides=Strides(token_pad=1), table_pad=3)
FAULTS: list[tuple[Property, RopeCase, Callable[..., bool], str]] = [
    (properties.test_repeated_runs_agree, CASE, Sometimes(), "in a second run"),
    (
        properties.test_strided_equals_dense,
        STRIDED,
        lambda q, *_, **__: q.is_contiguous(),
        "with q_strides=Strides(), k_strides=Strides(), table_pad=0",
    ),
    (
        properties.test_strided_equals_dense,
        replace(CASE, packed=True),
        lambda q, *_, **__: q.is_contiguous(),
        "with packed=False",
    ),
    (
        properties.test_in_place_equals_out_of_place,
        replace(CASE, inplace=True),
        lambda *_, inplace, **__: inplace,
        "with inplace=False",
    ),
    (properties.test_joint_equals_separate, CASE, lambda _, k, *__, **___: k is None, "with k_heads=None"),
    (
        properties.test_joint_equals_separate,
        replace(CASE, q_heads=4),
        lambda q, k, *_, **__: k is None and q.shape[-2] == 2,
        "k alone",
    ),
    (
        properties.test_int32_positions_equal_int64,
        replace(CASE, positions_dtype="int32"),
        lambda _q, _k, _cos, _sin, positions, **_: positions.dtype == torch.int32,
        "with positions_dtype='int64'",
    ),
    (
        properties.test_strided_positions_equal_dense,
        CASE,
        lambda _q, _k, _cos, _sin, positions, **_: not positions.is_contiguous(),
        "with positions_step=2",
    ),
]


@pytest.mark.parametrize(
    ("check", "case", "condition", "words"), FAULTS, ids=[f"{f[0].name}-{f[3]}" for f in FAULTS]
)
def test_one_changed_bit_is_found(
    check: Property, case: RopeCase, condition: Callable[..., bool], words: str
) -> None:
    failure = fails(check, case, condition)
    assert type(failure) is NotDeterministic
    assert words in str(failure)
    assert failure.facts["where"] == (0, 0, 0, 0)
    assert failure.facts["wrong"].sum() == 1


def test_one_changed_bit_of_a_16_bit_result_is_found() -> None:
    failure = fails(properties.test_16_bit_tables_leave_no_tolerance, SIXTEEN_BIT, lambda *_, **__: True)
    assert type(failure) is Mismatch
    assert "1 of 32 elements" in str(failure)
    assert failure.facts["where"] == (0, 0, 0, 0)


def test_a_forced_tile_is_compared_with_the_chosen_one() -> None:
    def tiled(*args: Any, tile: tuple[int, int] | None = None, **options: Any) -> Any:
        return wrong_when(lambda *_, **__: tile is not None, *args, **options)

    broken = Implementation("broken", tiled, Domain(tiles=(None, (1, 1))))
    with pytest.raises(NotDeterministic, match="with tile=None"):
        properties.test_tiles_agree.check(broken, replace(CASE, tile=(1, 1)))


def test_partners_outside_the_domain_are_not_run() -> None:
    called = []

    def only_dense(q: torch.Tensor, *args: Any, **options: Any) -> Any:
        called.append(options["inplace"])
        return EAGER.call(q, *args, **options)

    in_place_only = Implementation("in place", only_dense, Domain(inplace=(True,)))
    with pytest.raises(pytest.skip.Exception, match="no partner"):
        properties.test_in_place_equals_out_of_place.check(in_place_only, replace(CASE, inplace=True))
    padded_only = Implementation("padded", only_dense, Domain(q_strides=("dim_pad",)))
    properties.test_strided_equals_dense.check(padded_only, replace(CASE, q_strides=Strides(dim_pad=1)))
    assert called == []
