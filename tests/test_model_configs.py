"""Published models, end to end: their configuration, their table, their rotation, against transformers."""

import copy
import importlib
import math
from typing import Any

import pytest
import torch

from rope import apply_rope
from rope.axes import mrope_axes, vision_axes, vision_rope_table
from rope.config import read_rope_config, rope_table_from_config
from rope.scaling import DeepSeekYaRN
from rope.tables import rope_frequencies
from tests.model_configs import MODELS, Model

transformers = pytest.importorskip(
    "transformers", reason="the models are compared with transformers: pip install the 'peers' extra"
)

CASES = [
    pytest.param(model, layer_type, seq_len, id=" ".join(map(str, filter(None, (name, layer_type, seq_len)))))
    for name, model in MODELS.items()
    for layer_type in model.layer_types
    for seq_len in model.seq_lens
]


def _code(model: Model) -> Any:
    return importlib.import_module(f"transformers.models.{model.module}.modeling_{model.module}")


def _config(model: Model) -> Any:
    return getattr(transformers, model.classes[0])(**copy.deepcopy(model.config))


def _positions(model: Model, length: int) -> torch.Tensor:
    """A few positions up to the last of the sequence, `(tokens,)` or `(3, tokens)`."""
    positions = torch.tensor([0, 1, 2, 3, 5, length // 2, length - 2, length - 1])
    if model.mrope is None:
        return positions
    return torch.stack((positions, positions.flip(0), (positions + 7) % length))


def _theirs(
    model: Model, layer_type: str | None, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of the model's own rotary embedding, as it returns them."""
    rotary = getattr(_code(model), model.classes[1])(_config(model))
    where = positions[:, None] if model.mrope else positions[None]
    extra = () if layer_type is None else (layer_type,)
    first, second = rotary(torch.empty(0), where, *extra)
    return (second, first) if model.module == "gptj" else (first, second)


def _one_per_pair(model: Model, table: torch.Tensor, pairs: int) -> torch.Tensor:
    """Some return every value twice: Cohere next to each other, most in two halves."""
    return table[0, :, ::2] if model.module == "cohere" else table[0, :, :pairs]


@pytest.mark.parametrize(("model", "layer_type", "seq_len"), CASES)
def test_a_published_configuration_gives_the_table_of_its_model(
    model: Model, layer_type: str | None, seq_len: int | None
) -> None:
    rot_dim = model.rot_dim[layer_type] if isinstance(model.rot_dim, dict) else model.rot_dim
    length = seq_len or 2048
    positions = _positions(model, length)
    theirs = _theirs(model, layer_type, positions)
    for config in (model.config, _config(model)):
        table = rope_table_from_config(config, length, layer_type=layer_type, seq_len=seq_len)
        assert table.cos.shape == (length, rot_dim // 2)
        if model.mrope:
            rows = positions[mrope_axes(*model.mrope)].T
            ours = tuple(x[rows, torch.arange(rot_dim // 2)] for x in table)
        else:
            ours = (table.cos[positions], table.sin[positions])
        for our, their in zip(ours, theirs, strict=True):
            assert torch.equal(our, _one_per_pair(model, their, rot_dim // 2))


@pytest.mark.parametrize(("model", "layer_type", "seq_len"), CASES)
def test_a_published_configuration_rotates_as_its_model(
    model: Model, layer_type: str | None, seq_len: int | None
) -> None:
    read = read_rope_config(model.config, layer_type=layer_type, seq_len=seq_len)
    positions = _positions(model, seq_len or 2048)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, positions.shape[-1], 2, read.rot_dim, generator=generator)
    expected = _rotated_by_transformers(model, q, *_theirs(model, layer_type, positions))
    table = rope_table_from_config(model.config, seq_len or 2048, layer_type=layer_type, seq_len=seq_len)
    axes = mrope_axes(*model.mrope) if model.mrope else None
    ours = apply_rope(q, None, *table, positions, axes=axes, layout=model.layout)
    # the same products and sums in float32, so the same bits
    assert torch.equal(ours, expected)


def _rotated_by_transformers(
    model: Model, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """q, `(1, tokens, heads, rot_dim)`, rotated by the function of the model's own file."""
    code = _code(model)
    match model.module:
        case "gptj":
            return code.apply_rotary_pos_emb(q, sin, cos)
        case "gemma4":
            return code.apply_rotary_pos_emb(q, cos, sin, unsqueeze_dim=2)
        case "deepseek_v3":  # leaves the pairs in two halves: the same to attention, other places here
            halves, _ = code.apply_rotary_pos_emb_interleave(q, q, cos, sin, unsqueeze_dim=2)
            return halves.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    return code.apply_rotary_pos_emb(q, q, cos, sin, unsqueeze_dim=2)[0]


@pytest.mark.parametrize(
    ("module", "config"), [("qwen2_vl", "Qwen2VLVisionConfig"), ("qwen3_vl", "Qwen3VLVisionConfig")]
)
def test_vision_towers(module: str, config: str) -> None:
    """Qwen2-VL's and Qwen3-VL's vision towers turn half their pairs by the row, half by the column."""
    code = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    vision = getattr(transformers, config, None) or getattr(code, config)
    rotary = next(value for name, value in vars(code).items() if name.endswith("VisionRotaryEmbedding"))
    tower = rotary(vision(hidden_size=1280, embed_dim=1280, num_heads=16))
    grid = torch.tensor([[0, 0, 0, 1, 1, 1, 36], [0, 1, 2, 0, 1, 2, 51]])
    theirs = tower(torch.empty(0), grid.T)
    q, k = torch.randn(2, 7, 16, 80, generator=torch.Generator().manual_seed(0))
    expected = code.apply_rotary_pos_emb_vision(q, k, *theirs)
    ours = apply_rope(q, k, *vision_rope_table(80, 52), grid, axes=vision_axes(80))
    for our, their in zip(ours, expected, strict=True):
        assert torch.equal(our, their)


def test_deepseeks_softmax_factor_is_the_one_its_attention_multiplies_in() -> None:
    model = MODELS["DeepSeek-V3"]
    read = read_rope_config(model.config)
    assert isinstance(read.rule, DeepSeekYaRN)
    config = _config(model)
    plain = config.qk_head_dim**-0.5
    scaled = _code(model).yarn_apply_mscale(config.rope_parameters, plain)
    table = rope_table_from_config(model.config, 8)
    assert table.attention_factor == 1.0
    assert table.softmax_factor * plain == pytest.approx(scaled, rel=1e-15)


def test_dynamic_beyond_the_trained_length_is_within_the_rounding_of_a_float32_base() -> None:
    """There transformers' module computes the stretched base in float32, here it is a double.

    With s = f*L/M - (f-1): two roundings on f*L/M, amplified by the subtraction, and one of s give s a
    relative error of (2*f*L/M / s + 1) u. The power d/(d-2) passes it on and adds an ulp (2u), the
    product and the base itself 2u more. A frequency is the base to a power of at most 1; each of the two
    computations of it adds the rounding of the exponent, ln(base) u, an ulp of pow and a division.
    """
    model, length, factor, trained = MODELS["InternLM3 8B"], 100_000, 6.0, 32768
    rotary = getattr(_code(model), model.classes[1])(_config(model))
    rotary(torch.empty(0), torch.tensor([[length - 1]]))
    read = read_rope_config(model.config, seq_len=length)
    ours = rope_frequencies(read.rot_dim, read.base, rule=read.rule).double()
    unit, ratio = 2.0**-24, factor * length / trained
    base_error = (2 * ratio / (ratio - (factor - 1)) + 1) * 128 / 126 * unit + 4 * unit
    frequency_error = (math.log(read.base * ratio**2) + 3) * unit
    moved = (ours / rotary.inv_freq.double() - 1).abs()
    assert (moved <= base_error + 2 * frequency_error).all()
