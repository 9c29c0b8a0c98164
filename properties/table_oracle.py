"""What a cos/sin table must hold: the formulas in float64, with a derived bound on a table's error.

Written from the formulas, sharing no code with rope.scaling and rope.tables. The bound comes from running
error analysis (Higham, Accuracy and Stability of Numerical Algorithms, section 3.3): every number carries
the largest distance a computed value may have from it, and every operation of the formula adds its own
rounding. No tolerance is picked by hand; the two facts that are not IEEE arithmetic are the accuracies of
the vector math libraries under torch: pow within 1 ulp, sin and cos within 3.5 (SLEEF's u10 and u35).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rope.scaling import (
    DeepSeekYaRN,
    DynamicNTK,
    FixedNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    Rule,
    YaRN,
)

Array = npt.NDArray[np.float64]

FLOAT32 = 2.0**-24
# Four times float64's: one rounding is counted where the scalars of a formula (a stretched base, the ends
# of a ramp) took a few. Also stands for the error of this file's own float64 values.
FLOAT64 = 2.0**-51

POW_ULPS = 1.0
TRIG_ULPS = 3.5


@dataclass(frozen=True)
class Table:
    """Exact cos and sin, `(positions, rot_half)`, and the error a computed table may have."""

    cos: Array
    sin: Array
    cos_error: Array
    sin_error: Array


def exact_table(
    rot_dim: int, base: float, rule: Rule | None, positions: npt.NDArray[np.int64], precision: str
) -> Table:
    """The rows `positions` of the table that rope_table must return for these arguments."""
    unit = {"float32": FLOAT32, "float64": FLOAT64}[precision]
    cos, sin = _cos_sin(rot_dim, base, rule, positions, unit)
    own_cos, own_sin = _cos_sin(rot_dim, base, rule, positions, FLOAT64)
    return Table(
        cos.value,
        sin.value,
        _stored(cos).error + own_cos.error,
        _stored(sin).error + own_sin.error,
    )


def exact_frequencies(rot_dim: int, base: float, rule: Rule | None) -> Array:
    """omega_i in float64, `(rot_half,)`."""
    return _frequencies(rot_dim, base, rule, FLOAT64).value


def attention_factor(rule: Rule | None) -> float:
    """A: what cos and sin are multiplied by."""
    if isinstance(rule, YaRN):
        return _yarn_factor(rule)
    if isinstance(rule, LongRoPE):
        if rule.attention_factor is not None:
            return rule.attention_factor
        assert rule.factor is not None
        if rule.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(rule.factor) / math.log(rule.original_max_position_embeddings))
    return 1.0


def softmax_factor(rule: Rule | None) -> float:
    """What the model multiplies into its softmax scale beside the table."""
    if isinstance(rule, DeepSeekYaRN):
        return _yarn_m(rule, rule.mscale_all_dim) ** 2
    return 1.0


# --- numbers that carry their error


@dataclass(frozen=True)
class _Number:
    """Exact values, and how far a computed value in arithmetic of this unit roundoff may be from them."""

    value: Array
    error: Array
    unit: float

    def _rounded(self, value: Array, error: Array, roundings: float = 1) -> "_Number":
        return _Number(value, error + roundings * self.unit * (np.abs(value) + error), self.unit)

    def _other(self, other: "_Number | float") -> "_Number":
        return other if isinstance(other, _Number) else _constant(other, self.unit)

    def __add__(self, other: "_Number | float") -> "_Number":
        other = self._other(other)
        return self._rounded(self.value + other.value, self.error + other.error)

    def __rsub__(self, other: float) -> "_Number":
        return self._other(other) - self

    def __sub__(self, other: "_Number | float") -> "_Number":
        other = self._other(other)
        return self._rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: "_Number | float") -> "_Number":
        other = self._other(other)
        error = np.abs(self.value) * other.error + self.error * (np.abs(other.value) + other.error)
        return self._rounded(self.value * other.value, error)

    def __rmul__(self, other: float) -> "_Number":
        return self * other

    def __truediv__(self, other: "_Number | float") -> "_Number":
        other = self._other(other)
        value = self.value / other.value
        error = (self.error + np.abs(value) * other.error) / (np.abs(other.value) - other.error)
        return self._rounded(value, error)

    def __rtruediv__(self, other: float) -> "_Number":
        return self._other(other) / self

    def __rpow__(self, base: float) -> "_Number":
        """base ** self, for a scalar base stored in this arithmetic."""
        stored = _constant(base, self.unit)
        log_error = abs(math.log(base)) * self.error + np.abs(self.value) * stored.error / base
        value = np.power(base, self.value)
        return self._rounded(value, value * np.expm1(log_error), roundings=2 * POW_ULPS)

    def clamp01(self) -> "_Number":
        value = self.value.clip(0, 1)
        high = (self.value + self.error).clip(0, 1)
        low = (self.value - self.error).clip(0, 1)
        return _Number(value, np.maximum(high - value, value - low), self.unit)

    def wave(self, function: Any) -> "_Number":
        """cos or sin: no steeper than 1."""
        value = function(self.value)
        return self._rounded(value, np.minimum(self.error, 2.0), roundings=2 * TRIG_ULPS)


def _constant(value: Any, unit: float) -> _Number:
    """A double put into arithmetic of this unit: rounded unless it fits."""
    exact = np.asarray(value, dtype=np.float64)
    stored = exact.astype(np.float32).astype(np.float64) if unit == FLOAT32 else exact
    return _Number(exact, np.abs(stored - exact), unit)


def _stored(number: _Number) -> _Number:
    """Rounded to float32, as every table is."""
    error = number.error + FLOAT32 * (np.abs(number.value) + number.error) + 2.0**-150
    return _Number(number.value, error, number.unit)


# --- the formulas


def _cos_sin(
    rot_dim: int, base: float, rule: Rule | None, positions: npt.NDArray[np.int64], unit: float
) -> tuple[_Number, _Number]:
    frequencies = _frequencies(rot_dim, base, rule, unit)
    angles = _constant(positions[:, None], unit) * frequencies
    factor = attention_factor(rule)
    return angles.wave(np.cos) * factor, angles.wave(np.sin) * factor


def _frequencies(rot_dim: int, base: float, rule: Rule | None, unit: float) -> _Number:
    """omega_i of every pair."""
    plain = partial(_plain, rot_dim, unit=unit)
    theta = plain(base)
    match rule:
        case None:
            return theta
        case Linear(factor):
            return theta / factor
        case FixedNTK(factor):
            return plain(base * factor ** (rot_dim / (rot_dim - 2)))
        case DynamicNTK():
            trained = rule.max_position_embeddings
            length = max(rule.seq_len, trained)
            stretch = rule.factor * length / trained - (rule.factor - 1)
            return plain(base * stretch ** (rot_dim / (rot_dim - 2)))
        case YaRN():
            ramp = _yarn_ramp(rule, rot_dim, base, unit)
            kept = 1 - ramp
            return 1 / (rule.factor * base ** _exponents(rot_dim, unit)) * (1 - kept) + theta * kept
        case LongRoPE():
            is_long = rule.seq_len > rule.original_max_position_embeddings
            divisors = rule.long_factor if is_long else rule.short_factor
            return 1 / (_constant(divisors, unit) * base ** _exponents(rot_dim, unit))
        case Llama3():
            low, high = rule.low_freq_factor, rule.high_freq_factor
            wavelengths = 2 * math.pi / theta
            smooth = ((rule.original_max_position_embeddings / wavelengths - low) / (high - low)).clamp01()
            # at smooth = 0 and 1 this is theta / factor and theta: the pieces meet, so one formula does
            return (1 - smooth) * theta / rule.factor + smooth * theta
        case Proportional():
            turning = np.arange(rot_dim // 2) < int(rule.partial_rotary_factor * rot_dim // 2)
            scaled = theta / rule.factor
            return _Number(scaled.value * turning, scaled.error * turning, unit)
    raise NotImplementedError(f"no formula for {rule!r}")


def _exponents(rot_dim: int, unit: float) -> _Number:
    return _constant(np.arange(0, rot_dim, 2), unit) / rot_dim


def _plain(rot_dim: int, base: float, unit: float) -> _Number:
    return 1 / base ** _exponents(rot_dim, unit)


def _yarn_ramp(rule: YaRN, rot_dim: int, base: float, unit: float) -> _Number:
    def pair_turning(turns: float) -> float:
        return (
            rot_dim
            * math.log(rule.original_max_position_embeddings / (turns * 2 * math.pi))
            / (2 * math.log(base))
        )

    low, high = pair_turning(rule.beta_fast), pair_turning(rule.beta_slow)
    if rule.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rot_dim - 1)
    if low == high:
        high += 0.001
    return ((_constant(np.arange(rot_dim // 2), unit) - low) / (high - low)).clamp01()


def _yarn_factor(rule: YaRN) -> float:
    if rule.attention_factor is not None:
        return rule.attention_factor
    if not isinstance(rule, DeepSeekYaRN) and not (rule.mscale and rule.mscale_all_dim):
        return _yarn_m(rule, 1)
    return _yarn_m(rule, rule.mscale or 0) / _yarn_m(rule, rule.mscale_all_dim or 0)


def _yarn_m(rule: YaRN, scale: float) -> float:
    return 1.0 if rule.factor <= 1 else 0.1 * scale * math.log(rule.factor) + 1
