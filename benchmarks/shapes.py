"""The shapes that the benchmarks run, and their tensors."""

from dataclasses import dataclass

import torch

from rope import rope_table


@dataclass(frozen=True)
class Shape:
    """One model's rotation. rotate_last rotates the last rot_dim dims; packed puts q, k, v in one buffer."""

    name: str
    layout: str
    q_heads: int
    k_heads: int
    head_dim: int
    rot_dim: int
    rotate_last: bool = False
    packed: bool = False
    dtype: torch.dtype = torch.bfloat16

    @property
    def rot_offset(self) -> int:
        return self.head_dim - self.rot_dim if self.rotate_last else 0

    def moved_bytes(self, tokens: int, *, copies_tail: bool = False) -> int:
        """Compulsory bytes: dims read and written, table rows and positions read once."""
        dims = self.head_dim if copies_tail else self.rot_dim
        rows = 2 * (self.q_heads + self.k_heads) * dims * self.dtype.itemsize
        return tokens * (rows + self.rot_dim * 4 + 8)


SHAPES = [
    Shape("Llama-3-8B", "neox", 32, 8, 128, 128),
    Shape("Llama-3-8B packed", "neox", 32, 8, 128, 128, packed=True),
    Shape("Llama-3-8B gptj", "gptj", 32, 8, 128, 128),
    Shape("Llama-3-8B float32", "neox", 32, 8, 128, 128, dtype=torch.float32),
    Shape("Qwen2.5-7B", "neox", 28, 4, 128, 128),
    Shape("Gemma-2-9B", "neox", 16, 8, 256, 256),
    Shape("GPT-NeoX-20B", "neox", 64, 64, 96, 24),
    Shape("GPT-J-6B", "gptj", 16, 16, 256, 64),
    Shape("Phi-2", "neox", 32, 32, 80, 32),
    Shape("GLM-4-9B", "gptj", 32, 2, 128, 64),
    Shape("StableLM-2", "neox", 32, 32, 64, 16),
    Shape("DeepSeek-V3", "gptj", 128, 1, 192, 64, rotate_last=True),
    Shape("rot 64 of 128", "neox", 32, 8, 128, 64),
    Shape("rot 64 of 192", "neox", 32, 32, 192, 64),
    Shape("head_dim 96", "neox", 32, 32, 96, 96),
    Shape("head_dim 80", "neox", 32, 32, 80, 80),
]


@dataclass
class Inputs:
    """Tensors of one call on the GPU."""

    q: torch.Tensor
    k: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor


def make_inputs(shape: Shape, tokens: int, sets: int) -> list[Inputs]:
    """Fresh q and k per set; one table and one positions tensor, as in a serving step."""
    cos, sin = rope_table(shape.rot_dim, max(tokens, 4096), device="cuda")
    positions = torch.arange(tokens, device="cuda")
    made = []
    for _ in range(sets):
        if shape.packed:
            heads = shape.q_heads + 2 * shape.k_heads
            qkv = torch.randn(tokens, heads, shape.head_dim, device="cuda", dtype=shape.dtype)
            q, k = qkv[:, : shape.q_heads], qkv[:, shape.q_heads : shape.q_heads + shape.k_heads]
        else:
            q = torch.randn(tokens, shape.q_heads, shape.head_dim, device="cuda", dtype=shape.dtype)
            k = torch.randn(tokens, shape.k_heads, shape.head_dim, device="cuda", dtype=shape.dtype)
        made.append(Inputs(q, k, cos, sin, positions))
    return made
