"""Faults of addressing: strides, heads, axes, and what a launch covers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from tests.mutants import base
from tests.mutants.base import Call, Index, Pair
from tests.mutants.registry import mutant

# --- QKWIRE


@mutant("QKWIRE", "sglang#20559", "run")
def k_given_the_heads_of_q(call: Call) -> dict[str, torch.Tensor]:
    """The loop over k runs to q's head count. Trigger: grouped heads."""
    if call.k is None or call.heads(call.q) == call.heads(call.k):
        return base.run(call)
    heads = call.heads(call.q)

    def load(call: Call, x: torch.Tensor, dims: Index) -> torch.Tensor:
        flat = base.memory(x)
        return flat[base.at(call.offsets(x, dims, heads), flat)]

    def store(call: Call, out: torch.Tensor, dims: Index, values: torch.Tensor) -> None:
        flat = base.memory(out)
        flat[base.at(call.offsets(out, dims, heads), flat)] = values.to(out.dtype)

    return base.run(replace(call, steps=replace(call.steps, run=base.run, load=load, store=store)))


@mutant("QKWIRE", "sglang#20559", "strides")
def k_read_with_the_strides_of_q(call: Call, x: torch.Tensor) -> Sequence[int]:
    """Trigger: k in place with another memory layout than q, or fewer heads."""
    return base.strides(call, call.q if x is call.k else x)


@mutant("QKWIRE", "sglang#20559", "run")
def q_and_k_exchanged(call: Call) -> dict[str, torch.Tensor]:
    """The outputs are returned in the wrong order. Trigger: as many heads in k as in q, out of place."""
    outputs = base.run(call)
    if call.k is None or call.inplace or call.heads(call.q) != call.heads(call.k):
        return outputs
    return {"q": outputs["k"], "k": outputs["q"]}


# --- STRIDE


@mutant("STRIDE", "vllm#16658", "strides")
def token_stride_from_the_shape(call: Call, x: torch.Tensor) -> Sequence[int]:
    """Tokens are taken to be heads * head_dim apart. Trigger: a packed or padded row."""
    b, _, h, d = base.strides(call, x)
    return (b, call.head_dim if call.heads_first else call.heads(x) * call.head_dim, h, d)


@mutant("STRIDE", "llama.cpp#19299", "strides")
def last_dim_taken_for_dense(call: Call, x: torch.Tensor) -> Sequence[int]:
    """Trigger: a slice of every second dim."""
    return (*base.strides(call, x)[:3], 1)


@mutant("STRIDE", "llama.cpp#2830", "load")
def source_read_with_the_strides_of_the_destination(call: Call, x: torch.Tensor, dims: Index) -> torch.Tensor:
    """Trigger: out of place from memory that is not dense."""
    dense = call.batch, call.tokens, call.heads(x), call.head_dim
    if call.inplace:
        return base.load(call, x, dims)
    order = (0, 2, 1, 3) if call.heads_first else (0, 1, 2, 3)
    shape = [dense[axis] for axis in order]
    step = np.empty(4, dtype=np.int64)
    for place, axis in enumerate(order):
        step[axis] = np.prod(shape[place + 1 :], dtype=np.int64)
    rows = sum(
        np.arange(n).reshape([-1 if i == axis else 1 for i in range(4)]) * step[axis]
        for axis, n in enumerate(dense[:3])
    )
    flat = base.memory(x)
    return flat[base.at(x.storage_offset() + rows + dims, flat)]


@mutant("STRIDE", "mlx#1340", "strides")
def expanded_heads_read_as_dense(call: Call, x: torch.Tensor) -> Sequence[int]:
    """A head stride of 0 is replaced by head_dim. Trigger: one head expanded to several."""
    b, n, h, d = base.strides(call, x)
    return b, n, h or call.head_dim, d


@mutant("STRIDE", "vllm#16658", "strides")
def batch_stride_ignored_after_padding(call: Call, x: torch.Tensor) -> Sequence[int]:
    """Batch rows are taken to be tokens * token stride apart. Trigger: a preallocated cache, two rows."""
    b, n, h, d = base.strides(call, x)
    return call.tokens * n if b > call.tokens * n > 0 and not call.heads_first else b, n, h, d


@mutant("STRIDE", "mlx#1340", "strides")
def slice_ignored_in_partial_gptj(call: Call, x: torch.Tensor) -> Sequence[int]:
    """Only the path for partial gptj forgets the stride of the last dim.

    Trigger: gptj, a tail, every second dim of a wider tensor, all at once.
    """
    b, n, h, d = base.strides(call, x)
    return b, n, h, 1 if call.layout == "gptj" and len(call.tail_dims) else d


@mutant("STRIDE", "llama.cpp#19299", "angles")
def table_rows_taken_for_dense(call: Call, rows: torch.Tensor) -> Pair:
    """Trigger: table rows further apart than their width, a position above 0."""
    tables = [t.as_strided(t.shape, _dense(t.shape), t.storage_offset()) for t in (call.cos, call.sin)]
    return base.angles(replace(call, cos=tables[0], sin=tables[1]), rows)


