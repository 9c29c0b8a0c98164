"""What users do with cos/sin tables, as a state machine.

Tables are built, built again longer or shorter, cut, cast, copied, saved and loaded, used and overwritten, in
any order. Each is right when it is made, and from then on keeps its bits whatever happens to the others.
"""

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from properties.failures import NotDeterministic, WrongMetadata
from properties.table_checks import Build, require_metadata, require_values, rows_of
from rope import apply_rope
from rope.scaling import DynamicNTK, LongRoPE
from rope.tables import RopeTable
from strategies.tables import TableCase, table_cases

_PARTS = st.tuples(st.integers(0, 20), st.integers(1, 20))
_ROWS = st.integers(1, 40)
_DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float64])


def _short(trained: int) -> int:
    return 1


def _as_trained(trained: int) -> int:
    return trained


def _longer(trained: int) -> int:
    return trained + 1


def _much_longer(trained: int) -> int:
    return 4 * trained


_SERVED = st.sampled_from([_short, _as_trained, _longer, _much_longer])


@dataclass(eq=False)
class Held:
    """A table that a user holds.

    Attributes:
        case: what it was built from.
        table: the user's.
        cos, sin: copies of what it must be.
        memory: the same object for tables that are views of one another.
        history: what was done, in words.
    """

    case: TableCase
    table: RopeTable
    cos: torch.Tensor
    sin: torch.Tensor
    memory: object
    history: str

    def then(
        self,
        what: str,
        change: Callable[[torch.Tensor], torch.Tensor],
        table: RopeTable,
        *,
        view: bool = False,
    ) -> "Held":
        """The table after a change, which does to what it must be what it does to the table."""
        cos, sin = change(self.cos).clone(), change(self.sin).clone()
        return Held(self.case, table, cos, sin, self.memory if view else object(), f"{self}, {what}")

    def __str__(self) -> str:
        return self.history


class _Module(torch.nn.Module):
    """A module with a table in its buffers."""

    def __init__(self, table: RopeTable) -> None:
        super().__init__()
        self.register_buffer("cos", table.cos)
        self.register_buffer("sin", table.sin)


def _pickled(table: RopeTable) -> Any:
    return pickle.loads(pickle.dumps(table))


def _saved(table: RopeTable) -> RopeTable:
    file = io.BytesIO()
    torch.save({"cos": table.cos, "sin": table.sin}, file)
    file.seek(0)
    return replace(table, **torch.load(file))


def _through_a_module(table: RopeTable) -> RopeTable:
    """Saved by one module and loaded by another that was made on the meta device."""
    with torch.device("meta"):
        other = _Module(RopeTable(torch.empty_like(table.cos), torch.empty_like(table.sin)))
    other.to_empty(device="cpu").load_state_dict(_Module(table).state_dict())
    buffers = dict(other.named_buffers())
    return replace(table, cos=buffers["cos"], sin=buffers["sin"])


_COPIES: dict[str, Callable[[RopeTable], RopeTable]] = {
    "deepcopy": copy.deepcopy,
    "pickle": _pickled,
    "torch.save": _saved,
    "state_dict": _through_a_module,
}


