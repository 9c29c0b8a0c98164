"""Hypothesis strategies for cos/sin tables: arguments of rope_table, and configurations that spell them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from rope.scaling import (
    DeepSeekYaRN,
    DynamicNTK,
    FixedNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    Rule,
    YaRN,
)


@dataclass(frozen=True)
class TableCase:
    """The arguments of one rope_table call."""

    rot_dim: int = 4
    max_position: int = 1
    base: float = 10000.0
    rule: Rule | None = None
    precision: str = "float32"

    def built_by(self, build: Callable[..., Any]) -> Any:
        """The table that `build`, called like rope_table, makes of this case."""
        return build(self.rot_dim, self.max_position, self.base, rule=self.rule, precision=self.precision)


# Simplest first: shrinking goes to the first entry.
_ROT_HALVES = st.integers(2, 9) | st.sampled_from([16, 20, 32, 40, 48, 64, 96, 128])
_BASES = st.sampled_from([10000.0, 500000.0, 1000000.0, 8000000.0]) | st.floats(2.0, 1e8)
_FACTORS = st.sampled_from([2.0, 1.0, 4.0, 8.0, 32.0, 40.0]) | st.floats(1.0, 64.0)
_TRAINED = st.sampled_from([4096, 2048, 8192, 32768]) | st.integers(16, 200_000)
_MSCALES = st.sampled_from([1.0, 0.707, 0.0])
_ROWS = st.integers(1, 40) | st.sampled_from([257, 2049, 1 << 20])
_HEAD_DIMS = st.sampled_from([16, 64, 80, 128])
_PARTIALS = st.sampled_from([1.0, 0.5, 0.25, 0.75])
_SPELLINGS = ("rope_scaling", "rope_parameters", "nested", "gemma3 full", "gemma3 sliding")


# Strategies are built once: building one costs more than drawing from it.
_one_of = functools.cache(st.sampled_from)
_TIMES = st.sampled_from([1, 0, 4]) | st.floats(0, 20)
_PLUS = st.sampled_from([0, 1, -1])
_ATTENTION_FACTORS = st.none() | st.floats(0.5, 2.0)
_SHORT_SLOPES, _LONG_SLOPES = st.floats(0, 0.1), st.floats(0.2, 1.0)
_LOWS, _PASSAGES = st.just(1.0) | st.floats(0.5, 8.0), st.just(3.0) | st.floats(0.25, 8.0)
_FLAGS = st.booleans()
_MORE = st.integers(0, 3)


def _served(draw: st.DrawFn, trained: int) -> int:
    """A length served: on either side of the trained one, or far from it."""
    return max(1, int(draw(_TIMES) * trained) + draw(_PLUS))


@st.composite
def _dynamic(draw: st.DrawFn) -> DynamicNTK:
    trained = draw(_TRAINED)
    return DynamicNTK(factor=draw(_FACTORS), max_position_embeddings=trained, seq_len=_served(draw, trained))


@st.composite
def _longrope(draw: st.DrawFn, rot_half: int) -> LongRoPE:
    trained = draw(_TRAINED)
    short, long = draw(_SHORT_SLOPES), draw(_LONG_SLOPES)
    return LongRoPE(
        short_factor=tuple(1.0 + short * i for i in range(rot_half)),
        long_factor=tuple(1.5 + long * i for i in range(rot_half)),
        original_max_position_embeddings=trained,
        seq_len=_served(draw, trained),
        factor=draw(_FACTORS),
        attention_factor=draw(_ATTENTION_FACTORS),
    )


@st.composite
def _llama3(draw: st.DrawFn) -> Llama3:
    low = draw(_LOWS)
    return Llama3(
        factor=draw(_FACTORS),
        low_freq_factor=low,
        high_freq_factor=low + draw(_PASSAGES),
        original_max_position_embeddings=draw(_TRAINED),
    )


def _yarn() -> st.SearchStrategy[YaRN]:
    return st.builds(
        YaRN,
        factor=_FACTORS,
        original_max_position_embeddings=_TRAINED,
        beta_fast=st.just(32) | st.floats(4.0, 128.0),
        beta_slow=st.just(1) | st.floats(0.5, 3.0),
        mscale=st.none() | _MSCALES,
        mscale_all_dim=st.none() | _MSCALES,
        attention_factor=_ATTENTION_FACTORS,
        truncate=st.sampled_from([True, False]),
    )


_RULES: dict[str, Callable[[int], st.SearchStrategy[Any]]] = {
    "default": lambda _: st.none(),
    "linear": lambda _: st.builds(Linear, _FACTORS),
    "ntk": lambda _: st.builds(FixedNTK, _FACTORS),
    "dynamic": lambda _: _dynamic(),
    "yarn": lambda _: _yarn(),
    "deepseek_yarn": lambda _: st.builds(
        DeepSeekYaRN,
        factor=_FACTORS,
        original_max_position_embeddings=_TRAINED,
        mscale=_MSCALES,
        mscale_all_dim=_MSCALES,
    ),
    "longrope": _longrope,
    "llama3": lambda _: _llama3(),
    "proportional": lambda _: st.builds(
        Proportional,
        partial_rotary_factor=st.sampled_from([0.25, 0.5, 1.0, 0.0]) | st.floats(0, 1),
        factor=_FACTORS,
    ),
}
KINDS = tuple(_RULES)


@functools.cache
def rules(kind: str, rot_half: int) -> st.SearchStrategy[Any]:
    """Rules of one kind (a key of KINDS) that fit a table of rot_half pairs; None for "default"."""
    return _RULES[kind](rot_half)


@st.composite
def table_cases(
    draw: st.DrawFn,
    kind: str | None = None,
    precisions: tuple[str, ...] = ("float32",),
    max_elements: int = 1 << 18,
) -> TableCase:
    """Tables of one kind of rule, None meaning any, from a single row to about max_elements."""
    kind = kind or draw(_one_of(KINDS))
    rot_half = draw(_ROT_HALVES)
    most = max(1, max_elements // rot_half)
    return TableCase(
        rot_dim=2 * rot_half,
        max_position=min(draw(_ROWS), most),
        base=draw(_BASES),
        rule=draw(rules(kind, rot_half)),
        precision=draw(_one_of(precisions)),
    )


@st.composite
def table_histories(draw: st.DrawFn, kind: str | None = None) -> list[TableCase]:
    """Small tables to build one after the other, some of the same shape: a cache must tell them apart."""
    first = draw(table_cases(kind, max_elements=256))
    history = [first]
    for _ in range(draw(_MORE)):
        other = draw(table_cases(kind, max_elements=256))
        if draw(_FLAGS) and not isinstance(other.rule, LongRoPE):  # whose factors fit one rot_dim only
            other = replace(other, rot_dim=first.rot_dim, max_position=first.max_position)
        history.append(other)
    return history


@dataclass(frozen=True)
class ConfigCase:
    """A configuration and the table arguments it spells.

    Attributes:
        config: as in a config.json.
        layer_type: to be passed along, or None.
        seq_len: to be passed along, or None.
        rot_dim, base, rule: what the configuration means.
    """

    config: dict[str, Any]
    layer_type: str | None
    seq_len: int | None
    rot_dim: int
    base: float
    rule: Rule | None


@st.composite
def config_cases(
    draw: st.DrawFn, kind: str | None = None, spellings: tuple[str, ...] = _SPELLINGS
) -> ConfigCase:
    """Configurations of one kind of rule, None meaning any, in the spellings of transformers 4 and 5."""
    kind = kind or draw(_one_of(KINDS))
    head_dim = draw(_HEAD_DIMS)
    partial = draw(_PARTIALS)
    rot_dim = head_dim if kind == "proportional" else int(head_dim * partial)
    rule, base = draw(rules(kind, rot_dim // 2)), draw(_BASES)
    top, scaling = _spelled(kind, rule)
    beside = {"rope_theta": base, "partial_rotary_factor": scaling.pop("partial_rotary_factor", partial)}
    if draw(_FLAGS):
        top["head_dim"] = head_dim
    else:
        top |= {"hidden_size": 8 * head_dim, "num_attention_heads": 8}
    if kind == "deepseek_yarn":  # known by its latent attention, not by its rope_type
        top["qk_rope_head_dim"], scaling["rope_type"] = rot_dim, "yarn"
    if draw(_FLAGS) and scaling:
        scaling["type"] = scaling.pop("rope_type")

    layer_type = None
    match draw(_one_of(spellings)):
        case "rope_parameters":
            top["rope_parameters"] = scaling | beside
        case "nested":
            layer_type = "full_attention"
            other = {"rope_type": "default", "rope_theta": 777.0}
            top["rope_parameters"] = {"full_attention": scaling | beside, "sliding_attention": other}
        case "gemma3 full":
            layer_type = "full_attention"
            top |= beside | {"rope_scaling": scaling or None, "rope_local_base_freq": 777.0}
        case "gemma3 sliding" if kind != "proportional":  # plain, with a base of its own
            layer_type, rule = "sliding_attention", None
            top |= beside | {"rope_theta": 777.0, "rope_scaling": scaling, "rope_local_base_freq": base}
        case _:
            top |= beside | {"rope_scaling": scaling or None}
    is_multimodal = spellings == _SPELLINGS and draw(_FLAGS)
    config = {"text_config": top, "vision_config": {"rope_theta": 3.0}} if is_multimodal else top
    return ConfigCase(config, layer_type, getattr(rule, "seq_len", None), rot_dim, base, rule)


def _spelled(kind: str, rule: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of a configuration beside its RoPE parameters, and those inside."""
    top: dict[str, Any] = {"max_position_embeddings": 1 << 20}
    if rule is None:
        return top, {}
    values = {key: value for key, value in vars(rule).items() if value is not None and key != "seq_len"}
    if kind == "dynamic":
        top["max_position_embeddings"] = values.pop("max_position_embeddings")
    for key in ("short_factor", "long_factor"):
        if key in values:
            values[key] = list(values[key])
    return top, {"rope_type": kind} | values
