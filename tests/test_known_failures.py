"""Known failures are replayed and not searched for; others still count. Two judges beside the oracle."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from properties import test_batch, test_differential, test_domain, test_reference
from properties.failures import Mismatch, MissingError, NotDeterministic
from properties.implementations import Implementation, rope_eager
from properties.known import BUNDLED, KnownFailure, known_failures
from properties.property import Property
from rope import RopeError
from strategies import Domain, RopeCase, rope_cases
from strategies.case import AXES_KINDS

ORACLE = test_reference.test_matches_the_oracle
DENSE = Domain(ranks=(3,), dtypes=("float32",), q_strides=("dense",), k_strides=("dense",))
CASE = RopeCase(requests=((1, 1),), inverse=True, fill="ones")
KNOWN = KnownFailure(ORACLE.name, "Mismatch", "inverse is ignored", CASE, ("inverse",), Path("known.json"))


def _forgets_inverse(*args: Any, **options: Any) -> Any:
    return rope_eager(*args, **(options | {"inverse": False}))


def _forgets_layout(*args: Any, **options: Any) -> Any:
    return rope_eager(*args, **(options | {"layout": "neox"}))


def _forgets_both(*args: Any, **options: Any) -> Any:
    return _forgets_inverse(*args, **(options | {"layout": "neox"}))


def _implementation(function: Callable[..., Any], **values: Any) -> Implementation:
    return Implementation("mine", function, DENSE, known=(KNOWN,), **values)


def _search(tried: Property, implementation: Implementation) -> None:
    domain = tried.domain(implementation)
    assert domain is not None
    settings(max_examples=50, derandomize=True, database=None)(
        tried.search(implementation, rope_cases(domain))
    )()


def test_a_known_failure_is_not_searched_for_again() -> None:
    with pytest.raises(Mismatch):
        _search(ORACLE, replace(_implementation(_forgets_inverse), known=()))
    _search(ORACLE, _implementation(_forgets_inverse))


def test_another_failure_still_counts() -> None:
    with pytest.raises(Mismatch) as raised:
        _search(ORACLE, _implementation(_forgets_both))
    assert not raised.value.case.inverse


def test_a_known_failure_is_replayed() -> None:
    names = dict(ORACLE.tests(_implementation(_forgets_inverse)))
    with pytest.raises(pytest.xfail.Exception, match="inverse is ignored"):
        names["mine-known-0"]()


def test_a_known_failure_that_is_gone_is_an_error() -> None:
    names = dict(ORACLE.tests(_implementation(rope_eager)))
    with pytest.raises(pytest.fail.Exception, match=r"holds for .* take the entry out of known.json"):
        names["mine-known-0"]()


def test_a_file_of_known_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert known_failures("mine", DENSE) == ()
    entry = {"property": ORACLE.name, "failure": "Mismatch", "reason": "inverse is ignored"}
    entry |= {"case": json.loads(CASE.to_json()), "fields": ["inverse"]}
    file = tmp_path / "known_failures" / "mine.json"
    file.parent.mkdir()
    file.write_text(json.dumps([entry]))
    (known,) = known_failures("mine", DENSE)
    assert (known.case, known.fields) == (CASE, ("inverse",))

    for wrong, message in (
        ({"failure": "Mishap"}, "'Mishap' is no kind of failure"),
        ({"fields": ["reverse"]}, "a case has no field reverse"),
        ({"case": {"dtype": "float16"}}, "the case is outside the domain: dtype is 'float16'"),
        ({"fault": 1}, "expected "),
    ):
        file.write_text(json.dumps([entry | wrong]))
        with pytest.raises(ValueError, match=message):
            known_failures("mine", DENSE)


def _wrong_for_few_tokens(q: Any, *args: Any, **options: Any) -> Any:
    return rope_eager(q, *args, **(options | {"inverse": not options["inverse"]} if len(q) < 4 else options))


def test_sizes_that_are_known_are_left_out_of_every_property(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a property makes a case of that size itself, as of one token alone."""
    monkeypatch.chdir(tmp_path)
    entry = {"property": ORACLE.name, "failure": "Mismatch", "reason": "few tokens turn the wrong way"}
    entry |= {"case": json.loads(CASE.to_json()), "fields": [], "sizes": {"tokens": [0, 3]}}
    file = tmp_path / "known_failures" / "mine.json"
    file.parent.mkdir()
    file.write_text(json.dumps([entry]))
    known = known_failures("mine", DENSE)
    holes = tuple(k.hole for k in known if k.hole is not None)
    whole = replace(DENSE, heads_first=(False,))
    mine = Implementation("mine", _wrong_for_few_tokens, replace(whole, holes=holes), known=known)
    alone = test_batch.test_a_token_alone
    for tried, failure in ((ORACLE, Mismatch), (alone, NotDeterministic)):
        _search(tried, mine)
        with pytest.raises(failure):
            _search(tried, replace(mine, domain=whole, known=()))
    with pytest.raises(pytest.xfail.Exception, match="few tokens turn the wrong way"):
        dict(ORACLE.tests(mine))["mine-known-0"]()

    for wrong, message in (
        ({"sizes": {"token": [1, 1]}}, "a case has no size 'token'"),
        ({"sizes": {"tokens": 1}}, r"tokens is 1, expected \[least, most\]"),
        ({"sizes": {"tokens": [2, 4]}}, "the case does not have the sizes"),
    ):
        file.write_text(json.dumps([entry | wrong]))
        with pytest.raises(ValueError, match=message):
            known_failures("mine", DENSE)


