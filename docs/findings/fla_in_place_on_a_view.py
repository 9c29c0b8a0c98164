"""flash-linear-attention's rotary_embedding with inplace=True leaves a tensor that is not dense unrotated.

Needs torch, triton, flash-linear-attention; without a GPU it runs in Triton's interpreter. Exits 1 while the
fault is there, 0 when it is gone.
"""

import os
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
os.environ.setdefault("TRITON_INTERPRET", "0" if device == "cuda" else "1")
from fla.modules.rotary import rotary_embedding  # noqa: E402
from fla.modules.rotary.ops import rotary_embedding_kernel  # noqa: E402

if device == "cpu":
    del rotary_embedding_kernel.configs[1:]  # nothing to time without a GPU

cos = torch.full((3, 4), 0.6, device=device)
sin = torch.full((3, 4), 0.8, device=device)
qkv = torch.ones(1, 3, 6, 8, device=device)
q = qkv[:, :, :2]  # two heads of a packed row
rotary_embedding(q, cos, sin, inplace=True)
if (q == 1).all():
    print("FAULT: inplace=True returned and left q, a view of a packed QKV tensor, as it was")
    sys.exit(1)
print("OK: q is rotated in place")
