"""apply_rope: what it refuses, what it says, and the paths that properties do not reach."""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from rope import (
    PositionError,
    RopeError,
    RopePrecisionWarning,
    apply_rope,
    checks,
    kernels,
    launch,
    rope_table,
)

T, H, K, D = 6, 4, 2, 8


def _inputs(**overrides):
    values = {
        "q": torch.randn(T, H, D),
        "k": torch.randn(T, K, D),
        "cos": torch.randn(16, D // 2),
        "sin": torch.randn(16, D // 2),
        "positions": torch.arange(T),
    }
    return values | overrides


def _overlapping(*shape):
    return torch.randn(shape[-1] * 8)[: shape[-1]].expand(*shape)


REFUSED = {
    "q is no tensor": ({"q": [1.0]}, {}, "q must be a torch.Tensor, got list"),
    "k is no tensor": ({"k": 3}, {}, "k must be a torch.Tensor, got int"),
    "sparse q": ({"q": torch.zeros(T, H, D).to_sparse()}, {}, "q must be a strided tensor"),
    "q of two axes": ({"q": torch.zeros(T, D)}, {}, r"q has shape \(6, 8\), expected 3 axes"),
    "q of five axes": ({"q": torch.zeros(1, 1, T, H, D)}, {}, "expected 3 axes"),
    "integer q": ({"q": torch.zeros(T, H, D).int()}, {}, "q has dtype torch.int32, expected one of"),
    "complex q": ({"q": torch.zeros(T, H, D).cfloat()}, {}, "q has dtype torch.complex64"),
    "k of another dtype": ({"k": torch.zeros(T, K, D).half()}, {}, "k has dtype torch.float16 but q has"),
    "k of another rank": ({"k": torch.zeros(1, T, K, D)}, {}, "both must have 3 axes"),
    "k of other tokens": ({"k": torch.zeros(T + 1, K, D)}, {}, "may differ only in the number of heads"),
    "k of another head_dim": ({"k": torch.zeros(T, K, D + 2)}, {}, "may differ only in the number of"),
    "k on another device": ({"k": torch.zeros(T, K, D, device="meta")}, {}, "k is on meta but q is on cpu"),
    "cos and sin differ": ({"sin": torch.zeros(15, D // 2)}, {}, "both must be the same"),
    "dtypes of cos and sin": ({"sin": torch.zeros(16, D // 2).double()}, {}, "sin has torch.float64"),
    "float64 table": (
        {"cos": torch.zeros(16, D // 2).double(), "sin": torch.zeros(16, D // 2).double()},
        {},
        r"pass cos.float\(\) and sin.float\(\)",
    ),
    "integer table": (
        {"cos": torch.zeros(16, D // 2).int(), "sin": torch.zeros(16, D // 2).int()},
        {},
        "expected torch.float32",
    ),
    "table of one axis": ({"cos": torch.zeros(4), "sin": torch.zeros(4)}, {}, "cos has shape"),
    "full-width table": (
        {"cos": torch.zeros(16, D), "sin": torch.zeros(16, D)},
        {},
        r"holds every angle twice, pass one copy, cos\[..., :4\]",
    ),
    "full-width table with rot_dim": (
        {"cos": torch.zeros(16, D), "sin": torch.zeros(16, D)},
        {"rot_dim": D},
        "holds every angle twice",
    ),
    "gathered table for packed tokens": (
        {"cos": torch.zeros(1, T, 4), "sin": torch.zeros(1, T, 4), "positions": None},
        {},
        r"pass cos\[0\] and sin\[0\]",
    ),
    "odd rot_dim": ({}, {"rot_dim": 7}, "rot_dim is 7, expected an even number"),
    "negative rot_dim": ({}, {"rot_dim": -2}, "rot_dim is -2"),
    "rot_dim that is no int": ({}, {"rot_dim": 8.0}, "rot_dim is 8.0"),
    "rot_dim above the table": ({}, {"rot_dim": 6}, "rot_dim is 6 but cos has 4 columns, expected"),
    "rot_dim above head_dim": (
        {"cos": torch.zeros(16, 9), "sin": torch.zeros(16, 9)},
        {},
        "rot_dim is 18 but head_dim is 8",
    ),
    "rot_offset past the end": ({}, {"rot_offset": 1}, "rot_offset is 1, expected 0 to"),
    "negative rot_offset": ({}, {"rot_offset": -1}, "rot_offset is -1"),
    "unknown layout": ({}, {"layout": "interleaved"}, "layout is 'interleaved', expected"),
    "head_axis out of reach": ({}, {"head_axis": 2}, "head_axis is 2, expected -2"),
    "head_axis that is no int": ({}, {"head_axis": None}, "head_axis is None"),
    "positions of another length": ({"positions": torch.arange(T + 1)}, {}, r"expected \(6,\)"),
    "positions of two axes": ({"positions": torch.zeros(1, T).long()}, {}, r"expected \(6,\)"),
    "floating positions": ({"positions": torch.zeros(T)}, {}, "expected torch.int32 or torch.int64"),
    "int16 positions": ({"positions": torch.zeros(T).short()}, {}, "expected torch.int32 or torch.int64"),
    "position past the table": ({"positions": torch.full((T,), 16)}, {}, "token 0 has position 16"),
    "negative position": ({"positions": torch.tensor([0, 1, 2, -1, 4, 5])}, {}, "token 3 has position -1"),
    "more tokens than rows": (
        {"positions": None, "cos": torch.zeros(5, 4), "sin": torch.zeros(5, 4)},
        {},
        "6 tokens without positions reach position 5, but the table has 5 rows",
    ),
    "expanded q in place": ({"q": _overlapping(T, H, D)}, {"inplace": True}, "overlaps itself"),
    "expanded k in place": ({"k": _overlapping(T, K, D)}, {"inplace": True}, "k, with shape .* overlaps"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("inplace", [False, True])
def test_wrong_input_is_refused_and_nothing_is_written(name, inplace):
    overrides, options, message = REFUSED[name]
    inputs = _inputs(**overrides)
    before = {
        n: t.clone() for n, t in inputs.items() if isinstance(t, torch.Tensor) and t.device.type == "cpu"
    }
    with pytest.raises(RopeError, match=message):
        apply_rope(**inputs, **({"inplace": inplace} | options))
    for n, t in before.items():
        assert t.is_sparse or t.equal(inputs[n])


def test_q_and_k_that_share_memory_are_refused_in_place():
    packed = torch.randn(T, H + 2 * K, D)
    table = torch.ones(16, D // 2)
    q, k = packed[:, :H], packed[:, H - 1 : H + K]
    with pytest.raises(RopeError, match="q and k share memory"):
        apply_rope(q, k, table, table, inplace=True)
    with pytest.raises(RopeError, match="q and k share memory"):
        apply_rope(q, q, table, table, inplace=True)
    apply_rope(q, packed[:, H : H + K], table, table, inplace=True)


def test_batched_shapes_are_named_in_errors():
    q = torch.randn(2, T, H, D)
    table = torch.ones(16, D // 2)
    with pytest.raises(RopeError, match=r"expected \(6,\) or \(2, 6\)"):
        apply_rope(q, None, table, table, torch.zeros(1, T).long())
    with pytest.raises(RopeError, match=r"expected \(2, 6, rot_dim // 2\).*expand shares"):
        apply_rope(q, None, table[None, :T], table[None, :T])
    gathered = table[None, :T].expand(2, -1, -1)
    with pytest.raises(RopeError, match="positions were given too"):
        apply_rope(q, None, gathered, gathered, torch.zeros(2, T).long())
    bad = torch.zeros(2, T).long()
    bad[1, 4] = 99
    with pytest.raises(PositionError, match="token 4 of batch row 1 has position 99"):
        apply_rope(q, None, table, table, bad)


def test_head_axis_counts_from_either_end():
    q = torch.randn(2, T, H, D)
    cos, sin = torch.randn(16, D // 2), torch.randn(16, D // 2)
    expected = apply_rope(q, None, cos, sin)
    assert apply_rope(q, None, cos, sin, head_axis=2).equal(expected)
    for axis in (1, -3):
        heads_first = apply_rope(q.transpose(1, 2), None, cos, sin, head_axis=axis)
        assert heads_first.transpose(1, 2).equal(expected)
    packed = apply_rope(q[0].transpose(0, 1), None, cos, sin, head_axis=0)
    assert packed.transpose(0, 1).equal(expected[0])


@pytest.mark.parametrize("shape", [(0, H, D), (T, 0, D), (0, T, H, D), (2, 0, H, D)])
def test_empty_tensors_pass(shape):
    table = torch.ones(16, D // 2)
    assert apply_rope(torch.randn(shape), None, table, table).shape == shape


def test_nothing_rotates_when_rot_dim_is_0():
    q = torch.randn(T, H, D)
    empty = torch.ones(16, 0)
    assert apply_rope(q, None, empty, empty).equal(q)
    assert apply_rope(q, None, empty, empty, inplace=True) is q


def test_without_k_only_q_comes_back():
    assert isinstance(apply_rope(**_inputs(k=None)), torch.Tensor)


def test_in_place_returns_the_inputs():
    inputs = _inputs()
    q, k = apply_rope(**inputs, inplace=True)
    assert q is inputs["q"]
    assert k is inputs["k"]


@pytest.fixture
def unwarned(monkeypatch):
    """As if no warning had been given yet."""
    monkeypatch.setattr(checks, "_warned", set())


@pytest.mark.usefixtures("unwarned")
def test_a_16_bit_table_warns_once():
    inputs = _inputs(cos=torch.ones(16, D // 2).half(), sin=torch.ones(16, D // 2).half())
    with pytest.warns(RopePrecisionWarning, match="Pass float32 tables"):
        apply_rope(**inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply_rope(**inputs)


# Half a unit of the table, in units of the activations.
UNITS = {
    (torch.bfloat16, torch.bfloat16): 0.5,
    (torch.float16, torch.float16): 0.5,
    (torch.bfloat16, torch.float16): 4,
    (torch.float16, torch.bfloat16): 0.0625,
    (torch.bfloat16, torch.float32): 32768,
    (torch.float16, torch.float32): 4096,
}


@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize(("table", "activations"), UNITS)
def test_the_warning_says_by_how_much_a_16_bit_table_moves_a_value(table, activations):
    """And so it does, near position 1 as far out: measured, and never more."""
    cos, sin = rope_table(64, 40_000)
    units = UNITS[table, activations]
    said = f"by up to {units:g} units in the last place of {activations} .* from position 1 on and no more"
    q = torch.zeros(1, 1, 64, dtype=activations)
    with pytest.warns(RopePrecisionWarning, match=said) as warned:
        apply_rope(q, None, cos.to(table), sin.to(table))
    assert "Rows" not in str(warned[0].message)
    x = torch.randn(2, 1000, 32, generator=torch.Generator().manual_seed(0)).double()
    for rows in (slice(1, 1001), slice(39_000, 40_000)):
        c, s = cos[rows].double(), sin[rows].double()
        moved = x[0] * (c.to(table).double() - c) - x[1] * (s.to(table).double() - s)
        unit = torch.finfo(activations).eps * ((x[0] * c).abs() + (x[1] * s).abs())
        assert 0.8 * units < (moved.abs() / unit).max() <= units


@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize(("positions", "row"), [(torch.bfloat16, 257), (torch.float16, 2049)])
def test_the_warning_names_the_position_from_which_rows_repeat(positions, row):
    """A table whose positions were rounded: the first that the dtype cannot hold has its neighbour's row."""
    rounded = torch.arange(4000).to(positions).float()
    cos, sin = (x[rounded.long()].to(positions) for x in rope_table(D, 4100))
    given = f"Rows {row - 1} and {row} are the same, .* from position {row} on"
    with pytest.warns(RopePrecisionWarning, match=given):
        apply_rope(**_inputs(cos=cos, sin=sin))


@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize("call", ["vmap", "make_fx", "fake"])
def test_the_warning_reads_no_values_that_are_not_there(call):
    cos, sin = (x.half() for x in rope_table(D, 16))
    rotate = lambda q, cos, sin: apply_rope(q, None, cos, sin)  # noqa: E731
    q = torch.randn(T, H, D)
    fake = FakeTensorMode()
    run = {
        "vmap": lambda: torch.vmap(rotate)(q[None], cos[None], sin[None]),
        "make_fx": lambda: make_fx(rotate)(q, cos, sin),
        "fake": lambda: rotate(*(fake.from_tensor(x) for x in (q, cos, sin))),
    }[call]
    with pytest.warns(RopePrecisionWarning, match="4096 units"):
        traced = run()
    if call == "make_fx":
        first = next(node for node in traced.graph.nodes if node.op == "call_function")
        assert first.target == torch.ops.rope.rotate.default


@pytest.mark.parametrize("layout", ["neox", "gptj"])
@pytest.mark.parametrize("rot_offset", [0, 3])
def test_the_kernel_itself_never_reads_outside_the_table(layout, rot_offset):
    """Below the argument check: NaN for such a token, its tail and every other token untouched."""
    if not launch.interpreted():
        pytest.skip("the compiled kernel's guard is a property on CUDA")
    q = torch.randn(4, 2, 11)
    cos, sin = torch.randn(5, 4), torch.randn(5, 4)
    positions = torch.tensor([4, 5, -1, 2**62])
    geometry = checks.check_call(q, None, cos, sin, positions, None, layout, None, rot_offset, -2)
    out = torch.zeros_like(q)
    launch.rotate(q, None, out, None, cos, sin, positions, None, geometry, inverse=False)
    rotated = slice(rot_offset, rot_offset + 8)
    assert out[1:, :, rotated].isnan().all()
    assert out[0].equal(
        apply_rope(q[:1], None, cos, sin, positions[:1], layout=layout, rot_offset=rot_offset)[0]
    )
    assert out[..., :rot_offset].equal(q[..., :rot_offset])
    assert out[..., rot_offset + 8 :].equal(q[..., rot_offset + 8 :])


@pytest.mark.gpu
def test_strides_that_differ_in_value_share_one_kernel():
    table = torch.ones(64, 64, device="cuda")
    launch.rope_kernel.device_caches.clear()
    for heads, pad in ((8, 0), (8, 16), (12, 8), (16, 64)):
        q = torch.randn(5, heads, 128 + pad, device="cuda", dtype=torch.bfloat16)[..., :128]
        apply_rope(q, q[:, :4], table, table)
    compiled = [len(cache[0]) for cache in launch.rope_kernel.device_caches.values()]
    assert sum(compiled) <= 2  # one per tile


def test_no_number_that_varies_between_calls_is_specialised():
    names = launch.rope_kernel.arg_names
    assert names[kernels.FIRST_SCALAR - 1 : kernels.FIRST_SCALAR + 1] == ["axes_ptr", "q_n"]
    assert names[kernels.LAST_SCALAR : kernels.LAST_SCALAR + 2] == ["head_blocks", "GPTJ"]


@pytest.mark.parametrize("what", ["batch rows", "tokens", "heads", "table rows"])
def test_more_than_the_kernels_can_count_is_refused(what: str) -> None:
    sizes = dict.fromkeys(["batch rows", "tokens", "heads", "table rows"], 1) | {what: 2**30 + 1}
    batch, tokens, heads, rows = sizes.values()
    q = torch.zeros(1, 1, 1, 4).expand(batch, tokens, heads, 4)
    table = torch.ones(1, 2).expand(rows, 2)
    positions = torch.zeros(1, 1, dtype=torch.int64).expand(batch, tokens)
    with pytest.raises(RopeError, match=f"1073741825 {what}, expected at most 1073741824"):
        apply_rope(q, None, table, table, positions)
