"""Unit tests of tables, rules, configurations, axes and shards, of their oracle, and of docs/tables.md."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from properties import table_oracle
from properties.failures import Mismatch
from properties.table_checks import check_values
from rope import RopeError, rope_table, rope_table_from_config
from rope.axes import mrope_axes, vision_rope_table
from rope.config import read_rope_config
from rope.scaling import (
    DeepSeekYaRN,
    DynamicNTK,
    FixedNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    YaRN,
)
from rope.shards import shard_positions
from rope.tables import rope_frequencies
from strategies.tables import TableCase

YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {"short_factor": (1.0, 1.0), "long_factor": (2.0, 3.0), "original_max_position_embeddings": 4096}
RULES = [
    None,
    Linear(4.0),
    FixedNTK(4.0),
    DynamicNTK(factor=4.0, max_position_embeddings=4096, seq_len=10000),
    YaRN(**YARN),
    DeepSeekYaRN(**YARN, mscale_all_dim=0.7),
    LongRoPE(**LONGROPE, seq_len=5000, factor=32.0),
    Llama3(**LLAMA3),
    Proportional(partial_rotary_factor=0.5),
]
DOC = Path(__file__).parent.parent / "docs" / "tables.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_in_the_docs_run(example: str) -> None:
    exec(compile(example, str(DOC), "exec"), {})


def test_the_docs_have_an_example_of_every_rule() -> None:
    rules = {type(rule).__name__ for rule in RULES if rule is not None}
    assert rules <= set(re.findall(r"\w+", " ".join(EXAMPLES)))


# --- rope_table


def test_a_table_iterates_as_cos_and_sin() -> None:
    table = rope_table(8, 5)
    cos, sin = table
    assert cos is table.cos
    assert sin is table.sin
    assert (cos.shape, cos.dtype) == ((5, 4), torch.float32)


def test_empty_tables() -> None:
    assert rope_table(8, 0).cos.shape == (0, 4)
    assert rope_table(0, 5).cos.shape == (5, 0)


def test_rows_on_both_sides_of_a_block_are_right() -> None:
    """Tables are built 65536 rows at a time."""
    cos = rope_table(4, 65538).cos
    angles = torch.arange(65530, 65538).float()[:, None] * rope_frequencies(4)
    assert torch.equal(cos[65530:], angles.cos())


def test_float64_is_the_better_table() -> None:
    far = TableCase(8, 100_000, 500000.0, precision="float64")
    check_values(rope_table, far)
    with pytest.raises(Mismatch):
        check_values(lambda *args, precision, **options: rope_table(*args, **options), far)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_table_has_the_same_bits_on_every_device(precision: str) -> None:
    here, there = (
        rope_table(64, 70_000, rule=YaRN(**YARN), precision=precision, device=device)
        for device in ("cpu", "cuda")
    )
    assert there.cos.is_cuda
    assert torch.equal(there.cos.cpu(), here.cos)
    assert torch.equal(there.sin.cpu(), here.sin)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((7, 10), "rot_dim must be an even number of dims, got 7"),
        ((-2, 10), "rot_dim must be an even number of dims, got -2"),
        ((8, -1), "max_position must be a number of rows, got -1"),
        ((8, 2.0), "max_position must be a number of rows, got 2.0"),
        ((8, 10, 1.0), r"base \(rope_theta\) must be a number above 1, got 1.0"),
        ((8, 10, "10000"), r"base \(rope_theta\) must be a number above 1, got '10000'"),
        ((8, 10, float("nan")), r"base \(rope_theta\) must be a number above 1, got nan"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(RopeError, match=words):
        rope_table(*arguments)


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(RopeError, match="precision must be one of float32, float64, got 'bfloat16'"):
        rope_table(8, 10, precision="bfloat16")


# --- rules


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Linear(0.0), "Linear: factor must be a positive number, got 0.0"),
        (lambda: Linear("4"), "Linear: factor must be a positive number, got '4'"),
        (lambda: FixedNTK(float("inf")), "FixedNTK: factor must be a positive number, got inf"),
        (
            lambda: DynamicNTK(factor=2.0, max_position_embeddings=4096, seq_len=0),
            "DynamicNTK: seq_len must be a whole number >= 1, got 0",
        ),
        (lambda: YaRN(**YARN, beta_fast=1, beta_slow=32), "YaRN: beta_fast must exceed beta_slow"),
        (
            lambda: Llama3(**LLAMA3 | {"high_freq_factor": 1.0}),
            "high_freq_factor must exceed low_freq_factor",
        ),
        (lambda: LongRoPE(**LONGROPE, seq_len=1), "LongRoPE needs factor .* or attention_factor"),
        (
            lambda: Proportional(partial_rotary_factor=25),
            "partial_rotary_factor must be within 0 .. 1, got 25",
        ),
    ],
)
def test_wrong_parameters_of_a_rule_are_named(make: Any, words: str) -> None:
    with pytest.raises(RopeError, match=words):
        make()


def test_rules_that_do_not_fit_rot_dim() -> None:
    longrope = LongRoPE(**LONGROPE, seq_len=1, factor=2.0)
    with pytest.raises(RopeError, match="short_factor has 2 entries; rot_dim 8 needs 4"):
        rope_table(8, 10, rule=longrope)
    with pytest.raises(RopeError, match="FixedNTK needs rot_dim >= 4"):
        rope_table(2, 10, rule=FixedNTK(2.0))


def test_the_trained_length_and_one_more() -> None:
    def dynamic(seq_len: int) -> torch.Tensor:
        return rope_frequencies(
            64, rule=DynamicNTK(factor=4.0, max_position_embeddings=4096, seq_len=seq_len)
        )

    def longrope(seq_len: int) -> torch.Tensor:
        return rope_frequencies(4, rule=LongRoPE(**LONGROPE, seq_len=seq_len, factor=32.0))

    assert torch.equal(dynamic(4096), rope_frequencies(64))
    assert torch.equal(dynamic(1), dynamic(4096))  # far below it the stretch alone would be negative
    assert (dynamic(4097)[1:] < dynamic(4096)[1:]).all()
    assert torch.equal(longrope(1), longrope(4096))
    assert longrope(4096).tolist() == pytest.approx([1.0, 0.01])
    assert longrope(4097).tolist() == pytest.approx([1 / 2, 0.01 / 3])


def test_attention_factors() -> None:
    assert YaRN(**YARN).cos_sin_factor() == pytest.approx(1.138629436)
    assert YaRN(**YARN, attention_factor=1.0).cos_sin_factor() == 1.0
    assert YaRN(**YARN, mscale=0.707).cos_sin_factor() == YaRN(**YARN).cos_sin_factor()
    assert YaRN(**YARN, mscale=0.5, mscale_all_dim=0.5).cos_sin_factor() == 1.0
    assert YaRN(**YARN | {"factor": 1.0}).cos_sin_factor() == 1.0
    assert DeepSeekYaRN(**YARN).cos_sin_factor() == YaRN(**YARN).cos_sin_factor()
    assert DeepSeekYaRN(**YARN, mscale=1.0, mscale_all_dim=1.0).cos_sin_factor() == 1.0
    assert DeepSeekYaRN(**YARN, mscale_all_dim=1.0).softmax_factor() == pytest.approx(1.138629436**2)
    assert LongRoPE(**LONGROPE, seq_len=1, factor=32.0).cos_sin_factor() == pytest.approx(1.190238071)
    assert LongRoPE(**LONGROPE, seq_len=1, factor=1.0).cos_sin_factor() == 1.0


# --- configurations

BASIC = {"head_dim": 64, "max_position_embeddings": 128, "rope_theta": 10000.0}


def test_rows_default_to_the_length_of_the_model_or_of_the_sequence() -> None:
    assert rope_table_from_config(BASIC).cos.shape == (128, 32)
    assert rope_table_from_config(BASIC, seq_len=200).cos.shape == (200, 32)
    assert rope_table_from_config(BASIC, 7).cos.shape == (7, 32)


def test_objects_are_read_like_dicts() -> None:
    assert read_rope_config(SimpleNamespace(**BASIC)) == read_rope_config(BASIC)
    with pytest.raises(RopeError, match=r"a dict or an object with attributes, got 'config\.json'"):
        read_rope_config("config.json")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_theta": 1e4}, "missing key 'head_dim' in the configuration, or hidden_size and num_att"),
        ({"head_dim": 64}, "missing key 'rope_theta' in the configuration"),
        (BASIC | {"rope_scaling": {"type": "longlat"}}, "unknown rope_type 'longlat' .* known: default, "),
        (
            BASIC | {"rope_scaling": {"type": "linear"}},
            "missing key 'factor' in the RoPE parameters .* 'linear'",
        ),
        (BASIC | {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "missing key 'original_max_position_emb"),
        (
            BASIC | {"rope_parameters": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": None}},
            "missing key 'low_freq_factor' in the RoPE parameters of rope_type 'llama3'",
        ),
        (
            BASIC | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "'dynamic' follows the length .* seq_len",
        ),
        (
            BASIC | {"rope_scaling": {"type": "longrope", **LONGROPE}},
            "'longrope' follows the length .* seq_len",
        ),
        (BASIC | {"rope_local_base_freq": 1e4}, "full_attention, sliding_attention: .* got None"),
        (
            BASIC | {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "rope_theta": None}},
            "for the layer types full_attention: pass one of them as layer_type, got None",
        ),
    ],
)
def test_what_a_configuration_lacks_is_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(RopeError, match=words):
        read_rope_config(config)


def test_the_number_of_rows_is_asked_for() -> None:
    with pytest.raises(RopeError, match=r"missing key 'max_position_embeddings' .* or pass max_position"):
        rope_table_from_config({"head_dim": 64, "rope_theta": 1e4})


def test_wrong_layer_types_are_named() -> None:
    nested = BASIC | {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "linear_attention": None}}
    with pytest.raises(RopeError, match="layers of type 'linear_attention' have no RoPE"):
        read_rope_config(nested, layer_type="linear_attention")
    with pytest.raises(RopeError, match="pass one of them as layer_type, got 'sliding_attention'"):
        read_rope_config(nested, layer_type="sliding_attention")
    flat = BASIC | {"layer_types": ["full_attention", "full_attention"]}
    for same in (flat, flat | {"layer_types": None}):
        assert read_rope_config(same, layer_type="full_attention") == read_rope_config(BASIC)
    with pytest.raises(RopeError, match=r"layer types full_attention: .* got 'chunked_attention'"):
        read_rope_config(flat, layer_type="chunked_attention")


def test_an_odd_number_of_rotated_dims_is_refused() -> None:
    """Rounding would leave a dim out, or take one in, that the model turns otherwise."""
    with pytest.raises(RopeError, match="rot_dim must be an even number of dims, got 19"):
        rope_table_from_config(BASIC | {"partial_rotary_factor": 0.3})


def test_rule_names_of_older_configurations() -> None:
    scaling = {**LONGROPE, "factor": 2.0}
    su, longrope = (
        read_rope_config(BASIC | {"rope_scaling": {"type": name, **scaling}}, seq_len=9)
        for name in ("su", "longrope")
    )
    assert su == longrope
    ntk = read_rope_config(BASIC | {"rope_scaling": {"type": "ntk", "factor": 2.0}})
    assert ntk.rule == FixedNTK(2.0)
    yarn = read_rope_config(BASIC | {"rope_scaling": {"type": "deepseek_yarn", **YARN}})
    assert yarn.rule == DeepSeekYaRN(**YARN)


def test_the_factor_defaults_to_the_length_over_the_trained_length() -> None:
    trained = {"original_max_position_embeddings": 32}
    yarn = read_rope_config(BASIC | {"rope_scaling": {"type": "yarn", **trained}})
    assert yarn.rule == YaRN(factor=4.0, **trained)
    phi3 = BASIC | trained | {"rope_scaling": {"type": "longrope", **LONGROPE}}
    rule = read_rope_config(phi3, seq_len=9).rule
    assert rule == LongRoPE(**LONGROPE | trained, seq_len=9, factor=4.0)  # the trained length outside wins


def test_phi_3_5_moe_states_an_attention_factor_for_each_set() -> None:
    scaling = {"type": "longrope", **LONGROPE, "short_mscale": 1.1, "long_mscale": 1.2}
    config = BASIC | {"rope_scaling": scaling}
    assert rope_table_from_config(config | {"head_dim": 4}, 8, seq_len=4096).attention_factor == 1.1
    assert rope_table_from_config(config | {"head_dim": 4}, 8, seq_len=4097).attention_factor == 1.2


def test_gemma_4_saved_again_by_transformers() -> None:
    """transformers saves the wide heads of full layers as overrides by layer number."""
    config = BASIC | {
        "layer_types": ["sliding_attention", "full_attention"],
        "per_layer_config": {"01": {"head_dim": 128}},
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_theta": 1e4},
        },
    }
    assert read_rope_config(config, layer_type="full_attention").rot_dim == 128
    assert read_rope_config(config, layer_type="sliding_attention").rot_dim == 64


# --- axes and shards


def test_wrong_sections_are_named() -> None:
    with pytest.raises(RopeError, match="section must count the pairs of each axis, got"):
        mrope_axes([2, -1, 1])
    with pytest.raises(RopeError, match="three axes"):
        mrope_axes([2, 2], interleaved=True)
    with pytest.raises(RopeError, match="every third of 7 pairs leaves 2 for axis 1, not 5"):
        mrope_axes([1, 5, 1], interleaved=True)
    with pytest.raises(RopeError, match="multiple of 4, got 6"):
        vision_rope_table(6, 10)


def test_wrong_shards_are_named() -> None:
    with pytest.raises(RopeError, match=r"rank must be within 0 .. world_size - 1, got rank 2 of 2"):
        shard_positions(8, 2, 2)
    with pytest.raises(RopeError, match="order must be 'zigzag' or 'contiguous', got 'striped'"):
        shard_positions(8, 2, 0, order="striped")
    with pytest.raises(RopeError, match=r"length 6 does not divide into 4 chunks .* pad the sequence"):
        shard_positions(6, 2, 0)


# --- the oracle of the properties


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_the_oracle_agrees_with_60_digits(rule: Any) -> None:
    """Its frequencies are right to their own rounding, by formulas written once more."""
    d, base = (4, 500000.0) if isinstance(rule, LongRoPE) else (32, 500000.0)
    exact = np.array([float(f) for f in _frequencies_in_60_digits(d, base, rule)])
    got = table_oracle.exact_frequencies(d, base, rule)
    assert (np.abs(got - exact) <= 16 * 2.0**-53 * exact).all()


def _frequencies_in_60_digits(d: int, base: float, rule: Any) -> list[Any]:
    with mpmath.workdps(60):
        theta = [mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / d) for i in range(d // 2)]
        stretch = mpmath.mpf(d) / (d - 2)
        match rule:
            case None:
                return theta
            case Linear():
                return [t / 4 for t in theta]
            case FixedNTK():
                return [(base * 4**stretch) ** (-mpmath.mpf(2 * i) / d) for i in range(d // 2)]
            case DynamicNTK():
                s = mpmath.mpf(4) * 10000 / 4096 - 3
                return [(base * s**stretch) ** (-mpmath.mpf(2 * i) / d) for i in range(d // 2)]
            case YaRN():
                ends = [d * mpmath.log(4096 / (r * 2 * mpmath.pi)) / (2 * mpmath.log(base)) for r in (32, 1)]
                low, high = mpmath.floor(ends[0]), mpmath.ceil(ends[1])
                ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(d // 2)]
                return [t * (1 - g) + t / 4 * g for t, g in zip(theta, ramp, strict=True)]
            case LongRoPE():
                return [theta[0] / 2, theta[1] / 3]
            case Llama3():
                turns = [8192 * t / (2 * mpmath.pi) for t in theta]
                smooth = [min(max((n - 1) / 3, 0), 1) for n in turns]
                return [(1 - s) * t / 8 + s * t for t, s in zip(theta, smooth, strict=True)]
            case Proportional():
                return [t if i < d // 4 else mpmath.mpf(0) for i, t in enumerate(theta)]
    raise NotImplementedError(rule)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_bound_is_tight(rule: Any, precision: str) -> None:
    """Correct tables come within a factor of their bound, so a table ten times worse would fail."""
    rot_dim, rows = (4 if isinstance(rule, LongRoPE) else 64), 4096
    table = rope_table(rot_dim, rows, rule=rule, precision=precision)
    exact = table_oracle.exact_table(rot_dim, 10000.0, rule, np.arange(rows), precision)
    ratio = np.abs(table.cos.double().numpy() - exact.cos) / exact.cos_error
    assert 0.1 < ratio.max() <= 1
