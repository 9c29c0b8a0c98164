"""ragged_positions, against a plain loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rope import RopeError, ragged_positions


@given(
    requests=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=6),
    padding=st.integers(0, 4),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    with_total=st.booleans(),
)
def test_every_token_gets_its_index_in_its_request_plus_the_start(requests, padding, dtype, with_total):
    lengths = [length for _, length in requests]
    cu_seqlens = torch.tensor([0, *lengths], dtype=dtype).cumsum(0, dtype=dtype)
    starts = torch.tensor([start for start, _ in requests], dtype=dtype)
    expected = [p for start, length in requests for p in range(start, start + length)]
    if with_total:
        positions = ragged_positions(cu_seqlens, starts, total=len(expected) + padding)
        expected += [0] * padding
    else:
        positions = ragged_positions(cu_seqlens, starts)
    assert positions.tolist() == expected
    assert positions.dtype == dtype


def test_starts_default_to_zero():
    assert ragged_positions(torch.tensor([0, 2, 2, 5])).tolist() == [0, 1, 0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 2],), "cu_seqlens must be a torch.Tensor, got list"),
        ((torch.tensor([0.0, 2.0]),), "expected one axis of"),
        ((torch.zeros(1, 2).long(),), "expected one axis of"),
        ((torch.zeros(0).long(),), "cu_seqlens is empty"),
        ((torch.tensor([0, 2]), torch.tensor([1, 1])), "starts has 2 values, expected 1"),
        ((torch.tensor([0, 2]), torch.zeros(1, device="meta").long()), "starts is on meta"),
        ((torch.tensor([0, 2]), None, -1), "total is -1"),
    ],
)
def test_wrong_input_is_refused(arguments, message):
    with pytest.raises(RopeError, match=message):
        ragged_positions(*arguments)
