"""Gradients, torch.compile and CUDA graphs: the call behaves inside a training step and a captured one."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from properties.gradients import (
    check_adjoint,
    check_gradient_strides,
    check_in_place_contract,
    check_vector_jacobian_product,
    record,
)
from properties.implementations import Implementation
from properties.judge import check_tail, check_values, check_written, execute
from properties.property import rope_property
from properties.replayed import execute_replayed
from strategies import RopeCase


def _needs_gradients(implementation: Implementation) -> None:
    if not implementation.domain.gradients:
        pytest.skip(f"no claim: {implementation.name} does not promise gradients")


@rope_property(cost=4)
def test_gradient_is_the_transposed_rotation(implementation: Implementation, case: RopeCase) -> None:
    """The gradient is the inverse rotation of a random incoming one, within bounds; the tail passes it on."""
    _needs_gradients(implementation)
    check_vector_jacobian_product(record(implementation, case))


@rope_property(cost=4)
def test_gradient_is_adjoint(implementation: Implementation, case: RopeCase) -> None:
    """<R x, g> = <x, R^T g> for every pair: forward and backward pass turn by the same angle."""
    _needs_gradients(implementation)
    check_adjoint(record(implementation, case))


@rope_property(cost=4)
def test_gradient_does_not_depend_on_strides(implementation: Implementation, case: RopeCase) -> None:
    """Transposed, strided and expanded incoming gradients give the bits that dense ones give."""
    _needs_gradients(implementation)
    check_gradient_strides(record(implementation, case))


@rope_property(cost=4, inplace=(True,))
def test_autograd_knows_of_the_change_in_place(implementation: Implementation, case: RopeCase) -> None:
    """In place q and k get the new history, and a backward pass that needs their old values raises."""
    _needs_gradients(implementation)
    check_in_place_contract(record(implementation, case))


# A case compiles once, which takes as long as some thirty cases.
@rope_property(cost=25, tiles=(None,))
def test_compiled_call_is_correct(implementation: Implementation, case: RopeCase) -> None:
    """torch.compile takes the call as one graph whose outputs lie within the same bounds."""
    if not implementation.domain.fullgraph:
        pytest.skip(f"no claim: {implementation.name} does not promise to compile as one graph")
    torch._dynamo.reset()
    compiled: Callable[..., object] = torch.compile(implementation.call, backend="aot_eager", fullgraph=True)
    run = execute(replace(implementation, call=compiled, watched=False), replace(case, tile=None))
    check_written(run)
    check_values(run)
    check_tail(run)


@rope_property(cost=4)
def test_graph_replay_is_correct(implementation: Implementation, case: RopeCase) -> None:
    """A captured CUDA graph, replayed with other values and positions in its tensors, rotates those."""
    if not implementation.device.startswith("cuda"):
        pytest.skip("needs CUDA: only there a call can be captured")
    if not implementation.domain.captured:
        pytest.skip(f"no claim: {implementation.name} does not promise that a call can be captured")
    run = execute_replayed(implementation, case)
    check_written(run)
    check_values(run)
    check_tail(run)
