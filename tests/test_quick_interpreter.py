"""The quicker interpreter has the types, bits and errors of Triton's own semantic, operation by operation."""

import itertools
import warnings

import numpy as np
import pytest
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from properties.quick_interpreter import QuickSemantic

KINDS = (tl.int1, tl.int8, tl.int32, tl.int64, tl.uint32, tl.float16, tl.bfloat16, tl.float32, tl.float64)
POINTERS = (tl.pointer_type(tl.float32), tl.pointer_type(tl.float32))
SHAPES = ((), (1, 1), (4, 1), (1, 2), (4, 2), (2,), (4, 4))
NUMBERS = (0, 1, -3, 1 << 31, 1 << 40, True, 0.5, -0.0, 1e300, float("nan"))
OPERATIONS = ("add", "sub", "mul", "truediv", "mod", "less_than", "equal", "and_", "shl", "where")


def tensor(kind: tl.dtype, shape: tuple[int, ...] = ()) -> tl.tensor:
    numpy_dtype = interpreter._get_np_dtype(kind)
    values = np.arange(1, 1 + int(np.prod(shape, dtype=int))).reshape(shape or (1,)).astype(numpy_dtype)
    return tl.tensor(TensorHandle(values, kind), tl.block_type(kind, list(shape)) if shape else kind)


def outcome(semantic: TritonSemantic, operation: str, *operands: object) -> tuple[object, ...]:
    """The result's type, shape and bits, or the error's class."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            if operation in ("add", "sub", "mul"):
                result = getattr(semantic, operation)(*operands, True)
            elif operation == "where":
                result = semantic.where(tensor(tl.int1), *operands)
            else:
                result = getattr(semantic, operation)(*operands)
        except Exception as error:
            return type(error), ""
    return str(result.type), str(result.dtype), result.handle.data.shape, result.handle.data.tobytes()


def assert_same(operation: str, *operands: object) -> None:
    builder = interpreter.interpreter_builder
    expected = outcome(TritonSemantic(builder), operation, *operands)
    assert outcome(QuickSemantic(builder), operation, *operands) == expected, (operation, *map(str, operands))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_pairs_of_dtypes(operation: str) -> None:
    """Tensors of every two dtypes, pointers among them."""
    for a, b in itertools.product(KINDS + POINTERS, repeat=2):
        assert_same(operation, tensor(a, (4, 2)), tensor(b, (4, 2)))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_pairs_of_shapes(operation: str) -> None:
    """Scalars and blocks that fit together or not, as numbers and as offsets of pointers."""
    for a, b in itertools.product(SHAPES, repeat=2):
        assert_same(operation, tensor(tl.int32, a), tensor(tl.int32, b))
        assert_same(operation, tensor(POINTERS[0], a), tensor(tl.int64, b))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_python_numbers(operation: str) -> None:
    """A Python number on either side of every dtype, in range and not."""
    for kind, number in itertools.product((*KINDS, POINTERS[0]), NUMBERS):
        assert_same(operation, tensor(kind, (4, 2)), number)
        assert_same(operation, number, tensor(kind))


def test_casts_and_new_axes() -> None:
    """Conversions between every two dtypes, and an axis added at every place."""
    for a, b in itertools.product(KINDS, repeat=2):
        assert_same("cast", tensor(a, (2,)), b)
    for shape in SHAPES[1:]:
        for axis in range(len(shape) + 1):
            assert_same("expand_dims", tensor(tl.int32, shape), axis)
