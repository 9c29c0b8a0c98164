"""A kernel with vLLM's signature, and its adapter: --impl docs/examples/vllm_like.py:vllm_like."""

import torch

from properties.implementations import Implementation
from strategies import Domain


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
    """Rotate query and key `(tokens, heads * head_size)` in place; cos_sin_cache is cos, then sin."""
    cos, sin = cos_sin_cache[positions].float().unsqueeze(1).chunk(2, dim=-1)
    half = cos.shape[-1]
    for rows in (query, key):
        x = rows.unflatten(-1, (-1, head_size))
        if is_neox:
            first, second = x[..., :half], x[..., half : 2 * half]
        else:
            first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        lo, hi = first.float(), second.float()
        lo, hi = lo * cos - hi * sin, hi * cos + lo * sin
        first.copy_(lo)
        second.copy_(hi)


# The adapter: called like apply_rope, it calls the kernel, and says what the kernel supports.
def call(q, k, cos, sin, positions, *, layout, **_):
    """What the kernel is given when it is called like apply_rope."""
    cache = torch.cat([cos, sin], dim=-1)
    rotary_embedding(positions, q.flatten(1), k.flatten(1), q.shape[-1], cache, layout == "neox")
    return q, k


vllm_like = Implementation(
    "vllm-like",
    call,
    Domain(
        dtypes=("bfloat16", "float16", "float32"),
        ranks=(3,),  # (tokens, heads, head_dim)
        heads_first=(False,),
        tails=("none", "after"),  # the first rot_dim dims rotate
        q_strides=("dense", "packed"),  # tensors of their own, or views of one packed QKV row
        k_strides=("dense", "packed"),
        inplace=(True,),
        inverse=(False,),
        without_k=(False,),
        positions=("given",),
        position_dtypes=("int64",),
        tables=("indexed",),  # by position, not gathered per token beforehand
    ),
)
