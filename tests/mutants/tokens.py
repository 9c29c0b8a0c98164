"""Faults of positions: which token stands where."""

from dataclasses import replace

import numpy as np
import torch

from strategies.case import AXES_KINDS
from tests.mutants import base
from tests.mutants.base import Call, Pair, at, memory
from tests.mutants.registry import mutant

# --- RAGPOS


@mutant("RAGPOS", "flash-attention 2800efc7", "positions")
def token_index_for_position(call: Call) -> torch.Tensor:
    """Trigger: a request that does not start at position 0, or is not the first."""
    return torch.arange(call.tokens).expand(call.batch, -1)


@mutant("RAGPOS", "Liger#477", "positions")
def positions_of_batch_row_0(call: Call) -> torch.Tensor:
    """Every row of the batch uses the first row's positions. Trigger: rows that start differently."""
    return base.positions(call)[:1].expand(call.batch, -1)


@mutant("RAGPOS", "mistral.rs f656e070", "positions")
def counted_from_the_first_token(call: Call) -> torch.Tensor:
    """Only the first position is read. Trigger: a second request on the token axis."""
    rows = base.positions(call)
    return rows[:, :1] + torch.arange(call.tokens)


@mutant("RAGPOS", "Megatron#453", "positions")
def requests_of_equal_length_taken_for_a_batch(call: Call) -> torch.Tensor:
    """Two packed requests of equal length both get the first one's positions.

    Trigger: two requests of equal length with different starts, on one token axis.
    """
    rows = base.positions(call)
    half = call.tokens // 2
    if call.q.dim() == 4 or call.tokens != 2 * half or half == 0:
        return rows
    breaks = (rows[0].diff() != 1).nonzero().flatten().tolist()
    return torch.cat((rows[:, :half], rows[:, :half]), 1) if breaks == [half - 1] else rows


@mutant("RAGPOS", "candle#1582", "positions")
def repeated_position_looked_up_once(call: Call) -> torch.Tensor:
    """Rows are fetched once per position; a position seen again gets row 0.

    Trigger: two tokens at the same position above 0.
    """
    rows = base.positions(call).clone()
    for row in rows:
        seen: set[int] = set()
        for n, position in enumerate(row.tolist()):
            row[n] = 0 if position in seen else position
            seen.add(position)
    return rows


@mutant("RAGPOS", "flash-attention 2800efc7", "positions")
def decoded_token_follows_the_prefill(call: Call) -> torch.Tensor:
    """A last token that is alone in its request continues the request before it.

    Trigger: decoding beside prefill.
    """
    rows = base.positions(call).clone()
    if call.tokens > 2 and call.q.dim() == 3 and rows[0, -3] + 1 == rows[0, -2] != rows[0, -1] - 1:
        rows[:, -1] = (rows[:, -2] + 1).clamp(max=max(call.cos.shape[-2] - 1, 0))
    return rows


