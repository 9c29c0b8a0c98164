"""Sizes at their ends: more than 32 bits count, more than a grid axis has programs, and no pair at all."""

import functools
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from properties.failures import Crash, NotDeterministic
from properties.implementations import Implementation
from properties.judge import check_tail, check_values, check_written, execute
from properties.laws import settled
from properties.property import Property, rope_property
from properties.record import note
from properties.refusal import arguments
from strategies import Arena, RopeCase

_REACH = 1 << 31
_MAP_NORESERVE = 0x4000  # of Linux; older Pythons have no name for it


@rope_property(
    cost=4,
    dtypes=("bfloat16", "float16"),
    q_strides=("token_pad", "head_pad"),
    k_strides=("token_pad", "head_pad"),
)
def test_rows_beyond_2_31_elements(implementation: Implementation, case: RopeCase) -> None:
    """A tensor whose last row lies 2**31 elements behind its first comes out like a dense one.

    For offsets in 32 bits, into inputs of every kind. The first element lies in the middle of the memory, so
    that an offset that wraps around meets other memory and gives other values, where it would end the
    process.
    """
    domain, case = implementation.domain, _few_of_each(settled(case))
    if domain.why_outside(case):
        return
    expected = execute(implementation, case).outputs
    names = ["q", "k"]
    names += ["cos", "sin"] if domain.table_strides and domain.table_steps else []
    names += ["positions", "axes"] if domain.position_steps else []
    for name in names:
        arena = Arena(case, implementation.device)
        if getattr(arena, name) is not None:
            _check_spread_out(implementation, arena, name, expected)


def _check_spread_out(
    implementation: Implementation, arena: Arena, name: str, expected: dict[str, torch.Tensor]
) -> None:
    """NotDeterministic unless the outputs are as expected when one tensor reaches past 2**31 elements."""
    case, x = arena.case, getattr(arena, name)
    # The last axis of q and k may be strided where the domain says so.
    strided = "dim_step" in getattr(implementation.domain, f"{name}_strides", ())
    axis = case.seed % (3 + strided if name in ("q", "k") else x.dim())
    # A kernel may count in units that all strides are multiples of, and pass 32 bits later.
    odd = case.seed // 12 % 2
    spread = _spread_out(arena.bnhd(x) if name in ("q", "k") else x, axis, odd)
    if spread is None:
        note(f"too little memory on the GPU to spread {name} out")
        return
    setattr(arena, name, _as_given(case, spread) if name in ("q", "k") else spread)
    a = arguments(case, arena)
    try:
        returned = implementation.call(a.q, a.k, a.cos, a.sin, a.positions, **a.options)
    except Exception as error:
        raise Crash(f"raised {type(error).__name__}: {error}") from error
    outputs = returned if isinstance(returned, tuple | list) else (returned,)
    for n, out in zip(expected, outputs, strict=True):
        got = arena.bnhd(out.detach()).cpu()
        wrong = ~((got == expected[n]) | (got.isnan() & expected[n].isnan()))
        if wrong.any():
            where = tuple(int(i) for i in wrong.nonzero()[0])
            raise NotDeterministic(
                f"{n}_out at {where} is {float(got[where])!r} when axis {axis} of {name} ends 2**31 elements "
                f"or more behind its first row, {float(expected[n][where])!r} when {name} is dense",
                tensor=n,
                where=where,
                wrong=wrong.numpy(),
            )


