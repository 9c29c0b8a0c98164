"""Whether strided tensors share elements, decided exactly from sizes and strides."""

import torch

# Steps of the search below; strides nested the usual way need a few dozen.
_MAX_STEPS = 10_000


def overlaps_itself(x: torch.Tensor) -> bool:
    """Whether two indices of x name the same element."""
    if x.numel() < 2:
        return False
    dims = sorted((stride, size) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1)
    reach = 0
    for stride, size in dims:
        if stride <= reach:
            break
        reach += (size - 1) * stride
    else:
        return False
    # Two indices collide when their difference, with one digit of at least 1, sums to nothing.
    for i, (stride, size) in enumerate(dims):
        rest = [(s, -(n - 1), n - 1) for j, (s, n) in enumerate(dims) if j < i]
        if _reaches(-stride, [*rest, (stride, 0, size - 2)]):
            return True
    return False


def overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether an element of a is also an element of b; both have one dtype."""
    if a.numel() == 0 or b.numel() == 0 or a.device != b.device:
        return False
    size = a.element_size()
    distance = b.data_ptr() - a.data_ptr()
    if distance > _reach(a) * size or -distance > _reach(b) * size:
        return False
    if distance % size:
        return True
    # a's indices add, b's subtract; equal strides merge into one digit.
    digits: dict[int, tuple[int, int]] = {}
    for tensor, sign in ((a, 1), (b, -1)):
        for n, stride in zip(tensor.shape, tensor.stride(), strict=True):
            low, high = digits.get(stride, (0, 0))
            digits[stride] = (low, high + n - 1) if sign > 0 else (low - (n - 1), high)
    return _reaches(distance // size, [(s, low, high) for s, (low, high) in digits.items()])


def _reach(x: torch.Tensor) -> int:
    return sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))


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
