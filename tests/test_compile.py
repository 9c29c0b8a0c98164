"""torch.compile, fake tensors and the operators: one graph, the same bits, no copies."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from rope import RopeError, api, apply_rope, rope_table

COS, SIN = rope_table(4, 16)
AXES = torch.tensor([1, 0])
OPTIONS = (None, "neox", None, 1, -2, False, False)  # axes first


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def activations(tokens: int = 3, **options: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q, k = (torch.randn(tokens, n, 6, generator=generator, **options) for n in (2, 1))
    return q, k, torch.arange(tokens) * 2


def out_of_place(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, layout: str) -> Any:
    return apply_rope(q, k, COS, SIN, positions, layout=layout, rot_offset=1)


def in_place(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, layout: str) -> Any:
    q, k = q * 1, k * 1
    apply_rope(q, k, COS, SIN, positions, layout=layout, inplace=True)
    return q, k


def in_place_on_views(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, layout: str) -> Any:
    packed = torch.cat((q, k), 1)
    apply_rope(packed[:, :2], packed[:, 2:], COS, SIN, positions, layout=layout, inplace=True)
    return packed, positions


def over_two_axes(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, layout: str) -> Any:
    both = torch.stack((positions, positions.flip(0)))
    return apply_rope(q, k, COS, SIN, both, axes=AXES, layout=layout, rot_offset=1)


def without_k_or_positions(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, layout: str) -> Any:
    return apply_rope(q, None, COS, SIN, layout=layout), positions


FUNCTIONS = [out_of_place, in_place, in_place_on_views, over_two_axes, without_k_or_positions]


@pytest.mark.parametrize("layout", ["neox", "gptj"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_graph_for_all_sizes_and_the_same_bits(function: Callable[..., Any], layout: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for tokens in (3, 5, 8):
        inputs = activations(tokens)
        for actual, expected in zip(compiled(*inputs, layout), function(*inputs, layout), strict=True):
            assert torch.equal(actual, expected)
            assert actual.stride() == expected.stride()
    assert counter.frame_count == 1


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_gradients_are_the_same_bits(function: Callable[..., Any]) -> None:
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    results = []
    for call in (function, compiled):
        q, k, positions = activations()
        q.requires_grad_(), k.requires_grad_()
        outputs = call(q, k, positions, "gptj")
        sum((x.float() ** 2).sum() for x in outputs).backward()
        results.append((q.grad, k.grad))
    for actual, expected in zip(results[1], results[0], strict=True):
        assert (actual is None) == (expected is None)
        assert actual is None or torch.equal(actual, expected)


def test_table_gradients_are_the_same_bits() -> None:
    def loss(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return (apply_rope(q, None, cos, sin) ** 2).sum()

    results = []
    for call in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        table = COS.clone().requires_grad_(), SIN.clone().requires_grad_()
        results.append(torch.autograd.grad(call(activations()[0], *table), table))
    assert all(map(torch.equal, *results))


def test_in_place_changes_the_input_without_a_copy_of_it() -> None:
    """As traced, before any optimisation: the operator runs on the input itself."""

    def rotate(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> None:
        apply_rope(q, k, COS, SIN, positions, inplace=True)

    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(rotate, backend=counter, fullgraph=True)
    q, k, positions = activations()
    expected = apply_rope(q, k, COS, SIN, positions)
    compiled(q, k, positions)
    assert torch.equal(q, expected[0])
    assert torch.equal(k, expected[1])
    (graph,) = counter.graphs
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [
        torch.ops.rope.rotate_
    ]


@pytest.mark.parametrize("views", [False, True])
def test_inductor_makes_no_clone_in_place(views: bool) -> None:
    from torch._inductor.utils import run_and_get_code

    def rotate(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> None:
        apply_rope(q, k, COS, SIN, positions, inplace=True)

    q, k, positions = activations()
    if views:
        packed = torch.cat((q, k), 1)
        q, k = packed[:, :2], packed[:, 2:]
    expected = apply_rope(q, k, COS, SIN, positions)
    _, (code,) = run_and_get_code(torch.compile(rotate, fullgraph=True), q, k, positions)
    assert torch.equal(q, expected[0])
    assert torch.equal(k, expected[1])
    assert "torch.ops.rope.rotate_.default" in code
    assert "empty_strided" not in code.split("def call(")[1]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("with_k", [False, True])
@pytest.mark.parametrize("name", ["rotate", "rotate_"])
def test_opcheck(name: str, with_k: bool, requires_grad: bool) -> None:
    q, k, positions = activations()
    if requires_grad:
        q, k = q.requires_grad_(), k.requires_grad_()
        q, k = (q * 1, k * 1) if name == "rotate_" else (q, k)
    operator = getattr(torch.ops.rope, name).default
    torch.library.opcheck(operator, (q, k if with_k else None, COS, SIN, positions, *OPTIONS))


@pytest.mark.parametrize("name", ["rotate", "rotate_"])
def test_opcheck_over_two_axes(name: str) -> None:
    q, k, positions = activations()
    q, k = q.requires_grad_() * 1, k.requires_grad_() * 1
    both = torch.stack((positions, positions.flip(0)))
    operator = getattr(torch.ops.rope, name).default
    torch.library.opcheck(operator, (q, k, COS, SIN, both, AXES, *OPTIONS[1:]))


@pytest.mark.parametrize("head_axis", [-2, 1])
def test_fake_tensors_have_the_strides_of_real_ones(head_axis: int) -> None:
    sources = [
        torch.randn(2, 3, 3, 6),
        torch.randn(2, 3, 3, 6).transpose(1, 2),
        torch.randn(2, 3, 3, 9)[..., :6],
        torch.randn(2, 1, 3, 6).expand(2, 3, 3, 6),
        torch.empty(2, 0, 3, 6) if head_axis == -2 else torch.empty(2, 3, 0, 6),
    ]
    for q in sources:
        real = apply_rope(q, None, COS, SIN, head_axis=head_axis)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = apply_rope(mode.from_tensor(q), None, COS, SIN, head_axis=head_axis)
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_make_fx_keeps_the_operator() -> None:
    q, k, positions = activations()
    for mode in ("real", "fake", "symbolic"):
        traced = make_fx(lambda *args: apply_rope(*args), tracing_mode=mode)(q, k, COS, SIN, positions)
        assert torch.ops.rope.rotate.default in [node.target for node in traced.graph.nodes], mode
        fresh = torch.randn_like(q)
        assert torch.equal(
            traced(fresh, k, COS, SIN, positions)[0], apply_rope(fresh, None, COS, SIN, positions)
        )


def test_export() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cos", COS)
            self.register_buffer("sin", SIN)

        def forward(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> Any:
            return apply_rope(q, k, self.cos, self.sin, positions)

    q, k, positions = activations()
    tokens = torch.export.Dim("tokens", min=2, max=16)
    shapes = ({0: tokens}, {0: tokens}, {0: tokens})
    program = torch.export.export(Layer(), (q, k, positions), dynamic_shapes=shapes)
    larger = activations(7)
    for actual, expected in zip(program.module()(*larger), Layer()(*larger), strict=True):
        assert torch.equal(actual, expected)


def test_wrong_axes_are_explained_at_compile_time() -> None:
    rotate = torch.compile(over_two_axes, backend="eager", fullgraph=True)
    q, k, positions = activations()
    with pytest.raises(Exception, match=r"positions have shape \(2, 2\), expected \(axes, 3\)"):
        rotate(q, k, positions[:2], "neox")


def test_wrong_input_is_explained_at_compile_time() -> None:
    compiled = torch.compile(lambda q: apply_rope(q, None, COS, SIN), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="cos has 2 columns, so rot_dim is 4 but head_dim is 3"):
        compiled(torch.ones(3, 2, 3))


def test_positions_are_checked_when_the_compiled_code_runs() -> None:
    compiled = torch.compile(out_of_place, backend="aot_eager", fullgraph=True)
    q, k, positions = activations()
    compiled(q, k, positions, "neox")
    with pytest.raises(RopeError, match="token 2 has position 16"):
        compiled(q, k, torch.tensor([0, 1, 16]), "neox")


@pytest.mark.parametrize("name", ["vmap", "jvp", "grad"])
def test_a_transform_inside_a_compiled_function_is_refused(name: str) -> None:
    rotated = lambda q: apply_rope(q, None, COS, SIN)  # noqa: E731
    transformed = {
        "vmap": lambda q: torch.vmap(rotated)(q[None]),
        "jvp": lambda q: torch.func.jvp(rotated, (q,), (q,)),
        "grad": lambda q: torch.func.grad(lambda x: rotated(x).sum())(q),
    }[name]
    compiled = torch.compile(transformed, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="transform without compiling"):
        compiled(activations()[0])


@pytest.mark.parametrize("compiled", [False, True])
def test_no_tangent_is_dropped(compiled: bool) -> None:
    q, _, positions = activations()
    call = lambda q: torch.ops.rope.rotate(q, None, COS, SIN, positions, *OPTIONS)  # noqa: E731
    if compiled:
        call = lambda q: apply_rope(q, None, COS, SIN, positions)  # noqa: E731
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(Exception, match="forward-mode"):
            call(dual)


def test_importing_rope_leaves_the_compiler_alone() -> None:
    """Two seconds that only those who compile should spend; the mark that avoids them is PyTorch's own."""
    code = "import sys, rope; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    marked = torch.compiler.assume_constant_result(lambda: None)
    assert vars(marked).items() <= vars(api._is_transformed).items()
