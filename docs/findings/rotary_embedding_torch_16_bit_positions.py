"""rotary-embedding-torch counts positions in the dtype of q: in bfloat16 they round from 257 on.

Needs torch, rotary-embedding-torch. Exits 1 while the fault is there, 0 when it is gone.
"""

import sys

import torch
from rotary_embedding_torch import RotaryEmbedding

q = torch.ones(1, 1, 512, 64, dtype=torch.bfloat16)
rotary = RotaryEmbedding(dim=64)
in_bfloat16 = rotary.rotate_queries_or_keys(q)
exact = RotaryEmbedding(dim=64).rotate_queries_or_keys(q.double())
error = (in_bfloat16.double() - exact).abs().amax(dim=(0, 1, 3))
# cos - sin and cos + sin lie within sqrt(2), and bfloat16 rounds by less than 1 in 256.
wrong = (error > 0.1).nonzero().flatten()
after = (rotary.rotate_queries_or_keys(q.double()) - exact).abs().max()
if len(wrong):
    print(
        f"FAULT: {len(wrong)} of 512 tokens are off by up to {error.max():.2f}, the first at {wrong[0]}; "
        f"a float64 call of the same module afterwards is off by {after:.2f}"
    )
    sys.exit(1)
print("OK: every token is rotated by its position")
