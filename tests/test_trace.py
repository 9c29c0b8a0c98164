"""The memory trace names each fault that a kernel's addresses can have, and no other.

The kernels here are not those of rope: they stand for anybody's kernel that is run in the interpreter.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from properties.failures import ExtraTraffic, Failure, OutOfBoundsRead, OutOfBoundsWrite, RaceHazard
from properties.implementations import Implementation, bundled
from properties.judge import Run, check_inputs, check_red_zones, check_v, check_values, execute
from properties.trace import recorded
from properties.trace_checks import check_races, check_reads, check_traffic, check_writes, traffic_ratio
from strategies import Domain, RopeCase, Strides

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs TRITON_INTERPRET=1")

TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])
# 2 tokens at the end of the table, 2 heads, 3 pairs: a block of 4 lanes has one too many.
CASE = RopeCase(requests=((5, 2),), q_heads=2, k_heads=2, rot_half=3, fill="ramp")
IN_PLACE = dataclasses.replace(CASE, inplace=True)
ONE_ROW = RopeCase(rot_half=3)


@triton.jit
def rotate(
    x_ptr,
    out_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    x_strides,
    out_strides,
    tokens,
    heads,
    half: tl.constexpr,
    block: tl.constexpr,
    fault: tl.constexpr,
):
    # Layout neox, a program per token and head, correct when fault is "".
    token = tl.program_id(0)
    head = tl.program_id(1)
    if fault == "one program too many":
        head = tl.minimum(head, heads - 1)
    pair = tl.arange(0, block)
    mask = pair < half
    row = tl.load(positions_ptr + token) * half
    cos = tl.load(cos_ptr + row + pair, mask=mask | (fault == "unmasked table"), other=0.0)
    sin = tl.load(sin_ptr + row + pair, mask=mask, other=0.0)
    x = x_ptr + token * x_strides[0] + head * x_strides[1]
    out = out_ptr + token * out_strides[0] + head * out_strides[1]
    lo = tl.load(x + pair, mask=mask)
    hi = tl.load(x + half + pair, mask=mask | (fault == "unmasked row"))
    if fault == "reads the next token":
        tl.load(x + x_strides[0] + pair, mask=mask & (token + 1 + 0 * pair < tokens))
    if fault == "reads the heads behind its own":
        tl.load(x + heads * x_strides[1] + pair, mask=mask)
    new_lo = lo * cos - hi * sin
    new_hi = hi * cos + lo * sin
    tl.store(out + pair, new_lo, mask=mask)
    tl.store(out + half + pair, new_hi, mask=mask | (fault == "unmasked store"))
    if fault == "stores twice":
        tl.store(out + pair, new_lo, mask=mask)
    if fault == "stores the input back":
        tl.store(x + pair, lo, mask=mask)
    if fault == "stores the tail":
        tl.store(out + 2 * half + pair, tl.load(x + 2 * half + pair, mask=mask), mask=mask)


@triton.jit
def rotate_by_partner(
    x_ptr,
    out_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    x_strides,
    out_strides,
    tokens,
    heads,
    half: tl.constexpr,
    block: tl.constexpr,
    fault: tl.constexpr,
):
    # Each lane loads its element and its partner's, so every element is loaded by two lanes.
    token = tl.program_id(0)
    dim = tl.arange(0, 2 * block)
    mask = dim < 2 * half
    at = tl.load(positions_ptr + token) * half + dim % half
    x = x_ptr + token * x_strides[0] + tl.program_id(1) * x_strides[1]
    out = out_ptr + token * out_strides[0] + tl.program_id(1) * out_strides[1]
    mine = tl.load(x + dim, mask=mask)
    partner = tl.load(x + tl.where(dim < half, dim + half, dim - half), mask=mask)
    partner = tl.where(dim < half, -partner, partner)
    rotated = mine * tl.load(cos_ptr + at, mask=mask) + partner * tl.load(sin_ptr + at, mask=mask)
    if fault != "no barrier":
        tl.debug_barrier()
    tl.store(out + dim, rotated, mask=mask)


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    inplace: bool,
    kernel: Any = rotate,
    fault: str = "",
    prepare: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    **_: Any,
) -> tuple[torch.Tensor, ...]:
    """Rotate q and k, (tokens, heads, head_dim), in a launch each."""
    outputs = []
    for given in (q, k):
        x = prepare(given)
        out = given if inplace else torch.empty_like(given)
        tokens, heads, _dims = x.shape
        half = cos.shape[1]
        kernel[(tokens, heads + (fault == "one program too many"))](
            *(x, out, cos, sin, positions),
            *(x.stride()[:2], out.stride()[:2], tokens, heads),
            half=half,
            block=triton.next_power_of_2(half),
            fault=fault,
        )
        outputs.append(out)
    return tuple(outputs)


def traced(case: RopeCase, fault: str = "", call: Callable[..., Any] = launch, **options: Any) -> Run:
    call = functools.partial(call, fault=fault, **options)
    return execute(Implementation("not ours", call, Domain()), case)


def failures(run: Run) -> list[Failure]:
    found = []
    for check in (check_reads, check_writes, check_races):
        try:
            check(run)
        except Failure as failure:
            found.append(failure)
    return found


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_correct_kernel_passes(dtype: str, inplace: bool) -> None:
    run = traced(RopeCase(dtype=dtype, requests=((5, 2),), q_heads=2, rot_half=3, inplace=inplace))
    assert failures(run) == []
    assert traffic_ratio(run) == 1.0
    check_values(run)


FAULTS: list[tuple[str, RopeCase, type[Failure], str, dict[str, Any]]] = [
    (
        "unmasked table",
        CASE,
        OutOfBoundsRead,
        "program (1, 0, 0) of launch 0 reads 1 element past cos[row 6, pair 2], outside; 1 element outside",
        {"programs": [(1, 0, 0)]},
    ),
    (
        "unmasked row",
        RopeCase(
            q_heads=2, k_heads=2, rot_half=3, q_strides=Strides(dim_pad=4), k_strides=Strides(dim_pad=4)
        ),
        OutOfBoundsRead,
        "1 element past q[batch 0, token 0, head 0, dim 5], in a stride gap; 4 elements",
        {"programs": [(0, 0, 0)]},
    ),
    (
        "reads the heads behind its own",
        RopeCase(q_heads=1, k_heads=1, rot_half=3, packed=True),
        OutOfBoundsRead,
        "program (0, 0, 0) of launch 1 reads v[batch 0, token 0, head 0, dim 0], and V is no argument",
        {"tensor": "v", "where": (0, 0, 0, 0)},
    ),
    (
        "unmasked store",
        ONE_ROW,
        OutOfBoundsWrite,
        "writes 1 element past q_out[batch 0, token 0, head 0, dim 5], outside; 2 elements",
        {"programs": [(0, 0, 0)]},
    ),
    (
        "stores the input back",
        CASE,
        OutOfBoundsWrite,
        "writes q[batch 0, token 0, head 0, dim 0]; 24 elements outside the outputs",
        {"tensor": "q", "where": (0, 0, 0, 0)},
    ),
    (
        "one program too many",
        CASE,
        RaceHazard,
        "program (0, 1, 0) of launch 0 and program (0, 2, 0) of launch 0 both write "
        "q_out[batch 0, token 0, head 1, dim 0]; 12 elements",
        {"tensor": "q_out", "where": (0, 0, 1, 0), "programs": [(0, 1, 0), (0, 2, 0)]},
    ),
    (
        "reads the next token",
        IN_PLACE,
        RaceHazard,
        "program (0, 0, 0) of launch 0 reads q[batch 0, token 1, head 0, dim 0], which program (1, 0, 0) of "
        "launch 0 writes; 6 elements",
        {"tensor": "q", "where": (0, 1, 0, 0), "programs": [(0, 0, 0), (1, 0, 0)]},
    ),
    (
        "stores twice",
        CASE,
        RaceHazard,
        "program (0, 0, 0) of launch 0 writes q_out[batch 0, token 0, head 0, dim 0] more than once; so it "
        "is with 24 elements",
        {"tensor": "q_out", "programs": [(0, 0, 0)]},
    ),
]


@pytest.mark.parametrize(("fault", "case", "kind", "words", "facts"), FAULTS, ids=[f[0] for f in FAULTS])
def test_each_fault_is_named(
    fault: str, case: RopeCase, kind: type[Failure], words: str, facts: dict[str, Any]
) -> None:
    assert failures(traced(case)) == []
    (failure,) = failures(traced(case, fault))
    assert type(failure) is kind
    assert words in str(failure)
    assert {name: failure.facts[name] for name in facts} == facts


@pytest.mark.parametrize(
    ("fault", "case"),
    [(f, c) for f, c, *_ in FAULTS if f != "unmasked store"],
    ids=[f for f, *_ in FAULTS if f != "unmasked store"],
)
def test_no_comparison_of_outputs_sees_these_faults(fault: str, case: RopeCase) -> None:
    run = traced(case, fault)
    for check in (check_values, check_red_zones, check_v, check_inputs):
        check(run)


def test_a_partner_loaded_again_is_a_race_in_place_only() -> None:
    fault = {"kernel": rotate_by_partner, "fault": "no barrier"}
    (failure,) = failures(traced(IN_PLACE, **fault))
    assert type(failure) is RaceHazard
    words = "loads q[batch 0, token 0, head 0, dim 0] more than once and writes it; so it is with 48 elements"
    assert words in str(failure)
    assert failures(traced(CASE, **fault)) == []
    assert failures(traced(IN_PLACE, kernel=rotate_by_partner)) == []


def test_traffic_beyond_the_least_is_measured() -> None:
    twice_loaded = traced(CASE, kernel=rotate_by_partner)
    assert traffic_ratio(twice_loaded) == 1.5
    with pytest.raises(ExtraTraffic, match=r"1\.5 times the bytes"):
        check_traffic(twice_loaded)
    tail = RopeCase(rot_half=3, tail=3, inplace=True)
    assert traffic_ratio(traced(tail)) == 1.0
    assert traffic_ratio(traced(tail, "stores the tail")) == 1.5
    check_traffic(traced(CASE))


def test_an_input_that_one_program_reads_and_another_too_is_no_race() -> None:
    assert failures(traced(CASE, "reads the next token")) == []


def test_launches_are_ordered() -> None:
    def twice(*tensors: torch.Tensor, **options: Any) -> Any:
        launch(*tensors, **options)
        return launch(*tensors, **options)

    assert failures(traced(IN_PLACE, call=twice)) == []


def test_a_copy_that_the_implementation_makes_is_its_own() -> None:
    # Tensors that the arena has never seen: contiguous copies, outputs from zeros_like.
    strided = RopeCase(rot_half=3, q_strides=Strides(dim_step=2), k_strides=Strides(dim_step=2))
    assert failures(traced(strided, prepare=lambda x: x.contiguous())) == []

    def into_zeros(q: torch.Tensor, k: torch.Tensor, *tables: torch.Tensor, **options: Any) -> Any:
        q_out, k_out = (torch.zeros_like(x).copy_(x) for x in (q, k))
        return launch(q_out, k_out, *tables, **{**options, "inplace": True})

    assert failures(traced(CASE, call=into_zeros)) == []
    (failure,) = failures(traced(ONE_ROW, "unmasked row", call=into_zeros))
    assert type(failure) is OutOfBoundsRead
    assert "reads memory outside every buffer of the call" in str(failure)


@triton.jit
def count_and_copy(x_ptr, out_ptr, counter_ptr, words, block: tl.constexpr):
    lane = tl.arange(0, block)
    at = tl.atomic_add(counter_ptr, 1) * block + lane
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < words), mask=at < words)


def test_wide_accesses_and_atomics() -> None:
    """A kernel that takes its work from a shared counter and moves two bfloat16 at a time."""

    def copy(q: torch.Tensor, *_: Any, words: int, **__: Any) -> torch.Tensor:
        out, counter = torch.empty_like(q), torch.zeros(1, dtype=torch.int32)
        count_and_copy[(3,)](q.view(torch.int32), out.view(torch.int32), counter, words, block=4)
        return out

    case = RopeCase(dtype="bfloat16", k_heads=None, rot_half=10, fill="ramp")
    run = traced(case, call=copy, words=10)
    assert failures(run) == []
    assert traffic_ratio(run) == 1.0
    reads, writes = failures(traced(case, call=copy, words=11))
    assert "reads 1 element past q[batch 0, token 0, head 0, dim 19], outside; 2 elements" in str(reads)
    assert "writes 1 element past q_out[batch 0, token 0, head 0, dim 19], outside; 2 el" in str(writes)


@triton.jit
def every_way(x_ptr, out_ptr, width: tl.constexpr):
    whole = tl.load(x_ptr + tl.arange(0, width))
    some = tl.make_tensor_descriptor(x_ptr, shape=[3], strides=[1], block_shape=[width]).load([0])
    tl.store(out_ptr + tl.arange(0, width), whole + some)
    scalar = tl.load(x_ptr)
    tl.store(out_ptr, scalar)
    tl.atomic_cas(out_ptr, 0, 1)
    tl.atomic_max(out_ptr + tl.arange(0, width), whole, mask=tl.arange(0, width) < 2)


def test_every_way_to_touch_memory_is_recorded() -> None:
    x, out = torch.arange(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    with recorded() as trace:
        every_way[(1,)](x, out, width=4)
    seen = [(a.kind, a.size, len(a.addresses)) for a in trace.accesses]
    assert seen == [
        ("load", 4, 4),
        ("load", 4, 3),
        ("store", 4, 4),
        ("load", 4, 1),
        ("store", 4, 1),
        ("atomic", 4, 1),
        ("atomic", 4, 2),
    ]
    assert trace.accesses[1].addresses.tolist() == [x.data_ptr() + 4 * i for i in range(3)]
    every_way[(1,)](x, out, width=4)
    assert len(trace.accesses) == 7


@triton.jit
def mask_of_numbers(x_ptr, count, width: tl.constexpr):
    lane = tl.arange(0, width)
    tl.load(x_ptr + lane, mask=(lane > 1) & (tl.program_id(0) < count))


@pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton's interpreter refuses such masks")
def test_a_mask_that_the_interpreter_holds_as_numbers_is_a_mask() -> None:
    x = torch.arange(4)
    with recorded() as trace:
        mask_of_numbers[(2,)](x, 1, width=4)
    first, second = (a.addresses.tolist() for a in trace.accesses)
    assert first == [x.data_ptr() + 8 * i for i in (2, 3)]
    assert second == []


def test_no_trace_without_an_interpreted_kernel() -> None:
    ours, eager = bundled("cpu")
    assert execute(ours, CASE).trace is not None
    assert execute(eager, CASE).trace is None
