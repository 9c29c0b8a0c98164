"""What must hold of a cos/sin table, each as a function of the builder under test.

`build` is called like rope.tables.rope_table, `read` like rope.config.rope_table_from_config, `axes` like
rope.axes.mrope_axes, `shard` like rope.shards.shard_positions.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from properties.failures import InputChanged, Mismatch, MissingError, NotDeterministic, WrongMetadata
from properties.table_oracle import attention_factor, exact_table, softmax_factor
from rope.errors import RopeError
from rope.tables import RopeTable
from strategies.tables import ConfigCase, TableCase

Build = Callable[..., RopeTable]


def check_values(build: Build, case: TableCase) -> None:
    """Every value is within its bound of the float64 formula, and so are the two factors."""
    table = case.built_by(build)
    require_metadata(table, case.max_position, case.rot_dim)
    rows = rows_of(case.max_position)
    require_values(table, case, rows)


def check_rows_do_not_depend_on_length(build: Build, case: TableCase) -> None:
    """A longer table starts with the rows of a shorter one: what a rule follows is its own seq_len."""
    longer = TableCase(case.rot_dim, 2 * case.max_position + 1, case.base, case.rule, case.precision)
    long, short = longer.built_by(build), case.built_by(build)
    for name in ("cos", "sin"):
        if not torch.equal(getattr(long, name)[: case.max_position], getattr(short, name)):
            raise Mismatch(f"{name} of {longer} does not start with the rows of {case.max_position}")


def check_range(build: Build, case: TableCase) -> None:
    """Position 0 is cos m, sin 0, bit for bit, and no value is larger than m, the attention factor."""
    table = case.built_by(build)
    largest = np.float32(attention_factor(case.rule))
    if not ((table.cos[0] == largest).all() and (table.sin[0] == 0).all()):
        raise Mismatch(f"position 0 of {case} is not cos {largest}, sin 0: {table.cos[0]}, {table.sin[0]}")
    for name in ("cos", "sin"):
        worst = float(getattr(table, name).abs().max())
        if not worst <= largest:  # also NaN
            raise Mismatch(f"{name} of {case} reaches {worst}, more than the attention factor {largest}")


def check_frequencies_fall(build: Build, case: TableCase) -> None:
    """No pair turns faster than the pair before it. At position 1 every angle is at most 1."""
    row = TableCase(case.rot_dim, 2, case.base, case.rule, case.precision)
    sin = row.built_by(build).sin[1].double().numpy()
    exact = exact_table(row.rot_dim, row.base, row.rule, np.array([1]), row.precision)
    slack = exact.sin_error[0, 1:] + exact.sin_error[0, :-1]
    if not (np.diff(sin) <= slack).all():
        raise Mismatch(f"frequencies of {row} rise at pairs {np.nonzero(np.diff(sin) > slack)[0] + 1}")


def check_history(build: Build, cases: Sequence[TableCase]) -> None:
    """A table is right whatever was built before it, and the same whatever became of those tables."""
    first = [case.built_by(build) for case in cases]
    for case, table in zip(cases, first, strict=True):
        require_values(table, case, rows_of(case.max_position), f", built as one of {len(cases)}")
    kept = [(table.cos.clone(), table.sin.clone()) for table in first]
    for table in first:
        table.cos.zero_()
        table.sin.fill_(float("nan"))
    for case, (cos, sin) in reversed(list(zip(cases, kept, strict=True))):
        again = case.built_by(build)
        if not (_same_bits(again.cos, cos) and _same_bits(again.sin, sin)):
            raise NotDeterministic(f"{case} has other bits after {len(cases)} other tables were built")


def check_surroundings(build: Build, case: TableCase) -> None:
    """A table is the same float32 tensors on the CPU in every torch state a model may be loaded or run in."""
    plain = case.built_by(build)
    for name, surroundings in SURROUNDINGS.items():
        with surroundings():
            table = case.built_by(build)
        require_metadata(table, case.max_position, case.rot_dim, f" built under {name}")
        if not (_same_bits(table.cos, plain.cos) and _same_bits(table.sin, plain.sin)):
            raise NotDeterministic(f"{case} has other bits when built under {name}")
        x = torch.ones_like(plain.cos, requires_grad=True)
        try:
            (x * table.cos * table.sin).sum().backward()
        except RuntimeError as error:
            raise WrongMetadata(f"{case} built under {name} cannot be trained with: {error}") from error


def check_config(read: Build, case: ConfigCase, max_position: int = 300) -> None:
    """The table read from a configuration is the one it means, and the configuration is left alone."""
    config = copy.deepcopy(case.config)
    table = read(config, max_position, layer_type=case.layer_type, seq_len=case.seq_len)
    if config != case.config:
        raise InputChanged(f"reading changed the configuration from {case.config} to {config}")
    require_metadata(table, max_position, case.rot_dim, f" read from {case.config}")
    meant = TableCase(case.rot_dim, max_position, case.base, case.rule)
    require_values(table, meant, rows_of(max_position), f", read from {case.config}")


def check_axes(axes: Callable[..., torch.Tensor], section: Sequence[int], interleaved: bool) -> None:
    """Each pair reads the axis the models give it (chunked as Qwen2-VL, interleaved as Qwen3-VL)."""
    pairs = sum(section)
    if interleaved:
        meant = [i % 3 if i < 3 * section[i % 3] else 0 for i in range(pairs)]
    else:
        ends = np.cumsum(section)
        meant = [int(np.searchsorted(ends, i, side="right")) for i in range(pairs)]
    got = axes(section, interleaved).tolist()
    if got != meant:
        raise Mismatch(f"axes of section {section}, interleaved={interleaved}: {got}, expected {meant}")


def check_shards(shard: Callable[..., torch.Tensor], length: int, world_size: int, order: str) -> None:
    """Shards are equal in size, ascend, hold every position once; zig-zag ones have equal causal work."""
    shards = [shard(length, world_size, rank, order=order) for rank in range(world_size)]
    where = f"length {length}, world_size {world_size}, {order}"
    if {len(positions) for positions in shards} != {length // world_size}:
        raise Mismatch(f"{where}: shards of {[len(positions) for positions in shards]} tokens")
    if sorted(torch.cat(shards).tolist()) != list(range(length)):
        raise Mismatch(f"{where}: together the shards are not every position once: {shards}")
    for positions in shards:
        if (positions.diff() <= 0).any():
            raise Mismatch(f"{where}: a shard's positions do not ascend: {positions}")
    if order == "zigzag" and len({int(positions.sum()) for positions in shards}) > 1:
        raise Mismatch(f"{where}: ranks have unequal causal work: {shards}")
    if order == "contiguous" and any((positions.diff() != 1).any() for positions in shards):
        raise Mismatch(f"{where}: a contiguous shard has gaps: {shards}")


def check_uneven_length_is_refused(
    shard: Callable[..., torch.Tensor], length: int, world_size: int, order: str
) -> None:
    """A length that does not divide into chunks is an error: rounding it would lose or invent tokens."""
    with contextlib.suppress(RopeError):
        got = shard(length, world_size, 0, order=order)
        raise MissingError(f"length {length} over {world_size} ranks, {order}, gave {got}")


def require_metadata(
    table: RopeTable, max_position: int, rot_dim: int, where: str = "", *, device: str = "cpu"
) -> None:
    """WrongMetadata unless cos and sin are float32 of the table's shape on this device."""
    for name in ("cos", "sin"):
        tensor = getattr(table, name)
        got = (tensor.device.type, tensor.dtype, tuple(tensor.shape))
        expected = (device, torch.float32, (max_position, rot_dim // 2))
        if got != expected:
            raise WrongMetadata(f"{name}{where} is {got}, expected {expected}")


def require_values(table: RopeTable, case: TableCase, rows: Any, where: str = "") -> None:
    """Mismatch unless these rows, and both factors, are within their bounds of the float64 formula."""
    exact = exact_table(case.rot_dim, case.base, case.rule, rows, case.precision)
    for name, value, bound in (("cos", exact.cos, exact.cos_error), ("sin", exact.sin, exact.sin_error)):
        got = getattr(table, name)[torch.from_numpy(rows)].double().numpy()
        error = np.abs(got - value)
        wrong = ~(error <= bound)  # also NaN
        if wrong.any():
            row, pair = np.unravel_index(int(np.nan_to_num(error / bound, nan=np.inf).argmax()), wrong.shape)
            raise Mismatch(
                f"{name} at position {rows[row]}, pair {pair} of {case}{where} is {got[row, pair]}, exact "
                f"{value[row, pair]}: error {error[row, pair]:.3g}, bound {bound[row, pair]:.3g} "
                f"({wrong.sum()} of {wrong.size} values wrong)"
            )
    for name, meant in (
        ("attention_factor", attention_factor(case.rule)),
        ("softmax_factor", softmax_factor(case.rule)),
    ):
        got = getattr(table, name)
        if not abs(got - meant) <= 2.0**-50 * meant:
            raise Mismatch(f"{name} of {case}{where} is {got}, expected {meant}")


def rows_of(max_position: int) -> Any:
    """The first rows, both sides of the powers of two, an even spread, and the last."""
    powers = 2 ** np.arange(4, 25)
    spread = np.linspace(0, max_position - 1, 12).astype(np.int64)
    rows = np.unique(np.concatenate((np.arange(8), powers - 1, powers, powers + 1, spread)))
    return rows[rows < max_position]


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "default dtype bfloat16": lambda: _default_dtype(torch.bfloat16),
    "default dtype float64": lambda: _default_dtype(torch.float64),
    "default device meta": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
