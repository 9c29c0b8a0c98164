"""Make Triton's interpreter quicker, with the same results.

A kernel of a hundred operations takes the interpreter tens of milliseconds a program, nearly all of it
spent on types, not on numbers. What is replaced here was more than half of it.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

_OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def make_quick() -> None:
    """Replace the slow parts for the rest of the process; nothing more when called again."""
    interpreter.interpreter_semantic.__class__ = QuickSemantic
    interpreter._patch_lang = _patch_lang_once
    interpreter._get_np_dtype = _numpy_dtype
    interpreter.InterpreterBuilder.get_block_ty = lambda self, element, shape: _block_type(element, shape)
    tl.block_type.with_element_ty = lambda self, element: _block_type(element, self.shape)
    interpreter.GridExecutor.__call__ = _with_room(_launch)


class QuickSemantic(TritonSemantic):
    """The interpreter's semantic, with two hot operations in NumPy."""

    def binary_op_sanitize_overflow_impl(
        self, lhs: tl.tensor, rhs: tl.tensor, binary_op: Callable[..., Any]
    ) -> None:
        """Assert that an integer fits its type; the original spends ten interpreted operations on it."""
        kind = lhs.type.scalar
        if kind.int_bitwidth >= 64 or not self.builder.options.sanitize_overflow:
            return
        wide = (x.handle.data.astype(np.int64) for x in (lhs, rhs))
        result = _OPERATIONS[binary_op.__name__](*wide)
        if result.min() < kind.get_int_min_value() or result.max() > kind.get_int_max_value():
            raise AssertionError(
                f"int{kind.int_bitwidth} overflow detected for operation {binary_op.__name__}"
            )

    def broadcast_impl_value(self, lhs: tl.tensor, rhs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
        """Give both the same shape, without a copy; the original reports shapes that do not fit."""
        shapes = [x.type.shape for x in (lhs, rhs) if x.type.is_block()]
        if not shapes or (len(shapes) == 2 and shapes[0] == shapes[1]):
            return lhs, rhs
        shape = [max(sizes) for sizes in zip(*shapes, strict=False)]
        same_rank = len(shapes[0]) == len(shapes[-1])
        if not same_rank or any(
            size not in (1, to) for s in shapes for size, to in zip(s, shape, strict=True)
        ):
            return super().broadcast_impl_value(lhs, rhs)
        return _broadcast(lhs, shape), _broadcast(rhs, shape)


def _broadcast(x: tl.tensor, shape: list[int]) -> tl.tensor:
    if x.type.is_block() and list(x.type.shape) == shape:
        return x
    kind = x.type.scalar
    return tl.tensor(TensorHandle(np.broadcast_to(x.handle.data, shape), kind), _block_type(kind, shape))


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
