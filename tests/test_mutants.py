"""Every mutant dies, the base does not, and every property earns its place."""

from collections import Counter

import pytest

from properties.property import Property
from tests.kill_matrix import FAMILIES, likely_first, properties, search
from tests.mutants import MUTANTS, Mutant, correct
from tests.mutants.base import Steps

pytestmark = pytest.mark.slow

# TABLEMATH has its mutants in tests/mutants/tables.py and BACKWARD in tests/mutants/gradients.py.
_KINDS = {
    "STRIDE", "COVER", "AXIS", "LAYOUT", "PARTIAL", "PADMASK", "QKWIRE", "RAGPOS", "MULTIPOS", "POSTYPE",
    "RANGE", "OOBMEM", "BIGIDX", "PHASEPREC", "DTYPE", "STATE", "BUFLIFE", "ALIAS", "RACE", "UNINIT", "FUSE",
    "ORACLE",
}  # fmt: skip
# Cases per property, as in the ci profile for one layout and dtype; a mutant that outlives all properties
# gets as many as the suite draws for all of them.
_FEW, _MANY = 50, 400


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_dies(mutant: Mutant) -> None:
    first, *others = likely_first(mutant)
    for prop, cases in ((first, _MANY), *((p, _FEW) for p in others), *((p, _MANY) for p in others)):
        kill = search(prop, mutant.fresh(), cases=cases)
        if kill is not None:
            # A mutant that raises by mistake would die of any property.
            assert kill.failure != "Crash", kill
            return
    pytest.fail(f"{mutant.name} survives every property")


@pytest.mark.parametrize("prop", [p for f in properties().values() for p in f], ids=lambda prop: prop.name)
def test_the_base_lives(prop: Property) -> None:
    assert search(prop, correct(), cases=_FEW) is None


def test_every_kind_has_at_least_two_mutants() -> None:
    counts = Counter(mutant.kind for mutant in MUTANTS)
    assert set(counts) == _KINDS
    assert {kind: n for kind, n in counts.items() if n < 2} == {}


def test_every_mutant_says_what_triggers_it() -> None:
    for mutant in MUTANTS:
        assert "Trigger:" in (mutant.function.__doc__ or ""), mutant.name
        assert mutant.replaces in (*Steps.__dataclass_fields__, "apply_rope"), mutant.name
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


# A mutant that lives when one family of properties is left out.
_ONLY = {
    "reference": "float32_with_a_gathered_table_turned_back",
    "memory": "table_rounded_in_place",
    "laws": "gptj_fused",
    "batch": "expanded_input_fused",
    "range": "row_before_the_table_read",
    "errors": "full_width_table_guessed_at",
    "large": "offsets_in_32_bits",
}


@pytest.mark.parametrize("family", _ONLY)
def test_a_family_kills_what_no_other_does(family: str) -> None:
    mutant = next(m for m in MUTANTS if m.name == _ONLY[family])
    killers = {
        other
        for other in FAMILIES
        for prop in properties()[other]
        if search(prop, mutant.fresh(), cases=_FEW) is not None
    }
    assert killers == {family}
