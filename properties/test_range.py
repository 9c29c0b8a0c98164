"""The range contract: a position outside the table never reads outside the table."""

from dataclasses import replace
from unittest import mock

import pytest
import torch

from properties.failures import Crash, Mismatch
from properties.implementations import Implementation
from properties.judge import check_red_zones, check_tail, check_values, execute_on
from properties.laws import settled
from properties.oracle import pair_dims
from properties.property import rope_property
from properties.refusal import arguments, check_refused
from rope import PositionError, api
from strategies import Arena, RopeCase
from strategies.arena import looked_up
from strategies.case import AXES_KINDS

_FAR = {"int32": (1 << 31) - 1, "int64": 1 << 40}


@rope_property(positions=("given", "shared", "expanded"), tables=("indexed",))
def test_a_position_outside_the_table_is_refused(implementation: Implementation, case: RopeCase) -> None:
    """On the CPU it raises and changes nothing; on a GPU the token's rotated dims become NaN.

    For positions that are clamped, wrapped or ignored.
    """
    if not implementation.domain.refuses:
        pytest.skip(f"no claim: {implementation.name} does not promise to refuse wrong input")
    rows = case.max_position
    if not case.batch * case.tokens:
        return
    far = _FAR[case.positions_dtype]
    outside = (-1, rows, rows + 1, -rows, -far, far)[case.seed % 6]
    where = case.seed // 6
    case = replace(settled(case), pokes=(("positions", where, str(outside)),))
    _check_refused_or_nan(implementation, case, f"position {outside} of {rows} rows")


@rope_property(positions=("given", "shared", "expanded"), tables=("indexed",), axes=AXES_KINDS[1:])
def test_an_axis_that_positions_lack_is_refused(implementation: Implementation, case: RopeCase) -> None:
    """On the CPU it raises and changes nothing; on a GPU the pair becomes NaN.

    For axes that are clamped, wrapped or trusted.
    """
    if not implementation.domain.refuses:
        pytest.skip(f"no claim: {implementation.name} does not promise to refuse wrong input")
    if not case.batch * case.tokens:
        return
    count = case.position_axes
    far = _FAR[case.positions_dtype]
    outside = (-1, count, count + 1, -count, -far, far)[case.seed % 6]
    case = replace(settled(case), pokes=(("axes", case.seed // 6, str(outside)),))
    _check_refused_or_nan(implementation, case, f"axis {outside} of {count}")


def _check_refused_or_nan(implementation: Implementation, case: RopeCase, what: str) -> None:
    arena = Arena(case, implementation.device)
    if arena.device.type == "cpu":
        check_refused(implementation, arena, arguments(case, arena), what)
        return
    run = execute_on(implementation, case, arena)
    check_values(run)
    check_tail(run)
    check_red_zones(run)


@rope_property(positions=("given",), tables=("indexed",))
def test_nothing_outside_the_table_is_used(implementation: Implementation, case: RopeCase) -> None:
    """Below the check of arguments, a row before or behind the table is not used: the token becomes NaN.

    The table is a slice of a longer one, so that a row read from outside looks like any other. For masks
    that are one row off, which only the check of arguments hides.
    """
    if not implementation.domain.refuses:
        pytest.skip(f"no claim: {implementation.name} does not promise what happens outside the table")
    case = replace(settled(case), table_slack=case.table_slack + 2)
    # Of a table without rows nothing is inside.
    rows = case.max_position - 2 if case.seed % 5 else 0
    if not case.tokens or implementation.domain.why_outside(case):
        return
    positions = Arena(case).inputs["positions"].clone()
    positions.view(-1)[case.seed % positions.numel()] = -1 if case.seed % 2 else rows
    arena = Arena(case, implementation.device, positions=positions)
    axes = None if arena.axes is None else arena.axes.cpu()
    for name in ("cos", "sin"):
        table = getattr(arena, name)[1 : 1 + rows]
        setattr(arena, name, table)
        arena.inputs[name] = looked_up(table.cpu(), positions, axes)
    _check_nan_below_the_check(implementation, case, arena)


@rope_property(positions=("given", "shared"), tables=("indexed",), axes=AXES_KINDS[1:])
def test_no_axis_that_positions_lack_is_used(implementation: Implementation, case: RopeCase) -> None:
    """Below the check of arguments, a pair on an axis before or behind those of the positions becomes NaN.

    The positions are a slice of those of more axes, so that one read from outside looks like any other.
    """
    if not implementation.domain.refuses:
        pytest.skip(f"no claim: {implementation.name} does not promise what happens on other axes")
    if case.seed % 3 == 0:
        # Of one axis alone, where 1 is outside too; few cases are drawn with one.
        case = replace(case, axes="mixed", seed=4 * case.seed)
    outside = -1 if case.seed % 2 else case.position_axes
    case = replace(settled(case), pokes=(("axes", case.seed // 2, str(outside)),))
    if not case.batch * case.tokens:
        return
    arena = Arena(case, implementation.device)
    assert arena.positions is not None
    first, last = arena.positions[:1], arena.positions[-1:]
    arena.positions = torch.cat((first, arena.positions, last))[1:-1]
    _check_nan_below_the_check(implementation, case, arena)


def _check_nan_below_the_check(implementation: Implementation, case: RopeCase, arena: Arena) -> None:
    """Mismatch unless a pair is NaN where its cos is, and right elsewhere, with the arguments unchecked."""
    outside = arena.inputs["cos"].isnan()[:, :, None]
    with mock.patch.object(api, "check_position_range"):
        try:
            run = execute_on(implementation, case, arena)
        except Crash as crash:
            if isinstance(crash.__cause__, PositionError):
                return  # a check that cannot be passed
            raise
    check_values(run)
    for name, out in run.outputs.items():
        if any((outside & ~out[..., dims].isnan()).any() for dims in pair_dims(case)):
            raise Mismatch(f"{name}_out is not NaN at a position outside", tensor=name)
    check_tail(run)
