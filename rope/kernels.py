"""Triton kernels for RoPE.

`rope_kernel` maps programs to tiles: a program owns the same `BLOCK_T` tokens of one batch row for `BLOCK_H`
heads, counted over q and then k, so it loads each cos/sin row once and reuses it over its heads, and no
element is touched by two programs. A layout is a pair of functions, one that loads the pairs of a tile and
one that stores them.

Every tile has the axes (token, head, dim). Row offsets are 64-bit: a head-first or packed tensor passes
2**31 elements at ordinary model sizes.
"""

import triton
import triton.language as tl

# Positions of rope_kernel's run-time numbers. None is specialised, so tensors that differ only in stride
# values share one compiled kernel; what the compiler must know of them (unit strides, alignment) arrives as
# constexprs that the launcher computes.
FIRST_SCALAR, LAST_SCALAR = 8, 42


@triton.jit
def _times(index, stride):
    # Neither is ever negative. Said so, a 64-bit product of 32-bit numbers is one instruction, not three.
    if stride.dtype == tl.int32:
        stride = stride.to(tl.uint32)
    return (index.to(tl.uint32).to(tl.uint64) * stride.to(tl.uint64)).to(tl.int64)


@triton.jit
def _load_neox(rows, dim_stride, row_mask, ROT_HALF: tl.constexpr, BLOCK_HALF: tl.constexpr):
    # Layout neox: element i of the rotated dims pairs with element i + ROT_HALF.
    pair = tl.arange(0, BLOCK_HALF)[None, None, :]
    mask = row_mask & (pair < ROT_HALF)
    lo = tl.load(rows + pair * dim_stride, mask=mask)
    hi = tl.load(rows + (ROT_HALF + pair) * dim_stride, mask=mask)
    return lo, hi


