"""Every fault of a backward pass dies under a property of its own, and the correct kernel survives them."""

import pytest
from hypothesis import HealthCheck, Phase, settings

from properties import test_gradients
from properties.failures import Failure
from properties.implementations import Implementation
from properties.property import Property
from strategies import rope_cases
from tests.mutants import gradients
from tests.mutants.registry import MUTANTS

# By name: a property in a module's namespace would be collected from it.
VJP = "test_gradient_is_the_transposed_rotation"
ADJOINT = "test_gradient_is_adjoint"
STRIDES = "test_gradient_does_not_depend_on_strides"
IN_PLACE = "test_autograd_knows_of_the_change_in_place"
COMPILED = "test_compiled_call_is_correct"

DEATHS = {
    "turns_the_same_way": (VJP, ADJOINT),
    "not_rotated": (VJP, ADJOINT),
    "tail_gradient_is_one": (VJP,),
    "tail_gradient_missing": (VJP,),
    "strides_of_the_gradient_ignored": (STRIDES,),
    "only_the_first_k_head_has_one": (VJP, ADJOINT),
    "k_gradient_missing": (VJP, ADJOINT, STRIDES),
    "positions_forgotten": (VJP, ADJOINT),
    "gradient_through_bfloat16": (VJP, ADJOINT),
    "forward_flag_forgotten": (VJP, ADJOINT),
    "detached": (VJP, ADJOINT, STRIDES),
    "changed_behind_autograds_back": (VJP, IN_PLACE),
    "version_not_counted": (IN_PLACE,),
    "another_precision_when_compiled": (COMPILED,),
    "breaks_the_graph": (COMPILED,),
}
BY_NAME = {mutant.name: mutant for mutant in MUTANTS if mutant.function.__module__ == gradients.__name__}


def search(rope_property: Property, implementation: Implementation) -> None:
    """Run the property on cases of any layout and dtype, without shrinking."""
    domain = rope_property.domain(implementation)
    assert domain is not None
    examples = 60 if rope_property.cost < 10 else 8
    test = rope_property.search(implementation, rope_cases(domain))
    settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )(test)()


def test_every_mutant_is_listed() -> None:
    assert set(BY_NAME) == set(DEATHS)


@pytest.mark.parametrize(
    ("name", "property_name"), [(name, p) for name, properties in DEATHS.items() for p in properties]
)
def test_a_mutant_dies(name: str, property_name: str) -> None:
    with pytest.raises(Failure):
        search(getattr(test_gradients, property_name), BY_NAME[name].fresh())
