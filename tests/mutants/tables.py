"""Faulty tables, configuration readers, axes and shards, each after a public report.

A mutant is called like the function it stands for: rope_table, rope_table_from_config, mrope_axes or
shard_positions. Those with a memory are classes: one instance is one process. The docstrings name the report
and the trigger, the input that shows the fault.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from properties import table_checks
from properties.table_life import check_life
from rope.axes import mrope_axes
from rope.config import read_rope_config, rope_table_from_config
from rope.scaling import (
    DynamicNTK,
    Llama3,
    LongRoPE,
    Proportional,
    Rule,
    YaRN,
    plain_frequencies,
)
from rope.shards import shard_positions
from rope.tables import RopeTable, rope_frequencies, rope_table


@dataclass(frozen=True)
class Mutant:
    """A fault, its kind, and the check that names it.

    Attributes:
        kind: as in the list of bug kinds.
        make: the faulty function, or a class whose instances are.
        dies_by: the check of properties.table_checks that must fail.
        rule: the kind of rule that triggers it, None where any does.
    """

    kind: str
    make: Any
    dies_by: Callable[..., None]
    rule: str | None = None

    @property
    def name(self) -> str:
        return str(self.make.__name__)

    def fresh(self) -> Any:
        return self.make() if isinstance(self.make, type) else self.make


MUTANTS: list[Mutant] = []


def mutant(kind: str, dies_by: Callable[..., None], rule: str | None = None) -> Callable[[Any], Any]:
    def register(make: Any) -> Any:
        MUTANTS.append(Mutant(kind, make, dies_by, rule))
        return make

    return register


def _from_frequencies(frequencies: torch.Tensor, max_position: int, rule: Rule | None) -> RopeTable:
    """A correct float32 table of these frequencies."""
    factor = 1.0 if rule is None else rule.cos_sin_factor()
    angles = torch.arange(max_position, dtype=torch.float32)[:, None] * frequencies.float()
    return RopeTable(angles.cos() * factor, angles.sin() * factor, factor)


def _as(faulty: type[Rule], rule: Any) -> Rule:
    """The same parameters under a faulty rule."""
    return faulty(**vars(rule))


# --- TABLEMATH: the formula


@mutant("TABLEMATH", table_checks.check_values)
def theta_hard_coded(rot_dim: int, max_position: int, base: float, **options: Any) -> RopeTable:
    """huggingface/candle#3746: 10000 written into the frequency loop. Trigger: any other base."""
    return rope_table(rot_dim, max_position, 10000.0, **options)


@mutant("TABLEMATH", table_checks.check_values, "llama3")
def llama3_result_dropped(
    rot_dim: int, max_position: int, base: float, *, rule: Rule | None, precision: str
) -> RopeTable:
    """huggingface/transformers#32330: the frequencies before scaling are returned. Trigger: Llama 3."""
    return rope_table(rot_dim, max_position, base, precision=precision)