@triton.jit
def _store_neox(
    rows,
    dim_stride,
    row_mask,
    lo,
    hi,
    ROT_HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    # Layout neox: element i of the rotated dims pairs with element i + ROT_HALF.
    pair = tl.arange(0, BLOCK_HALF)[None, None, :]
    mask = row_mask & (pair < ROT_HALF)
    tl.store(rows + pair * dim_stride, lo, mask=mask)
    tl.store(rows + (ROT_HALF + pair) * dim_stride, hi, mask=mask)


@triton.jit
def _load_gptj(
    rows,
    dim_stride,
    row_mask,
    ROT_HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    # Layout gptj: element 2i of the rotated dims pairs with element 2i + 1.
    # Whole rows travel and are split in registers, because loads of every second element would halve the
    # useful part of each memory sector.
    dim = tl.arange(0, 2 * BLOCK_HALF)[None, None, :]
    mask = row_mask & (dim < 2 * ROT_HALF)
    row = tl.load(rows + dim * dim_stride, mask=mask)
    return tl.split(tl.reshape(row, (BLOCK_T, BLOCK_H, BLOCK_HALF, 2)))


@triton.jit
def _store_gptj(
    rows,
    dim_stride,
    row_mask,
    lo,
    hi,
    ROT_HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    # Layout gptj: element 2i of the rotated dims pairs with element 2i + 1.
    dim = tl.arange(0, 2 * BLOCK_HALF)[None, None, :]
    mask = row_mask & (dim < 2 * ROT_HALF)
    row = tl.reshape(tl.join(lo, hi), (BLOCK_T, BLOCK_H, 2 * BLOCK_HALF))
    tl.store(rows + dim * dim_stride, row, mask=mask)


@triton.jit
def _load_angles(
    table,
    b,
    live,
    dtype: tl.constexpr,
    INVERSE: tl.constexpr,
    UNIT_PAIR: tl.constexpr,
    TABLE_UNIT: tl.constexpr,
    ROT_HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    # Either layout: one cos and one sin per (token, pair), as (BLOCK_T, 1, BLOCK_HALF). A position is that of
    # the token, or with several axes that of the (token, pair).
    cos_ptr, sin_ptr, cos_strides, sin_strides, position, max_position = table
    # A row outside the table is never read; NaN makes the fault loud without a host sync.
    in_table = live & (position.to(tl.uint64) < max_position.to(tl.uint64))
    row = tl.where(in_table, position, 0)
    cos_rows = cos_ptr + (_times(b, cos_strides[0]) + _times(row, cos_strides[1])) * TABLE_UNIT
    sin_rows = sin_ptr + (_times(b, sin_strides[0]) + _times(row, sin_strides[1])) * TABLE_UNIT
    pair = tl.arange(0, BLOCK_HALF)[None, None, :]
    cos_pair = pair
    sin_pair = pair
    if not UNIT_PAIR:
        cos_pair = pair.to(tl.int64) * cos_strides[2]
        sin_pair = pair.to(tl.int64) * sin_strides[2]
    mask = in_table & (pair < ROT_HALF)
    cos = tl.load(cos_rows + cos_pair, mask=mask, other=float("nan")).to(dtype)
    sin = tl.load(sin_rows + sin_pair, mask=mask, other=float("nan")).to(dtype)
    if INVERSE:
        sin = sin * -1.0
    return cos, sin


@triton.jit
def _load_positions_by_pair(
    positions, axes, position_axis, position_axes, live, ROT_HALF: tl.constexpr, BLOCK_HALF: tl.constexpr
):
    # Either layout: each pair's position, on the axis that the pair reads, as (BLOCK_T, 1, BLOCK_HALF).
    axes_ptr, axes_i = axes
    pair = tl.arange(0, BLOCK_HALF)[None, None, :]
    axis = tl.load(axes_ptr + pair.to(tl.int64) * axes_i, mask=pair < ROT_HALF, other=-1).to(tl.int64)
    # An axis that positions lack is never read; as a position outside the table it gives NaN.
    on_axis = (axis >= 0) & (axis < position_axes)
    at = positions + tl.where(on_axis, axis, 0) * position_axis
    return tl.load(at, mask=live & on_axis, other=-1).to(tl.int64)


@triton.jit
def _copy_tail(
    x_rows,
    out_rows,
    x_dim_stride,
    out_dim_stride,
    row_mask,
    rot_offset,
    tail,
    TAIL_SIDE: tl.constexpr,
    ROT_DIM: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,
):
    # Either layout: the dims before and after the rotated ones, bit for bit.
    dim = tl.arange(0, BLOCK_TAIL)[None, None, :]
    mask = row_mask & (dim < tail)
    # A tail on one side only keeps dims contiguous, which the compiler must see to make wide accesses.
    if TAIL_SIDE == "after":
        dim += ROT_DIM
    elif TAIL_SIDE == "both":
        dim = tl.where(dim < rot_offset, dim, dim + ROT_DIM)
    value = tl.load(x_rows + dim * x_dim_stride, mask=mask)
    tl.store(out_rows + dim * out_dim_stride, value, mask=mask)


@triton.jit
def _rows(q_ptr, k_ptr, q_strides, k_strides, b, n, h, q_heads, UNIT_DIM: tl.constexpr, X_UNIT: tl.constexpr):
    # Either layout: where the dims of each (token, head) start, and their stride; the heads of k follow those
    # of q. The factor tells the compiler how rows are aligned, which is what makes accesses 16 bytes wide.
    of_q = h < q_heads
    h = tl.where(of_q, h, h - q_heads)
    q_row = _times(b, q_strides[0]) + _times(n, q_strides[1]) + _times(h, q_strides[2])
    k_row = _times(b, k_strides[0]) + _times(n, k_strides[1]) + _times(h, k_strides[2])
    dim_stride = 1
    if not UNIT_DIM:
        dim_stride = tl.where(of_q, q_strides[3], k_strides[3]).to(tl.int64)
    return tl.where(of_q, q_ptr + q_row * X_UNIT, k_ptr + k_row * X_UNIT), dim_stride


@triton.jit(
    do_not_specialize=list(range(FIRST_SCALAR, LAST_SCALAR + 1)), do_not_specialize_on_alignment=["axes_ptr"]
)
def rope_kernel(
    q_ptr,
    k_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    q_out_ptr,
    k_out_ptr,
    axes_ptr,  # None, as what describes the axes: every pair of a token has one position
    # Strides of batch, token and head are in units of X_UNIT elements, of a table's batch and row in units of
    # TABLE_UNIT, all others in elements. What every call reads comes first: parameters arrive in lines of 64
    # bytes, and each line that is touched is a wait.
    q_n,
    q_h,
    k_n,
    k_h,
    cos_row,
    sin_row,
    position_n,
    tokens,  # per batch row
    q_heads,
    heads,  # of q and k together
    max_position,  # rows of the table, or of one batch row of a gathered table
    rot_offset,  # in units of X_UNIT
    q_b,
    k_b,
    cos_b,
    sin_b,
    position_b,
    q_out_b,
    q_out_n,
    q_out_h,
    k_out_b,
    k_out_n,
    k_out_h,
    tail,  # dims to copy, in units of X_UNIT
    q_d,
    k_d,
    q_out_d,
    k_out_d,
    cos_i,
    sin_i,
    position_axis,  # stride of the positions' axes
    position_axes,  # how many axes positions have
    axes_i,
    row_blocks,  # blocks of tokens per batch row
    head_blocks,  # blocks of heads
    GPTJ: tl.constexpr,
    INVERSE: tl.constexpr,
    INPLACE: tl.constexpr,  # the outputs are q and k
    HAS_POSITIONS: tl.constexpr,
    BATCHED: tl.constexpr,  # there is more than one batch row
    UNIT_DIM: tl.constexpr,  # the dim stride of q, k and the outputs is 1
    UNIT_PAIR: tl.constexpr,  # the pair stride of cos and sin is 1
    X_UNIT: tl.constexpr,  # elements: every row of q, k and the outputs starts at a multiple of this
    TABLE_UNIT: tl.constexpr,  # elements, for cos and sin
    ROT_HALF: tl.constexpr,
    TAIL_SIDE: tl.constexpr,  # which dims to copy: "none" (in place), "after", "before" the rotated, "both"
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,
    FLAT: tl.constexpr,  # the grid has one axis
):
    # Layout neox (i with i + ROT_HALF) or, when GPTJ, gptj (2i with 2i + 1).
    # Head blocks run fastest, so programs that share table rows run together.
    head_block = tl.program_id(0)
    row_block = tl.program_id(1)
    b = tl.program_id(2)
    if FLAT:
        # Two divisions more before the first load, 0.07 us on an H200.
        row = head_block // head_blocks
        b = row // row_blocks
        row_block = row % row_blocks
        head_block = head_block % head_blocks
    if not BATCHED:
        b *= 0
    n = row_block * BLOCK_T + tl.arange(0, BLOCK_T)[:, None, None]
    live = n < tokens
    position = n.to(tl.int64)
    if HAS_POSITIONS:
        at = _times(b, position_b) + _times(n, position_n)
        if axes_ptr is None:
            position = tl.load(positions_ptr + at, mask=live, other=-1).to(tl.int64)
        else:
            position = _load_positions_by_pair(
                positions_ptr + at,
                (axes_ptr, axes_i),
                position_axis,
                position_axes,
                live,
                ROT_HALF,
                BLOCK_HALF,
            )
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    arithmetic: tl.constexpr = tl.float64 if dtype == tl.float64 else tl.float32
    h = head_block * BLOCK_H + tl.arange(0, BLOCK_H)[None, :, None]
    mask = live & (h < heads)
    q_strides, k_strides = (q_b, q_n, q_h, q_d), (k_b, k_n, k_h, k_d)
    x_rows, x_dim = _rows(q_ptr, k_ptr, q_strides, k_strides, b, n, h, q_heads, UNIT_DIM, X_UNIT)
    out_rows = x_rows
    out_dim = x_dim
    if not INPLACE:
        q_strides, k_strides = (q_out_b, q_out_n, q_out_h, q_out_d), (k_out_b, k_out_n, k_out_h, k_out_d)
        out_rows, out_dim = _rows(
            q_out_ptr, k_out_ptr, q_strides, k_strides, b, n, h, q_heads, UNIT_DIM, X_UNIT
        )
    rot_offset = rot_offset * X_UNIT
    x_rotated = x_rows + rot_offset * x_dim
    out_rotated = out_rows + rot_offset * out_dim
    if GPTJ:
        lo, hi = _load_gptj(x_rotated, x_dim, mask, ROT_HALF, BLOCK_HALF, BLOCK_T, BLOCK_H)
    else:
        lo, hi = _load_neox(x_rotated, x_dim, mask, ROT_HALF, BLOCK_HALF)
    # After the rows, whose way from memory is the longest: a table row waits for its position first.
    table = (cos_ptr, sin_ptr, (cos_b, cos_row, cos_i), (sin_b, sin_row, sin_i), position, max_position)
    cos, sin = _load_angles(table, b, live, arithmetic, INVERSE, UNIT_PAIR, TABLE_UNIT, ROT_HALF, BLOCK_HALF)
    lo = lo.to(arithmetic)
    hi = hi.to(arithmetic)
    # Left to itself the compiler fuses one product or the other, by tile and strides: results must not depend
    # on either. Times -1 and not minus, which is 0 - x to Triton and loses the sign of a zero.
    new_lo = tl.fma(lo, cos, (hi * sin) * -1.0).to(dtype)
    new_hi = tl.fma(hi, cos, lo * sin).to(dtype)
    if GPTJ:
        _store_gptj(out_rotated, out_dim, mask, new_lo, new_hi, ROT_HALF, BLOCK_HALF, BLOCK_T, BLOCK_H)
    else:
        _store_neox(out_rotated, out_dim, mask, new_lo, new_hi, ROT_HALF, BLOCK_HALF)
    if TAIL_SIDE != "none":
        _copy_tail(
            x_rows,
            out_rows,
            x_dim,
            out_dim,
            mask,
            rot_offset,
            tail * X_UNIT,
            TAIL_SIDE,
            2 * ROT_HALF,
            BLOCK_TAIL,
        )
