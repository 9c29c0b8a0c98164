"""flash-attention: `apply_rotary`, one Triton kernel for one tensor.

Source: flash_attn.ops.triton.rotary, https://github.com/Dao-AILab/flash-attention.
x is (batch, tokens, heads, head_dim), or (tokens, heads, head_dim) with cu_seqlens; cos and sin
(max_position, rot_dim / 2) in the dtype of x; head_dim at most 256 and a first position per sequence.
"""

import contextlib
from typing import Any
from unittest import mock

import torch
from flash_attn.ops.triton.rotary import apply_rotary

from properties.adapters.forms import by_sequence
from properties.implementations import Implementation
from strategies import Domain


def _call(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    positions: Any,
    *,
    layout: str,
    inplace: bool,
    inverse: bool,
    **_: Any,
) -> Any:
    def rotate(x: Any, starts: Any, cu_seqlens: Any) -> Any:
        longest = None if cu_seqlens is None else max(cu_seqlens.diff().tolist(), default=0)
        flags = {"interleaved": layout == "gptj", "inplace": inplace, "conjugate": inverse}
        with _no_gpu_to_select() if x.device.type == "cpu" else contextlib.nullcontext():
            return apply_rotary(x, cos, sin, starts, cu_seqlens, longest, **flags)

    q_out = by_sequence(q, positions, rotate)
    return q_out if k is None else (q_out, by_sequence(k, positions, rotate))


def _no_gpu_to_select() -> Any:
    # It launches on the GPU that x is on, and fails where there is none.
    return mock.patch.object(torch.cuda, "device", return_value=contextlib.nullcontext())


flash_attention = Implementation(
    "flash-attention",
    _call,
    Domain(
        dtypes=("float32", "bfloat16", "float16"),
        heads_first=(False,),
        tails=("none", "after"),
        head_dims=tuple(range(2, 257, 2)),
        tables=("indexed",),
        table_dtypes=("input",),
        needs="interpreter",
        # The adapter looks for sequences in the positions, which waits for them.
        captured=False,
    ),
    package="flash-attn",
)