class _Llama3Parentheses(Llama3):
    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        theta = plain_frequencies(rot_dim, base, dtype)
        turns = theta * (self.original_max_position_embeddings / 2 * math.pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        smooth = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * theta / self.factor + smooth * theta


@mutant("TABLEMATH", table_checks.check_values, "llama3")
def llama3_parentheses_missing(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """InternLM/lmdeploy#2157: M0 / 2 * pi for M0 / (2 * pi). Trigger: Llama 3."""
    return rope_table(*args, rule=_as(_Llama3Parentheses, rule), **options)


class _BetasSwapped(YaRN):
    def _pair_turning(self, turns: float, rot_dim: int, base: float) -> float:
        other = self.beta_slow if turns == self.beta_fast else self.beta_fast
        return super()._pair_turning(other, rot_dim, base)


@mutant("TABLEMATH", table_checks.check_frequencies_fall, "yarn")
def yarn_betas_swapped(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """pytorch/torchtitan#3787: the ramp starts at beta_slow and ends at beta_fast. Trigger: YaRN."""
    return rope_table(*args, rule=_as(_BetasSwapped, rule), **options)


class _RampLate(YaRN):
    def _pair_turning(self, turns: float, rot_dim: int, base: float) -> float:
        return super()._pair_turning(turns, rot_dim, base) + (turns == self.beta_fast)


@mutant("TABLEMATH", table_checks.check_values, "yarn")
def yarn_ramp_one_pair_late(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """ggml-org/ggml#913 proposes it: the ramp starts one pair later. Trigger: YaRN with a ramp."""
    return rope_table(*args, rule=_as(_RampLate, rule), **options)


class _NTKBase(YaRN):
    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        return super().frequencies(rot_dim, base * self.factor ** (rot_dim / (rot_dim - 2)), dtype)


@mutant("TABLEMATH", table_checks.check_values, "yarn")
def yarn_on_an_ntk_base(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """paiml/aprender#2161: YaRN applied on top of the NTK-stretched base. Trigger: YaRN, factor > 1."""
    return rope_table(*args, rule=_as(_NTKBase, rule), **options)


class _FactorInPower(YaRN):
    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        ramp = self._ramp(rot_dim, base, dtype)
        stretched = plain_frequencies(rot_dim, self.factor * base, dtype)
        return stretched * ramp + plain_frequencies(rot_dim, base, dtype) * (1 - ramp)


@mutant("TABLEMATH", table_checks.check_values, "yarn")
def yarn_factor_inside_the_power(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """apache/tvm#18576: 1 / (f * base)^e for 1 / (f * base^e). Trigger: YaRN, factor > 1."""
    return rope_table(*args, rule=_as(_FactorInPower, rule), **options)


@mutant("TABLEMATH", table_checks.check_values, "yarn")
def yarn_always_truncated(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """apache/tvm#18576: the ramp's ends are rounded always. Trigger: YaRN with truncate false (gpt-oss)."""
    return rope_table(*args, rule=dataclasses.replace(rule, truncate=True), **options)


@mutant("TABLEMATH", table_checks.check_values, "yarn")
def yarn_attention_factor_ignored(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """ml-explore/mlx-lm#1507: a given attention_factor loses to the formula. Trigger: one given."""
    return rope_table(*args, rule=dataclasses.replace(rule, attention_factor=None), **options)


@mutant("TABLEMATH", table_checks.check_range, "yarn")
def yarn_attention_factor_left_out(*args: Any, **options: Any) -> RopeTable:
    """GaijinEntertainment/daScript#3479: one path builds the table without it. Trigger: YaRN, factor > 1."""
    table = rope_table(*args, **options)
    factor = table.attention_factor
    return RopeTable(table.cos / factor, table.sin / factor, factor, table.softmax_factor)


@mutant("TABLEMATH", table_checks.check_values, "deepseek_yarn")
def deepseek_softmax_factor_missing(*args: Any, **options: Any) -> RopeTable:
    """onnxruntime/mobius#548: only the table's factor is known, 1 where mscale = mscale_all_dim.

    Trigger: DeepSeek YaRN with mscale_all_dim.
    """
    return dataclasses.replace(rope_table(*args, **options), softmax_factor=1.0)


class _ConstantStretch(DynamicNTK):
    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        longest = int(self.factor * self.max_position_embeddings)
        return dataclasses.replace(DynamicNTK(**vars(self)), seq_len=longest).frequencies(
            rot_dim, base, dtype
        )


@mutant("TABLEMATH", table_checks.check_values, "dynamic")
def dynamic_ntk_constant(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """vllm-project/vllm#41236: the sequence length cancels out of the base. Trigger: any length but f * M."""
    return rope_table(*args, rule=_as(_ConstantStretch, rule), **options)


class _NoMaximum(DynamicNTK):
    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        stretch = self.factor * self.seq_len / self.max_position_embeddings - (self.factor - 1)
        power = math.nan if stretch < 0 else stretch ** (rot_dim / (rot_dim - 2))
        return plain_frequencies(rot_dim, base * power, dtype)


@mutant("TABLEMATH", table_checks.check_values, "dynamic")
def dynamic_ntk_negative_base(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """vllm-project/vllm#52665: NaN for a length served below the trained one. Trigger: seq_len < M."""
    return rope_table(*args, rule=_as(_NoMaximum, rule), **options)


@mutant("TABLEMATH", table_checks.check_values, "longrope")
def longrope_long_at_the_trained_length(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """unslothai/unsloth#10681: < for <= at the trained length. Trigger: seq_len = M0 exactly."""
    return rope_table(*args, rule=dataclasses.replace(rule, seq_len=rule.seq_len + 1), **options)


@mutant("TABLEMATH", table_checks.check_rows_do_not_depend_on_length, "longrope")
def longrope_by_table_length(
    rot_dim: int, max_position: int, base: float, *, rule: Any, precision: str
) -> RopeTable:
    """ggml-org/llama.cpp#24823: chosen by the room in the cache. Trigger: a short sequence, a long table."""
    rule = dataclasses.replace(rule, seq_len=max_position)
    return rope_table(rot_dim, max_position, base, rule=rule, precision=precision)


@mutant("TABLEMATH", table_checks.check_values, "longrope")
def longrope_one_set(*args: Any, rule: Any, **options: Any) -> RopeTable:
    """lablup/mlxcel#1358: the long factors at every length. Trigger: seq_len <= M0."""
    return rope_table(*args, rule=dataclasses.replace(rule, short_factor=rule.long_factor), **options)


# --- TABLEMATH: the configuration


@mutant("TABLEMATH", table_checks.check_config)
def exponent_over_head_dim(config: Any, max_position: int, **options: Any) -> RopeTable:
    """pie-project/pie#602: base^(-2i/head_dim) for the rotated pairs. Trigger: partial rotation."""
    read = read_rope_config(config, **options)
    fields = config.get("text_config", config)
    if fields.get("head_dim", 8) <= read.rot_dim or isinstance(read.rule, LongRoPE):
        return rope_table_from_config(config, max_position, **options)
    wide = rope_frequencies(fields["head_dim"], read.base, rule=read.rule)
    return _from_frequencies(wide[: read.rot_dim // 2], max_position, read.rule)


@mutant("TABLEMATH", table_checks.check_config, "default")
def partial_rotation_only_when_scaled(config: Any, *args: Any, **options: Any) -> RopeTable:
    """InternLM/lmdeploy#3861: partial_rotary_factor is read with rope_scaling only (GLM-4).

    Trigger: partial rotation without scaling.
    """
    fields = dict(config)
    if not fields.get("rope_scaling"):
        fields.pop("partial_rotary_factor", None)
    return rope_table_from_config(fields, *args, **options)


@mutant("TABLEMATH", table_checks.check_config, "yarn")
def rope_parameters_not_read(config: Any, *args: Any, **options: Any) -> RopeTable:
    """sgl-project/sglang#26187: only rope_scaling is read, scaling is dropped. Trigger: rope_parameters."""
    fields = dict(config)
    parameters = fields.get("rope_parameters")
    if parameters and "factor" in parameters:
        fields["rope_parameters"] = {"rope_theta": parameters["rope_theta"]}
    return rope_table_from_config(fields, *args, **options)


@mutant("TABLEMATH", table_checks.check_config, "linear")
def theta_of_the_configuration_class(config: Any, *args: Any, **options: Any) -> RopeTable:
    """THUDM/slime#1720: the class default wins over rope_theta inside. Trigger: rope_parameters."""
    fields = dict(config)
    if "rope_theta" in (fields.get("rope_parameters") or {}):
        fields["rope_parameters"] = fields["rope_parameters"] | {"rope_theta": 10000.0}
    return rope_table_from_config(fields, *args, **options)


@mutant("TABLEMATH", table_checks.check_config, "linear")
def rope_type_under_one_name(config: Any, *args: Any, **options: Any) -> RopeTable:
    """lablup/mlxcel#1355: only the key `type` is read, never `rope_type`. Trigger: the newer key."""
    fields = dict(config)
    if "rope_type" in (fields.get("rope_scaling") or {}):
        fields["rope_scaling"] = None
    return rope_table_from_config(fields, *args, **options)


@mutant("TABLEMATH", table_checks.check_config, "linear")
def scaling_on_sliding_layers(config: Any, *args: Any, layer_type: str | None, **options: Any) -> RopeTable:
    """antonellof/ferrox#39: scaling is global, the base is not. Trigger: Gemma 3, a sliding layer."""
    if layer_type == "sliding_attention" and "rope_local_base_freq" in config:
        moved = {"rope_theta": config["rope_local_base_freq"], "rope_local_base_freq": None}
        return rope_table_from_config(config | moved, *args, **options)
    return rope_table_from_config(config, *args, layer_type=layer_type, **options)


@mutant("TABLEMATH", table_checks.check_config, "proportional")
def proportional_as_partial(config: Any, max_position: int, **options: Any) -> RopeTable:
    """apple/coreai-models#66: Gemma 4's turning pairs packed into a narrow rotation of their own.

    Trigger: proportional, less than the whole head.
    """
    read = read_rope_config(config, **options)
    assert isinstance(read.rule, Proportional)
    rot_dim = 2 * int(read.rule.partial_rotary_factor * read.rot_dim // 2)
    return rope_table(rot_dim, max_position, read.base, rule=Proportional(partial_rotary_factor=1.0))


# --- PHASEPREC: angles or table in low precision


@mutant("PHASEPREC", table_checks.check_values, "default")
def angles_in_float16(
    rot_dim: int, max_position: int, base: float, *, rule: Rule | None, precision: str
) -> RopeTable:
    """EleutherAI/gpt-neox#1003: everything in the model's dtype. Trigger: positions in the hundreds."""
    angles = torch.outer(torch.arange(max_position).half(), rope_frequencies(rot_dim, base, rule=rule).half())
    return RopeTable(angles.cos().float(), angles.sin().float())


@mutant("PHASEPREC", table_checks.check_values, "default")
def positions_in_bfloat16(
    rot_dim: int, max_position: int, base: float, *, rule: Rule | None, precision: str
) -> RopeTable:
    """huggingface/candle#3520: whole numbers above 256 do not fit. Trigger: position 257."""
    positions = torch.arange(max_position).bfloat16().float()
    angles = positions[:, None] * rope_frequencies(rot_dim, base, rule=rule)
    return RopeTable(angles.cos(), angles.sin())


@mutant("PHASEPREC", table_checks.check_values, "default")
def frequencies_cast_with_the_model(
    rot_dim: int, max_position: int, base: float, *, rule: Rule | None, precision: str
) -> RopeTable:
    """NVIDIA/Megatron-LM#744: inv_freq follows model.to(bfloat16). Trigger: any position but 0."""
    return _from_frequencies(rope_frequencies(rot_dim, base, rule=rule).bfloat16(), max_position, rule)


@mutant("PHASEPREC", table_checks.check_values, "default")
def table_cast_to_the_query_dtype(*args: Any, **options: Any) -> RopeTable:
    """sgl-project/sglang#33117: cos and sin rounded to bfloat16 at first use. Trigger: any position but 0."""
    table = rope_table(*args, **options)
    return RopeTable(table.cos.bfloat16().float(), table.sin.bfloat16().float(), table.attention_factor)


# --- STATE: the result depends on earlier calls


@mutant("STATE", table_checks.check_history, "dynamic")
class DynamicNTKNotReset:
    """huggingface/transformers#25306, #46624: a long input stretches the base for all later ones.

    Trigger: long, then short.
    """

    def __init__(self) -> None:
        self.longest = 0

    def __call__(self, *args: Any, rule: Any, **options: Any) -> RopeTable:
        self.longest = max(self.longest, rule.seq_len)
        return rope_table(*args, rule=dataclasses.replace(rule, seq_len=self.longest), **options)


@mutant("STATE", table_checks.check_history)
class CacheKeyIncomplete:
    """lucidrains/rotary-embedding-torch#11: cached by length alone. Trigger: equal lengths, another base."""

    def __init__(self) -> None:
        self.cache: dict[tuple[int, int], RopeTable] = {}

    def __call__(self, rot_dim: int, max_position: int, *args: Any, **options: Any) -> RopeTable:
        key = (rot_dim, max_position)
        if key not in self.cache:
            self.cache[key] = rope_table(rot_dim, max_position, *args, **options)
        table = self.cache[key]
        return dataclasses.replace(table, cos=table.cos.clone(), sin=table.sin.clone())


@mutant("STATE", table_checks.check_surroundings)
def cache_made_in_inference_mode(*args: Any, **options: Any) -> RopeTable:
    """Dao-AILab/flash-attention#299: evaluation fills the cache, training cannot save it for backward.

    Trigger: inference mode, then a backward pass.
    """
    table = rope_table(*args, **options)
    return RopeTable(table.cos * 1, table.sin * 1, table.attention_factor, table.softmax_factor)


# --- BUFLIFE: never initialised, or dead


@mutant("BUFLIFE", table_checks.check_surroundings)
def left_on_the_meta_device(*args: Any, **options: Any) -> RopeTable:
    """huggingface/transformers#45902: built under torch.device("meta"). Trigger: loading a model."""
    return rope_table(*args, device=torch.get_default_device(), **options)


@mutant("BUFLIFE", table_checks.check_surroundings)
def materialised_without_values(*args: Any, **options: Any) -> RopeTable:
    """pytorch/torchtitan#4783: meta, then to_empty(), and nothing fills the buffer. Trigger: meta loading.

    Stale memory is usually finite; it is played by the value Synthyra/FastPLMs#47 saw.
    """
    table = rope_table(*args, **options)
    if torch.get_default_device().type == "meta":
        table.cos.fill_(6.93e-18)
        table.sin.fill_(6.93e-18)
    return table


@mutant("BUFLIFE", table_checks.check_surroundings)
def built_in_the_default_dtype(*args: Any, **options: Any) -> RopeTable:
    """huggingface/transformers#25681: the cache takes torch.get_default_dtype(). Trigger: another default."""
    table = rope_table(*args, **options)
    dtype = torch.get_default_dtype()
    return dataclasses.replace(table, cos=table.cos.to(dtype), sin=table.sin.to(dtype))


@mutant("BUFLIFE", table_checks.check_history)
class CacheHandedOut:
    """sgl-project/sglang#29729: callers get the buffer itself, and what they do to it stays.

    Trigger: change a table, ask again.
    """

    def __init__(self) -> None:
        self.cache: dict[Any, RopeTable] = {}

    def __call__(self, *args: Any, **options: Any) -> RopeTable:
        key = (args, tuple(options.items()))
        if key not in self.cache:
            self.cache[key] = rope_table(*args, **options)
        return self.cache[key]


@mutant("STATE", check_life)
class SharedUntilWritten:
    """sgl-project/sglang#33575: all callers share one buffer until its version counter says it was changed.

    Trigger: two layers with one table, one of which is overwritten.
    """

    def __init__(self) -> None:
        self.cache: dict[Any, RopeTable] = {}

    def __call__(self, *args: Any, **options: Any) -> RopeTable:
        key = (args, tuple(options.items()))
        kept = self.cache.get(key)
        if kept is None or kept.cos._version != self._version:
            kept = self.cache[key] = rope_table(*args, **options)
            self._version = kept.cos._version
        return kept


@mutant("BUFLIFE", check_life)
class DeviceLeftOutOfTheKey:
    """lucidrains/rotary-embedding-torch#48: a table stays on the device of the first call.

    Trigger: a table in memory, then one of the same arguments on the meta device, or the other way round.
    """

    def __init__(self) -> None:
        self.devices: dict[Any, Any] = {}

    def __call__(self, *args: Any, device: Any = None, **options: Any) -> RopeTable:
        device = self.devices.setdefault((args, tuple(options.items())), device)
        return rope_table(*args, device=device, **options)


# --- MULTIPOS: several axes, shards


@mutant("MULTIPOS", table_checks.check_axes, "interleaved")
def interleaved_as_chunked(section: Any, interleaved: bool) -> torch.Tensor:
    """vllm-project/vllm-gaudi#1437, alibaba/MNN#4133: Qwen3-VL read as Qwen2-VL. Trigger: interleaved."""
    return mrope_axes(section)


@mutant("MULTIPOS", table_checks.check_axes)
def one_axis_for_all(section: Any, interleaved: bool) -> torch.Tensor:
    """kekzl/imp#1172: the section is not found, all pairs read time. Trigger: a token of an image."""
    return torch.zeros_like(mrope_axes(section, interleaved))


@mutant("MULTIPOS", table_checks.check_shards, "zigzag")
def contiguous_for_zigzag(length: int, world_size: int, rank: int, *, order: str) -> torch.Tensor:
    """NVIDIA/Megatron-LM#1612: the table is not sliced as the tokens are. Trigger: more than one rank."""
    return shard_positions(length, world_size, rank, order="contiguous")


@mutant("MULTIPOS", table_checks.check_uneven_length_is_refused)
def length_rounded_down(length: int, world_size: int, rank: int, *, order: str) -> torch.Tensor:
    """NVIDIA/TransformerEngine#1930: the last tokens are dropped. Trigger: a length that does not divide."""
    chunks = 2 * world_size if order == "zigzag" else world_size
    return shard_positions(length // chunks * chunks, world_size, rank, order=order)
