"""The drop-ins against what they stand for: Hugging Face models and functions, and the definition."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rope import PositionError, RopeError, compat, rope_table

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 61, "max_position_embeddings": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SIZES | HEADS),
    "qwen2": ("Qwen2", SIZES | HEADS),
    "gemma": ("Gemma", SIZES | HEADS | {"head_dim": 16}),
    "gpt_neox": (
        "GPTNeoX",
        SIZES | {"num_attention_heads": 4, "intermediate_size": 48, "rotary_pct": 0.5, "hidden_dropout": 0.0},
    ),
    "gptj": (
        "GPTJ",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 61, "rotary_dim": 4},
    ),
}


def rotation_of(model: str) -> tuple[str, Callable[..., Any]]:
    """The module whose function is replaced, and what replaces it."""
    drop_in = compat.apply_rotary_pos_emb_gptj if model == "gptj" else compat.apply_rotary_pos_emb
    return f"transformers.models.{model}.modeling_{model}", drop_in


def results(model: torch.nn.Module, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Logits, then the gradient of every parameter."""
    model.zero_grad()
    logits = model(tokens).logits
    logits.square().mean().backward()
    grads = [p.grad for p in model.parameters()]
    assert all(grad is not None for grad in grads)
    return [logits.detach(), *[grad.clone() for grad in grads if grad is not None]]


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_gives_the_same_logits_and_gradients(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    title, options = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{title}Config")(**options)
    model = getattr(transformers, f"{title}ForCausalLM")(config).eval()
    tokens = torch.randint(0, 61, (2, 7))
    expected = results(model, tokens)
    path, drop_in = rotation_of(name)
    calls = []
    monkeypatch.setattr(
        importlib.import_module(path), "apply_rotary_pos_emb", lambda *args: calls.append(1) or drop_in(*args)
    )
    actual = results(model, tokens)
    assert len(calls) == (4 if name == "gptj" else 2)
    for a, e in zip(actual, expected, strict=True):
        # Rounding may differ in the last bit of a product sum, and the model carries it on.
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6 * float(e.abs().max()))


def test_decoding_with_a_cache_gives_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | HEADS)).eval()
    tokens = torch.randint(0, 61, (2, 5))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(tokens, **options)
    path, drop_in = rotation_of("llama")
    monkeypatch.setattr(importlib.import_module(path), "apply_rotary_pos_emb", drop_in)
    assert torch.equal(model.generate(tokens, **options), expected)


