"""Every known mistake, planted, is the one that the diagnosis names."""

import pytest
import torch

from properties.diagnosis import explain
from properties.mistakes import MISTAKES, Mistake
from properties.scene import Scene
from strategies import Arena, RopeCase, Strides

# Together these show every mistake: the first case on which a mistake makes a difference plants it.
STAGES = (
    RopeCase(
        dtype="bfloat16",
        requests=((5, 3), (9, 4)),
        q_heads=4,
        k_heads=3,
        rot_half=5,
        tail=7,
        rot_offset=2,
        q_strides=Strides(head_pad=1),
        k_strides=Strides(order="hnbd", offset=3),
        positions_step=2,
        table_fill="normal",
        table_slack=2,
        table_pad=3,
        fill="normal",
    ),
    RopeCase(
        dtype="bfloat16",
        rank=4,
        requests=((3, 4), (6, 4)),
        q_heads=2,
        k_heads=2,
        rot_half=5,
        table_fill="normal",
        fill="normal",
    ),
    RopeCase(
        rank=4,
        requests=((0, 3), (0, 3)),
        rot_half=4,
        positions="implied",
        table="gathered",
        table_fill="normal",
        fill="normal",
        pokes=(("cos", 17, "0.25"),),
    ),
    RopeCase(
        requests=((5, 3),), rot_half=8, axes="interleaved", table_fill="normal", table_slack=2, fill="normal"
    ),
)
# On every case that shows one of these, the others of its line agree with it.
ALIASES = (
    {"the table rounded to {dtype}", "the table rounded to bfloat16"},
    {
        "the index of the token instead of its position",
        "the index of the token in its request, without the start",
    },
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
@pytest.mark.parametrize("layout", ["neox", "gptj"])
def test_a_planted_mistake_is_named(mistake: Mistake, layout: str) -> None:
    words = {"layout": layout, "other": "gptj" if layout == "neox" else "neox"}
    for stage in STAGES:
        case = RopeCase(**(vars(stage) | {"layout": layout}))
        for name in ("k", "q"):
            arena = Arena(case)
            prediction = mistake.predict(Scene(arena, name))
            if prediction is None:
                continue
            out = torch.from_numpy(prediction.store(prediction.value)).to(getattr(torch, case.dtype))
            diagnosis = explain(arena, name, out, "float32")
            if diagnosis is not None:
                named = set(diagnosis.names)
                expected = {mistake.name.format(dtype=case.dtype, **words)}
                assert expected <= named
                allowed = next((a for a in ALIASES if mistake.name in a), set())
                assert named <= expected | {a.format(dtype=case.dtype, **words) for a in allowed}, case
                assert diagnosis.whole_rows
                return
    assert (mistake.name, layout) == ("the pair at head_dim / 2 instead of rot_half", "gptj")
