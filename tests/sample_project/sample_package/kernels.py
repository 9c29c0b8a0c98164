"""Two kernels for adjacent pairs, (tokens, heads, head_dim): one is right, one forgets the positions."""

import torch

from properties.implementations import Implementation
from strategies import Domain


def rotate(x, cos, sin, positions):
    """x turned as complex numbers, in float32."""
    turn = torch.complex(cos[positions], sin[positions]).unsqueeze(1)
    # A copy, because a view as complex numbers must start at an even element.
    pairs = torch.view_as_complex(
        x.float().unflatten(-1, (-1, 2)).clone(memory_format=torch.contiguous_format)
    )
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


def _right(q, k, cos, sin, positions, **_):
    return rotate(q, cos, sin, positions), rotate(k, cos, sin, positions)


def _wrong(q, k, cos, sin, positions, **_):
    return _right(q, k, cos, sin, torch.arange(len(q)))


domain = Domain(
    layouts=("gptj",),
    dtypes=("float32", "bfloat16"),
    ranks=(3,),
    heads_first=(False,),
    tails=("none",),
    inplace=(False,),
    inverse=(False,),
    without_k=(False,),
    positions=("given",),
    tables=("indexed",),
    table_dtypes=("float32",),
    empty=False,
)
right = Implementation("right", _right, domain)
wrong = Implementation("wrong", _wrong, domain)