@mutant("RAGPOS", "Liger#477", "positions")
def one_position_per_block_of_tokens(call: Call) -> torch.Tensor:
    """The position is read once per block of 4 tokens and counted on. Trigger: requests inside a block."""
    rows = base.positions(call)
    token = torch.arange(call.tokens)
    return rows[:, token // 4 * 4] + token % 4


@mutant("RAGPOS", "Megatron#453", "positions")
def implied_positions_run_on_over_rows(call: Call) -> torch.Tensor:
    """Without positions a row continues the row before it. Trigger: positions=None, more than one row."""
    rows = base.positions(call)
    if call.positions is None and call.cos.dim() == 2:
        rows = rows + torch.arange(call.batch)[:, None] * call.tokens
    return rows


# --- MULTIPOS


@mutant("MULTIPOS", "sglang#34446", "angles")
def gathered_row_of_the_first_request(call: Call, rows: torch.Tensor) -> Pair:
    """Tables gathered per token are read in batch row 0. Trigger: gathered tables of several rows."""
    cos, sin = base.angles(call, rows)
    return (cos[:1], sin[:1]) if call.cos.dim() == 3 else (cos, sin)


@mutant("MULTIPOS", "TE#2077", "angles")
def sin_taken_from_the_first_axis(call: Call, rows: torch.Tensor) -> Pair:
    """cos follows the gathered table, sin the first token's. Trigger: gathered tables, two tokens."""
    cos, sin = base.angles(call, rows)
    return (cos, sin[:, :1]) if call.cos.dim() == 3 else (cos, sin)


@mutant("MULTIPOS", "sglang#34446", "by_pair", axes=AXES_KINDS)
def first_axis_for_every_pair(call: Call, rows: torch.Tensor) -> torch.Tensor:
    """Trigger: a pair on another axis, a token that is no text."""
    return rows[0][..., None].expand(-1, -1, call.rot_half)


@mutant("MULTIPOS", None, "by_pair", axes=AXES_KINDS)
def sections_one_pair_late(call: Call, rows: torch.Tensor) -> torch.Tensor:
    """The first pair of a section still reads the axis before. Trigger: pairs of more than one section."""
    assert call.axes is not None
    return base.by_pair(replace(call, axes=torch.cat((call.axes[:1], call.axes[:-1]))), rows)


@mutant("MULTIPOS", None, "angles", axes=AXES_KINDS)
def exponent_started_again_in_each_section(call: Call, rows: torch.Tensor) -> Pair:
    """As in vision towers, whose tables are made for it. Trigger: a second section."""
    if call.axes is None:
        return base.angles(call, rows)
    axes = call.axes.tolist()
    column = torch.tensor([i - axes.index(axis) for i, axis in enumerate(axes)], dtype=torch.int64)
    return base.angles(replace(call, cos=call.cos[:, column], sin=call.sin[:, column]), rows)


@mutant("MULTIPOS", None, "by_pair", axes=AXES_KINDS)
def height_and_width_swapped(call: Call, rows: torch.Tensor) -> torch.Tensor:
    """Axes 1 and 2 swapped. Trigger: a pair on one of them, a token whose height is not its width."""
    return base.by_pair(call, torch.cat((rows[:1], rows[1:3].flip(0), rows[3:])))


@mutant("MULTIPOS", "vllm-gaudi#1437", "by_pair", axes=AXES_KINDS)
def sections_taken_as_chunked(call: Call, rows: torch.Tensor) -> torch.Tensor:
    """Interleaved sections are read one after the other. Trigger: interleaved sections."""
    assert call.axes is not None
    return base.by_pair(replace(call, axes=call.axes.sort().values), rows)


@mutant("MULTIPOS", None, "positions", axes=AXES_KINDS)
def positions_read_token_by_token(call: Call) -> torch.Tensor:
    """(axes, tokens) is read as if it were (tokens, axes). Trigger: two tokens at different positions."""
    rows = base.positions(call)
    return rows if call.axes is None else rows.movedim(0, -1).reshape(rows.shape)


@mutant("MULTIPOS", None, "check", axes=AXES_KINDS)
def axes_are_trusted(call: Call) -> None:
    """An axis past the last is read from the memory behind the positions. Trigger: such an axis."""
    if call.axes is not None and call.positions is not None:
        call = replace(call, axes=call.axes.clamp(0, len(call.positions) - 1))
    base.check(call)


# --- POSTYPE


@mutant("POSTYPE", "flashinfer#697", "positions")
def positions_read_as_int32(call: Call) -> torch.Tensor:
    """int64 memory is read as int32. Trigger: int64 positions of more than one token."""
    if call.positions is None or call.positions.dtype != torch.int64:
        return base.positions(call)
    dense = call.positions.clone(memory_format=torch.contiguous_format)
    halves = dense.view(torch.int32).flatten()[: call.positions.numel()]
    return halves.view(call.positions.shape).long().expand(call.batch, -1)


@mutant("POSTYPE", "vllm-ascend#2355", "positions")
def stride_of_positions_ignored(call: Call) -> torch.Tensor:
    """Trigger: a stride other than 1; here only for int64, where a slice of a pair table is common."""
    p = call.positions
    if p is None or p.dtype != torch.int64 or p.stride(-1) == 1:
        return base.positions(call)
    return p.as_strided(p.shape, (*p.stride()[:-1], 1)).expand(call.batch, -1)


@mutant("POSTYPE", "flashinfer#697", "positions")
def expanded_positions_read_as_dense(call: Call) -> torch.Tensor:
    """The batch stride is taken to be the number of tokens. Trigger: positions expanded over a batch."""
    p = call.positions
    if p is None or p.dim() == 1:
        return base.positions(call)
    flat = memory(p)
    offsets = np.arange(call.batch)[:, None] * call.tokens * p.stride(1) + np.arange(call.tokens) * p.stride(
        1
    )
    return flat[at(p.storage_offset() + offsets, flat)].long()


# --- RANGE


def _without_position_check(call: Call) -> None:
    base.check(replace(call, positions=None if call.positions is None else call.positions.clamp(0, 0)))


@mutant("RANGE", "onnxruntime#27597", "run")
def position_clamped(call: Call) -> dict[str, torch.Tensor]:
    """A position past the table silently uses the last row. Trigger: a position outside."""
    if call.positions is not None and call.cos.shape[0]:
        call = replace(call, positions=call.positions.clamp(0, call.cos.shape[0] - 1))
    return base.run(call)


@mutant("RANGE", "nanochat#520", "run")
def negative_position_counts_from_the_end(call: Call) -> dict[str, torch.Tensor]:
    """As in Python. Trigger: position -1."""
    if call.positions is not None:
        p = call.positions
        call = replace(call, positions=torch.where(p < 0, p + call.cos.shape[0], p))
    return base.run(call)


@mutant("RANGE", "pegainfer#220", "run")
def position_one_past_the_end_accepted(call: Call) -> dict[str, torch.Tensor]:
    """> for >= in the check. Trigger: the position right behind the table."""
    p = call.positions
    if p is not None:
        call = replace(call, positions=torch.where(p == call.cos.shape[0], p - 1, p))
    return base.run(call)


@mutant("RANGE", "pegainfer#220", "run")
def token_outside_the_table_left_as_it_is(call: Call) -> dict[str, torch.Tensor]:
    """The kernel skips the rotation without a word. Trigger: a position outside the table."""

    def angles(call: Call, rows: torch.Tensor) -> Pair:
        cos, sin = base.angles(call, rows)
        outside = ((rows < 0) | (rows >= call.cos.shape[-2]))[..., None, None] & (call.cos.dim() == 2)
        return cos.masked_fill(outside, 1.0), sin.masked_fill(outside, 0.0)

    return base.run(
        replace(call, steps=replace(call.steps, check=_without_position_check, angles=angles, run=base.run))
    )


@mutant("RANGE", "onnxruntime#27597", "angles")
def row_behind_the_table_read(call: Call, rows: torch.Tensor) -> Pair:
    """The mask of the table is one row too long, which the check of arguments hides.

    Trigger: the position right behind the table, where nothing checks it first.
    """
    if call.cos.dim() == 3:
        return base.angles(call, rows)
    longer = replace(call, cos=_with_rows(call.cos, 1), sin=_with_rows(call.sin, 1))
    return base.angles(longer, rows)


@mutant("RANGE", "pegainfer#220", "angles")
def row_before_the_table_read(call: Call, rows: torch.Tensor) -> Pair:
    """Only the end of the table is masked. Trigger: position -1, where nothing checks it first."""
    if call.cos.dim() == 3 or any(t.storage_offset() < t.stride(0) for t in (call.cos, call.sin)):
        return base.angles(call, rows)
    first = rows == -1
    before = [
        t.as_strided(t.shape, t.stride(), t.storage_offset() - t.stride(0)) for t in (call.cos, call.sin)
    ]
    read = base.angles(replace(call, cos=before[0], sin=before[1]), torch.where(first, 0, -1))
    right = base.angles(call, rows)
    cos, sin = (torch.where(first[..., None, None], r, a) for r, a in zip(read, right, strict=True))
    return cos, sin


def _with_rows(table: torch.Tensor, more: int) -> torch.Tensor:
    end = table.storage_offset() + (len(table) + more) * table.stride(0)
    if end * table.element_size() > table.untyped_storage().nbytes():
        # A kernel would read on; PyTorch cannot.
        return table
    return table.as_strided((len(table) + more, table.shape[1]), table.stride(), table.storage_offset())
