"""Several position axes: what follows when they agree, and from a renaming of them."""

from dataclasses import replace
from functools import partial

import torch

from properties.implementations import Implementation
from properties.judge import Run, execute, execute_on, execute_once
from properties.laws import check_equal, settled
from properties.property import rope_property
from strategies import Arena, RopeCase
from strategies.case import AXES_KINDS

_several_axes = partial(
    rope_property,
    cost=4,
    positions=("given", "shared", "expanded"),
    tables=("indexed",),
    axes=AXES_KINDS[1:],
)


@_several_axes()
def test_text_tokens_turn_as_with_one_axis(implementation: Implementation, case: RopeCase) -> None:
    """Tokens with one position on every axis come out as without axes, exactly. For text among images."""
    plain = replace(settled(case), axes="none")
    if implementation.domain.why_outside(plain):
        return
    alone = execute_once(implementation, plain)
    positions = alone.arena.inputs["positions"].expand(case.position_axes, -1, -1)
    several = execute(implementation, settled(case), **_inputs(alone), positions=positions)
    for name, out in several.outputs.items():
        check_equal("text tokens", name, out, alone.outputs[name])


@_several_axes()
def test_pairs_of_one_axis_turn_as_with_one_axis(implementation: Implementation, case: RopeCase) -> None:
    """When every pair reads one axis the others do not matter, exactly. For axes that are not read."""
    case = settled(case)
    plain = replace(case, axes="none")
    if implementation.domain.why_outside(plain):
        return
    axis = case.seed % case.position_axes
    arena = Arena(case, implementation.device)
    assert arena.axes is not None
    arena.axes.fill_(axis)
    several = execute_on(implementation, case, arena)
    alone = execute(implementation, plain, **_inputs(several), positions=arena.inputs["positions"][axis])
    for name, out in several.outputs.items():
        check_equal(f"axis {axis} alone", name, out, alone.outputs[name])


@_several_axes()
def test_names_of_axes_do_not_matter(implementation: Implementation, case: RopeCase) -> None:
    """Axes in another order, in positions and for pairs alike, give the same bits. For axes by number."""
    case = settled(case)
    run = execute_once(implementation, case)
    arena = Arena(case, implementation.device, positions=run.arena.inputs["positions"].flip(0))
    assert arena.axes is not None
    arena.axes.copy_(case.position_axes - 1 - arena.axes)
    for name, out in execute_on(implementation, case, arena).outputs.items():
        check_equal("axes renamed", name, out, run.outputs[name])


def _inputs(run: Run) -> dict[str, torch.Tensor]:
    """q and k as they were given."""
    return {name: run.arena.inputs[name] for name in run.outputs}
