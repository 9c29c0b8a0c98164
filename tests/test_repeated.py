"""A call that repeats the one before takes the short way; one that differs in anything is checked anew."""

import functools
import weakref
from typing import Any

import pytest
import torch

from rope import PositionError, RopeError, api, apply_rope, checks, repeated
from rope.launch import Tile, forced_tile

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ones, zeros, randn, arange, tensor = (
    functools.partial(make, device=DEVICE)
    for make in (torch.ones, torch.zeros, torch.randn, torch.arange, torch.tensor)
)

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the CPU when interpreted")


def arguments() -> dict[str, Any]:
    return {
        "q": ones(3, 4, 8),
        "k": ones(3, 2, 8),
        "cos": ones(5, 4),
        "sin": zeros(5, 4),
        "positions": arange(3),
    }


WRONG: dict[str, dict[str, Any]] = {
    "tokens": {"k": ones(2, 2, 8)},
    "head_dim": {"k": ones(3, 2, 6)},
    "dtype": {"k": ones(3, 2, 8, dtype=torch.float16)},
    "table width": {"cos": ones(5, 3)},
    "table rows": {"sin": ones(4, 4)},
    "position dtype": {"positions": arange(3.0)},
    "device": {"sin": torch.ones(5, 4, device="meta")},
    "no tensor": {"cos": [1.0]},
    "None": {"q": None},
    "sparse": {"q": ones(3, 4, 8).to_sparse()},
    "compressed sparse": {"cos": ones(5, 4).to_sparse_csr()},
    "nested": {"q": torch.nested.nested_tensor([ones(4, 8), ones(2, 8)])},
    "repeats in place": {"q": ones(3, 1, 8).expand(3, 4, 8), "inplace": True},
    "layout": {"layout": "NEOX"},
    "rot_dim": {"rot_dim": 4},
    "rot_offset": {"rot_offset": 1},
    "head_axis": {"head_axis": 2},
}


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    repeated.forget()


def is_remembered(given: dict[str, Any], **options: Any) -> bool:
    """Whether this call takes the short way."""
    taken: list[Any] = []
    original = repeated.rotate

    def spy(*arguments: Any) -> Any:
        taken.append(original(*arguments))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated, "rotate", spy)
        apply_rope(**given, **options)
    return bool(taken) and taken[0] is not None


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("wrong", WRONG)
def test_after_a_right_call_a_wrong_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: str, short: bool
) -> None:
    if not short:
        monkeypatch.setattr(repeated, "_TensorGuards", None)
    apply_rope(**arguments())
    assert (repeated._last is not None) == short
    with pytest.raises(RopeError):
        apply_rope(**(arguments() | WRONG[wrong]))
    apply_rope(**arguments())


@pytest.mark.parametrize("options", [{}, {"inplace": True}, {"layout": "gptj"}, {"inverse": True}], ids=str)
def test_the_short_way_gives_the_same_bits(options: dict[str, Any]) -> None:
    def given() -> dict[str, Any]:
        torch.manual_seed(0)
        q, k, cos, sin = randn(3, 4, 8), randn(3, 2, 8), randn(5, 4), randn(5, 4)
        return {"q": q, "k": k, "cos": cos, "sin": sin, "positions": tensor([4, 0, 2])}

    expected = apply_rope(**given(), **options)
    assert is_remembered(given(), **options)
    for a, b in zip(apply_rope(**given(), **options), expected, strict=True):
        assert torch.equal(a, b)


def test_a_call_that_differs_takes_the_long_way() -> None:
    wide = ones(3, 4, 16)
    for other in (
        {"inplace": True},
        {"inverse": True},
        {"layout": "gptj"},
        {"validate": True},
        {"q": wide[..., :8]},
        {"q": wide.view(-1)[1:97].view(3, 4, 8)},  # starts between two multiples of 16 bytes
        {"positions": arange(3, dtype=torch.int32)},
        {"q": ones(3, 4, 8, requires_grad=True)},
    ):
        repeated.forget()
        apply_rope(**arguments())
        assert is_remembered(arguments())
        assert not is_remembered(arguments() | other), other


def test_q_and_k_that_share_memory_are_refused_in_place() -> None:
    apply_rope(**arguments(), inplace=True)
    both = ones(3 * 4 * 8)
    apart = {"q": both.view(3, 4, 8), "k": both[:48].view(3, 2, 8)}
    with pytest.raises(RopeError, match="share memory"):
        apply_rope(**(arguments() | apart), inplace=True)
    assert (both == 1).all()


@interpreted
def test_a_position_outside_the_table_is_refused_on_the_short_way() -> None:
    apply_rope(**arguments())
    with pytest.raises(PositionError):
        apply_rope(**(arguments() | {"positions": tensor([0, 1, 5])}))


def test_in_place_counts_as_a_change_for_autograd() -> None:
    given = arguments()
    for _ in range(2):
        before = given["q"]._version
        apply_rope(**given, inplace=True)
        assert given["q"]._version == before + 1


def test_a_history_is_recorded_after_a_call_without() -> None:
    given = arguments()
    given["q"].requires_grad_()
    with torch.no_grad():
        apply_rope(**given)
        assert is_remembered(given)
    assert apply_rope(**given)[0].requires_grad


@interpreted
def test_the_eager_version_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    apply_rope(**arguments())
    monkeypatch.setattr(api, "_kernels_run_on", lambda q: False)
    assert not is_remembered(arguments())


def test_a_forced_tile_is_not_remembered() -> None:
    apply_rope(**arguments())
    with forced_tile(Tile(1, 1)):
        assert not is_remembered(arguments())
        assert not is_remembered(arguments())
    assert not is_remembered(arguments())


def test_equal_calls_share_one_geometry() -> None:
    options = (None, "neox", None, 0, -2)
    first = checks.check_call(*arguments().values(), *options)
    assert checks.check_call(*arguments().values(), *options) is first
    strided = arguments() | {"q": ones(3, 4, 16)[..., :8]}
    assert checks.check_call(*strided.values(), *options) is not first


def test_no_tensor_is_kept_alive() -> None:
    given = arguments()
    apply_rope(**given)
    references = [weakref.ref(x) for x in given.values()]
    given.clear()
    assert all(reference() is None for reference in references)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_short_way_is_taken_again_after_the_mode_changed(mode: Any) -> None:
    with torch.no_grad():
        apply_rope(**arguments())
    with mode():
        apply_rope(**arguments())
        assert is_remembered(arguments())
