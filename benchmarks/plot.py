"""Draw what `python -m benchmarks.run --json PATH` wrote.

    python -m benchmarks.plot PATH [--out FOLDER]

Share of the limit over the number of tokens, one panel per shape; host time per eager call as bars.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLORS = ["#0b6e4f", "#7bc8a4", "#b23a48", "#e09f3e", "#8d99ae", "#335c67", "#9b5de5"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/plots"))
    arguments = parser.parse_args()
    result = json.loads(arguments.path.read_text())
    # Text stays text and ids do not change, so that a new run changes only what it measured.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rope", "font.size": 8})
    draw_shares(result).savefig(arguments.out / "share_of_limit.svg", metadata={"Date": None})
    draw_host(result).savefig(arguments.out / "host_time.svg", metadata={"Date": None})


def draw_shares(result: dict[str, Any]) -> plt.Figure:
    """Share of the limit over tokens, a panel per shape."""
    shapes = list(dict.fromkeys(row["shape"] for row in result["graph"]))
    colors = _colors(result["graph"])
    figure, panels = plt.subplots(
        -(-len(shapes) // 4), 4, figsize=(12, 2.3 * -(-len(shapes) // 4)), sharex=True
    )
    for panel, shape in zip(panels.flat, shapes, strict=False):
        rows = [row for row in result["graph"] if row["shape"] == shape]
        for name, color in colors.items():
            points = [(r["tokens"], r["limit_us"][name] / r["us"][name]) for r in rows if name in r["us"]]
            if points:
                panel.plot(*zip(*points, strict=True), marker=".", color=color, label=name, linewidth=1.2)
        panel.set(title=shape, xscale="log", ylim=(0, 1.2))
        panel.grid(alpha=0.3)
    for panel in panels.flat[len(shapes) :]:
        panel.axis("off")
    handles = {label: h for p in panels.flat for h, label in zip(*p.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles))
    figure.suptitle(f"Share of the limit over tokens, {result['machine']['gpu']}")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure


def draw_host(result: dict[str, Any]) -> plt.Figure:
    """Host microseconds per eager call."""
    colors = _colors(result["graph"])
    rows = result["host"]
    figure, panels = plt.subplots(1, len(rows), figsize=(5 * len(rows), 2.4), squeeze=False)
    for panel, row in zip(panels.flat, rows, strict=True):
        names = list(row["us"])[::-1]
        bars = panel.barh(names, [row["us"][n] for n in names], color=[colors[n] for n in names])
        panel.bar_label(bars, fmt="%.1f", padding=2)
        panel.set(title=f"{row['shape']}, {row['tokens']} tokens", xlabel="host us per eager call")
        panel.margins(x=0.15)
    figure.tight_layout()
    return figure


def _colors(rows: list[dict[str, Any]]) -> dict[str, str]:
    names = dict.fromkeys(name for row in rows for name in row["us"])
    return dict(zip(names, COLORS, strict=False))


if __name__ == "__main__":
    main()
