"""What public RoPE tests would see of the mutants: their shapes, dtypes, tolerances and checks, re-enacted.

    python -m tests.public_grids [--jobs N] [NAME ...]

prints which mutants each grid lets through, and writes docs/comparison.md when no mutant is named. Facts
only: the grids are what those files say, the code is not theirs. docs/comparison.md says what was reduced.
"""

import argparse
import functools
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from properties.implementations import Implementation
from properties.judge import call_options
from strategies import Arena, RopeCase, Strides
from strategies.values import bits
from tests import kill_matrix
from tests.mutants import MUTANTS
from tests.mutants.base import Base

DOCUMENT = Path(__file__).parent.parent / "docs" / "comparison.md"
# Points of one test function that run; of more, this many are drawn evenly.
_POINTS = 40
_TOKENS_INTERPRETED = 1 << 12


@dataclass(frozen=True)
class Point:
    """One call of a public test.

    Attributes:
        case: shapes, dtypes, strides and options.
        close: whether an output is near enough to the reference.
        positions: the highest of random positions, one per token; 0 for those of the case.
        unchanged: out of place, the test compares its inputs with a copy.
        gradients: the test compares gradients too.
    """

    case: RopeCase
    close: Callable[[torch.Tensor, torch.Tensor], bool]
    positions: int = 0
    unchanged: bool = False
    gradients: bool = False


def _allclose(rtol: float, atol: float) -> Callable[[torch.Tensor, torch.Tensor], bool]:
    return lambda out, expected: torch.allclose(out, expected, rtol=rtol, atol=atol)


