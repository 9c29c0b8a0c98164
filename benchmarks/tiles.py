"""Measure every tile at every shape on this GPU: where the rule in rope/launch.py comes from.

python -m benchmarks.tiles [--tokens 1 32 256 1024 16384] [--json PATH]
"""

import argparse
import itertools
import json
from typing import Any

from benchmarks.peers import rotate_with_ours
from benchmarks.shapes import SHAPES, Shape, make_inputs
from benchmarks.timing import bytes_per_us, graph_us, sets_for
from rope.checks import check_call
from rope.launch import Tile, choose_tile, forced_tile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 32, 256, 1024, 16384])
    parser.add_argument("--shapes", nargs="+", help="names of shapes, all by default")
    parser.add_argument("--json", help="write every measurement to this file")
    arguments = parser.parse_args()
    rows = []
    for shape, tokens in itertools.product(SHAPES, arguments.tokens):
        if arguments.shapes is None or shape.name in arguments.shapes:
            rows.append(measure(shape, tokens))
            print(summary(rows[-1]), flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


def measure(shape: Shape, tokens: int) -> dict[str, object]:
    """Microseconds of every tile, in place, with the limit and the tile that the rule chooses."""
    moved = shape.moved_bytes(tokens)
    inputs = make_inputs(shape, tokens, sets_for(moved))
    i = inputs[0]
    geometry = check_call(i.q, i.k, i.cos, i.sin, i.positions, None, shape.layout, None, shape.rot_offset, -2)
    times = {}
    for tile in candidates(shape):
        with forced_tile(tile):
            times[str(tuple(tile))] = graph_us([rotate_with_ours(shape, i, inplace=True) for i in inputs])
    return {
        "shape": shape.name,
        "tokens": tokens,
        "limit": moved / bytes_per_us(moved),
        "chosen": str(tuple(choose_tile(geometry))),
        "times": dict(sorted(times.items(), key=lambda item: item[1])),
    }


def candidates(shape: Shape) -> list[Tile]:
    """Tiles of 128 to 4096 pairs."""
    pairs = 1 << (shape.rot_dim // 2 - 1).bit_length()
    tiles = itertools.product([1, 2, 4], [1, 2, 4, 8, 16, 32, 64], [1, 2, 4])
    return [
        Tile(tokens, heads, warps)
        for tokens, heads, warps in tiles
        if 128 <= tokens * heads * pairs / warps <= 2048 and heads < 2 * shape.q_heads
    ]


def summary(row: dict[str, Any]) -> str:
    """One line: the limit, the chosen tile and the five best."""
    limit, times = row["limit"], row["times"]
    chosen = times.get(row["chosen"], float("nan"))
    best = ", ".join(f"{tile} {us:.2f}" for tile, us in list(times.items())[:5])
    return (
        f"{row['shape']:20} T={row['tokens']:6} limit {limit:8.2f}us  chosen {row['chosen']} {chosen:8.2f}us "
        f"({limit / chosen:.3f})  best: {best}"
    )


if __name__ == "__main__":
    main()
