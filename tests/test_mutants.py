"""Every mutant dies, the base does not, and every property earns its place."""

from collections import Counter
from pathlib import Path

import pytest

from properties import test_reference
from properties.property import Property
from tests.kill_matrix import FAMILIES, dies_again, first_killer, properties, search
from tests.kill_report import published
from tests.mutants import MUTANTS, Mutant, correct
from tests.mutants.base import Steps

# TABLEMATH has its mutants in tests/mutants/tables.py.
_KINDS = {
    "STRIDE", "COVER", "AXIS", "LAYOUT", "PARTIAL", "PADMASK", "QKWIRE", "RAGPOS", "MULTIPOS", "POSTYPE",
    "RANGE", "OOBMEM", "BIGIDX", "PHASEPREC", "DTYPE", "STATE", "BUFLIFE", "ALIAS", "RACE", "UNINIT", "FUSE",
    "ORACLE", "BACKWARD",
}  # fmt: skip
# Cases per property: that must pass the base, that must not kill, and that must kill.
_BASE, _FEW, _MANY = 50, 20, 400
# Those of gradients die in tests/test_gradient_mutants.py, under a property that is named there.
_FORWARD = [mutant for mutant in MUTANTS if not (mutant.domain.gradients or mutant.domain.fullgraph)]


@pytest.mark.parametrize("mutant", _FORWARD, ids=lambda mutant: mutant.name)
def test_a_mutant_dies_as_published(mutant: Mutant) -> None:
    """Mostly under the property that is quickest by docs/kill-matrix.md."""
    assert dies_again(mutant, published()[mutant.name]), "run `make kill-matrix`"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", _FORWARD, ids=lambda mutant: mutant.name)
def test_a_mutant_dies(mutant: Mutant) -> None:
    killed = first_killer(mutant)
    assert killed is not None, f"{mutant.name} survives every property"
    # A mutant that raises by mistake would die of any property.
    assert killed[1].failure != "Crash", killed


@pytest.mark.parametrize("prop", [p for f in properties().values() for p in f], ids=lambda prop: prop.name)
def test_the_base_lives(prop: Property) -> None:
    assert search(prop, correct(), cases=_BASE) is None


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
    "memory": "v_rotated",
    "bitwise": "in_place_fused",
    "trace": "padding_lanes_read_behind_the_table",
    "laws": "gptj_fused",
    "batch": "expanded_input_fused",
    "serving": "same_batch_taken_for_decoding",
    "range": "row_before_the_table_read",
    "errors": "full_width_table_guessed_at",
    "large": "offsets_in_32_bits",
}
# The other families, and why they have none here.
_WITHOUT = {
    "norm": "what changes a length is no rotation, so the oracle sees it too; kept because it needs no "
    "oracle, and because its failure says that lengths change",
    "axes": "laws of several axes, which the oracle knows too; kept because they need no reference",
    "peers": "what differs from Hugging Face or from complex numbers differs from the oracle; kept because "
    "users trust those, and because it would show a fault of the oracle",
    "differential": "has nothing to compare without --against; tests/test_known_failures.py shows what it "
    "kills: with --bitwise, an implementation that is within every bound",
    "domain": "is about input that an implementation does not support, and mutants support what they are "
    "tried on; tests/test_known_failures.py shows what it kills",
    "gradients": "tests/test_gradient_mutants.py: faults of a backward pass are right forward, where no "
    "other family looks",
    "tables": "tests/test_table_mutants.py: tables are what every other family is given",
}


def test_every_family_has_a_mutant_of_its_own_or_a_reason() -> None:
    modules = Path(test_reference.__file__).parent.glob("test_*.py")
    families = {path.stem.removeprefix("test_") for path in modules}
    assert families == set(_ONLY) | set(_WITHOUT)
    assert not set(_ONLY) & set(_WITHOUT)


@pytest.mark.slow
@pytest.mark.parametrize("family", _ONLY)
def test_a_family_kills_what_no_other_does(family: str) -> None:
    mutant = next(m for m in MUTANTS if m.name == _ONLY[family])
    assert any(search(prop, mutant.fresh(), cases=_MANY) for prop in properties()[family])
    others = [prop for other in FAMILIES if other != family for prop in properties()[other]]
    assert [prop.name for prop in others if search(prop, mutant.fresh(), cases=_FEW)] == []
