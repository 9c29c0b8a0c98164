"""A Triton kernel with three planted faults, each of another kind, for the tests of reports.

1. Head 1 of q turns the other way.
2. Every table row is read one pair too far, which goes past the table's end for its last row; the value
   is not used, so no output changes.
3. The last of three or more tokens is never written.
"""

import torch
import triton
import triton.language as tl

from properties.implementations import Implementation
from strategies import Domain


@triton.jit
def _kernel(
    x,
    out,
    cos,
    sin,
    positions,
    heads,
    IS_Q: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    BLOCK_H: tl.constexpr,  # noqa: N803
):
    # Layout neox, dense: one program per token.
    token = tl.program_id(0)
    head = tl.arange(0, BLOCK_H)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    row = tl.load(positions + token) * HALF + pair
    c = tl.load(cos + row, mask=pair <= HALF, other=0)  # fault 2: it must be <
    s = tl.load(sin + row, mask=pair < HALF, other=0)
    if IS_Q:
        s = tl.where(head == 1, -s, s)  # fault 1
    lo = (token * heads + head) * 2 * HALF + pair
    mask = (head < heads) & (pair < HALF)
    a = tl.load(x + lo, mask=mask)
    b = tl.load(x + lo + HALF, mask=mask)
    tl.store(out + lo, a * c - b * s, mask=mask)
    tl.store(out + lo + HALF, b * c + a * s, mask=mask)


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    **_: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k, (tokens, heads, head_dim), by rows of the table."""
    outputs = torch.empty_like(q), torch.empty_like(k)
    tokens, half = len(q), cos.shape[-1]
    grid = (tokens if tokens < 3 else tokens - 1,)  # fault 3
    for x, out in zip((q, k), outputs, strict=True):
        blocks = triton.next_power_of_2(half + 1), triton.next_power_of_2(x.shape[1])
        if tokens:
            _kernel[grid](x, out, cos, sin, positions, x.shape[1], x is q, half, *blocks)
    return outputs


ROPE = Implementation(
    "planted",
    rope,
    Domain(
        layouts=("neox",),
        dtypes=("float32",),
        ranks=(3,),
        heads_first=(False,),
        tails=("none",),
        q_strides=("dense",),
        k_strides=("dense",),
        inplace=(False,),
        inverse=(False,),
        without_k=(False,),
        head_dims=(2, 4, 8, 16),
        positions=("given",),
        position_steps=False,
        tables=("indexed",),
        table_dtypes=("float32",),
        table_strides=False,
    ),
)
