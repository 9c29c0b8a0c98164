"""Whether strided tensors share elements, decided exactly from sizes and strides."""

import functools
from collections.abc import Sequence

import torch

# Steps of the search below; strides nested the usual way need a few dozen.
_MAX_STEPS = 10_000
# Answers kept; a decoding loop asks the same question for every layer.
_KEPT = 4096

Strides = Sequence[int]


def overlaps_itself(x: torch.Tensor) -> bool:
    """Whether two indices of x name the same element."""
    return repeats(x.shape, x.stride())


def overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether an element of a is also an element of b; both have one dtype."""
    if a.device != b.device:
        return False
    distance = b.data_ptr() - a.data_ptr()
    return shares(a.shape, a.stride(), b.shape, b.stride(), distance, a.element_size())


@functools.lru_cache(_KEPT)
def repeats(shape: torch.Size, strides: Strides) -> bool:
    """Whether two indices of a tensor with these sizes and strides name the same element."""
    if shape.numel() < 2:
        return False
    dims = sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1)
    farthest = 0
    for stride, size in dims:
        if stride <= farthest:
            break
        farthest += (size - 1) * stride
    else:
        return False
    # Two indices collide when their difference, with one digit of at least 1, sums to nothing.
    for i, (stride, size) in enumerate(dims):
        rest = [(s, -(n - 1), n - 1) for j, (s, n) in enumerate(dims) if j < i]
        if _reaches(-stride, [*rest, (stride, 0, size - 2)]):
            return True
    return False


@functools.lru_cache(_KEPT)
def shares(
    a_shape: torch.Size, a_strides: Strides, b_shape: torch.Size, b_strides: Strides, distance: int, size: int
) -> bool:
    """Whether a and b share an element when b starts `distance` bytes after a; elements have `size` bytes."""
    if a_shape.numel() == 0 or b_shape.numel() == 0:
        return False
    if distance > reach(a_shape, a_strides) * size or -distance > reach(b_shape, b_strides) * size:
        return False
    if distance % size:
        return True
    # a's indices add, b's subtract; equal strides merge into one digit.
    digits: dict[int, tuple[int, int]] = {}
    for shape, strides, sign in ((a_shape, a_strides, 1), (b_shape, b_strides, -1)):
        for n, stride in zip(shape, strides, strict=True):
            low, high = digits.get(stride, (0, 0))
            digits[stride] = (low, high + n - 1) if sign > 0 else (low - (n - 1), high)
    return _reaches(distance // size, [(s, low, high) for s, (low, high) in digits.items()])


def reach(shape: torch.Size, strides: Strides) -> int:
    """Elements from the first to the last in memory."""
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _reaches(target: int, digits: list[tuple[int, int, int]]) -> bool:
    """Whether sum(stride * digit) can be target with each digit in low..high (strides >= 0).

    A search from the largest stride down that drops every branch the smaller strides cannot mend. Past
    `_MAX_STEPS` it answers yes: refusing a layout nobody uses is better than racing on it.
    """
    digits = sorted((d for d in digits if d[0] > 0), reverse=True)
    lows = [sum(s * low for s, low, _ in digits[i:]) for i in range(len(digits) + 1)]
    highs = [sum(s * high for s, _, high in digits[i:]) for i in range(len(digits) + 1)]
    stack = [(0, target)]
    for _ in range(_MAX_STEPS):
        if not stack:
            return False
        i, rest = stack.pop()
        if i == len(digits):
            if rest == 0:
                return True
            continue
        stride, low, high = digits[i]
        first = max(low, -((highs[i + 1] - rest) // stride))
        last = min(high, (rest - lows[i + 1]) // stride)
        stack.extend(
            (i + 1, rest - stride * digit) for digit in range(first, min(last, first + _MAX_STEPS) + 1)
        )
    return True
