"""Liger: `liger_rotary_pos_emb`, Triton kernels that replace the function of Hugging Face.

Source: liger_kernel.transformers.rope, https://github.com/linkedin/Liger-Kernel.
q and k are (batch, heads, tokens, head_dim); cos and sin (1 or batch, tokens, rotary_dim), gathered and
full width. It computes in the dtype of cos and sin, so a float32 and a 16-bit table are two claims. Its
documentation does not say that it writes into q and k.
"""

from dataclasses import replace
from typing import Any

from liger_kernel.transformers.rope import liger_rotary_pos_emb

from properties.adapters.forms import full_width
from properties.implementations import Implementation
from strategies import Domain


def _call(q: Any, k: Any, cos: Any, sin: Any, positions: None, **_: Any) -> Any:
    return liger_rotary_pos_emb(q, k, full_width(cos), full_width(sin))


liger = Implementation(
    "liger",
    _call,
    Domain(
        layouts=("neox",),
        dtypes=("float32", "bfloat16", "float16"),
        ranks=(4,),
        heads_first=(True,),
        tails=("none", "after"),
        inplace=(False,),
        inverse=(False,),
        without_k=(False,),
        tables=("gathered",),
        table_dtypes=("float32",),
        needs="interpreter",
    ),
    package="liger-kernel",
)
with_16_bit_table = replace(
    liger,
    name="liger-16-bit-table",
    domain=replace(liger.domain, dtypes=("bfloat16", "float16"), table_dtypes=("input",), compute="input"),
)
