"""flash-attention's Triton rotary counts in 32 bits: a token 2**31 elements behind the first is another.

Needs torch, triton, flash-attn and a GPU with 9 GB free. Exits 1 while the fault is there, 0 when it is gone,
2 without a GPU.
"""

import sys

import torch

if not torch.cuda.is_available():
    print("needs a GPU: the interpreter counts in 64 bits")
    sys.exit(2)
from flash_attn.ops.triton.rotary import apply_rotary

# Three tokens 2**30 elements apart. Before the first lie as many elements as an offset that wraps around
# goes back, all 0.
memory = torch.zeros((1 << 32) + 2, device="cuda", dtype=torch.bfloat16)
x = memory.as_strided((1, 3, 1, 2), (0, 1 << 30, 2, 1), 1 << 31)
x.fill_(1)
cos = torch.full((3, 1), 0.6, device="cuda", dtype=torch.bfloat16)
sin = torch.full((3, 1), 0.8, device="cuda", dtype=torch.bfloat16)
expected = apply_rotary(x.contiguous(), cos, sin)
spread_out = apply_rotary(x, cos, sin)
wrong = [token for token in range(3) if not torch.equal(spread_out[:, token], expected[:, token])]
if wrong:
    token = wrong[0]
    print(
        f"FAULT: token {token} is {spread_out[0, token, 0].tolist()}, "
        f"{expected[0, token, 0].tolist()} when x is dense"
    )
    sys.exit(1)
print("OK: spread out as when dense")
