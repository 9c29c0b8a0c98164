"""Watch over the memory that an implementation allocates itself, its outputs above all."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.arena import RED, RED_ZONE, UNWRITTEN, Guarded, marked
from strategies.values import bits

_ALLOCATORS = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


class WatchedAllocations(TorchDispatchMode):
    """Inside this context every uninitialised tensor lies between red zones and holds the unwritten mark.

    Args:
        enabled: False watches nothing.

    Attributes:
        guarded: a buffer per allocation, each with one view called "output".
    """

    # A Triton kernel wrapped for torch.compile is one; it allocates nothing.
    supports_higher_order_operators = True

    def __init__(self, *, enabled: bool = True) -> None:
        super().__init__()
        self.enabled = enabled
        self.guarded: list[Guarded] = []

    def __enter__(self) -> "WatchedAllocations":
        return super().__enter__() if self.enabled else self

    def __exit__(self, *error: Any) -> None:
        if self.enabled:
            super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _ALLOCATORS or result.numel() == 0 or result.dtype not in UNWRITTEN:
            return result
        return self._guard(result)

    def _guard(self, result: torch.Tensor) -> torch.Tensor:
        extent = 1 + sum((n - 1) * s for n, s in zip(result.shape, result.stride(), strict=True))
        pristine = bits(marked(extent + 2 * RED_ZONE, result.dtype, RED[result.dtype]))
        pristine.as_strided(result.shape, result.stride(), RED_ZONE).fill_(UNWRITTEN[result.dtype])
        buffer = pristine.view(result.dtype).to(result.device, non_blocking=True, copy=True)
        view = buffer.as_strided(result.shape, result.stride(), RED_ZONE)
        self.guarded.append(Guarded(buffer, pristine, {"output": view}))
        return view
