"""Gradients of apply_rope, of both backends, against finite differences and plain PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from properties.implementations import default_device
from rope import RopeError, api, apply_rope, eager, launch, rope_table

TABLE = rope_table(4, 6)
POSITIONS = (5, 0, 5)  # a row read twice must collect both gradients, rows 1 to 4 none


@pytest.fixture(params=["eager", "kernels"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The device of the backend: plain PyTorch on the CPU, or the Triton kernels."""
    if request.param == "eager":
        monkeypatch.setattr(api, "_kernels_run_on", lambda q: False)
        yield "cpu"
    else:
        yield default_device()


def leaf(*shape: int, device: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_()


def table(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return TABLE.cos.double().to(device), TABLE.sin.double().to(device)


def positions(device: str) -> torch.Tensor:
    return torch.tensor(POSITIONS, device=device)


def both_checks(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("layout", ["neox", "gptj"])
def test_q_and_k_twice_differentiable(device: str, layout: str, inverse: bool, inplace: bool) -> None:
    cos, sin = table(device)

    def rotated(q: torch.Tensor, k: torch.Tensor) -> Any:
        q, k = (q.clone(), k.clone()) if inplace else (q, k)
        options: dict[str, Any] = {"layout": layout, "inverse": inverse, "rot_offset": 1, "inplace": inplace}
        return apply_rope(q, k, cos, sin, positions(device), **options)

    both_checks(rotated, (leaf(3, 2, 6, device=device), leaf(3, 1, 6, device=device)))


# The reduction is the same for both backends, and the interpreter is slow: the kernels get one of each.
@pytest.mark.parametrize(
    ("device", "kind", "layout", "inverse"),
    [
        ("eager", "indexed", "neox", False),
        ("eager", "indexed", "gptj", True),
        ("eager", "implied", "neox", True),
        ("eager", "shared", "gptj", False),
        ("eager", "gathered", "neox", False),
        ("eager", "gathered", "gptj", True),
        ("kernels", "shared", "gptj", True),
    ],
    indirect=["device"],
)
def test_table_twice_differentiable(device: str, kind: str, layout: str, inverse: bool) -> None:
    cos, sin = table(device)
    index = positions(device) if kind == "shared" else torch.tensor([POSITIONS, (2, 2, 2)], device=device)
    if kind == "gathered":
        cos, sin = cos[index], sin[index]
    given = None if kind in ("implied", "gathered") else index

    def rotated(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        return apply_rope(q, k, cos, sin, given, layout=layout, inverse=inverse, head_axis=1)

    activations = leaf(2, 2, 3, 5, device=device), leaf(2, 1, 3, 5, device=device)
    both_checks(rotated, (*activations, cos.clone().requires_grad_(), sin.clone().requires_grad_()))


def test_table_gradient_without_gradients_of_q_and_k(device: str) -> None:
    cos, sin = (t.clone().requires_grad_() for t in table(device))
    q = leaf(3, 2, 4, device=device).detach()
    apply_rope(q, None, cos, sin, positions(device)).sum().backward()
    assert cos.grad is not None
    assert sin.grad is not None
    lo, hi = q[..., :2].sum(1), q[..., 2:].sum(1)
    torch.testing.assert_close(cos.grad[5], (lo + hi)[[0, 2]].sum(0))
    torch.testing.assert_close(sin.grad[5], (lo - hi)[[0, 2]].sum(0))
    assert cos.grad[1:5].count_nonzero() == 0


def test_table_gradient_of_16_bit_inputs(device: str) -> None:
    """Products of 16-bit numbers are not rounded to 16 bits."""
    cos, sin = (t.float().requires_grad_() for t in table(device))
    q, index = leaf(3, 1, 4, device=device, dtype=torch.bfloat16), positions(device)
    out = apply_rope(q, None, cos, sin, index)
    grad = torch.randn_like(out)
    of_cos, of_sin = torch.autograd.grad(out, (cos, sin), grad)
    (lo, hi), (lo_grad, hi_grad) = (x.detach().double()[:, 0].split(2, -1) for x in (q, grad))
    nothing = torch.zeros_like(cos, dtype=torch.float64)
    close = {"rtol": 0, "atol": 2.0**-18, "check_dtype": False}
    torch.testing.assert_close(of_cos, nothing.index_add(0, index, lo_grad * lo + hi_grad * hi), **close)
    torch.testing.assert_close(of_sin, nothing.index_add(0, index, hi_grad * lo - lo_grad * hi), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradient_is_the_inverse_rotation_bit_for_bit(device: str, dtype: torch.dtype) -> None:
    cos, sin = (t.float() for t in table(device))
    q, k = leaf(3, 4, 6, device=device, dtype=dtype), leaf(3, 2, 6, device=device, dtype=dtype)
    outputs = apply_rope(q, k, cos, sin, positions(device))
    grads = [torch.randn_like(x) for x in outputs]
    expected = apply_rope(*grads, cos, sin, positions(device), inverse=True)
    for actual, wanted in zip(torch.autograd.grad(outputs, (q, k), grads), expected, strict=True):
        assert torch.equal(actual, wanted)


def test_only_the_one_that_requires_grad_gets_one(device: str) -> None:
    cos, sin = table(device)
    q, k = leaf(3, 2, 4, device=device), leaf(3, 1, 4, device=device)
    for frozen in ("q", "k"):
        a, b = (q.detach(), k) if frozen == "q" else (q, k.detach())
        for inplace in (False, True):
            a_out, b_out = apply_rope(a.clone(), b.clone(), cos, sin, positions(device), inplace=inplace)
            assert (a_out.requires_grad, b_out.requires_grad) == (frozen == "k", frozen == "q")
            (a_out if frozen == "k" else b_out).sum().backward()


def test_one_output_used(device: str) -> None:
    cos, sin = table(device)
    for used in (0, 1):
        inputs = leaf(3, 2, 4, device=device), leaf(3, 1, 4, device=device)
        apply_rope(*inputs, cos, sin, positions(device))[used].sum().backward()
        assert inputs[used].grad is not None
        assert inputs[1 - used].grad is None


def test_backward_of_q_and_k_is_one_launch(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cos, sin = table(device)
    inputs = leaf(3, 2, 4, device=device), leaf(3, 1, 4, device=device)
    total = sum(x.sum() for x in apply_rope(*inputs, cos, sin, positions(device)))
    launches = []
    backend = eager if not api._kernels_run_on(inputs[0]) else launch
    rotate = backend.rotate
    monkeypatch.setattr(backend, "rotate", lambda *args, **kw: launches.append(args) or rotate(*args, **kw))
    torch.as_tensor(total).backward()
    assert len(launches) == 1
    # sum() expands one number: the kernel must read it through stride 0, without a copy.
    assert launches[0][0].stride() == (0, 0, 0)


def saved_bytes(function: Callable[[], Any], keep: set[int]) -> int:
    """Bytes that autograd saves in a call, tensors in `keep` (by address) aside."""
    saved: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() not in keep:
            saved[x.data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        function()
    return sum(saved.values())


def test_saves_tables_and_positions_only(device: str) -> None:
    cos, sin = table(device)
    index = positions(device)
    q, k = leaf(3, 8, 4, device=device), leaf(3, 2, 4, device=device)
    given = {x.data_ptr() for x in (cos, sin, index)}
    for inplace in (False, True):
        inputs = q.clone(), k.clone()
        call = lambda: apply_rope(*inputs, cos, sin, index, inplace=inplace)  # noqa: B023, E731
        assert saved_bytes(call, given) == 0
    learnt = cos.clone().requires_grad_()
    given |= {learnt.data_ptr(), q.data_ptr(), k.data_ptr()}
    assert saved_bytes(lambda: apply_rope(q, k, learnt, sin, index), given) == 0


def test_no_history_without_grad_mode(device: str) -> None:
    cos, sin = table(device)
    q = leaf(3, 2, 4, device=device)
    with torch.no_grad():
        assert apply_rope(q, None, cos, sin, positions(device)).grad_fn is None
    with torch.inference_mode():
        out = apply_rope(q.detach().clone(), None, cos, sin, positions(device), inplace=True)
        assert out.is_inference()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on the CPU such a position raises PositionError")
@pytest.mark.gpu
def test_gradient_of_a_token_outside_the_table_is_nan() -> None:
    cos, sin = (t.float() for t in table("cuda"))
    q = leaf(3, 2, 6, device="cuda", dtype=torch.float32)
    index = torch.tensor([1, 6, -1], device="cuda")
    apply_rope(q, None, cos, sin, index).sum().backward()
    assert q.grad is not None
    assert q.grad[0].isfinite().all()
    assert q.grad[1:, :, :4].isnan().all()
    assert (q.grad[1:, :, 4:] == 1).all()


class TestInPlace:
    def test_version_counts_up_recorded_or_not(self, device: str) -> None:
        cos, sin = table(device)
        for requires_grad in (False, True):
            q, k = (leaf(3, n, 4, device=device).requires_grad_(requires_grad) * 1 for n in (2, 1))
            before = q._version, k._version
            apply_rope(q, k, cos, sin, positions(device), inplace=True)
            assert q._version > before[0]
            assert k._version > before[1]

    def test_out_of_place_leaves_the_version_alone(self, device: str) -> None:
        q = leaf(3, 2, 4, device=device)
        apply_rope(q, None, *table(device), positions(device))
        assert q._version == 0

    def test_a_value_saved_before_is_missed_loudly(self, device: str) -> None:
        q = leaf(3, 2, 4, device=device) * 1
        square = (q * q).sum()
        apply_rope(q, None, *table(device), positions(device), inplace=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            square.backward()

    def test_views_of_one_buffer(self, device: str) -> None:
        packed = leaf(3, 5, 4, device=device)
        weights = torch.randn(3, 5, 4, dtype=torch.float64, device=device)
        grads = []
        for inplace in (False, True):
            qkv = packed * 1
            q, k = qkv[:, :3], qkv[:, 3:4]
            q, k = apply_rope(q, k, *table(device), positions(device), inplace=inplace)
            whole = qkv if inplace else torch.cat((q, k, qkv[:, 4:]), 1)
            grads += torch.autograd.grad((whole * weights).sum(), packed)
        torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=0)

    @pytest.mark.parametrize("make", [
        lambda x: x,
        lambda x: x[:, :2],
        lambda x: (x * 1).split(2, 1)[0],
        lambda x: (x * 1).unbind(1)[0].unsqueeze(1),
    ], ids=["leaf", "view of a leaf", "split", "unbind"])  # fmt: skip
    def test_what_autograd_forbids_is_refused_before_anything_is_written(
        self, device: str, make: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        q, k = leaf(3, 4, 4, device=device) * 1, make(leaf(3, 4, 4, device=device))
        before = q.detach().clone(), k.detach().clone(), q.grad_fn
        with pytest.raises(RopeError, match=r"inplace=True but k is .* pass inplace=False"):
            apply_rope(q, k, *table(device), positions(device), inplace=True)
        assert torch.equal(q, before[0])
        assert torch.equal(k, before[1])
        assert q.grad_fn is before[2]

    def test_table_that_requires_grad_is_refused(self, device: str) -> None:
        cos, sin = table(device)
        q = leaf(3, 2, 4, device=device) * 1
        before = q.detach().clone()
        with pytest.raises(RopeError, match="gradient of cos and sin needs: pass inplace=False"):
            apply_rope(q, None, cos.requires_grad_(), sin, positions(device), inplace=True)
        assert torch.equal(q, before)


class TestTransforms:
    """torch.func and forward-mode AD run the plain PyTorch implementation."""

    def test_vmap(self, device: str) -> None:
        cos, sin = table(device)
        q, k = leaf(5, 3, 2, 4, device=device), leaf(5, 3, 1, 4, device=device)
        index = torch.randint(0, 6, (5, 3), device=device)
        for layout in ("neox", "gptj"):
            rotated = lambda q, k, p: apply_rope(q, k, cos, sin, p, layout=layout)  # noqa: B023, E731
            actual = torch.vmap(rotated)(q, k, index)
            expected = apply_rope(q, k, cos, sin, index, layout=layout)
            for a, b in zip(actual, expected, strict=True):
                torch.testing.assert_close(a, b)

    def test_jvp_of_everything(self, device: str) -> None:
        cos, sin = table(device)
        q = leaf(3, 2, 6, device=device).detach()
        tangents = tuple(torch.randn_like(x) for x in (q, cos, sin))
        rotated = lambda q, c, s: apply_rope(q, None, c, s, positions(device), layout="gptj")  # noqa: E731
        out, tangent = torch.func.jvp(rotated, (q, cos, sin), tangents)
        torch.testing.assert_close(out, rotated(q, cos, sin))
        by_parts = rotated(tangents[0], cos, sin) + rotated(q, *tangents[1:])
        by_parts[..., 4:] -= q[..., 4:]
        torch.testing.assert_close(tangent, by_parts)

    def test_forward_mode_keeps_the_tangent(self, device: str) -> None:
        cos, sin = table(device)
        q = leaf(3, 2, 4, device=device).detach()
        direction = torch.randn_like(q)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, direction)
            out = apply_rope(dual, None, cos, sin, positions(device))
            tangent = torch.autograd.forward_ad.unpack_dual(out).tangent
        torch.testing.assert_close(tangent, apply_rope(direction, None, cos, sin, positions(device)))

    def test_grad_and_jacrev(self, device: str) -> None:
        cos, sin = table(device)
        q = leaf(3, 1, 4, device=device).detach()
        loss = lambda q: (apply_rope(q, None, cos, sin, positions(device)) ** 3).sum()  # noqa: E731
        expected = torch.autograd.grad(loss(q.requires_grad_()), q)[0]
        torch.testing.assert_close(torch.func.grad(loss)(q), expected)
        torch.testing.assert_close(torch.func.jacrev(loss)(q), expected)

    def test_in_place_is_refused(self, device: str) -> None:
        cos, sin = table(device)
        with pytest.raises(RopeError, match=r"torch\.func .* pass inplace=False"):
            torch.vmap(lambda q: apply_rope(q, None, cos, sin, inplace=True))(leaf(2, 3, 2, 4, device=device))
