"""How fast any kernel can rewrite a part of each row in place, as partial rotation does.

    python -m benchmarks.partial_rows

A pass that negates the first dims of every row and touches nothing else: no tables, no positions, no pairs.
Its best tile is the limit of partial rotation in place, beside the limit for dense bytes of `benchmarks.run`.
"""

import functools
import itertools

import torch
import triton
import triton.language as tl

from benchmarks.timing import bytes_per_us, graph_us, sets_for

ROWS = 16384 * 40
SHAPES = ((128, 128), (64, 128), (64, 192), (32, 80), (24, 96))
TILES = tuple(itertools.product((4, 8, 16, 32, 64), (1, 2, 4)))


@triton.jit
def _negate(x_ptr, rows, row_stride, DIMS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIMS: tl.constexpr):
    # Layout: rows of row_stride elements, of which the first DIMS change.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    dim = tl.arange(0, BLOCK_DIMS)[None, :]
    mask = (row < rows) & (dim < DIMS)
    at = x_ptr + row * row_stride + dim
    tl.store(at, -tl.load(at, mask=mask), mask=mask)


def best_us(dims: int, head_dim: int) -> tuple[float, tuple[int, int]]:
    """Microseconds of the best tile (rows, warps), and that tile."""
    sets = sets_for(2 * ROWS * head_dim)
    buffers = [torch.randn(ROWS, head_dim, device="cuda").bfloat16() for _ in range(sets)]

    def time_of(block_rows: int, warps: int) -> float:
        grid = (triton.cdiv(ROWS, block_rows),)
        block_dims = triton.next_power_of_2(dims)

        def call(x: torch.Tensor) -> object:
            return _negate[grid](x, ROWS, head_dim, dims, block_rows, block_dims, num_warps=warps)

        return graph_us([functools.partial(call, x) for x in buffers])

    return min((time_of(*tile), tile) for tile in TILES)


def main() -> None:
    """Print the table."""
    print("dims of row   bytes moved MB   us     share of the dense limit   rows, warps")
    for dims, head_dim in SHAPES:
        moved = 2 * 2 * ROWS * dims
        us, tile = best_us(dims, head_dim)
        share = moved / us / bytes_per_us(moved)
        print(f"{dims:4d} of {head_dim:3d} {moved / 1e6:13.1f} {us:10.1f} {share:14.3f} {tile!s:>26s}")


if __name__ == "__main__":
    main()
