"""A call that differs from the one before in anything is checked anew, with and without the quick way."""

from typing import Any

import pytest
import torch

from rope import RopeError, apply_rope, checks


def arguments() -> dict[str, Any]:
    return {
        "q": torch.ones(3, 4, 8),
        "k": torch.ones(3, 2, 8),
        "cos": torch.ones(5, 4),
        "sin": torch.zeros(5, 4),
        "positions": torch.arange(3),
    }


WRONG: dict[str, dict[str, Any]] = {
    "tokens": {"k": torch.ones(2, 2, 8)},
    "head_dim": {"k": torch.ones(3, 2, 6)},
    "dtype": {"k": torch.ones(3, 2, 8, dtype=torch.float16)},
    "table width": {"cos": torch.ones(5, 3)},
    "table rows": {"sin": torch.ones(4, 4)},
    "position dtype": {"positions": torch.arange(3.0)},
    "device": {"sin": torch.ones(5, 4, device="meta")},
    "no tensor": {"cos": [1.0]},
    "None": {"q": None},
    "sparse": {"q": torch.ones(3, 4, 8).to_sparse()},
    "compressed sparse": {"cos": torch.ones(5, 4).to_sparse_csr()},
    "nested": {"q": torch.nested.nested_tensor([torch.ones(4, 8), torch.ones(2, 8)])},
    "repeats in place": {"q": torch.ones(3, 1, 8).expand(3, 4, 8), "inplace": True},
    "layout": {"layout": "NEOX"},
    "rot_dim": {"rot_dim": 4},
    "rot_offset": {"rot_offset": 1},
    "head_axis": {"head_axis": 2},
}


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("wrong", WRONG)
def test_after_a_right_call_a_wrong_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: str, quick: bool
) -> None:
    monkeypatch.setattr(checks, "_last_call", (None, None, None))
    if not quick:
        monkeypatch.setattr(checks, "_TensorGuards", None)
    apply_rope(**arguments())
    assert (checks._last_call[0] is not None) == quick
    with pytest.raises(RopeError):
        apply_rope(**(arguments() | WRONG[wrong]))
    apply_rope(**arguments())


def test_equal_calls_share_one_geometry() -> None:
    options = (None, "neox", None, 0, -2)
    first = checks.check_call(*arguments().values(), *options)
    assert checks.check_call(*arguments().values(), *options) is first
    strided = arguments() | {"q": torch.ones(3, 4, 16)[..., :8]}
    assert checks.check_call(*strided.values(), *options) is not first


def test_no_tensor_is_kept_alive() -> None:
    import weakref

    given = arguments()
    apply_rope(**given)
    references = [weakref.ref(x) for x in given.values()]
    given.clear()
    assert all(reference() is None for reference in references)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_quick_way_is_taken_again_after_the_mode_changed(mode: Any) -> None:
    options = (None, "neox", None, 0, -2)
    with torch.no_grad():
        first = checks.check_call(*arguments().values(), *options)
    with mode():
        given = arguments()
        assert checks.check_call(*given.values(), *options) is first
        assert checks._last_call[1].check(*given.values())