class TableLife(RuleBasedStateMachine):
    """The machine, for a builder called like rope.tables.rope_table and for rules of one kind, or of any."""

    tables = Bundle("tables")

    def __init__(self, build: Build, kind: str | None = None) -> None:
        super().__init__()
        self.builder = build
        self.cases = table_cases(kind, max_elements=256)
        self.held: list[Held] = []

    def _hold(self, held: Held) -> Held:
        self.held.append(held)
        return held

    def _built(self, case: TableCase, how: str) -> Held:
        table = case.built_by(self.builder)
        require_metadata(table, case.max_position, case.rot_dim)
        require_values(table, case, rows_of(case.max_position), f", {how}")
        return self._hold(Held(case, table, table.cos.clone(), table.sin.clone(), object(), f"{case} {how}"))

    @rule(target=tables, case=st.runner().flatmap(lambda machine: machine.cases))
    def build(self, case: TableCase) -> Held:
        """A new table."""
        return self._built(case, "built")

    @rule(target=tables, held=tables)
    def build_again(self, held: Held) -> Held:
        """Another table of the same arguments, as another layer does."""
        return self._built(held.case, "built again")

    @rule(target=tables, held=tables, rows=_ROWS, served=_SERVED)
    def serve_another_length(self, held: Held, rows: int, served: Callable[[int], int]) -> Held:
        """The table that a longer or shorter sequence needs, under a rule that follows the length too."""
        rule = held.case.rule
        if isinstance(rule, LongRoPE):
            rule = replace(rule, seq_len=served(rule.original_max_position_embeddings))
        elif isinstance(rule, DynamicNTK):
            rule = replace(rule, seq_len=served(rule.max_position_embeddings))
        return self._built(replace(held.case, max_position=rows, rule=rule), "built for another length")

    @rule(held=tables)
    def build_on_the_meta_device(self, held: Held) -> None:
        """The table of a model that is loaded later: sizes without memory."""
        case = held.case
        table = case.built_by(lambda *args, **options: self.builder(*args, device="meta", **options))
        require_metadata(table, case.max_position, case.rot_dim, device="meta")

    @rule(target=tables, held=tables, part=_PARTS)
    def cut(self, held: Held, part: tuple[int, int]) -> Held:
        """A view of some rows, as apply_rope with an offset takes."""
        rows = slice(part[0], part[0] + part[1])
        table = replace(held.table, cos=held.table.cos[rows], sin=held.table.sin[rows])
        return self._hold(
            held.then(f"from row {rows.start} to {rows.stop}", lambda x: x[rows], table, view=True)
        )

    @rule(target=tables, held=tables, dtype=_DTYPES)
    def cast(self, held: Held, dtype: torch.dtype) -> Held:
        """As model.to(dtype) does with buffers."""
        table = replace(held.table, cos=held.table.cos.to(dtype), sin=held.table.sin.to(dtype))
        same = held.cos.dtype == dtype
        return self._hold(held.then(f"cast to {dtype}", lambda x: x.to(dtype), table, view=same))

    @rule(target=tables, held=tables, how=st.sampled_from(list(_COPIES)))
    def copy(self, held: Held, how: str) -> Held:
        """A copy with memory of its own."""
        try:
            table = _COPIES[how](held.table)
        except RuntimeError as error:
            raise WrongMetadata(f"{held} cannot be copied by {how}: {error}") from error
        return self._hold(held.then(f"copied by {how}", torch.clone, table))

    @rule(held=tables, other=tables)
    def load(self, held: Held, other: Held) -> None:
        """A checkpoint of another table of this size is loaded into this one's memory."""
        if held.cos.shape != other.cos.shape:
            return
        saved = {"cos": other.cos, "sin": other.sin}
        try:
            _Module(held.table).load_state_dict(saved)
        except RuntimeError as error:
            raise WrongMetadata(f"{held} cannot be loaded into: {error}") from error
        self._changed(held, *(x.to(held.cos.dtype) for x in saved.values()))

    @rule(held=tables, value=st.sampled_from([0.0, 7.0]), behind=st.booleans())
    def overwrite(self, held: Held, value: float, behind: bool) -> None:
        """Its owner writes into a table, also behind autograd's back."""
        try:
            for x in held.table:
                (x.data if behind else x).fill_(value)
        except RuntimeError as error:
            raise WrongMetadata(f"{held} cannot be written to: {error}") from error
        self._changed(held, *(torch.full_like(x, value) for x in (held.cos, held.sin)))

    def _changed(self, held: Held, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """The owner has changed a table, and with it its views."""
        for view in self.held:
            if view.memory is held.memory:
                view.cos, view.sin = view.table.cos.clone(), view.table.sin.clone()
        held.cos, held.sin = cos, sin

    @rule(held=tables)
    def use(self, held: Held) -> None:
        """A rotation gives what a copy of the table gives."""
        tokens, pairs = held.cos.shape
        q = torch.linspace(-1, 1, tokens * 2 * pairs).view(tokens, 1, 2 * pairs)
        if held.cos.dtype in (torch.float32, q.dtype):
            out, expected = (apply_rope(q, None, cos, sin) for cos, sin in (held.table, (held.cos, held.sin)))
            if not torch.equal(out, expected):  # type: ignore[arg-type]
                raise NotDeterministic(f"{held} rotates other than a copy of it")

    @invariant()
    def every_table_is_as_it_was_made(self) -> None:
        """Whatever became of the others."""
        for held in self.held:
            for name in ("cos", "sin"):
                actual, expected = getattr(held.table, name), getattr(held, name)
                if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
                    raise WrongMetadata(f"{name} of {held} is {actual.dtype} of {tuple(actual.shape)}")
                if not torch.equal(actual, expected):
                    raise NotDeterministic(f"{name} of {held} is no longer what it was")
            factors = held.table.attention_factor, held.table.softmax_factor
            made = held.case.rule
            if made is not None and factors != (made.cos_sin_factor(), made.softmax_factor()):
                raise NotDeterministic(f"the factors of {held} are {factors}")


def check_life(make: Callable[[], Build], kind: str | None = None, profile: settings | None = None) -> None:
    """Tables keep their bits through what users do with them.

    Args:
        make: returns the builder for one run of the machine; what a builder remembers must not outlive it.
        kind: of rule, as in strategies.tables.KINDS; None takes any.
        profile: of Hypothesis; None takes the one that is loaded.
    """
    profile = settings(profile or settings(), stateful_step_count=12)
    run_state_machine_as_test(lambda: TableLife(make(), kind), settings=profile)  # type: ignore[arg-type]
