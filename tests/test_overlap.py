"""Exact overlap of strided tensors, against enumeration."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rope.overlap import overlaps, overlaps_itself

BUFFER = torch.zeros(512)

views = st.builds(
    lambda dims, offset: BUFFER.as_strided([n for n, _ in dims], [s for _, s in dims], offset),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), max_size=4),
    st.integers(0, 60),
)


def _elements(view: torch.Tensor) -> list[int]:
    return torch.arange(512).as_strided(view.shape, view.stride(), view.storage_offset()).flatten().tolist()


@given(views)
def test_overlaps_itself_exactly_when_an_element_has_two_names(view):
    elements = _elements(view)
    assert overlaps_itself(view) == (len(set(elements)) < len(elements))


@given(views, views)
def test_overlaps_exactly_when_an_element_is_shared(a, b):
    assert overlaps(a, b) == bool(set(_elements(a)) & set(_elements(b)))


def test_large_packed_views_are_decided_quickly():
    packed = torch.empty(4096 * 48 * 128)
    q = packed.as_strided((4096, 32, 128), (48 * 128, 128, 1), 0)
    k = packed.as_strided((4096, 8, 128), (48 * 128, 128, 1), 32 * 128)
    assert not overlaps(q, k)
    assert overlaps(q, packed.as_strided((4096, 8, 128), (48 * 128, 128, 1), 32 * 128 - 1))
