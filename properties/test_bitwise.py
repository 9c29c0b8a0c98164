"""Bit for bit: the tier without a tolerance, and an implementation's agreement with itself."""

from dataclasses import replace

import pytest
import torch

from properties.bitwise import (
    check_agreement,
    check_k_alone,
    check_rounded_once,
    check_same_bits,
    dense,
    k_as_q,
    without_k,
)
from properties.implementations import Implementation
from properties.judge import execute_on, execute_once
from properties.laws import settled
from properties.property import rope_property
from strategies import Arena, RopeCase


@rope_property(dtypes=("bfloat16", "float16"), table_dtypes=("input",))
def test_16_bit_tables_leave_no_tolerance(implementation: Implementation, case: RopeCase) -> None:
    """16-bit inputs with a table of the same dtype give the exact result rounded, bit for bit."""
    if implementation.domain.compute != "float32":
        pytest.skip(f"no claim: {implementation.name} does not compute in float32")
    check_rounded_once(execute_once(implementation, case))


@rope_property(cost=4)
def test_repeated_runs_agree(implementation: Implementation, case: RopeCase) -> None:
    """The same call on the same values in other memory gives the same bits."""
    check_agreement(execute_once(implementation, case), case)


@rope_property(cost=4)
def test_strided_equals_dense(implementation: Implementation, case: RopeCase) -> None:
    """The strides of q, k and the tables, and their place in a packed buffer, do not change a bit."""
    _compare(implementation, case, dense(case))


@rope_property(cost=4)
def test_dims_outside_heads_equal_dense(implementation: Implementation, case: RopeCase) -> None:
    """The heads of a dim side by side in memory, as a transposition leaves them, do not change a bit.

    For a stride of 1 that is looked for in the wrong axis.
    """
    domain, case = implementation.domain, dense(settled(case))
    if not {"dim_step", "order"} <= {*domain.q_strides} & {*domain.k_strides}:
        pytest.skip(f"no claim: {implementation.name} does not take any strides")
    arena = Arena(case, implementation.device)
    arena.q = _transposed(arena.q, case.head_axis)
    arena.k = None if arena.k is None else _transposed(arena.k, case.head_axis)
    run = execute_once(implementation, case)
    check_same_bits(run, execute_on(implementation, case, arena), "with heads side by side in memory")


@rope_property(cost=4)
def test_tables_in_other_memory_agree(implementation: Implementation, case: RopeCase) -> None:
    """The rows of a pair side by side in memory, gaps between pairs, or one element for all change no bit.

    For tables whose rows are taken to lie one after the other, and strides compared with the wrong number.
    """
    if not (implementation.domain.table_strides and implementation.domain.table_steps):
        pytest.skip(f"no claim: {implementation.name} does not take tables of any strides")
    run = execute_once(implementation, case)
    moved, one, same = (Arena(case, implementation.device) for _ in range(3))
    for name in ("cos", "sin"):
        table = getattr(moved, name)
        setattr(moved, name, _transposed(table, -2) if case.seed % 2 else _every_second(table))
        element = table[..., :1, :1]
        setattr(one, name, element.expand(table.shape) if table.numel() else table)
        setattr(same, name, getattr(one, name).contiguous())
    how = "stored pair by pair" if case.seed % 2 else "with a gap behind each pair"
    check_same_bits(run, execute_on(implementation, case, moved), f"with tables {how}")
    run = execute_on(implementation, case, one)
    check_same_bits(run, execute_on(implementation, case, same), "with that element in every place")


def _every_second(x: torch.Tensor) -> torch.Tensor:
    """A copy of x with a NaN behind every element."""
    return torch.stack((x, torch.full_like(x, float("nan"))), -1).flatten(-2)[..., ::2]


def _transposed(x: torch.Tensor, axis: int) -> torch.Tensor:
    """A copy of x in which the last axis and this one have changed places in memory."""
    return x.transpose(axis, -1).contiguous().transpose(axis, -1)


@rope_property(cost=4, inplace=(True,))
def test_in_place_equals_out_of_place(implementation: Implementation, case: RopeCase) -> None:
    """In place gives the bits that out of place gives."""
    if False not in implementation.domain.inplace:
        pytest.skip(f"no partner: {implementation.name} works in place only")
    _compare(implementation, case, replace(case, inplace=False))


@rope_property(cost=4, without_k=(False,))
def test_joint_equals_separate(implementation: Implementation, case: RopeCase) -> None:
    """q alone, and k alone in place of q, have the bits that they have together."""
    if True not in implementation.domain.without_k:
        pytest.skip(f"no partner: {implementation.name} always takes k")
    run = execute_once(implementation, case)
    if implementation.domain.why_outside(without_k(case)) is None:
        check_agreement(run, without_k(case))
    if implementation.domain.why_outside(k_as_q(case)) is None:
        check_k_alone(run)


@rope_property(cost=4, positions=("given", "shared", "expanded"), position_dtypes=("int32",))
def test_int32_positions_equal_int64(implementation: Implementation, case: RopeCase) -> None:
    """The dtype of the positions does not change a bit."""
    if "int64" not in implementation.domain.position_dtypes:
        pytest.skip(f"no partner: {implementation.name} takes int32 positions only")
    _compare(implementation, case, replace(case, positions_dtype="int64"))


@rope_property(cost=4, positions=("given", "shared", "expanded"))
def test_strided_positions_equal_dense(implementation: Implementation, case: RopeCase) -> None:
    """The strides of the positions do not change a bit."""
    if not implementation.domain.position_steps:
        pytest.skip(f"no partner: {implementation.name} takes dense positions only")
    _compare(implementation, case, replace(case, positions_step=2 if case.positions_step == 1 else 1))


@rope_property(cost=4)
def test_tiles_agree(implementation: Implementation, case: RopeCase) -> None:
    """The tile that a launch is split into does not change a bit."""
    if implementation.domain.tiles == (None,):
        pytest.skip(f"no partner: {implementation.name} has no tiles to force")
    _compare(implementation, case, replace(case, tile=None))


def _compare(implementation: Implementation, case: RopeCase, partner: RopeCase) -> None:
    """Compare with a partner that differs and lies in the domain; without one the case says nothing."""
    if partner != case and implementation.domain.why_outside(partner) is None:
        check_agreement(execute_once(implementation, case), partner)
