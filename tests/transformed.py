"""apply_rope inside a transform of torch.func, where it takes a path of its own."""

from typing import Any

import torch

from properties.implementations import Implementation
from rope import apply_rope
from strategies import Domain


def _call(*arguments: Any, **options: Any) -> Any:
    # One iteration, on which nothing depends.
    return torch.vmap(lambda _: apply_rope(*arguments, **options), out_dims=None)(torch.zeros(1))


transformed = Implementation("rope-transformed", _call, Domain(inplace=(False,)))
