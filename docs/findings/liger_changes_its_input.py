"""Liger's liger_rotary_pos_emb writes into the caller's q and k, depending on how they lie in memory.

Needs torch, triton, liger-kernel; without a GPU it runs in Triton's interpreter. Exits 1 while the fault is
there, 0 when it is gone.
"""

import os
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
os.environ.setdefault("TRITON_INTERPRET", "0" if device == "cuda" else "1")
from liger_kernel.transformers.rope import liger_rotary_pos_emb  # noqa: E402

cos = torch.full((1, 3, 4), 0.6, device=device)
sin = torch.full((1, 3, 4), 0.8, device=device)
ones = torch.ones(1, 3, 2, 4, device=device)
cases = {
    "dense (batch, heads, tokens, head_dim)": ones.transpose(1, 2).contiguous(),
    "a view of (batch, tokens, heads, head_dim), as Hugging Face makes it": ones.clone().transpose(1, 2),
    "dense, one head": torch.ones(1, 1, 3, 4, device=device),
}
changed = []
for name, q in cases.items():
    q_before, k = q.clone(), q.clone()
    liger_rotary_pos_emb(q, k, cos, sin)
    if not torch.equal(q, q_before):
        changed.append(name)
if changed:
    print(f"FAULT: q of the caller is overwritten when it is {'; '.join(changed)}")
    sys.exit(1)
print("OK: q is left as it was")
