"""The RoPE part of published model configurations: facts, written by hand.

Each config has the keys of the model's config.json that say something about RoPE, in the spelling it was
published with. Where a file relies on a default of its configuration class, the value is written out.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Model:
    """A published model and the code of transformers that rotates for it.

    Attributes:
        config: the RoPE part of config.json.
        module: of transformers.models.
        classes: its configuration and rotary embedding.
        rot_dim: dims that rotate, by layer type where they differ.
        layout: which dims form a pair.
        layer_types: those with RoPE parameters of their own, or (None,).
        seq_lens: lengths to serve, one on each side where the rule follows the length.
        mrope: (section, interleaved) where positions have three axes.
    """

    config: dict[str, Any]
    module: str
    classes: tuple[str, str]
    rot_dim: int | dict[str, int]
    layout: str = "neox"
    layer_types: tuple[str | None, ...] = (None,)
    seq_lens: tuple[int | None, ...] = (None,)
    mrope: tuple[tuple[int, ...], bool] | None = None


_LLAMA = ("LlamaConfig", "LlamaRotaryEmbedding")
_LLAMA31 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_BOTH = ("full_attention", "sliding_attention")
_EVERY_SIXTH_FULL = (["sliding_attention"] * 5 + ["full_attention"]) * 2

MODELS = {
    "Llama 3.1 8B": Model(
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": _LLAMA31,
        },
        "llama",
        _LLAMA,
        rot_dim=128,
    ),
    "Llama 3.1 70B": Model(
        {
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": _LLAMA31,
        },
        "llama",
        _LLAMA,
        rot_dim=128,
    ),
    "Llama 3.2 1B": Model(
        {
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": _LLAMA31 | {"factor": 32.0},
        },
        "llama",
        _LLAMA,
        rot_dim=64,
    ),
    "Llama 2 7B LongLoRA 16k": Model(
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "max_position_embeddings": 4096,
            "rope_theta": 10000.0,
            "rope_scaling": {"factor": 4.0, "type": "linear"},
        },
        "llama",
        _LLAMA,
        rot_dim=128,
    ),
    # transformers has no code of its own for it; its published code rotates as Llama does
    "InternLM3 8B": Model(
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "rope_theta": 50000000,
            "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"},
        },
        "llama",
        _LLAMA,
        rot_dim=128,
        seq_lens=(100, 32768),
    ),
    "Qwen2.5 7B with YaRN": Model(
        {
            "hidden_size": 3584,
            "num_attention_heads": 28,
            "max_position_embeddings": 32768,
            "rope_theta": 1000000.0,
            "rope_scaling": {
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
                "type": "yarn",
            },
        },
        "qwen2",
        ("Qwen2Config", "Qwen2RotaryEmbedding"),
        rot_dim=128,
    ),
    "gpt-oss 20B": Model(
        {
            "hidden_size": 2880,
            "num_attention_heads": 64,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rope_theta": 150000,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
        },
        "gpt_oss",
        ("GptOssConfig", "GptOssRotaryEmbedding"),
        rot_dim=64,
    ),
    "DeepSeek-V3": Model(
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "num_attention_heads": 128,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "max_position_embeddings": 163840,
            "rope_theta": 10000,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
        },
        "deepseek_v3",
        ("DeepseekV3Config", "DeepseekV3RotaryEmbedding"),
        rot_dim=64,
        layout="gptj",
    ),
    "Phi-3.5 mini": Model(
        {
            "hidden_size": 3072,
            "num_attention_heads": 32,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [
                    *(1.0, 1.0199999809265137, 1.0299999713897705, 1.0299999713897705),
                    *(1.0499999523162842, 1.0499999523162842, 1.0499999523162842, 1.0499999523162842),
                    *(1.0499999523162842, 1.0699999332427979, 1.0999999046325684, 1.1099998950958252),
                    *(1.1599998474121094, 1.1599998474121094, 1.1699998378753662, 1.2899998426437378),
                    *(1.339999794960022, 1.679999828338623, 1.7899998426437378, 1.8199998140335083),
                    *(1.8499997854232788, 1.8799997568130493, 1.9099997282028198, 1.9399996995925903),
                    *(1.9899996519088745, 2.0199997425079346, 2.0199997425079346, 2.0199997425079346),
                    *(2.0199997425079346, 2.0199997425079346, 2.0199997425079346, 2.0299997329711914),
                    *(2.0299997329711914, 2.0299997329711914, 2.0299997329711914, 2.0299997329711914),
                    *(2.0299997329711914, 2.0299997329711914, 2.0299997329711914, 2.0299997329711914),
                    *(2.0799996852874756, 2.0899996757507324, 2.189999580383301, 2.2199995517730713),
                    *(2.5899994373321533, 2.729999542236328, 2.749999523162842, 2.8399994373321533),
                ],
                "long_factor": [
                    *(1.0800000429153442, 1.1100000143051147, 1.1399999856948853, 1.340000033378601),
                    *(1.5899999141693115, 1.600000023841858, 1.6200000047683716, 2.620000123977661),
                    *(3.2300000190734863, 3.2300000190734863, 4.789999961853027, 7.400000095367432),
                    *(7.700000286102295, 9.09000015258789, 12.199999809265137, 17.670000076293945),
                    *(24.46000099182129, 28.57000160217285, 30.420001983642578, 30.840002059936523),
                    *(32.590003967285156, 32.93000411987305, 42.320003509521484, 44.96000289916992),
                    *(50.340003967285156, 50.45000457763672, 57.55000305175781, 57.93000411987305),
                    *(58.21000289916992, 60.1400032043457, 62.61000442504883, 62.62000274658203),
                    *(62.71000289916992, 63.1400032043457, 63.1400032043457, 63.77000427246094),
                    *(63.93000411987305, 63.96000289916992, 63.970001220703125, 64.02999877929688),
                    *(64.06999969482422, 64.08000183105469, 64.12000274658203, 64.41000366210938),
                    *(64.4800033569336, 64.51000213623047, 64.52999877929688, 64.83999633789062),
                ],
            },
        },
        "phi3",
        ("Phi3Config", "Phi3RotaryEmbedding"),
        rot_dim=96,
        seq_lens=(100, 4096, 4097),
    ),
    "Phi-4 mini": Model(
        {
            "hidden_size": 3072,
            "num_attention_heads": 24,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 0.75,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0] * 48,
                "long_factor": [
                    *(1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897),
                    *(1.956131817, 2.187582649, 2.446418898, 2.735880826, 3.059592084),
                    *(3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533),
                    *(5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372),
                    *(10.4687158, 11.70738129, 13.09260651, 14.64173252, 16.37415215),
                    *(18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03),
                    *(32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97),
                    *(33.28, 33.49, 33.5, 44.16, 47.77),
                ],
            },
        },
        "phi3",
        ("Phi3Config", "Phi3RotaryEmbedding"),
        rot_dim=96,
        seq_lens=(100, 4097),
    ),
    "Phi-2": Model(
        {
            "hidden_size": 2560,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
            "partial_rotary_factor": 0.4,
            "rope_theta": 10000.0,
            "rope_scaling": None,
        },
        "phi",
        ("PhiConfig", "PhiRotaryEmbedding"),
        rot_dim=32,
    ),
    "Gemma 2 9B": Model(
        {
            "hidden_size": 3584,
            "num_attention_heads": 16,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "rope_theta": 10000.0,
        },
        "gemma2",
        ("Gemma2Config", "Gemma2RotaryEmbedding"),
        rot_dim=256,
    ),
    "Gemma 3 4B": Model(
        {
            "hidden_size": 2560,
            "num_attention_heads": 8,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
        "gemma3",
        ("Gemma3TextConfig", "Gemma3RotaryEmbedding"),
        rot_dim=256,
        layer_types=_BOTH,
    ),
    "Gemma 4 12B": Model(
        {
            "hidden_size": 3840,
            "num_attention_heads": 16,
            "num_hidden_layers": 12,
            "head_dim": 256,
            "global_head_dim": 512,
            "max_position_embeddings": 131072,
            "layer_types": _EVERY_SIXTH_FULL,
            "rope_parameters": {
                "full_attention": {
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1000000.0,
                    "rope_type": "proportional",
                },
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
        },
        "gemma4",
        ("Gemma4TextConfig", "Gemma4TextRotaryEmbedding"),
        rot_dim={"full_attention": 512, "sliding_attention": 256},
        layer_types=_BOTH,
    ),
    "ModernBERT base": Model(
        {
            "hidden_size": 768,
            "num_attention_heads": 12,
            "max_position_embeddings": 8192,
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
        },
        "modernbert",
        ("ModernBertConfig", "ModernBertRotaryEmbedding"),
        rot_dim=64,
        layer_types=_BOTH,
    ),
    "GPT-NeoX 20B": Model(
        {
            "hidden_size": 6144,
            "num_attention_heads": 64,
            "max_position_embeddings": 2048,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.25,
        },
        "gpt_neox",
        ("GPTNeoXConfig", "GPTNeoXRotaryEmbedding"),
        rot_dim=24,
    ),
    "GPT-J 6B": Model(
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_positions": 2048, "rotary_dim": 64},
        "gptj",
        ("GPTJConfig", "GPTJRotaryEmbedding"),
        rot_dim=64,
        layout="gptj",
    ),
    "GLM-4 9B": Model(
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000.0,
        },
        "glm4",
        ("Glm4Config", "Glm4RotaryEmbedding"),
        rot_dim=64,
        layout="gptj",
    ),
    "Mistral 7B v0.3": Model(
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "max_position_embeddings": 32768,
            "rope_theta": 1000000.0,
        },
        "mistral",
        ("MistralConfig", "MistralRotaryEmbedding"),
        rot_dim=128,
    ),
    "StableLM 2 1.6B": Model(
        {
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "max_position_embeddings": 4096,
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000,
        },
        "stablelm",
        ("StableLmConfig", "StableLmRotaryEmbedding"),
        rot_dim=16,
    ),
    "Command-R": Model(
        {
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "max_position_embeddings": 8192,
            "rope_theta": 8000000.0,
        },
        "cohere",
        ("CohereConfig", "CohereRotaryEmbedding"),
        rot_dim=128,
        layout="gptj",
    ),
    "HunYuan 7B": Model(
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "rope_theta": 10000.0,
            "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
        },
        "hunyuan_v1_dense",
        ("HunYuanDenseV1Config", "HunYuanDenseV1RotaryEmbedding"),
        rot_dim=128,
    ),
    "MiniMax M2": Model(
        {
            "hidden_size": 3072,
            "num_attention_heads": 48,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "rotary_dim": 64,
            "rope_theta": 5000000,
        },
        "minimax_m2",
        ("MiniMaxM2Config", "MiniMaxM2RotaryEmbedding"),
        rot_dim=64,
    ),
    "Qwen2-VL 7B": Model(
        {
            "hidden_size": 3584,
            "num_attention_heads": 28,
            "max_position_embeddings": 32768,
            "rope_theta": 1000000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        },
        "qwen2_vl",
        ("Qwen2VLTextConfig", "Qwen2VLRotaryEmbedding"),
        rot_dim=128,
        mrope=((16, 24, 24), False),
    ),
    "Qwen3-VL 8B": Model(
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "rope_theta": 5000000,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
                "rope_type": "default",
            },
        },
        "qwen3_vl",
        ("Qwen3VLTextConfig", "Qwen3VLTextRotaryEmbedding"),
        rot_dim=128,
        mrope=((24, 20, 20), True),
    ),
}
