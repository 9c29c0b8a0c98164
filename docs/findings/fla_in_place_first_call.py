"""flash-linear-attention's rotary_embedding with inplace=True, on a shape that it is not tuned for yet.

The autotuner times the kernel on x itself, and every run rotates x once more.

Needs torch, triton, flash-linear-attention and a GPU. Exits 1 while the fault is there, 0 when it is gone, 2
without a GPU.
"""

import sys

import torch

if not torch.cuda.is_available():
    print("needs a GPU: only there are kernels tuned")
    sys.exit(2)
from fla.modules.rotary import rotary_embedding

cos = torch.full((3, 4), 0.6, device="cuda")
sin = torch.full((3, 4), 0.8, device="cuda")
x = torch.ones(1, 3, 5, 8, device="cuda")
expected = torch.tensor([-0.2] * 4 + [1.4] * 4, device="cuda").expand_as(x)
first = rotary_embedding(x.clone(), cos, sin, inplace=True)
second = rotary_embedding(x.clone(), cos, sin, inplace=True)
if not torch.allclose(first, expected) and torch.allclose(second, expected):
    print(f"FAULT: the first call gives {first[0, 0, 0].tolist()}, the second {second[0, 0, 0].tolist()}")
    sys.exit(1)
print("OK: the first call and the second agree")
