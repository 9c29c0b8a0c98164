"""Frequency rules: how models stretch RoPE past the length they were trained on.

A rule turns the plain frequencies theta_i = base^(-2i/d) into the frequencies omega_i that a model
uses, and says which factor goes into cos and sin. Fields have the names of Hugging Face
configurations. The operations and their order are those of transformers 5.24, so that float32
frequencies agree with it bit for bit; the same code in float64 gives the precise ones.

In the formulas: d is rot_dim, f is factor, M0 is original_max_position_embeddings.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from rope.errors import RopeError


def plain_frequencies(rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
    """theta_i = base^(-2i/d), `(rot_dim // 2,)` (Su et al., RoFormer, arXiv:2104.09864)."""
    return 1.0 / _powers(rot_dim, base, dtype)


def _powers(rot_dim: int, base: float, dtype: torch.dtype, pairs: int | None = None) -> torch.Tensor:
    """base^(2i/d) of the first `pairs` pairs, None meaning all.

    The last bits of torch.pow depend on the length of the tensor (vector loop or scalar rest), so
    agreeing with transformers bit for bit takes tensors of the same length.
    """
    stop = rot_dim if pairs is None else 2 * pairs
    exponents = torch.arange(0, stop, 2, dtype=dtype, device="cpu") / rot_dim
    return torch.pow(base, exponents)


class Rule(ABC):
    """What every rule answers."""

    @abstractmethod
    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        """omega_i in radians per position, `(rot_dim // 2,)` of `dtype`, on the CPU."""

    def cos_sin_factor(self) -> float:
        """The attention factor: the table multiplies it into cos and into sin."""
        return 1.0

    def softmax_factor(self) -> float:
        """A factor the model multiplies into its softmax scale. Never part of the table."""
        return 1.0


@dataclass(frozen=True)
class Linear(Rule):
    """Position interpolation: theta_i / f (Chen et al., arXiv:2306.15595)."""

    factor: float

    def __post_init__(self) -> None:
        _check_positive(self, "factor")

    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        return plain_frequencies(rot_dim, base, dtype) / self.factor


@dataclass(frozen=True)
class FixedNTK(Rule):
    """NTK-aware scaling by a fixed factor: base * f^(d/(d-2)). HunYuan calls the factor `alpha`."""

    factor: float

    def __post_init__(self) -> None:
        _check_positive(self, "factor")

    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        return _stretch_base(self, self.factor, rot_dim, base, dtype)


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(Rule):
    """NTK-aware scaling that follows the sequence: base * (f*L/M - (f-1))^(d/(d-2)).

    M is max_position_embeddings, the trained length, and L = max(seq_len, M): a sequence within
    the trained length is not stretched. `seq_len` is the whole length of the sequence served; a
    longer one needs another table.
    """

    factor: float
    max_position_embeddings: int
    seq_len: int

    def __post_init__(self) -> None:
        _check_positive(self, "factor")
        _check_length(self, "max_position_embeddings")
        _check_length(self, "seq_len")

    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        trained = self.max_position_embeddings
        # a length below trained * (1 - 1/f) would make the stretch negative and its power NaN
        length = max(self.seq_len, trained)
        stretch = (self.factor * length / trained) - (self.factor - 1)
        return _stretch_base(self, stretch, rot_dim, base, dtype)


@dataclass(frozen=True, kw_only=True)
class YaRN(Rule):
    """Pairs that turn often keep theta_i, slow ones get theta_i / f, with a ramp between.

    The ramp runs from the pair that turns `beta_fast` times within M0 positions to the pair that
    turns `beta_slow` times; `truncate` rounds both ends outwards to whole pairs
    (Peng et al., arXiv:2309.00071).

    With m(f, k) = 0.1 * k * ln(f) + 1, and 1 for f <= 1, the attention factor is
    `attention_factor` if given; else m(f, mscale) / m(f, mscale_all_dim) if both are set and not
    0; else m(f, 1).
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32
    beta_slow: float = 1
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        for name in ("factor", "beta_fast", "beta_slow"):
            _check_positive(self, name)
        _check_length(self, "original_max_position_embeddings")
        _check_order(self, "beta_slow", "beta_fast")

    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        powers = _powers(rot_dim, base, dtype)
        kept = 1 - self._ramp(rot_dim, base, dtype)
        return 1.0 / (self.factor * powers) * (1 - kept) + 1.0 / powers * kept

    def _ramp(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        """0 where a pair keeps its frequency, 1 where it is divided by the factor."""
        low = self._pair_turning(self.beta_fast, rot_dim, base)
        high = self._pair_turning(self.beta_slow, rot_dim, base)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rot_dim - 1)
        if low == high:
            high += 0.001  # a step, without dividing by 0
        pairs = torch.arange(rot_dim // 2, dtype=dtype, device="cpu")
        return ((pairs - low) / (high - low)).clamp(0, 1)

    def _pair_turning(self, turns: float, rot_dim: int, base: float) -> float:
        """Index, with fraction, of the pair that makes this many turns within M0 positions."""
        positions_per_radian = self.original_max_position_embeddings / (turns * 2 * math.pi)
        return (rot_dim * math.log(positions_per_radian)) / (2 * math.log(base))

    def cos_sin_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _yarn_m(self.factor, self.mscale) / _yarn_m(self.factor, self.mscale_all_dim)
        return _yarn_m(self.factor, 1)


@dataclass(frozen=True, kw_only=True)
class DeepSeekYaRN(YaRN):
    """YaRN as DeepSeek's latent-attention models use it.

    The frequencies are YaRN's. The attention factor is m(f, mscale) / m(f, mscale_all_dim), also
    where only one of them is set. The model multiplies m(f, mscale_all_dim)^2 into its softmax
    scale; that acts on all dims of a head, rotated or not, so no table can hold it: see
    `softmax_factor`.
    """

    mscale: float = 1.0
    mscale_all_dim: float = 0.0

    def cos_sin_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return _yarn_m(self.factor, self.mscale) / _yarn_m(self.factor, self.mscale_all_dim)

    def softmax_factor(self) -> float:
        return _yarn_m(self.factor, self.mscale_all_dim) ** 2


@dataclass(frozen=True, kw_only=True)
class LongRoPE(Rule):
    """One divisor for each pair: theta_i / e_i (Ding et al., arXiv:2402.13753).

    e is long_factor for a sequence longer than M0 and short_factor up to M0 itself, each with
    rot_dim // 2 entries. `seq_len` is the length of the sequence served, not of the table: a short
    sequence needs the short factors even where the cache has room for a long one.

    The attention factor is `attention_factor` if given; else sqrt(1 + ln f / ln M0), and 1 for
    f <= 1, with f = max_position_embeddings / M0. It does not depend on seq_len.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    seq_len: int
    factor: float | None = None
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        for name in ("short_factor", "long_factor"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_length(self, "original_max_position_embeddings", at_least=2)
        _check_length(self, "seq_len")
        if self.factor is not None:
            _check_positive(self, "factor")
        elif self.attention_factor is None:
            raise RopeError(
                "LongRoPE needs factor (max_position_embeddings / original_max_position_embeddings)"
                " or attention_factor; got neither"
            )

    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        is_long = self.seq_len > self.original_max_position_embeddings
        name = "long_factor" if is_long else "short_factor"
        divisors = torch.tensor(getattr(self, name), dtype=dtype, device="cpu")
        if len(divisors) != rot_dim // 2:
            raise RopeError(
                f"LongRoPE: {name} has {len(divisors)} entries; rot_dim {rot_dim} needs {rot_dim // 2}"
            )
        return 1.0 / (divisors * _powers(rot_dim, base, dtype))

    def cos_sin_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        assert self.factor is not None  # __post_init__ asks for one of the two
        if self.factor <= 1:
            return 1.0
        trained = self.original_max_position_embeddings
        return math.sqrt(1 + math.log(self.factor) / math.log(trained))


@dataclass(frozen=True, kw_only=True)
class Llama3(Rule):
    """Llama 3.1: long wavelengths are divided by f, short ones kept, a smooth passage between.

    With lambda_i = 2 pi / theta_i: above M0 / low_freq_factor, theta_i / f; below
    M0 / high_freq_factor, theta_i; between, (1-s) * theta_i / f + s * theta_i with
    s = (M0 / lambda_i - low_freq_factor) / (high_freq_factor - low_freq_factor).
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            _check_positive(self, name)
        _check_length(self, "original_max_position_embeddings")
        _check_order(self, "low_freq_factor", "high_freq_factor")

    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        theta = plain_frequencies(rot_dim, base, dtype)
        low, high = self.low_freq_factor, self.high_freq_factor
        trained = self.original_max_position_embeddings
        wavelengths = 2 * math.pi / theta
        smooth = (trained / wavelengths - low) / (high - low)
        passage = (1 - smooth) * theta / self.factor + smooth * theta
        kept = torch.where(wavelengths < trained / high, theta, passage)
        return torch.where(wavelengths > trained / low, theta / self.factor, kept)


@dataclass(frozen=True, kw_only=True)
class Proportional(Rule):
    """Gemma 4: only some pairs turn, but they are pairs of the whole head. rot_dim is head_dim.

    The first k = int(partial_rotary_factor * d // 2) pairs get base^(-2i/d) / f. The others get
    frequency 0, so cos 1 and sin 0, and stay as they are.
    """

    partial_rotary_factor: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "factor")
        if not 0 <= self.partial_rotary_factor <= 1:
            raise RopeError(
                "Proportional: partial_rotary_factor must be within 0 .. 1, "
                f"got {self.partial_rotary_factor!r}"
            )

    def frequencies(self, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        turning = int(self.partial_rotary_factor * rot_dim // 2)
        frequencies = torch.zeros(rot_dim // 2, dtype=dtype, device="cpu")
        frequencies[:turning] = 1.0 / _powers(rot_dim, base, dtype, turning)
        return frequencies / self.factor


def _stretch_base(rule: Rule, stretch: float, rot_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
    if rot_dim == 2:
        raise RopeError(f"{type(rule).__name__} needs rot_dim >= 4: its exponent is rot_dim / (rot_dim - 2)")
    return plain_frequencies(rot_dim, base * stretch ** (rot_dim / (rot_dim - 2)), dtype)


def _yarn_m(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _check_positive(rule: Rule, name: str) -> None:
    value = getattr(rule, name)
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise RopeError(f"{type(rule).__name__}: {name} must be a positive number, got {value!r}")


def _check_length(rule: Rule, name: str, at_least: int = 1) -> None:
    value = getattr(rule, name)
    if not isinstance(value, int) or value < at_least:
        raise RopeError(f"{type(rule).__name__}: {name} must be a whole number >= {at_least}, got {value!r}")


def _check_order(rule: Rule, small: str, large: str) -> None:
    if getattr(rule, small) >= getattr(rule, large):
        raise RopeError(
            f"{type(rule).__name__}: {large} must exceed {small}, "
            f"got {large}={getattr(rule, large)!r} and {small}={getattr(rule, small)!r}"
        )
