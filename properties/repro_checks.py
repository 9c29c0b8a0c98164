"""The statements of a script that call a kernel and look for one kind of fault."""

import math
import textwrap

from properties.bounds import FORMATS, _arithmetic
from properties.repro_tensors import TensorWriter
from strategies import RopeCase
from strategies.arena import RED_ZONE


def _oracle(writer: TensorWriter) -> str:
    """The float64 rotation with its bound."""
    case = writer.case
    pairs, start = case.rot_half, case.rot_offset
    dims = f"torch.arange({pairs}) + {start}" if start else f"torch.arange({pairs})"
    if case.layout == "neox":
        lo, hi = dims, f"LO + {pairs}"
    else:
        lo, hi = dims.replace(f"torch.arange({pairs})", f"2 * torch.arange({pairs})"), "LO + 1"
    arithmetic = _arithmetic(case.dtype, writer.compute)
    u, eta, _ = FORMATS[arithmetic]
    u_out, eta_out, _ = FORMATS[case.dtype]
    bound = "arithmetic + {u_out} * (y.abs() + arithmetic) + {eta}"
    if arithmetic == case.dtype:
        bound = ("2 * arithmetic" if case.dtype == "float64" else "arithmetic") + " + {eta}"
    bound = bound.format(
        u_out=_power(u_out), eta=_power(eta_out if arithmetic == case.dtype else eta_out / 2)
    )
    clamp, table, outside = _lookup(case)
    sign = "-" if case.inverse else ""
    result = f"    return y, {bound}"
    if writer.may_overflow:
        limits = (
            f"(products < torch.finfo(torch.{arithmetic}).max)",
            f"(y.abs() + bound < {_largest(case.dtype)})",
        )
        result = (
            f"    bound = {bound}\n"
            "    # Where a product or the result may overflow, the order of operations decides.\n"
            f"    return y, torch.where({' & '.join(limits)}, bound, torch.inf)"
        )
    return f'''
LO = {lo}  # the dims of the first and of the second element of every pair
HI = {hi}


def rotate(x):
    """The exact rotation in float64, (batch, token, head, dim), and the error that rounding may cause."""
{clamp}    c, s = (table.double()[:, :, None] for table in ({table}))
{outside}    s = {sign}s
    lo, hi = x[..., LO].double(), x[..., HI].double()
    y, products = x.double().clone(), torch.zeros(x.shape, dtype=torch.float64)
    y[..., LO], y[..., HI] = lo * c - hi * s, hi * c + lo * s
    products[..., LO], products[..., HI] = (lo * c).abs() + (hi * s).abs(), (hi * c).abs() + (lo * s).abs()
    arithmetic = {_power(u)} * products + {_power(u)} * (y.abs() + {_power(u)} * products) + {_power(eta)}
{result}
'''.replace("    s = s\n", "")


def _lookup(case: RopeCase) -> tuple[str, str, str]:
    """Statements that find the rows, the expression for cos and sin, a statement for what lies outside."""
    poked = {name for name, _, _ in case.pokes}
    if case.table == "gathered":
        return "", "cos_in, sin_in" if case.rank == 4 else "cos_in[None], sin_in[None]", ""
    last = max(case.max_position - 1, 0)
    if case.axes == "none":
        outside = "    c[at != row] = float('nan')\n" if "positions" in poked else ""
        return f"    row = at.clamp(0, {last})\n", "cos_in[row], sin_in[row]", outside
    axis, lacking, outside = "axes_in", "", ""
    if "axes" in poked:
        axis = f"axes_in.clamp(0, {case.position_axes - 1})"
        lacking = f"    wanted[..., axes_in != {axis}] = -1\n"
    if poked & {"positions", "axes"}:
        outside = "    c[(wanted != row)[:, :, None]] = float('nan')\n"
    rows = (
        f"    wanted = at.movedim(0, -1)[..., {axis}]  # (batch, token, pair)\n"
        f"{lacking}    row = wanted.clamp(0, {last})\n"
    )
    return rows, f"t[row, torch.arange({case.rot_half})] for t in (cos_in, sin_in)", outside


def _largest(dtype: str) -> str:
    return f"torch.finfo(torch.{dtype}).max"


def _power(x: float) -> str:
    return f"2.0**{round(math.log2(x))}"


def _called(writer: TensorWriter) -> str:
    returned = ", ".join(f"{n}_out" for n in writer.names)
    return f"{returned} = {writer.call()}\n"


def _outputs(writer: TensorWriter) -> str:
    return ", ".join(f'("{n}", {n}_in, {n}_out)' for n in writer.names) + (
        "," if len(writer.names) == 1 else ""
    )