@dataclass(frozen=True)
class FixedCases(Property):
    """A property of a few cases of its own, too large to draw many."""

    cases: tuple[tuple[str, RopeCase], ...] = ()

    def tests(
        self, implementation: Implementation, session: int | None = None
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """One test per case that the implementation's domain holds; nothing is drawn."""
        for what, case in self.cases:
            if implementation.domain.why_outside(case) is None:
                yield f"{implementation.name}-{what}", self.replay(implementation, case)


def _check_along_one_axis(implementation: Implementation, case: RopeCase) -> None:
    """The same along each axis of every tensor in turn. For 32 bits in one product, which few draws meet."""
    test_rows_beyond_2_31_elements.check(implementation, case)


_SPREAD = RopeCase(
    dtype="bfloat16",
    rank=4,
    requests=((0, 3), (1, 3), (2, 3)),
    q_heads=3,
    k_heads=3,
    rot_half=2,
    positions_dtype="int32",
    table_fill="ramp",
    fill="normal",
)
_TWO = replace(_SPREAD, requests=((1, 2), (2, 2)), q_heads=2, k_heads=2)
test_each_axis_beyond_2_31_elements = FixedCases(
    "test_each_axis_beyond_2_31_elements",
    _check_along_one_axis,
    # By the seed: the axis, and whether the stride is odd.
    cases=(
        *((f"axis {n % 4}", replace(_SPREAD, seed=n)) for n in range(4)),
        *((f"axis {n % 4}, odd", replace(_SPREAD, seed=n)) for n in range(12, 16)),
        *((f"axis {n % 4}, two rows, odd", replace(_TWO, seed=n)) for n in range(12, 15)),
        ("dims in place, odd", replace(_SPREAD, inplace=True, seed=15)),
        ("several axes, odd", replace(_SPREAD, axes="chunked", rot_half=8, seed=12)),
    ),
)


_COUNT = 65537


def _check_many(implementation: Implementation, case: RopeCase) -> None:
    """More than 65535 tokens, heads and requests all rotate. For the limits of grid axes."""
    if implementation.device == "cpu" and implementation.domain.tiles != (None,):
        if case.rank == 4:
            pytest.skip("a program per batch row is too much for the interpreter")
        # One program, because the interpreter runs them one after the other.
        tokens, heads = (1 << (n - 1).bit_length() for n in (case.tokens, case.q_heads))
        case = replace(case, tile=(tokens, heads))
    run = execute(implementation, case)
    check_written(run)
    check_values(run)
    check_tail(run)


_MANY = RopeCase(fill="ramp", table_fill="ramp", k_heads=1)
test_more_than_65535 = FixedCases(
    "test_more_than_65535",
    _check_many,
    cases=(
        ("tokens", replace(_MANY, requests=((0, _COUNT),))),
        ("heads", replace(_MANY, requests=((3, 1),), q_heads=_COUNT)),
        ("requests", replace(_MANY, requests=tuple((i % 7, 1) for i in range(_COUNT)))),
        ("batch rows", replace(_MANY, rank=4, requests=((3, 1),) * _COUNT)),
    ),
)


def _check_no_pair(implementation: Implementation, case: RopeCase) -> None:
    """Heads that are all tail come out bit for bit. For blocks of no size."""
    run = execute(implementation, case)
    check_written(run)
    check_tail(run)


_NO_PAIR = RopeCase(fill="ramp", requests=((3, 2),), q_heads=2, rot_half=0, tail=4, rot_offset=2)
test_no_pair = FixedCases(
    "test_no_pair",
    _check_no_pair,
    cases=(
        ("neox", _NO_PAIR),
        ("gptj", replace(_NO_PAIR, layout="gptj")),
        ("in place", replace(_NO_PAIR, inplace=True)),
        ("axes", replace(_NO_PAIR, axes="mixed")),
    ),
)


def _check_more_of_k(implementation: Implementation, case: RopeCase) -> None:
    """k may have more heads than q where nothing says otherwise. For launches sized by q."""
    if not implementation.domain.refuses:
        pytest.skip(f"no claim: {implementation.name} may ask for fewer heads of k")
    run = execute(implementation, case)
    check_written(run)
    check_values(run)


test_more_heads_of_k = FixedCases(
    "test_more_heads_of_k",
    _check_more_of_k,
    cases=(("tile of 4", RopeCase(fill="ramp", requests=((3, 2),), q_heads=2, k_heads=9, tile=(1, 4))),),
)


def _few_of_each(case: RopeCase) -> RopeCase:
    """The case with three rows along every axis at most, and a table of few rows whose last one is used.

    Three, because a stride past 2**31 itself is 64 bits wide, and hides an index of 32.
    """
    q_heads = min(case.q_heads, 3)
    k_heads = None if case.k_heads is None else min(case.k_heads, q_heads)
    left, requests = 3, []
    for start, length in case.requests[:3]:
        requests.append((start % 4, min(length, left)))
        left -= 0 if case.rank == 4 else requests[-1][1]
    few = replace(case, requests=tuple(requests), q_heads=q_heads, k_heads=k_heads, packed=False)
    return replace(few, tile=None, table_slack=0)


def _spread_out(x: torch.Tensor, axis: int, odd: int) -> torch.Tensor | None:
    """A copy of x in which this axis ends past 2**31 elements, in memory that is lazily mapped.

    Args:
        odd: 1 for an odd stride.
    """
    dense = x.contiguous()
    stride = list(dense.stride())
    steps = max(dense.shape[axis] - 1, 1)
    # One step alone is more than 32 bits hold, with no bit for a sign either.
    reach = _REACH if steps > 1 else 2 * _REACH
    stride[axis] = (reach + 8 * max(dense.numel(), 1)) // steps | odd
    room = 3 * _REACH + 16 * max(dense.numel(), 1)
    if x.is_cuda:
        if torch.cuda.mem_get_info(x.device)[0] < 2 * room * x.element_size():
            return None
        flat = torch.zeros(room, dtype=x.dtype, device=x.device)
    else:
        flat = _lazy(x.element_size()).view(x.dtype)
    view = flat.as_strided(dense.shape, stride, _REACH)
    view.copy_(dense)
    return view


@functools.cache
def _lazy(size: int) -> torch.Tensor:
    """Bytes for more than 3 * 2**31 elements of this size, of which only the touched pages exist."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = mmap.mmap(-1, 3 * size * _REACH + (1 << 26), flags=flags)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _as_given(case: RopeCase, bnhd: torch.Tensor) -> torch.Tensor:
    """A tensor in canonical axis order, in the order that the implementation gets."""
    x = bnhd.transpose(1, 2) if case.heads_first else bnhd
    return x if case.rank == 4 else x[0]
