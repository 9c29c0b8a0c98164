"""rotary-embedding-torch: `apply_rotary_emb`, in plain PyTorch.

Source: rotary_embedding_torch, https://github.com/lucidrains/rotary-embedding-torch.
It takes angles (..., rot_dim), each twice, and a factor, in place of cos and sin; here they come from the
table in float64, which is then the dtype of its arithmetic. So this judges pairing, axes and partial
rotation, and not the precision of its own angles.
"""

from typing import Any

import torch
from rotary_embedding_torch import apply_rotary_emb

from properties.implementations import Implementation
from strategies import Domain


def _call(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    positions: Any,
    *,
    rot_offset: int,
    head_axis: int,
    inverse: bool,
    **_: Any,
) -> Any:
    heads_first = head_axis != -2
    cos, sin = _per_token(q, cos.double(), sin.double(), positions, heads_first)
    angles = torch.atan2(sin, cos).repeat_interleave(2, dim=-1)
    factor = torch.hypot(cos, sin).repeat_interleave(2, dim=-1)
    sign = -1 if inverse else 1

    def rotate(x: Any) -> Any:
        seq_dim = -2 if heads_first else -3
        return apply_rotary_emb(sign * angles, x, start_index=rot_offset, scale=factor, seq_dim=seq_dim)

    return rotate(q) if k is None else (rotate(q), rotate(k))


def _per_token(q: Any, cos: Any, sin: Any, positions: Any, heads_first: bool) -> tuple[Any, Any]:
    """The rows of every token, shaped to go with q; the head axis is left out where it comes first."""
    if cos.dim() == 2:
        tokens = q.shape[-2 if heads_first else -3]
        positions = torch.arange(tokens, device=q.device) if positions is None else positions
        cos, sin = cos[positions], sin[positions]
    if q.dim() == 4 and cos.dim() == 2:
        cos, sin = cos[None], sin[None]
    if heads_first:
        return (cos.unsqueeze(1), sin.unsqueeze(1)) if q.dim() == 4 else (cos, sin)
    return cos.unsqueeze(-2), sin.unsqueeze(-2)


rotary_embedding_torch = Implementation(
    "rotary-embedding-torch",
    _call,
    # The way from cos and sin to angles and back rounds in float64, so float64 cannot be judged.
    Domain(
        layouts=("gptj",),
        dtypes=("float32", "bfloat16", "float16"),
        inplace=(False,),
        table_dtypes=("float32",),
    ),
    package="rotary-embedding-torch",
)
