"""Positions of the tokens a context-parallel rank holds."""

import torch

from rope.errors import RopeError


def shard_positions(
    length: int,
    world_size: int,
    rank: int,
    *,
    order: str = "zigzag",
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Positions, in one sequence, of the tokens that one context-parallel rank holds.

    Args:
        length: tokens of the whole sequence. For a packed batch call once per sequence and
            concatenate: each sequence is split by itself.
        world_size: context-parallel ranks.
        rank: this one, 0 .. world_size - 1.
        order: "zigzag" cuts the sequence into 2 * world_size chunks and gives the rank chunk `rank` and
            the chunk as far from the end, so that causal attention loads all ranks alike (Megatron,
            TransformerEngine). "contiguous" gives it one of world_size runs.
        device: where the positions go; None is the CPU.

    Returns:
        `(length // world_size,)` int64. Over all ranks every position 0 .. length - 1 comes once.

    Raises:
        RopeError: a rank outside the group, an unknown order, or a length that does not divide.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise RopeError(f"rank must be within 0 .. world_size - 1, got rank {rank} of {world_size}")
    if order not in ("zigzag", "contiguous"):
        raise RopeError(f"order must be 'zigzag' or 'contiguous', got {order!r}")
    chunks = 2 * world_size if order == "zigzag" else world_size
    if length < 0 or length % chunks:
        raise RopeError(
            f"length {length} does not divide into {chunks} chunks ({order}, world_size {world_size}): "
            "pad the sequence"
        )
    rows = torch.arange(length, dtype=torch.int64, device=device or "cpu").view(chunks, length // chunks)
    mine = (rank, chunks - 1 - rank) if order == "zigzag" else (rank,)
    return rows[list(mine)].flatten()
