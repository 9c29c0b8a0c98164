"""flash-linear-attention: `rotary_embedding`, one Triton kernel for one tensor.

Source: fla.modules.rotary, https://github.com/fla-org/flash-linear-attention.
x is (batch, tokens, heads, head_dim), or (1, tokens, heads, head_dim) with cu_seqlens; cos and sin
(max_position, rot_dim / 2) in the dtype of x; head_dim at most 256 and a first position per sequence.
"""

from dataclasses import replace
from typing import Any

import torch
from fla.modules.rotary import rotary_embedding
from fla.modules.rotary.ops import rotary_embedding_kernel

from properties.adapters.forms import by_sequence
from properties.implementations import Implementation
from strategies import Domain

if not torch.cuda.is_available():
    # Without a GPU the autotuner has nothing to time; its first configuration stands for all.
    del rotary_embedding_kernel.configs[1:]


def _call(q: Any, k: Any, cos: Any, sin: Any, positions: Any, *, layout: str, inplace: bool, **_: Any) -> Any:
    def rotate(x: Any, starts: Any, cu_seqlens: Any) -> Any:
        options = {"interleaved": layout == "gptj", "inplace": inplace, "seqlen_offsets": starts}
        if cu_seqlens is None:
            return rotary_embedding(x, cos, sin, **options)
        return rotary_embedding(x[None], cos, sin, cu_seqlens=cu_seqlens, **options)[0]

    q_out = by_sequence(q, positions, rotate)
    return q_out if k is None else (q_out, by_sequence(k, positions, rotate))


flash_linear_attention = Implementation(
    "flash-linear-attention",
    _call,
    Domain(
        dtypes=("float32", "bfloat16", "float16"),
        heads_first=(False,),
        tails=("none", "after"),
        inplace=(False,),
        inverse=(False,),
        head_dims=tuple(range(2, 257, 2)),
        empty=False,
        tables=("indexed",),
        table_dtypes=("input",),
        needs="interpreter",
        # The adapter looks for sequences in the positions, which waits for them.
        captured=False,
    ),
    package="flash-linear-attention",
)
# In place it rotates a copy of what is not dense (docs/findings.md); without those the rest can be judged.
in_place = replace(
    flash_linear_attention,
    name="flash-linear-attention-in-place",
    domain=replace(
        flash_linear_attention.domain, inplace=(True,), q_strides=("dense",), k_strides=("dense",)
    ),
)
