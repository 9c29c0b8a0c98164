"""flashinfer: the CUDA operators `apply_rope_with_cos_sin_cache` and its in-place form.

Source: flashinfer.rope, https://github.com/flashinfer-ai/flashinfer.
query and key are (tokens, heads * head_dim), also as views of one packed row; positions (tokens,);
cos_sin_cache (max_position, rot_dim) float32, cos then sin. With no tokens it raises; a rot_dim that is no
multiple of 16 ends in a misaligned access (docs/findings.md), so that the rest can be judged only without.
"""

from typing import Any

from flashinfer.rope import apply_rope_with_cos_sin_cache, apply_rope_with_cos_sin_cache_inplace

from properties.adapters.forms import cos_then_sin, token_positions
from properties.implementations import Implementation
from strategies import Domain


def _call(q: Any, k: Any, cos: Any, sin: Any, positions: Any, *, layout: str, inplace: bool, **_: Any) -> Any:
    rotate = apply_rope_with_cos_sin_cache_inplace if inplace else apply_rope_with_cos_sin_cache
    rows = q.flatten(1), k.flatten(1)
    cache = cos_then_sin(cos, sin)
    out = rotate(token_positions(q, positions), *rows, q.shape[-1], cache, layout == "neox")
    return (q, k) if inplace else tuple(x.view_as(like) for x, like in zip(out, (q, k), strict=True))


flashinfer = Implementation(
    "flashinfer",
    _call,
    Domain(
        dtypes=("bfloat16", "float16"),
        ranks=(3,),
        heads_first=(False,),
        tails=("none", "after"),
        q_strides=("dense", "head_pad", "packed"),
        k_strides=("dense", "head_pad", "packed"),
        inverse=(False,),
        without_k=(False,),
        head_dims=(64, 128, 256),
        rot_multiple=8,
        empty=False,
        position_steps=False,
        tables=("indexed",),
        table_dtypes=("float32",),
        needs="cuda",
    ),
    package="flashinfer-python",
)
