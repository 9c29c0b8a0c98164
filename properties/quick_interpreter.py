"""Make Triton's interpreter quicker, with the same results.

A kernel of a hundred operations takes the interpreter tens of milliseconds a program, nearly all of it
spent on types, not on numbers. What is replaced here was more than half of it.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

Sizes = tuple[int, ...]

# An operation on two of one of these dtypes has that dtype too, unless it is a division.
_SIGNED = (tl.int32, tl.int64)
_PLAIN = (tl.int1, *_SIGNED, tl.float32, tl.float16, tl.bfloat16, tl.float64)


def make_quick() -> None:
    """Replace the slow parts for the rest of the process; nothing more when called again."""
    interpreter.interpreter_semantic.__class__ = QuickSemantic
    interpreter._patch_lang = _patch_lang_once
    interpreter._get_np_dtype = _numpy_dtype
    interpreter.InterpreterBuilder.get_block_ty = lambda self, element, shape: _block_type(element, shape)
    tl.block_type.with_element_ty = lambda self, element: _block_type(element, self.shape)
    interpreter._patch_builtin = _patch_builtin
    tl.tensor.__init__ = _of_known_type
    tl.dtype.__eq__ = _is_equal
    tl.core._unwrap_if_constexpr = _unwrapped
    interpreter.GridExecutor.__call__ = _with_room(_launch)
    interpreter.GridExecutor._restore_args_dev = _restore_from_host


class QuickSemantic(TritonSemantic):
    """The interpreter's semantic, with short ways through its hottest steps."""

    def binary_op_type_checking_impl(
        self,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> tuple[tl.tensor, tl.tensor]:
        """Give both operands one dtype and one shape; tensors of one dtype, and offsets, need no dtype.

        Their values stay as small as they are: whatever NumPy operation follows makes them one shape.
        """
        if not div_or_mod:
            if type(lhs) is tl.tensor and type(rhs) in (int, float) and not lhs.dtype.is_ptr():
                rhs = _constant(rhs, lhs.dtype)
            elif type(rhs) is tl.tensor and type(lhs) in (int, float) and not rhs.dtype.is_ptr():
                lhs = _constant(lhs, rhs.dtype)
            if type(lhs) is tl.tensor and type(rhs) is tl.tensor:
                left, right = lhs.dtype, rhs.dtype
                if left is not right and left in _SIGNED and right in _SIGNED:
                    return self._one_shape(self.cast(lhs, tl.int64), self.cast(rhs, tl.int64), _typed)
                if (left is right and left in _PLAIN) or (
                    allow_lhs_ptr and right in _SIGNED and left.is_ptr()
                ):
                    return self._one_shape(lhs, rhs, _typed)
        return super().binary_op_type_checking_impl(
            lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        )

    def cast(self, x: tl.tensor, dst_ty: tl.dtype, *options: Any, **named: Any) -> tl.tensor:
        """Convert; the same dtype is nothing to do, another integer one instruction."""
        source, to = x.dtype, dst_ty.scalar
        if source is to:
            return x
        if source in _SIGNED and to in _SIGNED:
            kind = _block_type(to, _sizes(x.type)) if x.type.is_block() else to
            return tl.tensor(self.builder.create_int_cast(x.handle, kind, True), kind)
        return super().cast(x, dst_ty, *options, **named)

    def expand_dims(self, x: tl.tensor, axis: int) -> tl.tensor:
        """Add an axis of size 1."""
        if not x.type.is_block():
            return super().expand_dims(x, axis)
        sizes = list(_sizes(x.type))
        sizes.insert(axis, 1)
        values = TensorHandle(x.handle.data.reshape(sizes), x.handle.dtype)
        return tl.tensor(values, _block_type(x.dtype, sizes))

    def to_tensor(self, x: Any, *options: Any, **named: Any) -> Any:
        """A number as a tensor; most are small integers."""
        if type(x) is int and -(1 << 31) <= x < 1 << 31:
            return _constant(x, tl.int32)
        return super().to_tensor(x, *options, **named)

    def arange(self, start: int, end: int, **named: Any) -> tl.tensor:
        """The integers from start to end, made once."""
        return _arange(self.builder, start, end) if not named else super().arange(start, end, **named)

    def binary_op_sanitize_overflow_impl(
        self, lhs: tl.tensor, rhs: tl.tensor, binary_op: Callable[..., Any]
    ) -> None:
        """Assert that an integer fits its type, in debug mode; in others the original asserts nothing either,
        after ten interpreted operations."""
        if self.builder.options.debug:
            super().binary_op_sanitize_overflow_impl(lhs, rhs, binary_op)

    def broadcast_impl_value(self, lhs: tl.tensor, rhs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
        """Give both the same shape, without a copy; the original reports shapes that do not fit."""
        return self._one_shape(lhs, rhs, _broadcast)

    def _one_shape(
        self, lhs: tl.tensor, rhs: tl.tensor, shaped: Callable[[tl.tensor, Sizes], tl.tensor]
    ) -> tuple[tl.tensor, tl.tensor]:
        left, right = _sizes(lhs.type), _sizes(rhs.type)
        if left == right:
            return lhs, rhs
        shape = left or right
        if left and right:
            shape = tuple(map(max, left, right))
            if len(left) != len(right) or any(
                a not in (1, n) or b not in (1, n) for a, b, n in zip(left, right, shape, strict=True)
            ):
                return super().broadcast_impl_value(lhs, rhs)
        return lhs if left == shape else shaped(lhs, shape), rhs if right == shape else shaped(rhs, shape)


@functools.lru_cache(maxsize=None, typed=True)
def _constant(value: int | float, kind: tl.dtype) -> Any:
    """A Python number as a tensor of the dtype that it is used beside, where it takes that dtype and fits."""
    if isinstance(value, float):
        # The sign of a zero differs between versions of Triton.
        fits = value != 0 and kind in (tl.float32, tl.float64)
    else:
        fits = kind in _SIGNED and kind.get_int_min_value() <= value <= kind.get_int_max_value()
    return tl.tensor(TensorHandle(np.array([value], _numpy_dtype(kind)), kind), kind) if fits else value


@functools.cache
def _arange(builder: Any, start: int, end: int) -> tl.tensor:
    return TritonSemantic(builder).arange(start, end)


def _typed(x: tl.tensor, shape: Sizes) -> tl.tensor:
    """The same values under the type of the whole shape."""
    return tl.tensor(x.handle, _block_type(x.dtype, shape))


def _broadcast(x: tl.tensor, shape: Sizes) -> tl.tensor:
    values = TensorHandle(np.broadcast_to(x.handle.data, shape), x.handle.dtype)
    return tl.tensor(values, _block_type(x.dtype, shape))


def _sizes(kind: tl.dtype) -> Sizes:
    """The shape of a type, () of a scalar's; kept with the type, because Triton's shapes compare slowly."""
    try:
        return kind.sizes
    except AttributeError:
        kind.sizes = tuple(int(n) for n in kind.shape) if kind.is_block() else ()
        return kind.sizes


_dtype_eq = tl.dtype.__eq__
_unwrap = tl.core._unwrap_if_constexpr


def _is_equal(self: tl.dtype, other: Any) -> bool:
    return bool(self.name == other.name if type(other) is tl.dtype else _dtype_eq(self, other))


def _unwrapped(value: Any) -> Any:
    return value if type(value) in (tl.tensor, int, float, bool) else _unwrap(value)


_tensor_init = tl.tensor.__init__


def _of_known_type(self: tl.tensor, handle: Any, kind: tl.dtype) -> None:
    """Make a tensor; all but its handle follows from its type."""
    try:
        vars(self).update(kind.of_tensors)
        self.handle = handle
    except AttributeError:
        _tensor_init(self, handle, kind)
        kind.of_tensors = {name: value for name, value in vars(self).items() if name != "handle"}


_block_types: dict[tuple[Any, ...], tl.block_type] = {}


def _block_type(element: tl.dtype, shape: Any) -> tl.block_type:
    """The type of a block; types are values, so one object serves all that are equal."""
    key = (str(element), *shape)
    if key not in _block_types:
        _block_types[key] = tl.block_type(element, list(shape))
    return _block_types[key]


_numpy_dtype_of_scalar = functools.cache(interpreter._get_np_dtype)


def _numpy_dtype(kind: tl.dtype) -> np.dtype:
    scalar = kind.scalar
    return np.dtype(np.uint64) if isinstance(scalar, tl.pointer_type) else _numpy_dtype_of_scalar(scalar)


_launch = interpreter.GridExecutor.__call__


def _with_room(call: Callable[..., Any]) -> Callable[..., Any]:
    """Call from a frame so large that the frames below it share one piece of memory.

    CPython keeps frames in pieces of 16 KiB, and gives one back as soon as the call that needed it returns.
    A kernel that happens to run across an edge maps and unmaps memory at each of its operations: a third of
    the time of a run was spent in the operating system.
    """

    def roomy(*arguments: Any, **options: Any) -> Any:
        return call(*arguments, **options)

    # 80 KiB, for which CPython takes a piece of 128 KiB.
    roomy.__code__ = roomy.__code__.replace(co_stacksize=10_000)
    return roomy


@functools.cache
def _builtins_of(package: Any) -> list[tuple[str, Callable[..., Any]]]:
    """The names of a module's or class's builtins, and what the interpreter puts in their places."""

    def interpreted(builtin: Callable[..., Any]) -> Callable[..., Any]:
        # What the decorator adds is a check that there is a semantic.
        function = getattr(builtin, "__wrapped__", builtin)

        def call(*arguments: Any, **named: Any) -> Any:
            named["_semantic"] = interpreter.interpreter_semantic
            return function(*arguments, **named)

        return call

    members = inspect.getmembers(package, tl.core.is_builtin)
    return [(name, interpreted(member)) for name, member in members]


def _patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    """Put the interpreter's functions in the place of a module's or class's builtins."""
    for name, member in _builtins_of(package):
        scope.set_attr(package, name, member)


_restore_args_dev = interpreter.GridExecutor._restore_args_dev


def _restore_from_host(self: Any, args_dev: Any, args_hst: Any, kwargs: Any, kwargs_hst: Any) -> None:
    """Copy results to where they belong; tensors on the CPU are their own copies."""
    arguments = (*args_dev, *kwargs.values())
    if not all(arg is None or isinstance(arg, bool | int | float | str) or _on_cpu(arg) for arg in arguments):
        _restore_args_dev(self, args_dev, args_hst, kwargs, kwargs_hst)


def _on_cpu(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.device.type == "cpu"


_patch_lang = interpreter._patch_lang
_patched: set[int] = set()


def _patch_lang_once(fn: Any) -> Any:
    """Skip what Triton repeats: a kernel that calls a function patches that function's module again.

    Nothing differs between the patches of one launch, and they take a third of its time.
    """
    module = id(fn.__globals__)
    if module in _patched:
        return interpreter._LangPatchScope()
    outermost = not _patched
    scope = _patch_lang(fn)
    _patched.add(module)
    if outermost:
        restore = scope.restore

        def restore_and_forget() -> None:
            _patched.clear()
            restore()

        scope.restore = restore_and_forget
    return scope
