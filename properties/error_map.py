"""Where the wrong elements are: a small map of tokens x heads and dims, as text and as SVG."""

import itertools
import math
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

_WIDEST = 96  # characters of one text line
_WIDEST_SVG = 960  # pixels
_MOST_ROWS = 24


def text_map(wrong: Mask) -> str:
    """One line per token, one block per head, one character per dim; "#" is wrong.

    Where the dims do not fit on a line, a character stands for a head.

    Args:
        wrong: (batch, token, head, dim).
    """
    batch, tokens, heads, dims = wrong.shape
    if heads * (dims + 1) <= _WIDEST:
        blocks = [(f"head {h}", wrong[:, :, h]) for h in range(heads)]
    else:
        blocks = [(f"heads 0..{heads - 1}", np.any(wrong, axis=3))]
    widths = [max(len(name), min(cells.shape[2], _WIDEST)) for name, cells in blocks]
    rows = _rows(wrong)
    labels = [_label(b, n, batch) for b, n in rows]
    indent = max(map(len, labels)) + 2
    lines = [" " * indent + "  ".join(name.ljust(w) for (name, _), w in zip(blocks, widths, strict=True))]
    for label, (b, n) in zip(labels, rows, strict=True):
        cells = (_cells(block[b, n]).ljust(w) for (_, block), w in zip(blocks, widths, strict=True))
        lines.append(label.ljust(indent) + "  ".join(cells))
    if len(rows) < batch * tokens:
        lines.append(f"({batch * tokens - len(rows)} more tokens)")
    return "\n".join(line.rstrip() for line in lines)


def ranges(mask: npt.NDArray[np.bool_]) -> str:
    """The indices where a 1-D mask is true, as "0, 4..7"."""
    indices = np.flatnonzero(mask)
    if not len(indices):
        return "none"
    runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}..{r[-1]}" for r in runs)


def svg_map(wrong: Mask, ratio: npt.NDArray[np.floating[Any]] | None, title: str) -> str:
    """The map as SVG: rows are tokens, blocks are heads, cells are dims, darker red is further off.

    Args:
        wrong: (batch, token, head, dim).
        ratio: error as a multiple of the bound, or None when a wrong element has no size.
        title: of the picture.
    """
    batch, _, heads, dims = wrong.shape
    rows, shown = (
        _rows(wrong),
        _shown(np.any(wrong, axis=(0, 1, 3)), max(1, _WIDEST_SVG // (2 * max(dims, 1)))),
    )
    wide, high = max(2, min(18, _WIDEST_SVG // max(len(shown) * dims, 1))), 14
    left, top, block = 120, 54, dims * wide + 8
    parts = [_text(left + i * block, top - 8, f"head {h}", "start") for i, h in enumerate(shown)]
    for y, (b, n) in enumerate(rows):
        at_y = top + y * (high + 2)
        parts.append(_text(left - 8, at_y + 11, _label(b, n, batch), "end"))
        for i, h in enumerate(shown):
            colours = _colours(wrong[b, n, h], None if ratio is None else ratio[b, n, h])
            # Wide cells stand alone, so that dims can be counted; narrow ones of one colour are one bar.
            runs = _runs(colours) if wide < 6 else [(d, d + 1) for d in range(dims)]
            for start, stop in runs:
                at_x, width = left + i * block + start * wide, (stop - start) * wide - (wide >= 6)
                colour = colours[start]
                parts.append(f'<rect x="{at_x}" y="{at_y}" width="{width}" height="{high}" fill="{colour}"/>')
    note = "columns: dims; grey: right; red: wrong, the darker the further off"
    if len(shown) < heads:
        note += f"; {heads - len(shown)} more heads"
    height = top + len(rows) * (high + 2) + 30
    parts.append(_text(left, height - 10, note, "start"))
    width = max(left + len(shown) * block, left + 6.2 * len(note), left + 7.5 * len(title)) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{left}" y="20" font-size="13">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _colours(wrong: Mask, ratio: npt.NDArray[np.float64] | None) -> list[str]:
    return [_colour(bool(w), None if ratio is None else float(ratio[d])) for d, w in enumerate(wrong)]


def _runs(colours: list[str]) -> list[tuple[int, int]]:
    """Neighbours of one colour, as (first, past the last)."""
    edges = [0, *(d for d in range(1, len(colours)) if colours[d] != colours[d - 1]), len(colours)]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


def _rows(wrong: Mask) -> list[tuple[int, int]]:
    """The (batch, token) rows to show: all of them, or those with a wrong element first in line."""
    batch, tokens = wrong.shape[:2]
    flat = _shown(np.any(wrong, axis=(2, 3)).reshape(-1), _MOST_ROWS)
    return [divmod(int(i), tokens) for i in flat] if batch * tokens else []


def _shown(bad: npt.NDArray[np.bool_], most: int) -> list[int]:
    """At most this many indices in order; those that are bad are preferred."""
    if len(bad) <= most:
        return list(range(len(bad)))
    return sorted(sorted(range(len(bad)), key=lambda i: (not bad[i], i))[:most])


def _label(b: int, n: int, batch: int) -> str:
    return f"token {n}" if batch == 1 else f"batch {b} token {n}"


def _cells(wrong: npt.NDArray[np.bool_]) -> str:
    cells = "".join("#" if w else "." for w in wrong)
    return cells if len(cells) <= _WIDEST else cells[: _WIDEST - 3] + "..."


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="#333">{escape(text)}</text>'


def _colour(wrong: bool, ratio: float | None) -> str:
    if not wrong:
        return "#dddddd"
    if ratio is None or not math.isfinite(ratio):
        return "#67000d"
    # From the bound itself to a million times the bound.
    depth = min(max(math.log10(max(ratio, 1.0)) / 6, 0.0), 1.0)
    return ("#fcae91", "#fb6a4a", "#de2d26", "#a50f15", "#67000d")[min(int(depth * 5), 4)]
