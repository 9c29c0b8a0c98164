"""One Triton kernel with three planted faults, each of another kind, for the tests of reports.

wrong_sign: head 1 of q turns the other way.
over_read: every table row is read one pair too far, which goes past the table's end for its last row; the
    value is not used, so no output changes.
unwritten_row: the last of three or more tokens is never written.
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
    TURNED: tl.constexpr,  # noqa: N803 (the head that turns the other way, or -1)
    READ: tl.constexpr,  # noqa: N803 (pairs read of a table row)
    HALF: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    BLOCK_H: tl.constexpr,  # noqa: N803
):
    # Layout neox, dense: one program per token.
    token = tl.program_id(0)
    head = tl.arange(0, BLOCK_H)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    row = tl.load(positions + token) * HALF + pair
    c = tl.load(cos + row, mask=pair < READ, other=0)
    s = tl.load(sin + row, mask=pair < HALF, other=0)
    s = tl.where(head == TURNED, -s, s)
    lo = (token * heads + head) * 2 * HALF + pair
    mask = (head < heads) & (pair < HALF)
    a = tl.load(x + lo, mask=mask)
    b = tl.load(x + lo + HALF, mask=mask)
    tl.store(out + lo, a * c - b * s, mask=mask)
    tl.store(out + lo + HALF, b * c + a * s, mask=mask)


Pair = tuple[torch.Tensor, torch.Tensor]


def _rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    turned: int = -1,
    read_too_far: int = 0,
    rows_left_out: int = 0,
) -> Pair:
    """Rotate q and k, (tokens, heads, head_dim), by rows of the table."""
    outputs = torch.empty_like(q), torch.empty_like(k)
    half, rows = cos.shape[-1], len(q) - rows_left_out
    for x, out in zip((q, k), outputs, strict=True):
        blocks = triton.next_power_of_2(half + 1), triton.next_power_of_2(x.shape[1])
        head, read = (turned if x is q else -1), half + read_too_far
        if rows:
            _kernel[(rows,)](x, out, cos, sin, positions, x.shape[1], head, read, half, *blocks)
    return outputs


def wrong_sign(*arguments: torch.Tensor, **_: object) -> Pair:
    return _rope(*arguments, turned=1)


def over_read(*arguments: torch.Tensor, **_: object) -> Pair:
    return _rope(*arguments, read_too_far=1)


def unwritten_row(*arguments: torch.Tensor, **_: object) -> Pair:
    return _rope(*arguments, rows_left_out=1 if len(arguments[0]) >= 3 else 0)


DOMAIN = Domain(
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
    table_steps=False,
)
WRONG_SIGN = Implementation("wrong_sign", wrong_sign, DOMAIN)
OVER_READ = Implementation("over_read", over_read, DOMAIN)
UNWRITTEN_ROW = Implementation("unwritten_row", unwritten_row, DOMAIN)