_ENDING = 'print("OK: the fault is gone")\n'


def check_values(writer: TensorWriter) -> str:
    overflow = " | bound.isinf()" if writer.may_overflow else ""
    return f"""{_oracle(writer)}

{_called(writer)}
for name, x, out in ({_outputs(writer)}):
    out = {writer.canonical("out")}.cpu()
    y, bound = rotate(x)
    error = (out.double() - y).abs()
    wrong = ~((error <= bound) | (out == y.to(out.dtype)) | (out.isnan() & y.isnan()){overflow})
    if wrong.any():
        ratio = torch.where(wrong, (error / bound).nan_to_num(nan=torch.inf), -1)
        b, n, h, d = (ratio == ratio.max()).nonzero()[0].tolist()
        print(
            f"FAULT: {{name}}_out[batch {{b}}, token {{n}}, head {{h}}, dim {{d}}] is "
            f"{{out[b, n, h, d].item()!r}}, exact {{y[b, n, h, d].item()!r}}: error {{ratio.max():.3g}} "
            f"times its bound; {{int(wrong.sum())}} of {{wrong.numel()}} elements are wrong"
        )
        sys.exit(1)
{_ENDING}"""


def _check_unwritten(writer: TensorWriter) -> str:
    overflow = " & ~bound.isinf()" if writer.may_overflow else ""
    return f"""{_oracle(writer)}

# Memory that nobody has written yet holds NaN.
torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = True
{_called(writer)}
for name, x, out in ({_outputs(writer)}):
    out = {writer.canonical("out")}.cpu()
    exact, bound = rotate(x)
    unwritten = out.isnan() & ~exact.isnan(){overflow}
    if unwritten.any():
        b, n, h, d = unwritten.nonzero()[0].tolist()
        print(
            f"FAULT: {{name}}_out[batch {{b}}, token {{n}}, head {{h}}, dim {{d}}] was never written; "
            f"{{int(unwritten.sum())}} of {{unwritten.numel()}} elements are not"
        )
        sys.exit(1)
{_ENDING}"""


_BITS_HELPER = '''
def bits(x):
    """The bit patterns, so that NaN equals itself and -0.0 differs from 0.0."""
    x = x.detach().cpu().contiguous()
    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])

'''


def _check_tail(writer: TensorWriter) -> str:
    start, end = writer.case.rot_offset, writer.case.rot_offset + 2 * writer.case.rot_half
    return f"""{_BITS_HELPER}
{_called(writer)}
for name, x, out in ({_outputs(writer)}):
    changed = bits({writer.canonical("out")}) != bits(x)
    changed[..., {start}:{end}] = False  # the rotated dims
    if changed.any():
        b, n, h, d = changed.nonzero()[0].tolist()
        print(
            f"FAULT: {{name}}_out[batch {{b}}, token {{n}}, head {{h}}, dim {{d}}] does not rotate and is "
            f"{{({writer.canonical("out")})[b, n, h, d].item()!r}}, was {{x[b, n, h, d].item()!r}}"
        )
        sys.exit(1)
{_ENDING}"""


def _check_unchanged(writer: TensorWriter) -> str:
    kept = [] if writer.case.inplace else list(writer.names)
    kept += ["cos", "sin"] + ([] if writer.case.positions == "implied" else ["positions"])
    kept += [] if writer.case.axes == "none" else ["axes"]
    return _compare(writer, kept, "were changed")


def _check_v(writer: TensorWriter) -> str:
    return _compare(writer, ["v"], "were changed, and V is no argument")


def _compare(writer: TensorWriter, names: list[str], what: str) -> str:
    tensors = "{" + ", ".join(f'"{n}": {n}' for n in names) + "}"
    return f"""{_BITS_HELPER}
tensors = {tensors}
before = {{name: bits(x).clone() for name, x in tensors.items()}}
{_called(writer)}
for name, x in tensors.items():
    changed = bits(x) != before[name]
    if changed.any():
        print(f"FAULT: elements of {{name}} {what}: {{int(changed.sum())}}")
        sys.exit(1)
{_ENDING}"""


def _regions(writer: TensorWriter) -> str:
    """A statement: the tensors by the buffer they lie in."""
    by_buffer: dict[str, list[str]] = {}
    for name, buffer in writer.buffers.items():
        by_buffer.setdefault(buffer, []).append(name)
    lines = [
        f"    ({buffer}, {{{', '.join(f'{chr(34)}{n}{chr(34)}: {n}' for n in names)}}}),"
        for buffer, names in by_buffer.items()
    ]
    return "\n".join(["regions = [", *lines, "]", ""])


