"""Every faulty table dies under the check that names its fault."""

from collections import Counter

import pytest

from properties import table_checks
from tests.mutants.tables import MUTANTS, Mutant
from tests.table_kills import PROPERTIES, search


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_dies(mutant: Mutant) -> None:
    assert search(PROPERTIES[mutant.dies_by.__name__], mutant, cases=200) is not None


def test_every_check_kills_a_mutant() -> None:
    named = {mutant.dies_by.__name__ for mutant in MUTANTS}
    assert named == {name for name in vars(table_checks) if name.startswith("check_")} | {"check_life"}
    assert named == set(PROPERTIES)


def test_every_kind_has_at_least_two_mutants() -> None:
    counts = Counter(mutant.kind for mutant in MUTANTS)
    assert set(counts) == {"TABLEMATH", "PHASEPREC", "STATE", "BUFLIFE", "MULTIPOS"}
    assert min(counts.values()) >= 2


def test_every_mutant_names_its_report_and_trigger() -> None:
    for mutant in MUTANTS:
        words = mutant.make.__doc__ or ""
        assert "#" in words, mutant.name
        assert "Trigger:" in words, mutant.name
