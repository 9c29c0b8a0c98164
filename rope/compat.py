"""apply_rope under the signatures of other projects, to be put in the place of theirs.

Each only renames and reshapes without a copy; what apply_rope promises, and raises, holds here too.
"""

import torch

from rope.api import apply_rope
from rope.errors import RopeError
from rope.positions import ragged_positions


def apply_rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hugging Face transformers' function of Llama, Mistral, Qwen, Gemma, Phi, GPT-NeoX and others.

    Args:
        q: `(batch, q_heads, tokens, head_dim)`; `(batch, tokens, q_heads, head_dim)` with unsqueeze_dim=2.
        k: like q.
        cos: `(batch or 1, tokens, rot_dim)`, every angle twice, as the models' rotary embedding returns it;
            only the first half is read. Dims of q and k past rot_dim are copied.
        sin: like cos.
        unsqueeze_dim: 1 or 2, the axis of the heads.

    Returns:
        (q_out, k_out), new tensors.

    Raises:
        RopeError: wrong input.
    """
    if unsqueeze_dim not in (1, 2):
        raise RopeError(f"unsqueeze_dim is {unsqueeze_dim}, expected the axis of the heads in q, 1 or 2")
    cos, sin = (_first_half(x).expand(q.shape[0], -1, -1) for x in (cos, sin))
    return apply_rope(q, k, cos, sin, head_axis=unsqueeze_dim)  # type: ignore[return-value]


def apply_rotary_pos_emb_gptj(tensor: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
    """Hugging Face transformers' function of GPT-J, which has sin before cos and rotates one tensor.

    Args:
        tensor: `(batch, tokens, heads, rot_dim)`.
        sin: `(batch or 1, tokens, rot_dim // 2)`.
        cos: like sin.

    Returns:
        A new tensor.

    Raises:
        RopeError: wrong input.
    """
    cos, sin = (x.expand(tensor.shape[0], -1, -1) for x in (cos, sin))
    return apply_rope(tensor, None, cos, sin, layout="gptj")  # type: ignore[return-value]


def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
) -> torch.Tensor:
    """flash-attention's function.

    A position past the table gives NaN (PositionError where it is seen on the host); flash-attention leaves
    such a token as it is.

    Args:
        x: `(batch, tokens, heads, head_dim)`, or `(tokens, heads, head_dim)` with cu_seqlens.
        cos: `(max_position, rot_dim // 2)`.
        sin: like cos.
        interleaved: True for the gptj layout, False for neox.
        inplace: write into x and return it.
        seqlen_offsets: position of the first token, for all or `(requests,)` for each.
        cu_seqlens: `(requests + 1,)`, where each request starts in x, then the end of the last.
        max_seqlen: not needed, taken because callers pass it.

    Returns:
        The rotated tensor.

    Raises:
        RopeError: wrong input.
    """
    if cu_seqlens is None and x.dim() != 4:
        raise RopeError(
            f"x has shape {tuple(x.shape)}, expected (batch, tokens, heads, head_dim), or 3 axes "
            "and cu_seqlens"
        )
    positions = None
    if not isinstance(seqlen_offsets, torch.Tensor):
        if seqlen_offsets < 0:
            raise RopeError(f"seqlen_offsets is {seqlen_offsets}, expected 0 or more")
        # One offset for all is a table that starts later.
        cos, sin = cos[seqlen_offsets:], sin[seqlen_offsets:]
    elif cu_seqlens is None:
        positions = seqlen_offsets.unsqueeze(-1) + torch.arange(
            x.shape[1], device=x.device, dtype=seqlen_offsets.dtype
        )
    if cu_seqlens is not None:
        starts = seqlen_offsets if isinstance(seqlen_offsets, torch.Tensor) else None
        positions = ragged_positions(cu_seqlens, starts, total=x.shape[0])
    layout = "gptj" if interleaved else "neox"
    return apply_rope(x, None, cos, sin, positions, layout=layout, inplace=inplace)  # type: ignore[return-value]


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """vLLM's function: rotates query and key in place.

    Args:
        positions: `(tokens,)` or `(batch, tokens)`, int32 or int64.
        query: the shape of positions, then `(q_heads * head_size,)` or `(q_heads, head_size)`.
        key: like query with its own number of heads, or None.
        head_size: head_dim.
        cos_sin_cache: `(max_position, rot_dim)`: the cosines of a position, then its sines.
        is_neox: True for the neox layout, False for gptj.

    Raises:
        RopeError: wrong input; nothing was written.
    """
    query = _split_heads("query", query, positions, head_size)
    if key is not None:
        key = _split_heads("key", key, positions, head_size)
    cos, sin = _first_half(cos_sin_cache), cos_sin_cache[..., cos_sin_cache.shape[-1] // 2 :]
    layout = "neox" if is_neox else "gptj"
    apply_rope(query, key, cos, sin, positions, layout=layout, inplace=True)


def _first_half(table: torch.Tensor) -> torch.Tensor:
    width = table.shape[-1]
    if width % 2:
        raise RopeError(f"a table of shape {tuple(table.shape)} has an odd last axis, expected rot_dim, even")
    return table[..., : width // 2]


def _split_heads(name: str, x: torch.Tensor, positions: torch.Tensor, head_size: int) -> torch.Tensor:
    """x as (..., heads, head_size), a view."""
    tokens = tuple(positions.shape)
    flat = x.dim() == len(tokens) + 1
    if flat and head_size > 0 and x.shape[-1] % head_size == 0:
        return x.unflatten(-1, (x.shape[-1] // head_size, head_size))
    if flat or x.dim() != len(tokens) + 2 or x.shape[-1] != head_size:
        raise RopeError(
            f"{name} has shape {tuple(x.shape)}, positions {tokens} and head_size is {head_size}: expected "
            f"{(*tokens, f'heads * {head_size}')} or {(*tokens, 'heads', head_size)}"
        )
    return x