_OWNED_HELPER = '''
def owned(memory, tensors):
    """Which elements of the memory belong to a tensor."""
    mask = torch.zeros(memory.numel(), dtype=torch.bool)
    for x in tensors.values():
        mask.as_strided(x.shape, x.stride(), x.storage_offset()).fill_(True)
    return mask

'''


def _check_writes(writer: TensorWriter) -> str:
    return f'''{_BITS_HELPER}{_OWNED_HELPER}
class Surround(torch.utils._python_dispatch.TorchDispatchMode):
    """What the kernel allocates for its outputs lies between red zones too."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        x = func(*args, **(kwargs or {{}}))
        if "empty" not in func.__name__ or not x.numel() or not x.is_floating_point():
            return x
        extent = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride()))
        memory = torch.ones(extent + {2 * RED_ZONE}, dtype=x.dtype, device=x.device)
        view = memory.as_strided(x.shape, x.stride(), {RED_ZONE})
        regions.append((memory, {{"an output": view}}))
        return view


{_regions(writer)}with Surround():
    before = [bits(memory).clone() for memory, _ in regions]
{textwrap.indent(_called(writer).rstrip(), "    ")}
before += [bits(torch.ones_like(memory)) for memory, _ in regions[len(before) :]]
for (memory, tensors), old in zip(regions, before):
    written = (bits(memory) != old) & ~owned(memory, tensors)
    if written.any():
        names = " and ".join(tensors)
        print(f"FAULT: elements outside {{names}} were written: {{int(written.sum())}}")
        sys.exit(1)
{_ENDING}'''


def _check_reads(writer: TensorWriter) -> str:
    return f"""{_OWNED_HELPER}
# No output shows this read: what it loads is not used. A minimal memory trace does, in Triton's interpreter,
# where a pointer is the address in CPU memory.
from triton.runtime.interpreter import interpreter_builder  # noqa: E402

loads = []
load = interpreter_builder.create_masked_load


def traced_load(pointers, mask, *args):
    loads.append(pointers.data[np.asarray(mask.data)])
    return load(pointers, mask, *args)


interpreter_builder.create_masked_load = traced_load
{_called(writer)}
loads = torch.tensor(np.unique(np.concatenate(loads)).astype(np.int64))
{_regions(writer)}for memory, tensors in regions:
    index = (loads - memory.data_ptr()) // memory.element_size()
    index = index[(index >= 0) & (index < memory.numel())]
    stray = index[~owned(memory, tensors)[index]]
    if len(stray):
        names = " and ".join(tensors)
        first = next(iter(tensors.values())).storage_offset()
        print(
            f"FAULT: elements outside {{names}} are read: {{len(stray)}}, the first at offset "
            f"{{int(stray[0]) - first}} from the first element of {{next(iter(tensors))}}"
        )
        sys.exit(1)
{_ENDING}"""


def _check_metadata(writer: TensorWriter) -> str:
    names = ", ".join(f'("{n}", {n})' for n in writer.names)
    place, and_place = "", ""
    if writer.case.inplace:
        place = "\n    same = same and (out.data_ptr(), out.stride()) == (x.data_ptr(), x.stride())"
        and_place = " in the memory of its input"
    return f"""
def kind(x):
    return (tuple(x.shape), x.dtype, x.device) if isinstance(x, torch.Tensor) else type(x).__name__


outputs = {writer.call()}
outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
if not isinstance(outputs, (tuple, list)) or len(outputs) != {len(writer.names)}:
    print(f"FAULT: returned {{kind(outputs)}}, expected {len(writer.names)} tensors")
    sys.exit(1)
for (name, x), out in zip([{names}], outputs):
    same = kind(out) == kind(x){place}
    if not same:
        print(f"FAULT: {{name}}_out is {{kind(out)}}, expected {{kind(x)}}{and_place}")
        sys.exit(1)
{_ENDING}"""


def _check_crash(writer: TensorWriter) -> str:
    return f"""
try:
{textwrap.indent(writer.call(), "    ")}
    if device == "cuda":
        torch.cuda.synchronize()
except Exception as error:
    print(f"FAULT: raised {{type(error).__name__}}: {{error}}".splitlines()[0])
    sys.exit(1)
{_ENDING}"""


CHECKS = {
    "UnwrittenOutput": _check_unwritten,
    "TailChanged": _check_tail,
    "InputChanged": _check_unchanged,
    "ValueChanged": _check_v,
    "OutOfBoundsWrite": _check_writes,
    "OutOfBoundsRead": _check_reads,
    "WrongMetadata": _check_metadata,
    "Crash": _check_crash,
}
