"""apply_rope over several position axes: what it accepts and refuses, both backends, gradients."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from properties.implementations import default_device
from rope import PositionError, RopeError, api, apply_rope, checks, launch, rope_table
from rope.axes import mrope_axes

TABLE = rope_table(8, 20)
AXES = mrope_axes((2, 1, 1))


@pytest.fixture(params=["eager", "kernels"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The device of the backend: plain PyTorch on the CPU, or the Triton kernels."""
    if request.param == "eager":
        monkeypatch.setattr(api, "_kernels_run_on", lambda q: False)
        yield "cpu"
    else:
        yield default_device()


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def arguments(**changes: Any) -> dict[str, Any]:
    """A call with 5 packed tokens, 4 pairs and 3 axes."""
    positions = torch.tensor([[0, 1, 2, 9, 3], [4, 19, 6, 7, 3], [8, 5, 0, 11, 3]])
    given = {"q": random(5, 2, 10), "k": random(5, 1, 10), "cos": TABLE.cos, "sin": TABLE.sin}
    return given | {"positions": positions, "axes": AXES} | changes


def definition(given: dict[str, Any], name: str) -> torch.Tensor:
    """The rotation by the definition, pair by pair, in float64; neox, packed tokens."""
    x = given[name].double()
    out = x.clone()
    half = given["cos"].shape[-1]
    for pair, axis in enumerate(given["axes"].tolist()):
        rows = given["positions"][axis].long()
        c, s = (given[t][rows, pair].double()[:, None] for t in ("cos", "sin"))
        lo, hi = x[..., pair], x[..., pair + half]
        out[..., pair], out[..., pair + half] = lo * c - hi * s, hi * c + lo * s
    return out


