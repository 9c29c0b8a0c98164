"""Domain: the set of cases that an implementation says it supports."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from strategies.case import DTYPES, LAYOUTS, POSITION_KINDS, TABLE_KINDS, RopeCase, Strides

TAILS = ("none", "after", "before", "both")
STRIDE_KINDS = (
    "dense",
    "token_pad",
    "head_pad",
    "dim_pad",
    "dim_step",
    "offset",
    "order",
    "expand",
    "packed",
)


@dataclass(frozen=True)
class Hole:
    """Cases that are left out of a domain that claims them, for a fault that is known.

    Attributes:
        reason: what is wrong there.
        sizes: (name, least, most) of sizes of a RopeCase, as tokens or head_dim, which must all be in range.
    """

    reason: str
    sizes: tuple[tuple[str, int, int], ...]

    def holds(self, case: RopeCase) -> bool:
        """Whether the case lies in this hole."""
        return all(least <= getattr(case, name) <= most for name, least, most in self.sizes)


@dataclass(frozen=True)
class Domain:
    """What an implementation supports. Every field lists the values it takes; the default is everything but
    several axes, which few functions have an argument for.

    Attributes:
        layouts: "neox", "gptj".
        dtypes: of q and k.
        ranks: 3 for `(tokens, heads, head_dim)`, 4 for `(batch, tokens, heads, head_dim)`.
        heads_first: False for heads after tokens, True for heads before tokens.
        tails: where the dims that do not rotate lie, seen from the rotated ones.
        q_strides, k_strides: the kinds of memory, see Strides; "packed" puts q, k and v in one buffer.
        inplace, inverse: which values the implementation takes.
        without_k: False always passes k, True passes none.
        grouped_heads: True when k may have fewer heads than q.
        head_dims: the head sizes, or None for any.
        rot_multiple: what rot_half is a multiple of, for kernels that load so many elements at a time.
        empty: whether tensors may have no tokens, or heads no pairs.
        positions: "given" per token, "implied" (None: 0, 1, 2, ... in each row), "shared" (one row for
            the batch), "expanded" (batch stride 0).
        position_dtypes: "int64", "int32".
        position_steps: whether positions may have a stride other than 1.
        axes: the kinds of RopeCase.axes; beside "none" the implementation takes an `axes` argument.
        starts: whether a request may start at a position other than 0.
        tables: "indexed" by position, "gathered" per token beforehand.
        table_dtypes: "float32", "input" (the dtype of q).
        table_strides: whether table rows may be further apart than their width, those of cos and sin by
            different amounts.
        table_steps: whether the last axis of tables may have a stride other than 1.
        free_tables: whether cos and sin may be any numbers (False: only cosines and sines of angles).
        compute: "float32", or "input" for arithmetic that rounds every operation to the dtype of q.
        least_traffic: whether the kernels claim to read each rotated element once and to write it once, and
            of the tail nothing in place.
        tiles: the tiles that can be forced with a `tile` argument; (None,) when none can.
        needs: "cuda"; "interpreter" for a Triton kernel, which on the CPU runs in the interpreter only; None.
        refuses: whether every call outside this domain raises an error and changes nothing. A function that
            says nothing about other input does not.
        gradients: whether outputs carry the gradients of q and k, in place too. An inference kernel has none.
        fullgraph: whether torch.compile takes a call whole (fullgraph=True), without a tile.
        captured: whether a CUDA graph can capture a call, which then must not wait for the GPU.
        holes: what is left out for known faults; strategies draw there, searches pass over it.
    """

    layouts: tuple[str, ...] = LAYOUTS
    dtypes: tuple[str, ...] = DTYPES
    ranks: tuple[int, ...] = (3, 4)
    heads_first: tuple[bool, ...] = (False, True)
    tails: tuple[str, ...] = TAILS
    q_strides: tuple[str, ...] = STRIDE_KINDS
    k_strides: tuple[str, ...] = STRIDE_KINDS
    inplace: tuple[bool, ...] = (False, True)
    inverse: tuple[bool, ...] = (False, True)
    without_k: tuple[bool, ...] = (False, True)
    grouped_heads: bool = True
    head_dims: tuple[int, ...] | None = None
    rot_multiple: int = 1
    empty: bool = True
    positions: tuple[str, ...] = POSITION_KINDS
    position_dtypes: tuple[str, ...] = ("int64", "int32")
    position_steps: bool = True
    axes: tuple[str, ...] = ("none",)
    starts: bool = True
    tables: tuple[str, ...] = TABLE_KINDS
    table_dtypes: tuple[str, ...] = ("float32", "input")
    table_strides: bool = True
    table_steps: bool = True
    free_tables: bool = True
    compute: str = "float32"
    least_traffic: bool = False
    tiles: tuple[tuple[int, int] | None, ...] = (None,)
    needs: str | None = None
    refuses: bool = False
    gradients: bool = False
    fullgraph: bool = False
    captured: bool = True
    holes: tuple[Hole, ...] = ()

    def why_outside(self, case: RopeCase) -> str | None:
        """The first reason why this domain does not hold the case, or None when it does."""
        for hole in self.holes:
            if hole.holds(case):
                return f"it is known: {hole.reason}"
        for name, (value, allowed) in self._choices(case).items():
            if value not in allowed:
                return f"{name} is {value!r}, supported: {', '.join(map(repr, allowed))}"
        if self.head_dims is not None and case.head_dim not in self.head_dims:
            return f"head_dim is {case.head_dim}, supported: {', '.join(map(str, self.head_dims))}"
        if case.rot_half % self.rot_multiple:
            return f"rot_half is {case.rot_half}, supported: multiples of {self.rot_multiple}"
        for tensor, strides, allowed in (
            ("q", case.q_strides, self.q_strides),
            ("k", case.k_strides, self.k_strides),
        ):
            for kind in stride_kinds(strides) | ({"packed"} if case.packed else set()):
                if kind not in allowed:
                    return f"{tensor} strides are of kind {kind!r}, supported: {', '.join(allowed)}"
        for flag, present in self._flags(case).items():
            if present and not getattr(self, flag):
                return f"{flag} is not supported"
        return None

    def common(self, other: "Domain") -> "Domain | None":
        """The cases that both domains hold, without tiles; None when there are none."""
        kept: dict[str, Any] = {"tiles": (None,)}
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, bool):
                kept[f.name] = mine and theirs
            elif f.name == "rot_multiple":
                kept[f.name] = math.lcm(mine, theirs)
            elif f.name == "head_dims" and None in (mine, theirs):
                kept[f.name] = theirs if mine is None else mine
            elif f.name == "holes":
                kept[f.name] = tuple(dict.fromkeys(mine + theirs))
            elif isinstance(mine, tuple) and f.name != "tiles":
                kept[f.name] = tuple(value for value in mine if value in theirs)
        nothing = any(value == () for name, value in kept.items() if name != "holes")
        return None if nothing else replace(self, **kept)

    def _choices(self, case: RopeCase) -> dict[str, tuple[object, tuple[object, ...]]]:
        return {
            "layout": (case.layout, self.layouts),
            "dtype": (case.dtype, self.dtypes),
            "rank": (case.rank, self.ranks),
            "heads_first": (case.heads_first, self.heads_first),
            "tail": (tail_kind(case), self.tails),
            "inplace": (case.inplace, self.inplace),
            "inverse": (case.inverse, self.inverse),
            "without_k": (case.k_heads is None, self.without_k),
            "positions": (case.positions, self.positions),
            "positions_dtype": (case.positions_dtype, (*self.position_dtypes, "int64")),
            "axes": (case.axes, self.axes),
            "table": (case.table, self.tables),
            "table_dtype": (case.table_dtype, self.table_dtypes),
            "tile": (case.tile, (*self.tiles, None)),
        }

    @staticmethod
    def _flags(case: RopeCase) -> dict[str, bool]:
        return {
            "grouped_heads": case.k_heads is not None and case.k_heads != case.q_heads,
            "empty": case.batch * case.tokens * case.rot_half == 0,
            "position_steps": case.positions_step != 1,
            "starts": any(start for start, _ in case.requests),
            "table_strides": case.table_pad != 0,
            "table_steps": case.table_step != 1,
            "free_tables": case.table_fill != "angles"
            or case.attention_factor != 1
            or any(name in ("cos", "sin") for name, _, _ in case.pokes),
        }


def tail_kind(case: RopeCase) -> str:
    """Where the tail of a case lies: "none", "after", "before" or "both"."""
    if case.tail == 0:
        return "none"
    if case.rot_offset == 0:
        return "after"
    return "before" if case.rot_offset == case.tail else "both"


def stride_kinds(strides: Strides) -> set[str]:
    """The kinds of memory that a Strides combines; "dense" alone when it is the default."""
    simplest = Strides()
    kinds = {f.name for f in fields(strides) if getattr(strides, f.name) != getattr(simplest, f.name)}
    return kinds or {"dense"}
