"""Liger's liger_rotary_pos_emb rotates the wrong rows when each batch row has one token, as in decoding.

It takes the distance between tokens from the stride of the token axis, which says nothing where that axis has
length 1: q is (batch, heads, 1, head_dim), dense.

Needs torch, triton, liger-kernel; without a GPU it runs in Triton's interpreter. Exits 1 while the fault is
there, 0 when it is gone.
"""

import os
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
os.environ.setdefault("TRITON_INTERPRET", "0" if device == "cuda" else "1")
from liger_kernel.transformers.rope import liger_rotary_pos_emb  # noqa: E402

batch, heads, head_dim = 2, 2, 4
cos = torch.full((batch, 1, head_dim), 0.6, device=device)
sin = torch.full((batch, 1, head_dim), 0.8, device=device)
q = torch.ones(batch, heads, 1, head_dim, device=device)
q_out, _ = liger_rotary_pos_emb(q.clone(), q.clone(), cos, sin)
exact = torch.tensor([-0.2, -0.2, 1.4, 1.4], device=device).expand_as(q)
wrong = ((q_out - exact).abs() > 1e-6).any(-1)[..., 0].nonzero().tolist()
if wrong:
    b, h = wrong[-1]
    print(
        f"FAULT: {len(wrong)} of {batch * heads} heads are wrong; batch row {b}, head {h} is "
        f"{q_out[b, h, 0].tolist()}, expected {exact[b, h, 0].tolist()}"
    )
    sys.exit(1)
print("OK: every head is rotated")
