"""Values of a case's tensors: exact formulas on the CPU, the same bits on every machine."""

import functools

import torch

from strategies.case import RopeCase

# One step of this many bits of the number 1.0 upwards keeps every ramp value finite and distinct.
_RAMP_STEPS = {
    torch.bfloat16: 1 << 10,
    torch.float16: 1 << 12,
    torch.float32: 1 << 22,
    torch.float64: 1 << 22,
}
_BITS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_SALTS = {"q": 1, "k": 2, "v": 3, "cos": 4, "sin": 5}


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bit patterns of a tensor as integers of the same size."""
    return x.view(_BITS[x.dtype]) if x.is_floating_point() else x


def filled(name: str, size: int, dtype: torch.dtype, kind: str, seed: int) -> torch.Tensor:
    """`size` values for the tensor called `name`, flat; kinds are those of RopeCase.fill."""
    index = torch.arange(size)
    if kind in ("zeros", "ones"):
        return torch.full((size,), float(kind == "ones"), dtype=dtype)
    if kind == "ramp":
        return _ramp(index, dtype, negative=name in ("k", "sin"))
    if kind == "one_hot":
        return (index == (seed % max(size, 1))).to(dtype)
    hashed = _hash(index, seed * 8 + _SALTS[name])
    if kind == "normal":
        return normal(hashed).to(dtype)
    info = torch.finfo(dtype)
    extremes = [info.max, -info.max, info.tiny, -info.smallest_normal, info.smallest_normal / 4, 1.0, -0.75]
    specials = [float("inf"), -float("inf"), float("nan"), -0.0, 0.0, 1.0, -2.0, 0.5]
    table = torch.tensor(extremes if kind == "extremes" else specials, dtype=torch.float64)
    return table[hashed % len(table)].to(dtype)


def normal(hashed: torch.Tensor) -> torch.Tensor:
    """Nearly normal float64 numbers: four 15-bit uniforms summed (Irwin-Hall), exact in integers."""
    total = sum((hashed >> shift) & 0x7FFF for shift in (0, 15, 30, 45))
    return (total - 2 * 0x7FFF).double() / 0x4000  # type: ignore[union-attr]


def angle_tables(case: RopeCase, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, (rows, rot_half) in float64, by the case's table_fill."""
    shape = (rows, case.rot_half)
    if case.table_fill == "angles":
        # Computed once for many sizes: the farthest start that is drawn asks for some 4100 rows.
        cos, sin = (x[:rows] for x in _cos_and_sin(case.rot_half, max(1 << 13, 1 << rows.bit_length())))
    else:
        size = rows * case.rot_half
        cos, sin = (
            filled(n, size, table_dtype(case), case.table_fill, case.seed).double().view(shape)
            for n in ("cos", "sin")
        )
    return cos * case.attention_factor, sin * case.attention_factor


@functools.lru_cache(maxsize=64)
def _cos_and_sin(rot_half: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the angles of base 10000, (rows, rot_half) in float64."""
    pair = torch.arange(rot_half, dtype=torch.float64)
    frequency = 10000.0 ** (-pair / max(rot_half, 1))
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * frequency
    return angle.cos(), angle.sin()


def activation_dtype(case: RopeCase) -> torch.dtype:
    """The dtype of q and k."""
    return getattr(torch, case.dtype)


def table_dtype(case: RopeCase) -> torch.dtype:
    """The dtype of cos and sin."""
    return activation_dtype(case) if case.table_dtype == "input" else torch.float32


def _ramp(index: torch.Tensor, dtype: torch.dtype, *, negative: bool) -> torch.Tensor:
    one = torch.ones((), dtype=dtype)
    step = 1 if dtype is not torch.float64 else 1 << 29  # float64 ramps are float32 ramps
    pattern = bits(one).long() + (index % _RAMP_STEPS[dtype]) * step
    values = pattern.to(_BITS[dtype]).view(dtype)
    return -values if negative else values


def _hash(index: torch.Tensor, seed: int) -> torch.Tensor:
    """60 well-mixed bits per index (the finaliser of splitmix64, in wrapping 64-bit integers)."""
    z = index * -7046029254386353131 + (seed + 1) * 0x632BE59BD9B4E019 % (1 << 62)
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (z ^ ((z >> 31) & ((1 << 33) - 1))) & ((1 << 60) - 1)
