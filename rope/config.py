"""From a Hugging Face configuration to the table it describes.

Reads `config.json` as a dict, or a configuration object. Both spellings of the RoPE part are
known: `rope_scaling` with rope_theta beside it (transformers 4) and `rope_parameters` with
everything inside, flat or one dict for each layer type (transformers 5). The caller's
configuration is never changed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rope.errors import RopeError
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
from rope.tables import RopeTable, rope_table

# What each fact is called, the usual name first. ModernBERT, GPT-NeoX, GPT-J, JetMoE and Zamba have
# names of their own.
_NAMES = {
    "rope_theta": ("rope_theta", "rotary_emb_base", "global_rope_theta"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "hidden_size": ("hidden_size", "n_embd"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "local_rope_theta": ("rope_local_base_freq", "local_rope_theta"),
}
# Models whose configuration has no rope_theta because their code fixes it.
_FIXED_THETA = {"gptj": 10000.0, "codegen": 10000.0}


@dataclass(frozen=True)
class RopeConfig:
    """What a configuration says about RoPE.

    Attributes:
        rot_dim: dims that rotate.
        base: rope_theta.
        rule: how the frequencies are stretched, or None.
        max_position_embeddings: the length the configuration gives the model, or None.
    """

    rot_dim: int
    base: float
    rule: Rule | None
    max_position_embeddings: int | None


def rope_table_from_config(
    config: Any,
    max_position: int | None = None,
    *,
    layer_type: str | None = None,
    seq_len: int | None = None,
    precision: str = "float32",
    device: torch.device | str | None = None,
) -> RopeTable:
    """The cos/sin table a Hugging Face configuration describes.

    Args:
        config: config.json as a dict, or a configuration object. A multimodal configuration is
            read at its `text_config`.
        max_position: rows; None means max_position_embeddings, or seq_len where that is more.
        layer_type: "full_attention", "sliding_attention", ...: needed where the configuration has
            RoPE parameters of their own for each layer type.
        seq_len: length of the sequence to be served; needed by the rules that follow it (dynamic,
            longrope).
        precision, device: as for `rope_table`.

    Raises:
        RopeError: an unknown rope_type, a missing key, a missing or unknown layer_type, a rule that
            needs seq_len without one, or values `rope_table` refuses. The message names the key.
    """
    read = read_rope_config(config, layer_type=layer_type, seq_len=seq_len)
    if max_position is None:
        if read.max_position_embeddings is None:
            raise _missing("max_position_embeddings", "the configuration; or pass max_position")
        max_position = max(read.max_position_embeddings, seq_len or 0)
    return rope_table(
        read.rot_dim, max_position, read.base, rule=read.rule, precision=precision, device=device
    )


def read_rope_config(config: Any, *, layer_type: str | None = None, seq_len: int | None = None) -> RopeConfig:
    """The RoPE part of a Hugging Face configuration; arguments and errors as above."""
    fields = _as_dict(config)
    if fields.get("text_config") is not None:
        fields = _as_dict(fields["text_config"])
    parameters = _parameters(fields, layer_type)
    rule = _rule(_Scaling(fields, parameters, seq_len))
    base = parameters.get("rope_theta") or _FIXED_THETA.get(fields.get("model_type", ""))
    if base is None:
        raise _missing(
            "rope_theta",
            "the configuration; a file without it relies on the default of its configuration "
            "class: pass the object instead, or add the value",
        )
    return RopeConfig(
        rot_dim=_rot_dim(fields, parameters, rule, layer_type),
        base=base,
        rule=rule,
        max_position_embeddings=_find(fields, "max_position_embeddings"),
    )


def _as_dict(config: Any) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    if hasattr(config, "to_dict"):
        return dict(config.to_dict())
    try:
        return vars(config)
    except TypeError:
        raise RopeError(
            f"a configuration must be a dict or an object with attributes, got {config!r}"
        ) from None


def _find(fields: Mapping[str, Any], fact: str) -> Any:
    names = _NAMES.get(fact, (fact,))
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _missing(key: str, where: str) -> RopeError:
    return RopeError(f"missing key {key!r} in {where}")


def _parameters(fields: Mapping[str, Any], layer_type: str | None) -> dict[str, Any]:
    """The RoPE parameters of one layer type in one flat dict, whichever way they are spelt."""
    given = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    local_theta = _find(fields, "local_rope_theta")
    if any(isinstance(value, Mapping) for value in given.values()):
        given = _for_layer_type(given, layer_type)
    elif local_theta is not None:
        # Gemma 3 and ModernBERT before rope_parameters: scaling stretches the full layers only
        both = {"full_attention": given, "sliding_attention": {"rope_theta": local_theta}}
        given = _for_layer_type(both, layer_type)
    elif layer_type is not None and layer_type not in (fields.get("layer_types") or (layer_type,)):
        raise _unknown_layer_type(layer_type, sorted(set(fields["layer_types"])))
    parameters = dict(given)
    for key in ("rope_theta", "partial_rotary_factor"):
        if parameters.get(key) is None:
            parameters[key] = _find(fields, key)
    # Phi-3 keeps the trained length beside the scaling, and it wins over one inside
    if fields.get("original_max_position_embeddings") is not None:
        key = "original_max_position_embeddings"
        parameters[key] = fields[key]
    return parameters


def _for_layer_type(given: Mapping[str, Any], layer_type: str | None) -> Mapping[str, Any]:
    if layer_type is None or layer_type not in given:
        known = [key for key, value in given.items() if isinstance(value, Mapping)]
        raise _unknown_layer_type(layer_type, known)
    if given[layer_type] is None:
        raise RopeError(f"layers of type {layer_type!r} have no RoPE in this configuration")
    return dict(given[layer_type])


def _unknown_layer_type(layer_type: str | None, known: list[str]) -> RopeError:
    return RopeError(
        f"this configuration has RoPE parameters for the layer types {', '.join(known)}: "
        f"pass one of them as layer_type, got {layer_type!r}"
    )


def _rot_dim(
    fields: Mapping[str, Any], parameters: dict[str, Any], rule: Rule | None, layer_type: str | None
) -> int:
    for key in ("qk_rope_head_dim", "rotary_dim"):  # DeepSeek; GPT-J, MiniMax
        if fields.get(key):
            return int(fields[key])
    head_dim = _head_dim(fields, layer_type)
    if isinstance(rule, Proportional):  # the factor counts turning pairs of the whole head
        return head_dim
    factor = parameters["partial_rotary_factor"]
    return int(head_dim * (1.0 if factor is None else factor))


def _head_dim(fields: Mapping[str, Any], layer_type: str | None) -> int:
    if layer_type == "full_attention" and fields.get("global_head_dim"):  # Gemma 4
        return int(fields["global_head_dim"])
    if layer_type is not None and fields.get("per_layer_config"):  # the same, saved again
        overrides = {int(layer): own for layer, own in fields["per_layer_config"].items()}
        fields = {**fields, **overrides.get(fields["layer_types"].index(layer_type), {})}
    head_dim = _find(fields, "head_dim")
    if head_dim is not None:
        return int(head_dim)
    hidden, heads = _find(fields, "hidden_size"), _find(fields, "num_attention_heads")
    if hidden is None or heads is None:
        raise _missing("head_dim", "the configuration, or hidden_size and num_attention_heads")
    return int(hidden // heads)


@dataclass(frozen=True)
class _Scaling:
    """RoPE parameters of one layer type, and what their rule may need from outside them."""

    fields: Mapping[str, Any]
    parameters: Mapping[str, Any]
    seq_len: int | None

    @property
    def kind(self) -> str:
        return str(self.parameters.get("rope_type") or self.parameters.get("type") or "default")

    def need(self, key: str) -> Any:
        value = self.parameters.get(key)
        if value is None:
            raise _missing(key, f"the RoPE parameters of rope_type {self.kind!r}")
        return value

    def needs(self, *keys: str) -> dict[str, Any]:
        return {key: self.need(key) for key in keys}

    def options(self, *keys: str) -> dict[str, Any]:
        return {key: self.parameters[key] for key in keys if self.parameters.get(key) is not None}

    def longest(self) -> int:
        length = _find(self.fields, "max_position_embeddings")
        if length is None:
            raise _missing("max_position_embeddings", "the configuration")
        return int(length)

    def served(self) -> int:
        if self.seq_len is None:
            raise RopeError(
                f"rope_type {self.kind!r} follows the length of the sequence: pass seq_len, "
                "the length of the sequence to be served"
            )
        return self.seq_len

    def stretch(self) -> float:
        """factor, or how much longer than its trained length the model is."""
        factor = self.parameters.get("factor")
        return factor or self.longest() / self.need("original_max_position_embeddings")


def _dynamic(scaling: _Scaling) -> Rule:
    if scaling.parameters.get("alpha"):  # HunYuan
        return FixedNTK(scaling.need("alpha"))
    return DynamicNTK(
        factor=scaling.need("factor"),
        max_position_embeddings=scaling.longest(),
        seq_len=scaling.served(),
    )


def _yarn(scaling: _Scaling) -> Rule:
    # qk_rope_head_dim means latent attention, and with it DeepSeek's softmax scale
    is_deepseek = scaling.kind == "deepseek_yarn" or scaling.fields.get("qk_rope_head_dim")
    rule = DeepSeekYaRN if is_deepseek else YaRN
    return rule(
        factor=scaling.stretch(),
        original_max_position_embeddings=scaling.need("original_max_position_embeddings"),
        **scaling.options(
            "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"
        ),
    )


def _longrope(scaling: _Scaling) -> Rule:
    trained, served = scaling.need("original_max_position_embeddings"), scaling.served()
    # Phi-3.5-MoE states an attention factor for each of the two sets
    mscale = scaling.parameters.get("long_mscale" if served > trained else "short_mscale")
    return LongRoPE(
        original_max_position_embeddings=trained,
        seq_len=served,
        factor=scaling.stretch(),
        attention_factor=mscale or scaling.parameters.get("attention_factor"),
        **scaling.needs("short_factor", "long_factor"),
    )


def _llama3(scaling: _Scaling) -> Rule:
    return Llama3(
        **scaling.needs("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )


def _proportional(scaling: _Scaling) -> Rule:
    turning = scaling.parameters.get("partial_rotary_factor")
    return Proportional(
        partial_rotary_factor=1.0 if turning is None else turning, **scaling.options("factor")
    )


_RULES: dict[str, Callable[[_Scaling], Rule | None]] = {
    "default": lambda _: None,
    "mrope": lambda _: None,  # Qwen2-VL: the sections are for the positions, not for the table
    "linear": lambda scaling: Linear(scaling.need("factor")),
    "ntk": lambda scaling: FixedNTK(scaling.need("factor")),
    "dynamic": _dynamic,
    "yarn": _yarn,
    "deepseek_yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # its name in the first Phi-3 configurations
    "llama3": _llama3,
    "proportional": _proportional,
}


def _rule(scaling: _Scaling) -> Rule | None:
    if scaling.kind not in _RULES:
        raise RopeError(
            f"unknown rope_type {scaling.kind!r} in the configuration; known: {', '.join(_RULES)}"
        )
    return _RULES[scaling.kind](scaling)
