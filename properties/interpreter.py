"""Make Triton's interpreter treat bfloat16 as a GPU does.

With ``TRITON_INTERPRET=1`` Triton runs kernels in NumPy, which has no bfloat16. The interpreter holds
such values as uint16 bit patterns and computes on the patterns: 2.5 + 2.0 is -2.9e-39 and a float32
that becomes bfloat16 is truncated. Upstream knows and declined to support it (triton#10945, with
#11585 for ``tl.dot`` and #11604 for ``tl.sum``), so without these corrections a run on a CPU would
judge the interpreter and not the kernel.

The reference is the code that Triton compiles for compute capability 9.0, where each bfloat16
instruction rounds its exact result once, to nearest even (``add.bf16``, ``fma.rn.bf16``,
``cvt.rn.bf16.f64``, ``cvt.rn.bf16.s32``). Two things remain that no interpreter can know: the compiler
contracts ``x * y + z`` to one rounding, and a reduction rounds after each step in an order that the
layout decides. Here the product and the sum round separately, and a reduction rounds once, at its end.
Atomics, fp8 conversions and NaN padding of bfloat16 are left as they are.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, ReduceOps, ScanOps, TensorHandle

from properties.quick_interpreter import make_quick

NAN = 0x7FFF  # what the conversion instructions return for every NaN


def make_faithful() -> None:
    """Correct bfloat16 in Triton's interpreter, and make it quicker, for the rest of the process.

    Does nothing when ``TRITON_INTERPRET`` is off, and nothing more when called again. Kernels may be
    decorated before or after the call.
    """
    if triton.knobs.runtime.interpret:
        make_quick()
        interpreter.interpreter_builder.__class__ = FaithfulBuilder
        interpreter.ReduceOps = FaithfulReduceOps
        interpreter.ScanOps = FaithfulScanOps


def _widen(patterns: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 bit patterns."""
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def _truncate(values: np.ndarray) -> np.ndarray:
    """The bfloat16 bit patterns of float32 values, rounded toward zero."""
    return np.where(np.isnan(values), NAN, values.view(np.uint32) >> 16).astype(np.uint16)


def _round(values: np.ndarray) -> np.ndarray:
    """The bfloat16 bit patterns of values of any dtype, rounded once to nearest even.

    Wider values go through float32 rounded to odd (Boldo and Melquiond, "Emulation of FMA and
    correctly rounded sums", 2008): an inexact float32 is made to end in a 1 bit, so that it never
    looks like a tie that the value was not.
    """
    with np.errstate(all="ignore"):
        single = values.astype(np.float32)
        even = single.view(np.uint32) & 1 == 0
        toward = np.where(values > single, np.float32(np.inf), np.float32(-np.inf))
        single = np.where((single != values) & even, np.nextafter(single, toward), single)
        bits = single.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(single), NAN, rounded).astype(np.uint16)


def _is_bfloat16(operand: Any) -> bool:
    return isinstance(operand, TensorHandle) and operand.dtype.scalar is tl.bfloat16


def _on_values(operation: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    """Run an operation on the values of its bfloat16 operands, and round its result once.

    float64 holds what the operations compute exactly enough for that one rounding to be the right
    one; float32 would round an fma twice.
    """

    @functools.wraps(operation)
    def corrected(self: InterpreterBuilder, *operands: Any) -> TensorHandle:
        if not any(map(_is_bfloat16, operands)):
            return operation(self, *operands)
        wide = (self.cast_impl(x, tl.float64) if _is_bfloat16(x) else x for x in operands)
        result = operation(self, *wide)
        if result.data.dtype == np.bool_:
            # A comparison comes back with its operands' dtype, and would be cast as a float.
            return TensorHandle(result.data, tl.int1)
        # tl.dot of bfloat16 has the dtype of its accumulator, which is never bfloat16.
        return self.cast_impl(result, tl.bfloat16) if result.dtype == tl.float64 else result

    return corrected


class FaithfulBuilder(InterpreterBuilder):
    """The interpreter's builder, with bfloat16 operations on values."""

    def cast_impl(self, src: TensorHandle, dst_type: tl.dtype) -> TensorHandle:
        """Convert; the original truncates float32, loses subnormals both ways, and takes the low
        bits of an integer or a float64 for the bit pattern."""
        if _is_bfloat16(src):
            src = TensorHandle(_widen(src.data), tl.float32)
        if dst_type.scalar == tl.bfloat16:
            return TensorHandle(_round(src.data), tl.bfloat16)
        return super().cast_impl(src, dst_type)

    def create_fp_to_fp(self, src: TensorHandle, dst_type: tl.dtype, rounding: Any) -> TensorHandle:
        """Convert with a rounding of its own, which for float32 to bfloat16 is "rtz" alone; the original
        loses subnormals and makes some NaNs inf."""
        if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
            return TensorHandle(_truncate(src.data), tl.bfloat16)
        return super().create_fp_to_fp(src, dst_type, rounding)

    def get_bf16(self, value: float) -> TensorHandle:
        """Make a constant, as ``tl.full`` asks for; Triton before 3.9 has no such method."""
        return self.cast_impl(self.get_fp32(value), tl.bfloat16)

    binary_op = _on_values(InterpreterBuilder.binary_op)
    unary_op = _on_values(InterpreterBuilder.unary_op)
    create_clampf = _on_values(InterpreterBuilder.create_clampf)
    create_fma = _on_values(InterpreterBuilder.create_fma)
    create_dot = _on_values(InterpreterBuilder.create_dot)


class _OnValues:
    """Reduce or scan the values of bfloat16 tensors; the originals add and order bit patterns."""

    def apply_impl(self, inputs: tuple[tl.tensor, ...]) -> Any:
        if all(x.dtype != tl.bfloat16 for x in inputs):
            return super().apply_impl(inputs)  # type: ignore[misc]
        cast = interpreter.interpreter_semantic.cast
        wide = tuple(cast(x, tl.float64) if x.dtype == tl.bfloat16 else x for x in inputs)
        results = super().apply_impl(wide)  # type: ignore[misc]
        results = results if isinstance(results, (list, tuple)) else (results,)
        return tuple(cast(y, x.dtype) for x, y in zip(inputs, results, strict=True))


class FaithfulReduceOps(_OnValues, ReduceOps):
    """``tl.reduce`` and what is built on it."""


class FaithfulScanOps(_OnValues, ScanOps):
    """``tl.associative_scan`` and what is built on it."""
