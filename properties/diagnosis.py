"""Which known mistake explains a wrong output.

A mistake explains an output when every wrong element lies where a kernel that makes this mistake would put
it: between the roundings of the two ends of the interval that the arithmetic can reach.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from properties.bounds import judge
from properties.error_map import ranges
from properties.failures import Failure
from properties.implementations import Implementation
from properties.judge import execute
from properties.mistakes import MISTAKES
from properties.oracle import Array, exact_rotation
from properties.scene import Prediction, Scene
from strategies import Arena, RopeCase
from strategies.arena import UNWRITTEN
from strategies.values import bits

# Unit roundoff and smallest subnormal of the arithmetic.
_ARITHMETIC = {torch.float32: (2.0**-24, 2.0**-149), torch.float64: (2.0**-53, 2.0**-1074)}


@dataclass(frozen=True)
class Diagnosis:
    """What explains the wrong elements of one output.

    Attributes:
        tensor: "q" or "k".
        where: which tokens, heads and dims are wrong, in words.
        names: the mistakes that explain every wrong element; none when unexplained.
        whole_rows: the right elements of the wrong heads fit the mistakes too.
        cases: how many cases the explanation was tried on.
    """

    tensor: str
    where: str
    names: tuple[str, ...]
    whole_rows: bool
    cases: int

    def sentence(self) -> str:
        """The diagnosis in a line."""
        if not self.names:
            return f"{self.tensor}_out, {self.where}: none of the {len(MISTAKES)} known mistakes explains it."
        cause = " or ".join(self.names)
        fit = "" if self.whole_rows else " (the wrong elements only; the right ones beside them do not fit)"
        return f"{self.tensor}_out, {self.where}: explained by {cause}{fit}."


def diagnose(implementation: Implementation, case: RopeCase) -> list[Diagnosis]:
    """What explains the wrong outputs of a failing case, narrowed down on richer cases that fail too."""
    found: dict[str, Diagnosis] = {}
    for witness in (case, *_witnesses(implementation, case)):
        try:
            run = execute(implementation, witness)
        except Failure:
            continue
        for name in run.outputs if witness is case else found:
            new = explain(run.arena, name, run.outputs[name], implementation.domain.compute)
            if new is None:
                continue
            old = found.get(name)
            if old is None:
                found[name] = new
                continue
            common = tuple(n for n in old.names if n in new.names)
            if common:
                found[name] = replace(old, names=common, cases=old.cases + 1)
    return list(found.values())


def explain(arena: Arena, name: str, out: torch.Tensor, compute: str) -> Diagnosis | None:
    """What explains an output, (batch, token, head, dim) on the CPU; None when it is right."""
    case, exact = arena.case, exact_rotation(arena, name)
    changed = (bits(out) != bits(arena.inputs[name].contiguous())).numpy()
    wrong = judge(out, exact, case.dtype, compute).wrong | (changed & ~exact.rotated)
    wrong &= (bits(out) != UNWRITTEN[out.dtype]).numpy()
    if not wrong.any():
        return None
    scene = Scene(arena, name)
    rows = wrong.any(-1)
    fits = {m.name: _fits(out.double().numpy(), m.predict(scene), out.dtype) for m in MISTAKES}
    whole = [n for n, fit in fits.items() if fit is not None and fit[rows].all()]
    only = [n for n, fit in fits.items() if fit is not None and fit[wrong].all()]
    words = {
        "layout": case.layout,
        "other": "gptj" if case.layout == "neox" else "neox",
        "dtype": case.dtype,
    }
    names = tuple(dict.fromkeys(n.format(**words) for n in whole or only))
    return Diagnosis(name, where_wrong(wrong), names, bool(whole), 1)


def where_wrong(wrong: npt.NDArray[np.bool_]) -> str:
    """Which batch rows, tokens, heads and dims of (batch, token, head, dim) are wrong, in words."""
    parts = []
    for axis, word in enumerate(("batch rows", "tokens", "heads", "dims")):
        along = np.any(wrong, axis=tuple(a for a in range(4) if a != axis))
        if not along.all():
            parts.append(f"{word} {ranges(along)} (of {len(along)})")
    return ", ".join(parts) or "everywhere"


def _witnesses(implementation: Implementation, case: RopeCase) -> list[RopeCase]:
    """Cases with richer values and sizes, which tell mistakes apart that agree on a shrunk case."""
    values: dict[str, Any] = {"fill": "normal", "seed": 1, "pokes": ()}
    if implementation.domain.free_tables:
        values["table_fill"] = "normal"
    sizes: tuple[dict[str, Any], ...] = (
        {},
        {"rot_half": max(case.rot_half, 6)},
        {"q_heads": max(case.q_heads, 4), "k_heads": case.k_heads and max(case.k_heads, 4)},
        {"requests": tuple((start + 3, length + 2) for start, length in case.requests)},
    )
    found = []
    for size in sizes:
        try:
            witness = replace(case, **values, **size)
        except ValueError:
            continue
        if implementation.domain.why_outside(witness) is None:
            found.append(witness)
    return found


def _fits(out: Array, prediction: Prediction | None, dtype: torch.dtype) -> npt.NDArray[np.bool_] | None:
    """Which elements lie where the prediction puts them."""
    if prediction is None:
        return None
    value, products, store = prediction
    u, eta = _ARITHMETIC[torch.float64 if dtype == torch.float64 else torch.float32]
    with np.errstate(all="ignore"):
        reach = u * products + u * (np.abs(value) + u * products) + 2 * eta
        fits = (store(value - reach) <= out) & (out <= store(value + reach))
    return fits | (np.isnan(value) & np.isnan(out))
