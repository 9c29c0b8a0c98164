"""What only a GPU shows: graphs, streams, devices, and that nothing waits for the device."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from properties.implementations import bundled
from properties.judge import check_values, execute
from rope import PositionError, RopeError, apply_rope, ragged_positions, rope_table
from rope.axes import mrope_axes
from strategies import RopeCase
from strategies.arena import fetched

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOKENS, ROWS = 64, 256


def tensors(seed: int, device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    cos, sin = rope_table(64, ROWS)
    made = {
        "q": torch.randn(TOKENS, 8, 96, generator=generator).to(dtype),
        "k": torch.randn(TOKENS, 2, 96, generator=generator).to(dtype),
        "cos": cos,
        "sin": sin,
        "positions": torch.randint(0, ROWS, (TOKENS,), generator=generator),
    }
    return {name: x.to(device) for name, x in made.items()}


def over_three_axes(seed: int, **options: Any) -> dict[str, torch.Tensor]:
    given = tensors(seed, **options)
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randint(0, ROWS, (3, TOKENS), generator=generator).to(given["q"].device)
    axes = mrope_axes((12, 10, 10), interleaved=True, device=given["q"].device)
    return given | {"positions": positions, "axes": axes}


def load(into: dict[str, torch.Tensor], source: dict[str, torch.Tensor]) -> None:
    for name, x in into.items():
        x.copy_(source[name])


def same(actual: Any, expected: Any) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a, e)


@pytest.fixture
def no_waiting() -> Iterator[Callable[[], None]]:
    """Call it, and from then on everything that waits for the device raises."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("layout", ["neox", "gptj"])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_captured_call_rotates_what_its_tensors_hold(inplace: bool, layout: str) -> None:
    options: dict[str, Any] = {"inplace": inplace, "layout": layout}
    apply_rope(**tensors(0), **options)
    static = tensors(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = apply_rope(**static, **options)
    for seed in (1, 2, 3):
        load(static, tensors(seed))
        graph.replay()
        same(captured, apply_rope(**tensors(seed), layout=layout))


def test_a_replay_with_a_position_outside_the_table_gives_nan_for_its_token_alone() -> None:
    apply_rope(**tensors(0), inplace=True)
    static = tensors(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        apply_rope(**static, inplace=True)
    given = tensors(1)
    given["positions"][5] = ROWS
    given["positions"][9] = -1
    load(static, given)
    graph.replay()
    outside = torch.zeros(TOKENS, dtype=torch.bool, device="cuda")
    outside[[5, 9]] = True
    assert static["q"][outside][..., :64].isnan().all()
    assert torch.equal(static["q"][outside][..., 64:], given["q"][outside][..., 64:])
    assert static["q"][~outside].isfinite().all()
    with pytest.raises(PositionError, match=f"token 5 has position {ROWS}"):
        apply_rope(**given, validate=True)


def test_a_captured_training_step() -> None:
    def step(given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        q, k = given["q"].detach().requires_grad_(), given["k"].detach().requires_grad_()
        q_out, k_out = apply_rope(**given | {"q": q, "k": k})
        loss = (q_out.float() ** 3).sum() + (k_out.float() ** 3).sum()
        return torch.autograd.grad(loss, (q, k))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(tensors(0))
    torch.cuda.current_stream().wait_stream(side)
    static = tensors(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(static)
    load(static, tensors(1))
    graph.replay()
    same(captured, step(tensors(1)))


def test_nothing_waits_for_the_device(no_waiting: Callable[[], None]) -> None:
    given = tensors(0)
    q = given["q"].clone().requires_grad_()
    cu_seqlens = torch.tensor([0, 10, TOKENS], device="cuda")
    learnt = given["cos"].clone().requires_grad_()
    torch.cuda.synchronize()
    no_waiting()
    apply_rope(**given)
    apply_rope(**given, inplace=True)
    apply_rope(**given | {"q": q})[0].sum().backward()
    apply_rope(**given | {"cos": learnt})[0].float().sum().backward()
    apply_rope(**given | {"positions": ragged_positions(cu_seqlens, total=TOKENS)})


def test_in_place_allocates_nothing() -> None:
    given = tensors(0)
    apply_rope(**given, inplace=True)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    apply_rope(**given, inplace=True)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_out_of_place_allocates_the_outputs_alone() -> None:
    given = tensors(0)
    apply_rope(**given)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    outputs = apply_rope(**given)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + len(outputs)


def test_runs_on_the_current_stream() -> None:
    given, other = tensors(0), tensors(1)
    expected = apply_rope(**other)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        # Long enough that a launch on another stream would read the old values.
        torch.cuda._sleep(100_000_000)
        load(given, other)
        actual = apply_rope(**given)
    side.synchronize()
    same(actual, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("inplace", [False, True])
def test_runs_on_the_device_of_its_tensors(inplace: bool) -> None:
    expected = apply_rope(**tensors(0))
    given = tensors(0, "cuda:1")
    with torch.cuda.device(0):
        outputs = apply_rope(**given, inplace=inplace)
        assert torch.cuda.current_device() == 0
        q = given["q"].clone().requires_grad_()
        apply_rope(**given | {"q": q})[0].sum().backward()
    assert q.grad is not None
    assert q.grad.device == torch.device("cuda:1")
    same([x.cpu() for x in outputs], [x.cpu() for x in expected])


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("inplace", [False, True])
def test_compiled_by_inductor(inplace: bool, mode: str) -> None:
    def layer(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q, k = q * 2, k * 2
        q, k = apply_rope(q, k, cos, sin, positions, inplace=inplace)
        return q + 1, k + 1

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    for seed in (0, 1, 2):
        same([x.clone() for x in compiled(**tensors(seed))], layer(**tensors(seed)))


def test_compiled_training_step() -> None:
    def loss(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        q, k = apply_rope(q, k, cos, sin, positions)
        return q.square().sum() + k.square().sum()

    torch._dynamo.reset()
    gradients = []
    for call in (loss, torch.compile(loss, fullgraph=True)):
        given = tensors(0, dtype=torch.float32)
        inputs = given["q"].requires_grad_(), given["k"].requires_grad_()
        gradients.append(torch.autograd.grad(call(**given), inputs))
    for actual, expected in zip(*gradients, strict=True):
        # The square's gradient may be rounded elsewhere once fused; a rotation by the wrong angle is far off.
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("layout", ["neox", "gptj"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axes", ["chunked", "interleaved", "mixed"])
def test_several_axes_on_the_gpu_and_in_plain_pytorch(axes: str, dtype: str, layout: str) -> None:
    """Both within the derived bound of the exact rotation, so within the sum of both of each other."""
    case = RopeCase(
        layout=layout, dtype=dtype, requests=((5, 40), (900, 24)), q_heads=8, k_heads=2, rot_half=32,
        tail=32, positions_dtype="int32", positions_step=2, axes=axes, fill="normal",
    )  # fmt: skip
    for implementation in bundled("cuda"):
        check_values(execute(implementation, case))


def test_several_axes_in_place_strided_and_validated_have_the_same_bits() -> None:
    given = over_three_axes(0)
    expected = [x.clone() for x in apply_rope(**given)]
    strided = {"axes": given["axes"].int(), "positions": given["positions"].int().T.contiguous().T}
    same(apply_rope(**given | strided), expected)
    same(apply_rope(**given, validate=True), expected)
    same(apply_rope(**given, inplace=True), expected)


def test_text_tokens_over_several_axes_have_the_bits_of_one_axis() -> None:
    given = over_three_axes(0)
    for axis, positions in enumerate(given["positions"]):
        plain = apply_rope(**given | {"positions": positions, "axes": None})
        same(apply_rope(**given | {"positions": positions.expand(3, -1)}), plain)
        same(apply_rope(**given | {"axes": torch.full_like(given["axes"], axis)}), plain)


def test_an_axis_or_a_position_outside_gives_nan_to_its_pairs_alone(
    no_waiting: Callable[[], None],
) -> None:
    given = over_three_axes(0)
    wrong = torch.zeros(TOKENS, 32, dtype=torch.bool, device="cuda")
    wrong[5] |= given["axes"] == 1
    wrong[9] |= given["axes"] == 2
    given["positions"][1, 5], given["positions"][2, 9] = ROWS, -1
    right = [x.clone() for x in apply_rope(**given)]
    for bad in (3, -1, 2**40, -(2**40)):
        given["axes"][31], wrong[:, 31] = bad, True
        torch.cuda.synchronize()
        no_waiting()
        outputs = apply_rope(**given)
        torch.cuda.set_sync_debug_mode("default")
        for out, expected in zip(outputs, right, strict=True):
            pairs = out[..., :64].unflatten(-1, (2, 32))
            assert torch.equal(pairs.isnan(), wrong[:, None, None].expand_as(pairs))
            kept = ~out.isnan()
            assert torch.equal(out[kept], expected[kept])
        with pytest.raises(RopeError, match=f"pair 31 reads position axis {bad}"):
            apply_rope(**given, validate=True)


def test_a_captured_call_over_several_axes() -> None:
    apply_rope(**over_three_axes(0))
    static = over_three_axes(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = apply_rope(**static)
    load(static, over_three_axes(1))
    graph.replay()
    same(captured, apply_rope(**over_three_axes(1)))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_table_has_the_same_bits_on_every_device(precision: str) -> None:
    here, there = (
        rope_table(128, 70_000, 500000.0, precision=precision, device=device) for device in ("cpu", "cuda")
    )
    assert there.cos.is_cuda
    same((x.cpu() for x in there), here)


def test_tensors_come_from_the_gpu_as_they_are() -> None:
    there = [
        torch.arange(3, dtype=torch.int8, device="cuda"),
        torch.arange(24, dtype=torch.float64, device="cuda")[1::3],
        torch.zeros(0, 2, device="cuda"),
        torch.randn(1, 2, device="cuda").bfloat16().expand(5, 2),
    ]
    for got, expected in zip(fetched(there), there, strict=True):
        assert got.device.type == "cpu"
        assert torch.equal(got, expected.cpu())