@pytest.mark.parametrize("file", sorted(BUNDLED.glob("*.json")), ids=lambda f: f.stem)
def test_bundled_files_name_properties_that_exist(file: Path) -> None:
    written = {p.stem: p.read_text() for p in BUNDLED.parent.glob("test_*.py")}
    for known in known_failures(file.stem, Domain()):
        assert any(f"def {known.property}(" in text for text in written.values())


def test_another_implementation_judges_too() -> None:
    agree = test_differential.test_agrees_with_the_other
    eager = Implementation("eager", rope_eager, DENSE)
    assert agree.domain(eager) is None
    _search(agree, replace(eager, against=eager, same_bits=True))
    with pytest.raises(Mismatch, match="nearer is mine"):
        _search(
            agree, Implementation("mine", rope_eager, DENSE, against=replace(eager, call=_forgets_layout))
        )


def test_same_bits_are_more_than_within_bounds() -> None:
    def in_float64(q: Any, k: Any, *args: Any, **options: Any) -> Any:
        wide = (x if x is None else x.double() for x in (q, k))
        out = rope_eager(*wide, *args, **options)
        return out.to(q.dtype) if k is None else tuple(x.to(q.dtype) for x in out)

    agree = test_differential.test_agrees_with_the_other
    domain = replace(DENSE, inplace=(False,))
    other = Implementation("wide", in_float64, domain)
    mine = Implementation("mine", rope_eager, domain, against=other)
    _search(agree, mine)
    with pytest.raises(Mismatch, match="differ by more than nothing"):
        _search(agree, replace(mine, same_bits=True))


def test_only_cases_of_both_domains_are_compared() -> None:
    neox = Domain(layouts=("neox",), head_dims=(64, 128), inverse=(False,), rot_multiple=4)
    even = Domain(head_dims=(128, 256), starts=False, rot_multiple=6)
    common = neox.common(even)
    assert common == Domain(
        layouts=("neox",), head_dims=(128,), inverse=(False,), starts=False, rot_multiple=12
    )
    assert neox.common(Domain(layouts=("gptj",))) is None


def test_outside_its_domain_an_implementation_that_refuses_says_so() -> None:
    outside = test_domain.test_outside_the_domain_is_refused
    narrow = Domain(layouts=("neox",), dtypes=("float32",), axes=AXES_KINDS, refuses=True)

    def refusing(*args: Any, **options: Any) -> Any:
        if options["layout"] != "neox" or args[0].dtype != torch.float32:
            raise RopeError("neox and float32 only")
        return rope_eager(*args, **options)

    def stumbling(*args: Any, **options: Any) -> Any:
        if options["layout"] != "neox" or args[0].dtype != torch.float32:
            raise KeyError(options["layout"])
        return rope_eager(*args, **options)

    everything = Domain(axes=AXES_KINDS, refuses=True)
    assert outside.domain(Implementation("silent", rope_eager, replace(narrow, refuses=False))) is None
    assert outside.domain(Implementation("everything", rope_eager, everything)) is None
    _search(outside, Implementation("refusing", refusing, narrow))
    with pytest.raises(MissingError, match=r"layout is 'gptj'.*accepted"):
        _search(outside, Implementation("accepting", rope_eager, narrow))
    with pytest.raises(MissingError, match="raised KeyError"):
        _search(outside, Implementation("stumbling", stumbling, narrow))
