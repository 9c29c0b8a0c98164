"""The search for false alarms: it counts, repeats itself, and finds what is wrong."""

import itertools
from dataclasses import replace

import pytest

from strategies import RopeCase
from tests import false_alarms
from tests.false_alarms import Search, relatives, run, searches
from tests.mutants import MUTANTS


def test_a_correct_implementation_gives_no_alarm() -> None:
    outcome = run(Search("rope-eager", ("test_matches_the_oracle", "test_v_is_unmodified"), 1))
    assert (outcome.cases, outcome.drawn, outcome.failure, outcome.silent) == (200, 100, None, ())


def test_a_property_that_does_not_apply_says_nothing() -> None:
    names = ("test_v_is_unmodified", "test_no_race")
    outcome = run(Search("rope-eager", names, 1))
    assert (outcome.cases, outcome.silent) == (100, ("test_no_race",))
    assert run(Search("rope-eager", ("test_agrees_with_the_other",), 1)).silent


def test_a_seed_tries_the_same_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = next(m for m in MUTANTS if m.name == "sin_sign_flipped")
    monkeypatch.setattr(false_alarms, "_implementation", lambda spec: mutant.fresh())
    first, second, other = (run(Search("mutant", ("test_matches_the_oracle",), n)) for n in (3, 3, 4))
    assert first == second
    assert first.failure is not None
    assert "RopeCase(" in first.failure
    assert first.failure != other.failure


def test_every_search_has_a_seed_of_its_own() -> None:
    names = ["test_no_race", "test_is_additive", "test_matches_the_oracle"]
    listed = list(itertools.islice(searches(["a", "b"], names, 7), 5))
    assert [s.seed for s in listed] == [7, 8, 9, 10, 11]
    assert (listed[4].implementation, listed[4].properties) == ("a", ("test_no_race", names[2]))


def test_relatives_differ_in_values_alone() -> None:
    case = RopeCase(requests=((3, 2),), rot_half=4)
    several = list(relatives(case, 20))
    assert len({case, *several}) == 21
    assert {replace(c, fill=case.fill, seed=case.seed) for c in several} == {case}
    assert {c.table_fill for c in relatives(replace(case, table_fill="normal"), 20)} == {"angles"}
    assert several == list(relatives(case, 20))
    outcome = run(Search("rope-eager", ("test_matches_the_oracle",), 1, relatives=2))
    assert (outcome.cases, outcome.drawn, outcome.failure) == (4, 2, None)


def test_no_property_is_left_out() -> None:
    assert {"test_served_requests_come_out_as_alone", "test_gradient_is_adjoint"} <= set(
        false_alarms.properties()
    )