def _dense(shape: torch.Size) -> list[int]:
    return [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]


# --- COVER


@mutant("COVER", "aprender#2079", "angles")
def first_batch_row_only(call: Call, rows: torch.Tensor) -> Pair:
    """Other rows are copied. Trigger: more than one row."""
    cos, sin = base.angles(call, rows)
    return _copied((torch.arange(call.batch) > 0)[:, None, None, None], cos, sin)


def _copied(where: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Pair:
    """Angles that leave the places `where` unrotated."""
    return torch.where(where, 1.0, cos), torch.where(where, 0.0, sin)


@mutant("COVER", "flash-attention f5d0fbd4", "turn")
def no_kernel_for_half_precision_at_128(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """One specialisation is missing. Trigger: float16 with head_dim 128, fully rotated."""
    is_missing = call.q.dtype == torch.float16 and call.head_dim == 2 * call.rot_half == 128
    return (lo, hi) if is_missing else base.turn(call, lo, hi, cos, sin)


@mutant("COVER", "flashinfer#619", "turn")
def second_fast_path_forgets_the_remainder(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """16 pairs at a time when there are at least 32; what is left over stays unrotated.

    Trigger: rot_half above 32 that is no multiple of 16.
    """
    left = torch.arange(call.rot_half) >= call.rot_half // 16 * 16
    return base.turn(call, lo, hi, *(_copied(left, cos, sin) if call.rot_half >= 32 else (cos, sin)))


@mutant("COVER", "aprender#2079", "turn")
def heads_beyond_a_block_forgotten(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """One block of 32 heads is launched. Trigger: more than 32 heads."""
    return base.turn(call, lo, hi, *_copied((torch.arange(lo.shape[2]) >= 32)[:, None], cos, sin))


@mutant("COVER", "flashinfer#619", "angles")
def last_row_of_an_odd_number_forgotten(call: Call, rows: torch.Tensor) -> Pair:
    """Two tokens at a time, rounded down. Trigger: an odd number of tokens, at least 3."""
    is_last = (torch.arange(call.tokens) == call.tokens - 1)[:, None, None]
    return _copied(is_last & (call.tokens % 2 == 1) & (call.tokens > 2), *base.angles(call, rows))


@mutant("COVER", "aprender#2079", "turn")
def last_head_of_several_forgotten(
    call: Call, lo: torch.Tensor, hi: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Pair:
    """Trigger: 3, 5, 7, ... heads."""
    heads = lo.shape[2]
    is_last = (torch.arange(heads) == heads - 1) & (heads % 2 == 1) & (heads > 1)
    return base.turn(call, lo, hi, *_copied(is_last[:, None], cos, sin))


# --- AXIS


@mutant("AXIS", "xformers#841", "angles")
def time_axis_guessed_from_the_sizes(call: Call, rows: torch.Tensor) -> Pair:
    """The axis of heads is taken for time where both have one size. Trigger: as many heads as tokens."""
    cos, sin = base.angles(call, rows)
    if call.tokens == call.heads(call.q):
        cos, sin = cos.transpose(1, 2), sin.transpose(1, 2)
        if call.k is not None and call.heads(call.k) not in (1, call.tokens):
            cos, sin = base.angles(call, rows)
    return cos, sin


@mutant("AXIS", "onnx#6767", "positions")
def last_position_of_heads_first_tensors_reversed(call: Call) -> torch.Tensor:
    """Tokens run backwards where heads come first in 3 axes. Trigger: (heads, tokens, head_dim)."""
    rows = base.positions(call)
    return rows.flip(1) if call.heads_first and call.q.dim() == 3 else rows


# --- BIGIDX


@mutant("BIGIDX", "Liger#803", "store")
def offsets_in_32_bits(call: Call, out: torch.Tensor, dims: Index, values: torch.Tensor) -> None:
    """Trigger: a tensor that spans 2**31 elements."""
    flat, start = base.memory(out), out.storage_offset()
    offsets = (call.offsets(out, dims) - start).astype(np.int32).astype(np.int64) + start
    flat[base.at(offsets, flat)] = values.to(out.dtype)


@mutant("BIGIDX", "vllm#52416", "load")
def head_times_stride_in_32_bits(call: Call, x: torch.Tensor, dims: Index) -> torch.Tensor:
    """Only the product of head and stride is narrow. Trigger: heads that span 2**31 elements."""
    flat, (_, _, h, _) = base.memory(x), base.strides(call, x)
    heads = np.arange(call.heads(x)) * h
    wrapped = (heads.astype(np.int32).astype(np.int64) - heads)[:, None]
    return flat[base.at(call.offsets(x, dims) + wrapped, flat)]


@mutant("BIGIDX", "onnxruntime#20204", "angles")
def tokens_in_16_bits(call: Call, rows: torch.Tensor) -> Pair:
    """The grid stops at 65535 tokens. Trigger: more."""
    beyond = (torch.arange(call.tokens) >= 65535)[:, None, None]
    return _copied(beyond, *base.angles(call, rows))
