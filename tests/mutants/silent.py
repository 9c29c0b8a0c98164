"""Triton kernels whose results are right in the interpreter: what is wrong shows in their addresses only."""

from typing import Any

import torch
import triton
import triton.language as tl

from tests.mutants.registry import mutant

DOMAIN: dict[str, Any] = {
    "layouts": ("neox",),
    "dtypes": ("float32", "bfloat16", "float16"),
    "ranks": (3,),
    "heads_first": (False,),
    "tails": ("none",),
    "inverse": (False,),
    "positions": ("given",),
    "position_steps": False,
    "tables": ("indexed",),
    "table_dtypes": ("float32",),
    "q_strides": ("dense", "token_pad", "dim_pad"),
    "k_strides": ("dense", "token_pad", "dim_pad"),
    "table_strides": False,
    "table_steps": False,
    "needs": "interpreter",
    "refuses": False,
}


@triton.jit
def _kernel(
    x_ptr,
    out_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    x_token,
    x_head,
    out_token,
    out_head,
    tokens,
    heads,
    half: tl.constexpr,
    block: tl.constexpr,
    block_heads: tl.constexpr,
    fault: tl.constexpr,
):
    # Layout neox: element i pairs with i + half. A program per 8 tokens; right when fault is "".
    token = tl.program_id(0).to(tl.int64) * 8 + tl.arange(0, 8)[:, None, None]
    if fault == "tokens clamped":
        token = tl.minimum(token, tokens - 1)
    head = tl.arange(0, block_heads)[None, :, None].to(tl.int64)
    lane = tl.arange(0, block)[None, None, :]
    if fault == "lanes wrap":
        lane = lane % half
    live = (token < tokens) & (head < heads)
    mask = live & (lane < half)
    x = x_ptr + token * x_token + head * x_head
    out = out_ptr + token * out_token + head * out_head
    position = tl.load(positions_ptr + token, mask=(token < tokens) | (fault == "positions"), other=0)
    position = tl.where(token < tokens, position, 0).to(tl.int64)
    row = position * half
    in_table = (token < tokens) & ((lane < half) | (fault == "table"))
    cos = tl.load(cos_ptr + row + lane, mask=in_table)
    sin = tl.load(sin_ptr + row + lane, mask=in_table)
    if fault == "partner":
        # A lane per dim loads its own element and its partner's, which another lane stores.
        dim = tl.arange(0, 2 * block)[None, None, :]
        mask = live & (dim < 2 * half)
        own = tl.load(x + dim, mask=mask).to(tl.float32)
        partner = tl.load(x + (dim + half) % (2 * half), mask=mask).to(tl.float32)
        cos = tl.load(cos_ptr + row + dim % half, mask=mask)
        sin = tl.load(sin_ptr + row + dim % half, mask=mask)
        turned = own * cos + partner * tl.where(dim < half, -sin, sin)
        tl.store(out + dim, turned.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        lo = tl.load(x + lane, mask=mask).to(tl.float32)
        hi = tl.load(x + half + lane, mask=mask | (live & (fault == "row"))).to(tl.float32)
        tl.store(out + lane, (lo * cos - hi * sin).to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(out + half + lane, (hi * cos + lo * sin).to(out_ptr.dtype.element_ty), mask=mask)


def _launch(
    fault: str,
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    inplace: bool = False,
    **options: Any,
) -> Any:
    outputs = []
    for x in (q, k):
        if x is None:
            continue
        out = x if inplace else torch.empty_like(x)
        tokens, heads, head_dim = x.shape
        if out.numel():
            _kernel[(triton.cdiv(tokens, 8),)](
                x, out, cos, sin, positions, *x.stride()[:2], *out.stride()[:2], tokens, heads,
                half=head_dim // 2, block=triton.next_power_of_2(head_dim // 2),
                block_heads=triton.next_power_of_2(heads), fault=fault,
            )  # fmt: skip
        outputs.append(out)
    return outputs[0] if k is None else tuple(outputs)


def correct(*args: Any, **options: Any) -> Any:
    """The kernel without a fault."""
    return _launch("", *args, **options)


@mutant("OOBMEM", "sglang#30123", "apply_rope", **DOMAIN)
def padding_lanes_read_behind_the_table(*args: Any, **options: Any) -> Any:
    """Trigger: rot_half that is no power of two, the last row of the table."""
    return _launch("table", *args, **options)


@mutant("OOBMEM", "onnxruntime#24980", "apply_rope", **DOMAIN)
def padding_lanes_read_behind_the_row(*args: Any, **options: Any) -> Any:
    """Trigger: rot_half that is no power of two, the last head of the last token."""
    return _launch("row", *args, **options)


@mutant("OOBMEM", "sglang#30123", "apply_rope", **DOMAIN)
def positions_read_behind_the_last(*args: Any, **options: Any) -> Any:
    """Trigger: a number of tokens that is no multiple of 8."""
    return _launch("positions", *args, **options)


@mutant("RACE", "vllm#48872", "apply_rope", **DOMAIN)
def lanes_beyond_the_last_pair_store_it_again(*args: Any, **options: Any) -> Any:
    """Two lanes store one element, with one value here. Trigger: rot_half that is no power of two."""
    return _launch("lanes wrap", *args, **options)


@mutant("RACE", "vllm#48872", "apply_rope", **(DOMAIN | {"inplace": (False,)}))
def padding_tokens_write_the_last_again(*args: Any, **options: Any) -> Any:
    """Lanes past the last token repeat it, with the same values out of place.

    Trigger: a number of tokens that is no multiple of 8.
    """
    return _launch("tokens clamped", *args, **options)


@mutant("RACE", "FlagGems#5143", "apply_rope", **DOMAIN)
def partner_loaded_separately(*args: Any, **options: Any) -> Any:
    """In place a lane may load its partner's element after it was stored. Trigger: in place."""
    return _launch("partner", *args, **options)