@pytest.mark.parametrize("position_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("axes_dtype", [torch.int32, torch.int64])
def test_each_pair_turns_by_the_position_of_its_axis(
    device: str, axes_dtype: torch.dtype, position_dtype: torch.dtype
) -> None:
    """Strided axes and positions, too."""
    given = {name: x.to(device) for name, x in arguments().items()}
    strided = {
        "axes": given["axes"].to(axes_dtype).repeat_interleave(3)[::3],
        "positions": given["positions"].to(position_dtype).T.contiguous().T,
    }
    for name, out in zip(("q", "k"), apply_rope(**given | strided), strict=True):
        exact = definition({n: x.cpu() for n, x in given.items()}, name)
        torch.testing.assert_close(out.cpu().double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layout", ["neox", "gptj"])
@pytest.mark.parametrize("inverse", [False, True])
def test_text_tokens_turn_as_with_one_axis(device: str, layout: str, inverse: bool) -> None:
    """Equal positions on every axis, bit for bit; and so when every pair reads one axis."""
    given = {name: x.to(device) for name, x in arguments().items()}
    options: dict[str, Any] = {"layout": layout, "inverse": inverse, "rot_offset": 1}
    for axis, row in enumerate(given["positions"]):
        plain = apply_rope(**given | {"positions": row, "axes": None}, **options)
        equal = apply_rope(**given | {"positions": row.expand(3, -1)}, **options)
        one = apply_rope(**given | {"axes": torch.full_like(given["axes"], axis)}, **options)
        for p, e, o in zip(plain, equal, one, strict=True):
            assert torch.equal(p, e)
            assert torch.equal(p, o)


def test_batches_and_one_row_of_positions_for_all(device: str) -> None:
    """(axes, batch, tokens), and (axes, tokens) for the whole batch, as the rows packed."""
    given = {name: x.to(device) for name, x in arguments().items()}
    rows = torch.stack((given["positions"], given["positions"].flip(1)), 1)
    q, k = (torch.stack((given[n], given[n].flip(0))) for n in ("q", "k"))
    for positions in (rows, given["positions"]):
        outputs = apply_rope(**given | {"q": q, "k": k, "positions": positions})
        for b in range(2):
            packed = positions[:, b] if positions.dim() == 3 else positions
            alone = apply_rope(**given | {"q": q[b], "k": k[b], "positions": packed})
            assert all(torch.equal(out[b], one) for out, one in zip(outputs, alone, strict=True))


def test_in_place_and_nothing_to_rotate(device: str) -> None:
    given = {name: x.to(device) for name, x in arguments().items()}
    expected = apply_rope(**given)
    for out, e in zip(apply_rope(**given, inplace=True), expected, strict=True):
        assert torch.equal(out, e)
    no_tokens = {"q": given["q"][:0], "k": None, "positions": given["positions"][:, :0]}
    assert apply_rope(**given | no_tokens).shape == (0, 2, 10)
    no_pairs = {"cos": given["cos"][:, :0], "sin": given["sin"][:, :0], "axes": given["axes"][:0]}
    assert torch.equal(apply_rope(**given | no_pairs)[1], given["k"])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "without positions": (
        {"positions": None},
        "axes was given without positions, expected positions of shape",
    ),
    "gathered table": (
        {"q": random(1, 5, 2, 10), "k": None, "positions": None}
        | {"cos": random(1, 5, 4), "sin": random(1, 5, 4)},
        r"cos has shape \(1, 5, 4\), already gathered per token, and axes was given too: pass axes=None",
    ),
    "no tensor": ({"axes": [0, 0, 1, 2]}, "axes must be a torch.Tensor, got list"),
    "sections": ({"axes": torch.tensor([2, 1, 1])}, r"axes has shape \(3,\), expected rot_dim // 2 = \(4,\)"),
    "two dimensions": ({"axes": AXES[None]}, r"axes has shape \(1, 4\), expected rot_dim // 2 = \(4,\)"),
    "dtype": ({"axes": AXES.float()}, "axes has dtype torch.float32, expected torch.int32 or torch.int64"),
    "device": ({"axes": AXES.to("meta")}, "axes is on meta but q is on cpu: move axes to cpu first"),
    "positions of one axis": (
        {"positions": torch.arange(5)},
        r"positions have shape \(5,\), expected \(axes, 5\), one position per axis and token",
    ),
    "positions the other way": (
        {"positions": torch.zeros(5, 3, dtype=torch.int64)},
        r"positions have shape \(5, 3\), expected \(axes, 5\)",
    ),
    "positions of no axis": (
        {"positions": torch.zeros(0, 5, dtype=torch.int64)},
        r"positions have shape \(0, 5\), expected \(axes, 5\)",
    ),
    "forgotten": ({"axes": None}, r"positions have shape \(3, 5\), expected \(5,\).* axes=mrope_axes\(...\)"),
    "axis past the last": (
        {"axes": torch.tensor([0, 1, 3, 2])},
        r"axes says that pair 2 reads position axis 3, but positions have 3 \(axes 0 to 2\)",
    ),
    "negative axis": ({"axes": torch.tensor([0, 1, 2, -1])}, "pair 3 reads position axis -1"),
}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_wrong_axes_are_refused(name: str, inplace: bool) -> None:
    changes, message = REFUSED[name]
    given = arguments(**changes)
    before = given["q"].clone()
    with pytest.raises(RopeError, match=message):
        apply_rope(**given, inplace=inplace)
    assert torch.equal(given["q"], before)


@pytest.mark.parametrize(
    ("q", "where"), [((5, 2, 10), "token 3 on"), ((1, 5, 2, 10), "token 3 of batch row 0 on")]
)
def test_a_position_outside_the_table_is_named_with_its_axis(q: tuple[int, ...], where: str) -> None:
    positions = arguments()["positions"].clone()
    positions[1, 3] = 20
    positions = positions if len(q) == 3 else positions[:, None]
    with pytest.raises(PositionError, match=f"{where} axis 1 has position 20, but the table has 20 rows"):
        apply_rope(**arguments(q=random(*q), k=None, positions=positions), validate=True)


def test_below_the_check_an_axis_or_a_position_outside_gives_nan_to_its_pairs_alone(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(api, "check_position_range", lambda *_: None)
    positions = arguments()["positions"].clone()
    positions[1, 3], positions[2, 0] = 20, -1
    axes = torch.tensor([0, 1, 2, 3])
    wrong = torch.zeros(5, 4, dtype=torch.bool)
    wrong[3, 1] = wrong[0, 2] = True
    for bad in (3, -1, 2**40, -(2**40)):
        axes[3], wrong[:, 3] = bad, True
        given = {n: x.to(device) for n, x in arguments(positions=positions, axes=axes).items()}
        for out, x in zip(apply_rope(**given), (given["q"], given["k"]), strict=True):
            lo_and_hi = out.cpu()[..., :8].unflatten(-1, (2, 4))
            assert torch.equal(lo_and_hi.isnan(), wrong[:, None, None].expand_as(lo_and_hi))
            assert torch.equal(out[..., 8:], x[..., 8:])


def test_no_other_memory_is_read_for_an_axis_or_a_position_outside() -> None:
    """NaN stands around the positions' and the table's memory that may be read."""
    if not launch.interpreted():
        pytest.skip("addresses are seen in the interpreter")
    from properties.trace import recorded

    given = arguments(k=None, axes=torch.tensor([0, 3, 2, -1]))
    given["positions"][0, 1] = 20
    geometry = checks.check_call(*given.values(), "neox", None, 0, -2)
    out = torch.empty_like(given["q"])
    with recorded() as trace:
        launch.rotate(
            given["q"], None, out, None, *list(given.values())[2:], geometry, inverse=False
        )  # fmt: skip
    allowed = set()
    for x in (given["q"], given["cos"], given["sin"], given["positions"], given["axes"]):
        allowed |= set(range(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()))
    read = {int(a) for access in trace.accesses if access.kind == "load" for a in access.addresses}
    assert read
    assert read <= allowed


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layout", ["neox", "gptj"])
def test_q_and_k_twice_differentiable(device: str, layout: str, inplace: bool) -> None:
    given = {n: x.to(device) for n, x in arguments().items()}
    table = given["cos"].double(), given["sin"].double()

    def rotated(q: torch.Tensor, k: torch.Tensor) -> Any:
        q, k = (q.clone(), k.clone()) if inplace else (q, k)
        options: dict[str, Any] = {
            "layout": layout,
            "axes": given["axes"],
            "inplace": inplace,
            "rot_offset": 1,
        }
        return apply_rope(q, k, *table, given["positions"], **options)

    inputs = tuple(given[n].double().requires_grad_() for n in ("q", "k"))
    assert gradcheck(rotated, inputs, fast_mode=True)
    assert gradgradcheck(rotated, inputs, fast_mode=True)


def test_the_gradient_is_the_inverse_rotation_by_the_same_axes(device: str) -> None:
    given = {n: x.to(device) for n, x in arguments().items()}
    q = given["q"].clone().requires_grad_()
    out = apply_rope(**given | {"q": q, "k": None})
    grad = random(5, 2, 10).to(device).flip(0)
    out.backward(grad)
    assert torch.equal(q.grad, apply_rope(**given | {"q": grad, "k": None}, inverse=True))


@pytest.mark.parametrize("rank", [3, 4])
def test_table_twice_differentiable(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setattr(api, "_kernels_run_on", lambda q: False)
    given = arguments()
    positions = given["positions"].clone()
    positions[1, 3] = positions[0, 3]
    q = given["q"].double()
    if rank == 4:
        q, positions = torch.stack((q, q.flip(0))), torch.stack((positions, positions.flip(1)), 1)

    def rotated(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        return apply_rope(q, None, cos, sin, positions, axes=AXES)

    inputs = tuple(x.double().requires_grad_() for x in (q, given["cos"], given["sin"]))
    assert gradcheck(rotated, inputs, fast_mode=True)
    assert gradgradcheck(rotated, inputs, fast_mode=True)


def test_vmap_over_positions() -> None:
    """torch.func takes the eager way, which gathers by pair too."""
    given = arguments(k=None)
    many = torch.stack((given["positions"], given["positions"].flip(1)))
    rotate = lambda positions: apply_rope(**given | {"positions": positions})  # noqa: E731
    for out, positions in zip(torch.vmap(rotate)(many), many, strict=True):
        torch.testing.assert_close(out, rotate(positions), rtol=0, atol=1e-6)
