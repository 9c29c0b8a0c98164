"""vLLM: the CUDA operator `rotary_embedding`.

Source: vllm._custom_ops, https://github.com/vllm-project/vllm (csrc/pos_encoding_kernels.cu).
In place on query and key, (tokens, heads, head_dim) as its layers pass them: views of one packed row, or
dense; positions (tokens,) int64; cos_sin_cache (max_position, rot_dim), cos then sin.
"""

from typing import Any

from vllm._custom_ops import rotary_embedding

from properties.adapters.forms import cos_then_sin, token_positions
from properties.implementations import Implementation
from strategies import Domain


def _call(q: Any, k: Any, cos: Any, sin: Any, positions: Any, *, layout: str, **_: Any) -> Any:
    cache = cos_then_sin(cos, sin)
    rotary_embedding(token_positions(q, positions), q, k, q.shape[-1], cache, layout == "neox")
    return q if k is None else (q, k)


vllm = Implementation(
    "vllm",
    _call,
    Domain(
        dtypes=("float32", "bfloat16", "float16"),
        ranks=(3,),
        heads_first=(False,),
        tails=("none", "after"),
        q_strides=("dense", "offset", "head_pad", "packed"),
        k_strides=("dense", "offset", "head_pad", "packed"),
        inplace=(True,),
        inverse=(False,),
        empty=False,
        position_dtypes=("int64",),
        position_steps=False,
        tables=("indexed",),
        needs="cuda",
    ),
    package="vllm",
)
