"""flashinfer's apply_rope_with_cos_sin_cache where rotary_dim is no multiple of 16: a misaligned access.

It loads 16 bytes at a time from the cache and from each half of a head, wherever these start. The error
leaves the process unable to use the GPU, so every size runs in a process of its own.

Needs torch, flashinfer-python and a GPU. Exits 1 while the fault is there, 0 when it is gone, 2 without a
GPU.
"""

import subprocess
import sys

import torch


def rotate(rotary_dim: int, is_neox: bool) -> None:
    """Three tokens of two heads of 64 dims, of which the first rotary_dim rotate."""
    from flashinfer.rope import apply_rope_with_cos_sin_cache

    cache = torch.ones(3, rotary_dim, device="cuda")
    q = torch.ones(3, 128, device="cuda", dtype=torch.bfloat16)
    positions = torch.arange(3, device="cuda")
    apply_rope_with_cos_sin_cache(positions, q, q.clone(), 64, cache, is_neox)
    torch.cuda.synchronize()


if len(sys.argv) == 3:
    rotate(int(sys.argv[1]), sys.argv[2] == "neox")
    sys.exit()
if not torch.cuda.is_available():
    print("needs a GPU")
    sys.exit(2)
sizes = [(layout, rotary_dim) for layout in ("neox", "interleaved") for rotary_dim in (16, 20, 24, 32)]
running = [
    subprocess.Popen([sys.executable, __file__, str(dim), layout], stderr=subprocess.PIPE, text=True)
    for layout, dim in sizes
]
wrong = []
for (layout, rotary_dim), process in zip(sizes, running, strict=True):
    _, said = process.communicate()
    if process.returncode:
        last = [line.strip() for line in said.splitlines() if "rror: " in line][-1:]
        wrong.append(f"{layout} {rotary_dim} ({' '.join(last)})")
if wrong:
    print(f"FAULT: rotary_dim {'; '.join(wrong)}")
    sys.exit(1)
print("OK: every rotary_dim ran")
