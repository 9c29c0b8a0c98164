"""Print what `python -m benchmarks.run --json PATH` wrote as the tables of docs/performance.md.

python -m benchmarks.table PATH
"""

import argparse
import json
from pathlib import Path
from typing import Any

OURS = "ours, in place"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path)
    result = json.loads(parser.parse_args().path.read_text())
    print(f"One run on one {result['machine']['gpu']}, torch {result['machine']['torch']}, ", end="")
    print(f"Triton {result['machine']['triton']}.\n")
    print(*shapes_table(result), *host_table(result), *backward_table(result), sep="\n")


def shapes_table(result: dict[str, Any]) -> list[str]:
    """Microseconds in place by shape and tokens, the share of the limit, and the fastest peer."""
    lines = [
        "| shape | tokens | us | share of the limit | fastest peer | its time / ours |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["graph"]:
        us = row["us"][OURS]
        peers = {name: t for name, t in row["us"].items() if not name.startswith("ours")}
        fastest = min(peers, key=lambda name: peers[name], default=None)
        share = f"{row['limit_us'][OURS] / us:.2f}" if row["tokens"] >= 1024 else "launch-bound"
        peer = "none runs it | " if fastest is None else f"{fastest} | {peers[fastest] / us:.2f}"
        lines.append(f"| {row['shape']} | {row['tokens']} | {us:.2f} | {share} | {peer} |")
    return [*lines, ""]


def host_table(result: dict[str, Any]) -> list[str]:
    """Host microseconds per eager call."""
    return _by_implementation(result["host"], "host us per eager call")


def backward_table(result: dict[str, Any]) -> list[str]:
    """Microseconds of one forward and one backward pass."""
    return _by_implementation(result["backward"], "forward + backward us")


def _by_implementation(rows: list[dict[str, Any]], title: str) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row["us"]))
    lines = [f"| {title} | tokens | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for row in rows:
        cells = (f"{row['us'][name]:.1f}" if name in row["us"] else "" for name in names)
        lines.append(f"| {row['shape']} | {row['tokens']} | {' | '.join(cells)} |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
