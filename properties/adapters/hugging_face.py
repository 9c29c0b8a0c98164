"""Hugging Face transformers: `apply_rotary_pos_emb` of its Llama model, as it is and compiled.

Source: transformers.models.llama.modeling_llama, https://github.com/huggingface/transformers.
q and k are (batch, heads, tokens, head_dim), or with unsqueeze_dim=2 (batch, tokens, heads, head_dim); cos
and sin (batch, tokens, head_dim), gathered, full width and in the dtype of q, in which it computes.
"""

from dataclasses import replace
from typing import Any

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from properties.adapters.forms import full_width
from properties.implementations import Implementation
from strategies import Domain


def _call(q: Any, k: Any, cos: Any, sin: Any, positions: None, *, head_axis: int, **_: Any) -> Any:
    unsqueeze_dim = 1 if head_axis == 1 else 2
    return apply_rotary_pos_emb(q, k, full_width(cos), full_width(sin), unsqueeze_dim=unsqueeze_dim)


def _call_compiled(q: Any, k: Any, cos: Any, sin: Any, positions: None, **_: Any) -> Any:
    # Every dtype, rank of strides and size of 1 is a compilation of its own; past the limit it would fail.
    with torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=10_000):
        return _compiled(q, k, full_width(cos), full_width(sin))


_compiled = torch.compile(apply_rotary_pos_emb, dynamic=True, fullgraph=True)

hugging_face = Implementation(
    "hugging-face",
    _call,
    Domain(
        layouts=("neox",),
        ranks=(4,),
        tails=("none",),
        inplace=(False,),
        inverse=(False,),
        without_k=(False,),
        tables=("gathered",),
        table_dtypes=("input",),
        compute="input",
    ),
    package="transformers",
)
compiled = Implementation(
    "hugging-face-compiled",
    _call_compiled,
    # A compilation takes seconds, so only what makes few of them.
    replace(
        hugging_face.domain,
        dtypes=("float32", "bfloat16"),
        heads_first=(True,),
        q_strides=("dense",),
        k_strides=("dense",),
        empty=False,
    ),
    package="torch",
    watched=False,
)
