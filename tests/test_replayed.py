"""Graph replays: the values that a replay sees fit into the tensors that were captured."""

from hypothesis import given

from properties.replayed import other_values
from strategies import Arena, Domain, RopeCase, rope_cases
from strategies.case import AXES_KINDS
from strategies.values import bits


@given(case=rope_cases(Domain(axes=AXES_KINDS)))
def test_a_replay_has_other_values_in_tensors_of_the_same_kind(case: RopeCase) -> None:
    captured, other = Arena(case), other_values(case, "cpu")
    for mine, theirs in zip(captured.buffers, other.buffers, strict=True):
        assert (mine.buffer.shape, mine.buffer.dtype) == (theirs.buffer.shape, theirs.buffer.dtype)
        for name, view in mine.views.items():
            same = theirs.views[name]
            assert (view.shape, view.stride()) == (same.shape, same.stride())
            assert view.storage_offset() == same.storage_offset()
    if case.fill == "normal" and captured.q.numel():
        assert not bits(captured.q).equal(bits(other.q))
