"""What the benchmarks compare: this project and the implementations that its users have today.

A peer that the machine lacks is named in the results, with the reason, not dropped.
"""

import functools
import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.shapes import Inputs, Shape
from rope import apply_rope

Rotated = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Peer:
    """One way to rotate q and k.

    Attributes:
        name: as the tables and plots show it.
        package: the distribution it comes from, or None for this project and PyTorch.
        prepare: from a shape and its inputs, a call that returns q and k as (tokens, heads, head_dim).
            Whatever a caller would do once per step (gathering or widening tables) is done here.
        supports: whether the peer can do this shape at all.
        backward: whether it is differentiable.
        copies_tail: whether it writes new tensors, so that dims that do not rotate must move too.
    """

    name: str
    package: str | None
    prepare: Callable[[Shape, Inputs], Callable[[], Rotated]]
    supports: Callable[[Shape], bool]
    backward: bool = True
    copies_tail: bool = False

    def missing(self) -> str | None:
        """Why the peer cannot run here, or None."""
        if self.package is None:
            return None
        try:
            importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return f"{self.package} is not installed"
        return None


def rotate_with_ours(shape: Shape, i: Inputs, *, inplace: bool) -> Callable[[], Rotated]:
    """A call of apply_rope."""
    options = {"layout": shape.layout, "rot_offset": shape.rot_offset, "inplace": inplace}
    return lambda: apply_rope(i.q, i.k, i.cos, i.sin, i.positions, **options)  # type: ignore[arg-type, return-value]


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).unsqueeze(0)


def _tokens_first(x: torch.Tensor) -> torch.Tensor:
    return x.squeeze(0).transpose(0, 1)


def _full_width(shape: Shape, i: Inputs) -> Rotated:
    """cos and sin as models hand them to the Hugging Face function: per token, doubled, in q's dtype."""
    cos, sin = (torch.cat([t[i.positions]] * 2, dim=-1).unsqueeze(0).to(shape.dtype) for t in (i.cos, i.sin))
    return cos, sin


def _hugging_face(shape: Shape, i: Inputs, *, compiled: bool) -> Callable[[], Rotated]:
    function = importlib.import_module("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
    function = _compiled(function, shape) if compiled else function
    q, k = _heads_first(i.q), _heads_first(i.k)
    cos, sin = _full_width(shape, i)

    def call() -> Rotated:
        q_out, k_out = function(q, k, cos, sin)
        return _tokens_first(q_out), _tokens_first(k_out)

    return call


@functools.cache
def _compiled(function: Callable[..., Rotated], shape: Shape) -> Callable[..., Rotated]:
    # Past a number of recompilations a function runs eagerly: each shape starts anew, and one compilation
    # serves every number of tokens, as a server needs.
    torch.compiler.reset()
    return torch.compile(function, dynamic=True)


def _liger(shape: Shape, i: Inputs) -> Callable[[], Rotated]:
    function = importlib.import_module("liger_kernel.transformers.rope").liger_rotary_pos_emb
    q, k = _heads_first(i.q), _heads_first(i.k)
    cos, sin = _full_width(shape, i)

    def call() -> Rotated:
        q_out, k_out = function(q, k, cos, sin)
        return _tokens_first(q_out), _tokens_first(k_out)

    return call


def _flash_attention(shape: Shape, i: Inputs) -> Callable[[], Rotated]:
    function = importlib.import_module("flash_attn.ops.triton.rotary").apply_rotary
    cos, sin = i.cos[i.positions], i.sin[i.positions]
    interleaved = shape.layout == "gptj"

    def one(x: torch.Tensor) -> torch.Tensor:
        part = x[..., shape.rot_offset : shape.rot_offset + shape.rot_dim] if shape.rot_offset else x
        function(part.unsqueeze(0), cos, sin, interleaved=interleaved, inplace=True)
        return x

    return lambda: (one(i.q), one(i.k))


def _flashinfer(shape: Shape, i: Inputs) -> Callable[[], Rotated]:
    function = importlib.import_module("flashinfer.rope").apply_rope_with_cos_sin_cache_inplace
    cache = torch.cat((i.cos, i.sin), dim=-1)
    q, k = i.q.flatten(1), i.k.flatten(1)

    def call() -> Rotated:
        function(i.positions, q, k, shape.head_dim, cache, shape.layout == "neox")
        return i.q, i.k

    return call


def _whole_heads_in_16_bit(shape: Shape) -> bool:
    return shape.head_dim in (64, 128, 256) and shape.dtype.itemsize == 2 and not shape.rotate_last


def _full_neox(shape: Shape) -> bool:
    return shape.layout == "neox" and shape.rot_dim == shape.head_dim


PEERS = [
    Peer("ours, in place", None, functools.partial(rotate_with_ours, inplace=True), lambda s: True),
    Peer(
        "ours, out of place",
        None,
        functools.partial(rotate_with_ours, inplace=False),
        lambda s: True,
        copies_tail=True,
    ),
    Peer("Liger", "liger-kernel", _liger, lambda s: _full_neox(s) and not s.packed),
    Peer("torch.compile of HF", "transformers", functools.partial(_hugging_face, compiled=True), _full_neox),
    Peer("Hugging Face eager", "transformers", functools.partial(_hugging_face, compiled=False), _full_neox),
    Peer(
        "flash-attention Triton x2",
        "flash-attn",
        _flash_attention,
        lambda s: s.rot_dim <= 256,
        backward=False,
    ),
    Peer("flashinfer", "flashinfer-python", _flashinfer, _whole_heads_in_16_bit, backward=False),
]
# An operator that no benchmark calls: its package needs more than a machine for benchmarks has.
OPERATORS_NOT_RUN = {"vllm": "vLLM rotary_embedding"}