class TestHuggingFace:
    @pytest.mark.parametrize("rot_dim", [8, 6])
    @pytest.mark.parametrize("table_batch", [1, 2])
    @pytest.mark.parametrize("unsqueeze_dim", [1, 2])
    def test_equals_the_original(self, unsqueeze_dim: int, table_batch: int, rot_dim: int) -> None:
        original = importlib.import_module("transformers.models.gpt_neox.modeling_gpt_neox")
        shape = (2, 3, 5, 8) if unsqueeze_dim == 1 else (2, 5, 3, 8)
        q, k = torch.randn(shape), torch.randn(shape).narrow(unsqueeze_dim, 0, 1)
        angle = torch.randn(table_batch, 5, rot_dim // 2).repeat(1, 1, 2)
        given = q, k, angle.cos(), angle.sin(), unsqueeze_dim
        expected = original.apply_rotary_pos_emb(*given)
        for actual, wanted in zip(compat.apply_rotary_pos_emb(*given), expected, strict=True):
            torch.testing.assert_close(actual, wanted)

    def test_odd_width_and_strange_axis_are_refused(self) -> None:
        q, table = torch.ones(1, 2, 3, 8), torch.ones(1, 3, 7)
        with pytest.raises(RopeError, match="odd last axis"):
            compat.apply_rotary_pos_emb(q, q, table, table)
        with pytest.raises(RopeError, match="unsqueeze_dim is 0"):
            compat.apply_rotary_pos_emb(q, q, table, table, 0)


def turned(x: torch.Tensor, position: int, table: Any, interleaved: bool) -> torch.Tensor:
    """One token, (heads, head_dim), as complex numbers times a unit number."""
    unit = torch.complex(table.cos[position], table.sin[position])
    half = len(unit)
    rotated = x[:, : 2 * half]
    lo, hi = (rotated[:, ::2], rotated[:, 1::2]) if interleaved else rotated.split(half, -1)
    product = torch.complex(lo, hi) * unit
    parts = product.real, product.imag
    pairs = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((pairs, x[:, 2 * half :]), -1)


class TestFlashAttention:
    @pytest.mark.parametrize("inplace", [False, True])
    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("offsets", [0, 3, torch.tensor([3, 1], dtype=torch.int32)], ids=repr)
    @pytest.mark.parametrize("ragged", [False, True])
    def test_equals_the_definition(
        self, ragged: bool, offsets: int | torch.Tensor, interleaved: bool, inplace: bool
    ) -> None:
        table = rope_table(6, 8)
        first, second = (int(o) for o in torch.as_tensor(offsets).expand(2))
        lengths = (5, 2) if ragged else (4, 4)
        positions = [first + n for n in range(lengths[0])] + [second + n for n in range(lengths[1])]
        x = torch.randn(len(positions), 3, 8)
        expected = torch.stack([turned(x[t], p, table, interleaved) for t, p in enumerate(positions)])
        cu_seqlens = torch.tensor([0, 5, 7], dtype=torch.int32) if ragged else None
        given = x.clone() if ragged else x.clone().view(2, 4, 3, 8)
        max_seqlen = 5 if ragged else None
        out = compat.apply_rotary_emb(given, *table, interleaved, inplace, offsets, cu_seqlens, max_seqlen)
        assert (out.data_ptr() == given.data_ptr()) == inplace
        torch.testing.assert_close(out.view(x.shape), expected)

    def test_gradient_reaches_x(self) -> None:
        x = torch.randn(2, 4, 3, 8, requires_grad=True)
        out = compat.apply_rotary_emb(x, *rope_table(6, 8), seqlen_offsets=torch.tensor([1, 2]))
        out.square().sum().backward()
        # A rotation keeps the norm, so the gradient of half its square is x itself.
        torch.testing.assert_close(x.grad, 2 * x.detach())

    def test_wrong_input_is_refused(self) -> None:
        table = rope_table(6, 8)
        with pytest.raises(RopeError, match="or 3 axes and cu_seqlens"):
            compat.apply_rotary_emb(torch.ones(4, 3, 8), *table)
        with pytest.raises(RopeError, match="seqlen_offsets is -1"):
            compat.apply_rotary_emb(torch.ones(1, 4, 3, 8), *table, seqlen_offsets=-1)
        with pytest.raises(PositionError):
            compat.apply_rotary_emb(torch.ones(1, 4, 3, 8), *table, seqlen_offsets=5)


class TestVLLM:
    @pytest.mark.parametrize("is_neox", [False, True])
    @pytest.mark.parametrize("flat", [False, True])
    @pytest.mark.parametrize("batched", [False, True])
    def test_equals_the_definition(self, batched: bool, flat: bool, is_neox: bool) -> None:
        table = rope_table(6, 16)
        positions = torch.tensor([15, 0, 3, 3, 7, 1])
        packed = torch.randn(6, 7 * 8)
        heads = packed.view(6, 7, 8)
        expected = torch.stack(
            [turned(heads[t, :6], int(p), table, not is_neox) for t, p in enumerate(positions)]
        )
        untouched = heads[:, 6].clone()
        query, key = packed[:, :32], packed[:, 32:48]
        if not flat:
            query, key = heads[:, :4], heads[:, 4:6]
        if batched:
            positions = positions.view(2, 3)
            query, key = query.unflatten(0, (2, 3)), key.unflatten(0, (2, 3))
        cache = torch.cat(tuple(table), -1)
        assert compat.rotary_embedding(positions, query, key, 8, cache, is_neox) is None
        torch.testing.assert_close(heads[:, :6], expected)
        assert torch.equal(heads[:, 6], untouched)

    def test_without_key(self) -> None:
        query = torch.randn(3, 16)
        expected = compat.apply_rotary_emb(query.view(1, 3, 2, 8), *rope_table(8, 4)).view(3, 16)
        cache = torch.cat(tuple(rope_table(8, 4)), -1)
        compat.rotary_embedding(torch.arange(3), query, None, 8, cache, True)
        assert torch.equal(query, expected)

    @pytest.mark.parametrize("shape", [(3, 15), (3, 2, 7), (3,), (1, 3, 2, 8)])
    def test_a_query_that_does_not_fit_is_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(RopeError, match=r"query has shape .* expected \(3, 'heads \* 8'\)"):
            compat.rotary_embedding(torch.arange(3), torch.ones(shape), None, 8, torch.ones(4, 8), True)


def test_the_documented_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = importlib.import_module("transformers.models.llama.modeling_llama")
    # Registered, so that the original comes back after the example has replaced it.
    monkeypatch.setattr(llama, "apply_rotary_pos_emb", llama.apply_rotary_pos_emb)
    for page in ("drop-ins.md", "training.md"):
        names: dict[str, Any] = {}
        text = (Path(__file__).parent.parent / "docs" / page).read_text()
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(block, page, "exec"), names)
    assert llama.apply_rotary_pos_emb is compat.apply_rotary_pos_emb
