"""RoPE shapes of published models, as cases that every property always runs."""

from strategies import RopeCase

# Prefill from 0, a chunk that continues at 17, one decoded token far into its request.
_REQUESTS = ((0, 2), (17, 2), (1000, 1))


def _model(
    layout: str,
    q_heads: int,
    k_heads: int,
    head_dim: int,
    rot_dim: int | None = None,
    *,
    rotate_last: bool = False,
    axes: str = "none",
) -> RopeCase:
    rot_dim = rot_dim or head_dim
    tail = head_dim - rot_dim
    return RopeCase(
        layout=layout,
        dtype="bfloat16",
        requests=_REQUESTS,
        q_heads=q_heads,
        k_heads=k_heads,
        rot_half=rot_dim // 2,
        tail=tail,
        rot_offset=tail if rotate_last else 0,
        axes=axes,
        fill="normal",
    )


MODELS = {
    "Llama-3-8B": _model("neox", 32, 8, 128),
    "Mistral-7B": _model("neox", 32, 8, 128),
    "Qwen2.5-7B": _model("neox", 28, 4, 128),
    "Gemma-2-9B": _model("neox", 16, 8, 256),
    "GPT-NeoX-20B": _model("neox", 64, 64, 96, 24),
    "GPT-J-6B": _model("gptj", 16, 16, 256, 64),
    "Phi-2": _model("neox", 32, 32, 80, 32),
    "GLM-4-9B": _model("gptj", 32, 2, 128, 64),
    "StableLM-2-1.6B": _model("neox", 32, 32, 64, 16),
    "Qwen2-VL-7B": _model("neox", 28, 4, 128, axes="chunked"),
    "Qwen3-VL-8B": _model("neox", 32, 8, 128, axes="interleaved"),
    "DeepSeek-V3": _model("gptj", 128, 1, 192, 64, rotate_last=True),
}
