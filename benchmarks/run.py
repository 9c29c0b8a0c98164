"""Every implementation side by side, in one process on one GPU.

    python -m benchmarks.run [--json PATH] [--tokens N ...] [--shapes NAME ...]

Prints a line per shape and number of tokens: microseconds per call inside a CUDA graph, over buffers that no
cache holds, and as a share of the limit (compulsory bytes at the rate of the faster of a device copy and an
in-place pass over as many bytes). Then host time per eager call, and forward + backward.
`python -m benchmarks.plot PATH` draws the JSON.
"""

import argparse
import importlib.metadata
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import triton

from benchmarks.peers import OPERATORS_NOT_RUN, PEERS, Peer
from benchmarks.shapes import SHAPES, Inputs, Shape, make_inputs
from benchmarks.timing import bytes_per_us, event_us, graph_us, host_us, sets_for

TOKENS = [1, 8, 32, 128, 256, 1024, 4096, 16384, 65536]
HOST_TOKENS = [1, 256]
BACKWARD_SHAPES = ("Llama-3-8B", "Llama-3-8B gptj", "Gemma-2-9B", "rot 64 of 128")
BACKWARD_TOKENS = [16384, 65536]

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", metavar="PATH", help="write every number to this file")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--shapes", nargs="+", metavar="NAME", default=[s.name for s in SHAPES])
    arguments = parser.parse_args()
    peers = [p for p in PEERS if p.missing() is None]
    shapes = [s for s in SHAPES if s.name in arguments.shapes]
    not_run = {p.name: p.missing() for p in PEERS if p.missing()} | _operators()
    result: dict[str, Any] = {"machine": _machine(), "not_run": not_run}
    result["one_element_us"] = graph_us([torch.zeros(1, device="cuda").neg_] * 100)
    sections = {
        "host": _host_rows(shapes[:1], peers),
        "backward": _backward_rows(shapes, peers),
        "graph": _graph_rows(shapes, arguments.tokens, peers),
    }
    try:
        for name, rows in sections.items():
            result[name] = []
            for row in _printed(rows):
                result[name].append(row)
    finally:
        # A run that is stopped keeps what it measured.
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(result, file, indent=1)
    for name, reason in not_run.items():
        print(f"not run: {name}: {reason}")


def _printed(rows: Iterable[Row]) -> Iterable[Row]:
    for row in rows:
        limits = row.get("limit_us", {})
        shares = "  ".join(
            f"{name} {us:.2f}" + (f" ({limits[name] / us:.3f})" if limits else "")
            for name, us in row["us"].items()
        )
        print(f"{row['shape']} T={row['tokens']}: {shares}", flush=True)
        yield row


def _graph_rows(shapes: list[Shape], tokens: list[int], peers: list[Peer]) -> Iterable[Row]:
    for shape in shapes:
        for count in tokens:
            moved = shape.moved_bytes(count)
            inputs = make_inputs(shape, count, sets_for(moved))
            times, limits = {}, {}
            for peer in peers:
                if peer.supports(shape):
                    check(peer, shape, make_inputs(shape, count, 1)[0])
                    times[peer.name] = graph_us([peer.prepare(shape, i) for i in inputs])
                    compulsory = shape.moved_bytes(count, copies_tail=peer.copies_tail)
                    limits[peer.name] = compulsory / bytes_per_us(compulsory)
            yield {
                "shape": shape.name,
                "tokens": count,
                "moved_bytes": moved,
                "limit_us": limits,
                "us": times,
            }


def _host_rows(shapes: list[Shape], peers: list[Peer]) -> Iterable[Row]:
    for shape in shapes:
        for count in HOST_TOKENS:
            inputs = make_inputs(shape, count, 1)[0]
            times = {p.name: host_us(p.prepare(shape, inputs)) for p in peers if p.supports(shape)}
            yield {"shape": shape.name, "tokens": count, "us": times}


def _backward_rows(shapes: list[Shape], peers: list[Peer]) -> Iterable[Row]:
    for shape in shapes:
        for count in BACKWARD_TOKENS if shape.name in BACKWARD_SHAPES else []:
            inputs = make_inputs(shape, count, 2)
            times = {}
            for peer in peers:
                if peer.backward and peer.supports(shape) and "in place" not in peer.name:
                    times[peer.name] = event_us([forward_backward(peer, shape, i) for i in inputs] * 4)
            yield {"shape": shape.name, "tokens": count, "us": times}


def forward_backward(peer: Peer, shape: Shape, inputs: Inputs) -> Callable[[], object]:
    """One forward and one backward pass through fresh leaves."""
    leaves = q, k = inputs.q.detach().requires_grad_(), inputs.k.detach().requires_grad_()
    cotangents = [torch.randn_like(x) for x in leaves]
    call = peer.prepare(shape, replace(inputs, q=q, k=k))
    return lambda: torch.autograd.grad(call(), leaves, cotangents)


def check(peer: Peer, shape: Shape, inputs: Inputs) -> None:
    """Four roundings in the activation's dtype at most (16-bit tables, three operations), or no number."""
    copies = [x.clone() for x in (inputs.q, inputs.k)]
    outputs = peer.prepare(shape, inputs)()
    roundoff = torch.finfo(shape.dtype).eps / 2
    for x, out in zip(copies, outputs, strict=True):
        exact, products = _exact(shape, x, inputs)
        if not ((out.double() - exact).abs() <= 4 * roundoff * products + 1e-30).all():
            raise RuntimeError(f"{peer.name} is wrong on {shape.name}")


def _exact(shape: Shape, x: torch.Tensor, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The float64 rotation, and the sum of the absolute products that errors are measured against."""
    start, half = shape.rot_offset, shape.rot_dim // 2
    if shape.layout == "neox":
        first, second = slice(start, start + half), slice(start + half, start + 2 * half)
    else:
        first, second = slice(start, start + 2 * half, 2), slice(start + 1, start + 2 * half, 2)
    cos, sin = (t[inputs.positions].double().unsqueeze(1) for t in (inputs.cos, inputs.sin))
    exact, products = x.double().clone(), x.double().abs()
    lo, hi = exact[..., first].clone(), exact[..., second].clone()
    exact[..., first], exact[..., second] = lo * cos - hi * sin, hi * cos + lo * sin
    products[..., first] = (lo * cos).abs() + (hi * sin).abs()
    products[..., second] = (hi * cos).abs() + (lo * sin).abs()
    return exact, products


def _machine() -> dict[str, str]:
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}


def _operators() -> dict[str, str]:
    installed = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    state = {True: "is installed but has no benchmark here", False: "is not installed"}
    return {name: f"{package} {state[package in installed]}" for package, name in OPERATORS_NOT_RUN.items()}


if __name__ == "__main__":
    main()
