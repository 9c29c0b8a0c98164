"""Cases, domains, strategies and the arena keep their own promises."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rope.axes import mrope_axes
from strategies import Arena, Domain, RopeCase, Strides, rope_cases
from strategies.arena import RED, RED_ZONE
from strategies.case import AXES_KINDS
from strategies.values import bits

EVERYTHING = Domain(axes=AXES_KINDS)
NARROW = Domain(
    layouts=("gptj",),
    dtypes=("bfloat16",),
    ranks=(4,),
    tails=("none", "after"),
    q_strides=("dense", "packed"),
    k_strides=("dense", "packed"),
    inplace=(True,),
    grouped_heads=False,
    head_dims=(64, 128),
    empty=False,
    positions=("given", "shared"),
    position_dtypes=("int32",),
    position_steps=False,
    starts=False,
    tables=("indexed",),
    table_strides=False,
    table_steps=False,
    free_tables=False,
)


@given(case=rope_cases(EVERYTHING))
def test_repr_and_json_say_the_whole_case(case: RopeCase) -> None:
    assert eval(repr(case), {"RopeCase": RopeCase, "Strides": Strides}) == case
    assert RopeCase.from_json(case.to_json()) == case


def test_repr_says_what_differs_from_the_simplest_case_only() -> None:
    assert repr(RopeCase()) == "RopeCase()"
    case = RopeCase(layout="gptj", q_strides=Strides(head_pad=2))
    assert repr(case) == "RopeCase(layout='gptj', q_strides=Strides(head_pad=2))"


@pytest.mark.parametrize(
    "domain",
    [
        EVERYTHING,
        Domain(axes=("mixed",)),
        NARROW,
        Domain(tables=("gathered",), without_k=(True,)),
        Domain(tails=("both",)),
        Domain(tails=("before", "none"), head_dims=(6,)),
        Domain(rot_multiple=8),
        Domain(rot_multiple=14),
        Domain(rot_multiple=8, head_dims=(16, 64), tails=("none", "after")),
    ],
)
def test_every_drawn_case_lies_in_its_domain(domain: Domain) -> None:
    @given(case=rope_cases(domain))
    def check(case: RopeCase) -> None:
        assert domain.why_outside(case) is None

    check()


def test_a_domain_says_why_a_case_is_outside() -> None:
    assert "gptj" in str(Domain(layouts=("neox",)).why_outside(RopeCase(layout="gptj")))
    assert "head_dim" in str(Domain(head_dims=(64,)).why_outside(RopeCase()))
    assert "multiples of 4" in str(Domain(rot_multiple=4).why_outside(RopeCase(rot_half=6)))
    assert "expand" in str(Domain(q_strides=("dense",)).why_outside(RopeCase(q_strides=Strides(expand="h"))))
    assert "starts" in str(Domain(starts=False).why_outside(RopeCase(requests=((1, 1),))))


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"layout": "x"}', '{"colour": 1}', '{"requests": [[0]]}', '{"tail": "__import__(\'os\')"}'],
)
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        RopeCase.from_json(text)


@given(case=rope_cases(EVERYTHING))
def test_red_zones_surround_every_tensor(case: RopeCase) -> None:
    for guarded in Arena(case).buffers:
        mine = guarded.owned(*guarded.views)
        assert not mine[:RED_ZONE].any()
        assert not mine[-RED_ZONE:].any()
        assert (bits(guarded.buffer)[~mine] == RED[guarded.buffer.dtype]).all()
        assert not guarded.changed().any()


@given(case=rope_cases(EVERYTHING), data=st.data())
def test_a_changed_element_is_noticed(case: RopeCase, data: st.DataObject) -> None:
    guarded = data.draw(st.sampled_from(Arena(case).buffers))
    at = data.draw(st.integers(0, guarded.buffer.numel() - 1))
    bits(guarded.buffer)[at] += 1
    assert guarded.changed().nonzero().tolist() == [[at]]


@given(case=rope_cases(EVERYTHING))
def test_the_tensors_are_what_the_case_says(case: RopeCase) -> None:
    arena = Arena(case)
    assert arena.bnhd(arena.q).shape == (case.batch, case.tokens, case.q_heads, case.head_dim)
    assert torch.equal(bits(arena.bnhd(arena.q).contiguous()), bits(arena.inputs["q"].contiguous()))
    if case.k_heads is None:
        assert arena.k is None
    else:
        assert arena.bnhd(arena.k).shape == (case.batch, case.tokens, case.k_heads, case.head_dim)
    if case.packed:
        assert arena.k.untyped_storage().data_ptr() == arena.q.untyped_storage().data_ptr()
        assert arena.v.untyped_storage().data_ptr() == arena.q.untyped_storage().data_ptr()
        owned = [arena.buffers[0].owned(name) for name in "qkv"]
        assert sum(int(mask.sum()) for mask in owned) == int((owned[0] | owned[1] | owned[2]).sum())
    axes = arena.bnhd(arena.q).stride()
    for axis in case.q_strides.expand:
        assert axes["bnh".index(axis)] == 0 or case.rank == 3


@given(case=rope_cases(Domain(tables=("indexed",))))
def test_the_table_ends_with_its_last_row(case: RopeCase) -> None:
    for guarded in Arena(case).buffers:
        if "cos" in guarded.views and guarded.views["cos"].numel():
            last = int(guarded.owned("cos").nonzero().max())
            assert guarded.buffer.numel() - 1 - last == RED_ZONE


def test_a_case_means_the_same_bits_every_time() -> None:
    case = RopeCase(requests=((3, 4),), q_heads=2, rot_half=3, fill="normal", seed=5)
    first, second = Arena(case), Arena(case)
    assert torch.equal(first.q, second.q)
    assert not torch.equal(first.q, Arena(dataclasses.replace(case, seed=6)).q)
    assert math.isfinite(float(first.q.sum()))


def test_sections_of_64_pairs_are_those_of_the_models() -> None:
    chunked, interleaved = (RopeCase(rot_half=64, axes=kind) for kind in ("chunked", "interleaved"))
    assert chunked.axes_of_pairs() == mrope_axes((16, 24, 24)).tolist()  # Qwen2-VL
    assert interleaved.axes_of_pairs() == mrope_axes((24, 20, 20), interleaved=True).tolist()  # Qwen3-VL
    for seed in range(3):
        mixed = RopeCase(rot_half=200, axes="mixed", seed=seed)
        assert set(mixed.axes_of_pairs() or ()) == set(range(mixed.position_axes))


def test_each_axis_has_positions_of_its_own() -> None:
    arena = Arena(RopeCase(requests=((2, 1), (7, 2)), rot_half=4, axes="chunked", positions_step=2))
    assert arena.positions is not None
    assert arena.axes is not None
    assert arena.positions.tolist() == [[2, 7, 8], [1, 3, 4], [0, 2, 2]]
    assert arena.axes.tolist() == [0, 1, 2, 2]
    assert arena.positions.stride(-1) == arena.axes.stride(0) == 2
    rows = torch.tensor([[2, 1, 0, 0], [7, 3, 2, 2], [8, 4, 2, 2]])
    assert torch.equal(arena.inputs["cos"][0], arena.cos[rows, torch.arange(4)])


def test_a_case_from_before_there_were_axes_has_none() -> None:
    assert RopeCase.from_json('{"rot_half": 4, "positions_dtype": "int32"}').axes == "none"
    assert "axes" not in RopeCase().to_json()


def test_axes_need_positions() -> None:
    with pytest.raises(ValueError, match="axes is 'chunked', expected none when positions are implied"):
        RopeCase(positions="implied", axes="chunked")


def test_a_run_can_be_given_values_of_its_own() -> None:
    case = RopeCase(requests=((0, 2),), q_heads=2, rot_half=2, table_slack=4)
    q = torch.arange(16.0).view(1, 2, 2, 4)
    arena = Arena(case, q=q, positions=torch.tensor([[5, 1]]))
    assert torch.equal(arena.q, q[0])
    assert arena.positions is not None
    assert arena.positions.tolist() == [5, 1]
    assert torch.equal(arena.inputs["cos"][0], arena.cos[[5, 1]])
