"""The launches that a hardware profiler looks at: three shapes at 16384 tokens, each on fresh buffers.

    ncu --kernel-name rope_kernel --metrics \\
        dram__bytes_read.sum,dram__bytes_write.sum,gpu__time_duration.sum,\\
dram__throughput.avg.pct_of_peak_sustained_elapsed,launch__registers_per_thread \\
        python -m benchmarks.counters

Prints the least possible bytes of each shape, to be compared with what the profiler counts.
"""

import torch

from benchmarks.peers import rotate_with_ours
from benchmarks.shapes import SHAPES, make_inputs

NAMES = ("Llama-3-8B", "Llama-3-8B gptj", "rot 64 of 128")
TOKENS = 16384


def main() -> None:
    """Launch each shape once."""
    for shape in SHAPES:
        if shape.name in NAMES:
            rotate_with_ours(shape, make_inputs(shape, TOKENS, 1)[0], inplace=True)()
            torch.cuda.synchronize()
            print(f"{shape.name}: {shape.moved_bytes(TOKENS) / 1e6:.1f} MB must move")


if __name__ == "__main__":
    main()
