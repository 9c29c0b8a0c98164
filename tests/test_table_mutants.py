"""Every faulty table dies under the property that names its fault."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from properties import table_checks
from properties.failures import Failure
from strategies.tables import config_cases, table_cases, table_histories
from tests.mutants.tables import MUTANTS, Mutant

_ORDERS = ("zigzag", "contiguous")
# Arguments of each check after the function under test, for a mutant triggered by this rule.
_ARGUMENTS: dict[Any, Any] = {
    table_checks.check_values: lambda rule: st.tuples(table_cases(rule, max_elements=1 << 14)),
    table_checks.check_rows_do_not_depend_on_length: lambda rule: st.tuples(
        table_cases(rule, max_elements=1 << 14)
    ),
    table_checks.check_range: lambda rule: st.tuples(table_cases(rule, max_elements=256)),
    table_checks.check_frequencies_fall: lambda rule: st.tuples(table_cases(rule, max_elements=256)),
    table_checks.check_surroundings: lambda rule: st.tuples(table_cases(rule, max_elements=256)),
    table_checks.check_history: lambda rule: st.tuples(table_histories(rule)),
    table_checks.check_config: lambda rule: st.tuples(config_cases(rule)),
    table_checks.check_axes: lambda rule: st.tuples(
        st.sampled_from([(1, 1, 1), (2, 1, 1), (24, 20, 20)]),
        st.just(True) if rule == "interleaved" else st.booleans(),
    ),
    table_checks.check_shards: lambda rule: st.tuples(
        st.sampled_from([24, 48]), st.sampled_from([2, 3, 4]), st.just(rule)
    ),
    table_checks.check_uneven_length_is_refused: lambda rule: st.tuples(
        st.sampled_from([7, 11]), st.sampled_from([2, 3]), st.sampled_from(_ORDERS)
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_dies(mutant: Mutant) -> None:
    @settings(
        max_examples=200,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(arguments=_ARGUMENTS[mutant.dies_by](mutant.rule))
    def judge(arguments: tuple[Any, ...]) -> None:
        mutant.dies_by(mutant.fresh(), *arguments)

    with pytest.raises(Failure):
        judge()


def test_every_check_kills_a_mutant() -> None:
    named = {mutant.dies_by.__name__ for mutant in MUTANTS}
    assert named == {name for name in vars(table_checks) if name.startswith("check_")}


def test_every_kind_has_at_least_two_mutants() -> None:
    counts = Counter(mutant.kind for mutant in MUTANTS)
    assert set(counts) == {"TABLEMATH", "PHASEPREC", "STATE", "BUFLIFE", "MULTIPOS"}
    assert min(counts.values()) >= 2


def test_every_mutant_names_its_report_and_trigger() -> None:
    for mutant in MUTANTS:
        words = mutant.make.__doc__ or ""
        assert "#" in words, mutant.name
        assert "Trigger:" in words, mutant.name