def _near_a_rounding(out: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within twice the error of adding 0.3 and taking it away again."""
    atol = ((expected + 0.3 - 0.3) - expected).abs().max().item()
    return torch.allclose(out, expected, rtol=1e-3, atol=2 * atol)


def flash_attention() -> Iterator[list[Point]]:
    """tests/test_rotary.py of flash-attention (stored at 2026, functions func, qkv, kv and varlen)."""
    base = RopeCase(rank=4, q_heads=4, k_heads=4, table_dtype="input", fill="normal", seed=42)
    tail = {1.0: {"rot_half": 64}, 0.5: {"rot_half": 32, "tail": 64}}
    starts = {"0": (0, 0, 0), "int": (31, 31, 31), "tensor": (0, 31, 17)}
    options = list(
        itertools.product(("float16", "bfloat16"), starts.values(), tail.values(), ("neox", "gptj"))
    )

    def points(lengths: tuple[int, ...], inplace: tuple[bool, ...], **fields: Any) -> list[Point]:
        return [
            Point(
                replace(
                    base, dtype=dtype, layout=layout, inplace=into,
                    requests=tuple(zip(start, lengths, strict=True)), **sizes, **fields,
                ),
                _near_a_rounding, unchanged=True, gradients=True,
            )
            for (dtype, start, sizes, layout), into in itertools.product(options, inplace)
        ]  # fmt: skip

    yield points((31, 31, 31), (False, True))
    yield points((32, 32, 32), (True,), packed=True)
    yield points((32, 32, 32), (True,), packed=True, k_heads=2)
    kv = points((39, 39, 39), (True,), packed=True)
    yield [replace(p, case=replace(p.case, rot_half=p.case.rot_half // 2, tail=p.case.tail // 2)) for p in kv]
    yield points((31, 28, 22), (False, True), rank=3)


def liger() -> Iterator[list[Point]]:
    """test/transformers/test_rope.py of Liger-Kernel; its second function compares Liger with itself."""
    sizes = [
        (1, 32, 32, 32),
        (2, 32, 32, 32),
        (1, 32, 8, 32),
        (2, 32, 8, 32),
        (3, 73, 213, 46),
        (3, 73, 155, 46),
    ]
    yield [
        Point(
            RopeCase(
                rank=4, heads_first=True, requests=((0, 7 if batch == 3 else 32),) * batch, dtype=dtype,
                q_heads=q_heads, k_heads=k_heads, rot_half=rot_half, positions="implied", table="gathered",
                table_dtype="input", fill="normal",
            ),
            _allclose(1e-5, atol), gradients=True,
        )
        for batch, q_heads, k_heads, rot_half in sizes
        for dtype, atol in (("float32", 1e-5), ("bfloat16", 1e-1))
    ]  # fmt: skip


def vllm() -> Iterator[list[Point]]:
    """tests/kernels/core/test_pos_encoding.py of vLLM; query and key flat, split in heads, or sliced."""
    tolerances = {"bfloat16": (1.6e-2, 1e-3), "float32": (1.3e-6, 1e-5)}
    yield [
        Point(
            RopeCase(
                rank=4, layout=layout, dtype=dtype, requests=((0, length),) * 5, q_heads=17,
                k_heads=17 if key else None, rot_half=(rot_dim or size) // 2, tail=size - (rot_dim or size),
                q_strides=Strides(dim_pad=pad), k_strides=Strides(dim_pad=pad if key else 0), inplace=True,
                table_dtype="input", fill="normal",
            ),
            _allclose(*tolerances[dtype]), positions=8191,
        )
        for layout, pad, length, size, rot_dim, dtype, key in itertools.product(
            ("neox", "gptj"), (0, 0, 64), (11, 40), (64, 80, 120, 256), (None, 32), tolerances, (True, False)
        )
    ]  # fmt: skip


def flashinfer() -> Iterator[list[Point]]:
    """tests/attention/test_rope.py of flashinfer; test_rope_pos_ids compares flashinfer with itself."""
    yield [
        Point(
            RopeCase(
                layout="gptj", dtype="float16", requests=((offset, length),) * batch, q_heads=q_heads,
                k_heads=8, rot_half=int(size * part) // 2, tail=size - int(size * part), packed=True,
                inplace=inplace, positions_dtype="int32", fill="normal",
            ),
            _allclose(1e-3, 1e-3),
        )
        for batch, length, q_heads, offset, size, part, inplace in itertools.product(
            (1, 3, 5), (1, 4, 19), (8, 16), (0, 15, 99), (64, 128, 256), (0.25, 0.5, 0.75, 1.0), (False, True)
        )
    ]  # fmt: skip
    sizes = [
        (64, 64, "neox", 3, 32, 1, 1), (256, 128, "neox", 2, 64, 4, 2), (64, 32, "neox", 2, 50, 4, 1),
        (64, 64, "gptj", 3, 32, 1, 1), (256, 128, "gptj", 3, 50, 4, 2), (192, 128, "neox", 3, 50, 3, 2),
        (80, 64, "gptj", 4, 64, 2, 2), (112, 64, "neox", 5, 77, 2, 1), (160, 96, "gptj", 2, 64, 6, 3),
    ]  # fmt: skip
    yield [
        Point(
            RopeCase(
                layout=layout, dtype="bfloat16", requests=((0, length),) * batch, q_heads=q_heads,
                k_heads=k_heads, rot_half=rot_dim // 2, tail=size - rot_dim, inplace=True, fill="normal",
            ),
            _allclose(1e-2, 1e-2),
        )
        for size, rot_dim, layout, batch, length, q_heads, k_heads in sizes
    ]  # fmt: skip
    # As many tokens as the largest batch has, of one head.
    many = RopeCase(
        layout="gptj", dtype="float16", requests=((0, 204),) * 989, rot_half=4, packed=True, fill="normal"
    )
    yield [Point(many, _allclose(1e-3, 1e-3))]


@dataclass(frozen=True)
class Grid:
    """A public test file.

    Attributes:
        functions: the points of each of its test functions.
        file: where it is, and its commit.
        compared: what is compared, how closely.
    """

    functions: Callable[[], Iterator[list[Point]]]
    file: str
    compared: str


GRIDS = {
    "flash-attention": Grid(
        flash_attention,
        "`tests/test_rotary.py`",
        "float16, bfloat16: outputs and gradients, within rtol 1e-3 and twice the error of adding 0.3 and "
        "taking it away; the input, unchanged out of place",
    ),
    "Liger-Kernel": Grid(
        liger,
        "`test/transformers/test_rope.py` (00fb8bf)",
        "float32, bfloat16: outputs and gradients, within rtol 1e-5 and atol 1e-5 or 1e-1",
    ),
    "vLLM": Grid(
        vllm,
        "`tests/kernels/core/test_pos_encoding.py` (0cf5d8e)",
        "bfloat16, float32: outputs, within rtol 1.6e-2 and atol 1e-3, or 1.3e-6 and 1e-5",
    ),
    "flashinfer": Grid(
        flashinfer,
        "`tests/attention/test_rope.py` (00e1add)",
        "float16, bfloat16: outputs, within rtol and atol 1e-3 or 1e-2",
    ),
}


@functools.cache
def points(grid: str) -> list[Point]:
    """The points of a grid that run; of a test with many, evenly drawn ones, the same every time."""
    draw = random.Random(grid)
    return [
        point
        for function in GRIDS[grid].functions()
        for point in (function if len(function) <= _POINTS else draw.sample(function, _POINTS))
    ]


class Trial:
    """The tensors of one point, on which one implementation after another is tried."""

    def __init__(self, point: Point) -> None:
        case, values = point.case, {}
        if point.positions:
            generator = torch.Generator().manual_seed(0)
            shape = (case.batch, case.tokens)
            values["positions"] = torch.randint(0, point.positions + 1, shape, generator=generator)
            case = replace(case, table_slack=point.positions + 1 - case.tokens)
        self.point, self.arena = point, Arena(case, **values)
        arena = self.arena
        self.inputs = {name: x for name, x in (("q", arena.q), ("k", arena.k)) if x is not None}
        self.expected = {n: _rotated(arena, arena.inputs[n], inverse=case.inverse) for n in self.inputs}

    def passes(self, implementation: Implementation) -> bool:
        """Whether the public test would pass here."""
        arena, point, inputs = self.arena, self.point, self.inputs
        inplace = point.case.inplace
        for guarded in arena.buffers:
            bits(guarded.buffer).copy_(guarded.pristine)
        gradients = point.gradients and implementation.domain.gradients and not inplace
        tensors = {name: x.detach().requires_grad_(gradients) for name, x in inputs.items()}
        try:
            returned = implementation.call(
                tensors["q"], tensors.get("k"), arena.cos, arena.sin, arena.positions,
                **call_options(arena.case, arena),
            )  # fmt: skip
        except Exception:
            return False
        outputs = dict(zip(inputs, returned if isinstance(returned, tuple) else (returned,), strict=True))
        for name, out in outputs.items():
            if out.dtype != inputs[name].dtype or not point.close(
                arena.bnhd(out.detach()), self.expected[name]
            ):
                return False
            if inplace and not torch.equal(out, inputs[name]):
                return False
            kept = torch.equal(arena.bnhd(inputs[name]), arena.inputs[name])
            if point.unchanged and not inplace and not kept:
                return False
        return not gradients or _gradients_close(point, arena, tensors, outputs)


def _rotated(arena: Arena, x: torch.Tensor, *, inverse: bool) -> torch.Tensor:
    """The rotation in float32, or float64, rounded once; (batch, token, head, dim)."""
    case = arena.case
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (arena.inputs[name][:, :, None].to(wide) for name in ("cos", "sin"))
    sin = -sin if inverse else sin
    dims = torch.arange(2 * case.rot_half) + case.rot_offset
    lo, hi = dims.view(2, -1) if case.layout == "neox" else dims.view(-1, 2).T
    out = x.clone()
    first, second = x[..., lo].to(wide), x[..., hi].to(wide)
    out[..., lo] = (first * cos - second * sin).to(x.dtype)
    out[..., hi] = (second * cos + first * sin).to(x.dtype)
    return out


def _gradients_close(
    point: Point, arena: Arena, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]
) -> bool:
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(out.shape, generator=generator).to(out.dtype) for out in outputs.values()]
    try:
        torch.autograd.backward(list(outputs.values()), [g.clone() for g in cotangents])
    except RuntimeError:
        return False
    return all(
        x.grad is not None
        and point.close(arena.bnhd(x.grad), _rotated(arena, arena.bnhd(g), inverse=not arena.case.inverse))
        for x, g in zip(inputs.values(), cotangents, strict=True)
    )


@dataclass(frozen=True)
class Row:
    """What became of one mutant: by grid "caught", "let through" or "outside" when no call is supported."""

    kind: str
    name: str
    grids: dict[str, str]


def measure(names: tuple[str, ...]) -> list[Row]:
    """Run every grid on the mutants of these names, each kept for a whole grid as in one process."""
    mutants = [m for m in MUTANTS if m.name in names]
    rows = [Row(m.kind, m.name, dict.fromkeys(GRIDS, "outside")) for m in mutants]
    for grid in GRIDS:
        implementations = [m.fresh() for m in mutants]
        for point in points(grid):
            trial = Trial(point)
            for row, implementation in zip(rows, implementations, strict=True):
                if row.grids[grid] == "caught" or implementation.domain.why_outside(point.case) is not None:
                    continue
                # Interpreted, so many tokens are so many programs.
                if point.case.tokens > _TOKENS_INTERPRETED and not isinstance(implementation.call, Base):
                    continue
                row.grids[grid] = "let through" if trial.passes(implementation) else "caught"
    return rows


def document(rows: list[Row], seconds: float) -> str:
    """docs/comparison.md."""
    lines = [_INTRODUCTION, "| project | file | compared |", "|---|---|---|"]
    lines += [f"| {name} | {grid.file} | {grid.compared} |" for name, grid in GRIDS.items()]
    lines += [
        "",
        _REDUCED,
        "| | mutants let through | of these, no call of the grid lies in what the mutant supports |",
        "|---|---|---|",
    ]
    for grid in GRIDS:
        through = [row for row in rows if row.grids[grid] != "caught"]
        outside = sum(row.grids[grid] == "outside" for row in through)
        lines.append(f"| {grid} ({len(points(grid))} calls) | {len(through)} of {len(rows)} | {outside} |")
    together = sum("caught" not in row.grids.values() for row in rows)
    lines.append(f"| all four together | {together} of {len(rows)} | |")
    lines += [
        "",
        f"Measured by `make comparison` in {seconds:.0f} s. What the properties of this project let through",
        "is in [the kill matrix](kill-matrix.md).",
        "",
        "## By kind of fault",
        "",
        f"| kind | mutants | {' | '.join(GRIDS)} |",
        "|---|---|" + "---|" * len(GRIDS),
    ]
    for kind in dict.fromkeys(row.kind for row in rows):
        of_kind = [row for row in rows if row.kind == kind]
        through = [str(sum(row.grids[grid] != "caught" for row in of_kind)) for grid in GRIDS]
        lines.append(f"| {kind} | {len(of_kind)} | {' | '.join(through)} |")
    lines += [
        "",
        "## By mutant",
        "",
        f"| kind | mutant | {' | '.join(GRIDS)} |",
        "|---|---|" + "---|" * len(GRIDS),
    ]
    for row in rows:
        lines.append(f"| {row.kind} | {row.name} | {' | '.join(row.grids.values())} |")
    return "\n".join(lines) + "\n"


_INTRODUCTION = """\
# Comparison with public tests

How many of the mutants in `tests/mutants/` would the RoPE tests of four projects let through? A mutant is let
through when it passes every call of a grid. The grids re-enact facts, in code of this project
(`tests/public_grids.py`): shapes, dtypes, strides, what is in place, tolerances, and what is compared.
"""
_REDUCED = """\
transformers tests scaling rules and whole models, not the rotation alone.

What was reduced, so that everything runs on a CPU: batches of 19 and more are 3 to 5, sequences of 128 and
more 7 to 80 tokens, except for one call with flashinfer's 989 * 204 tokens, of one head of 8 dims. Of a test
function with more than 40 calls 40 are drawn evenly. What decides on a kernel's path is as it is: head
sizes and counts, dtypes, layouts, strides, offsets, in place.

What was strengthened: a test that rotates one tensor at a time has q and k here, so that faults of k can
show; references are computed in float32 where some tests use 16-bit arithmetic; in place, q and k must hold
the result.

What is left out: the call of 989 * 204 tokens for mutants that run kernels in the interpreter (those of
gradients, and the numerically silent ones), calls under torch.compile, kernels fused with others, tests that
compare a kernel with itself, and faulty tables: these tests take their table from the code under test, or
build it themselves.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="mutants to try; all when none is named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    arguments = parser.parse_args()
    names = arguments.names or [mutant.name for mutant in MUTANTS]
    started = time.perf_counter()
    shares = [tuple(names[i :: arguments.jobs]) for i in range(arguments.jobs)]
    measured = {
        row.name: row for share in kill_matrix.in_processes(measure, shares, arguments.jobs) for row in share
    }
    rows = [measured[name] for name in names]
    for row in rows:
        print(f"{row.kind:9} {row.name:48} {', '.join(f'{g}: {v}' for g, v in row.grids.items())}")
    if not arguments.names:
        text = document(rows, time.perf_counter() - started)
        DOCUMENT.write_text(text)
        print(text.partition("## By kind")[0])


if __name__ == "__main__":
    main()
