"""Draws docs/plots/table_precision.svg and prints its numbers: the error of a table, by position.

python docs/plot_table_precision.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import mpmath
import numpy as np
import torch

from rope.tables import rope_frequencies

ROT_DIM, BASE = 128, 500000.0  # Llama 3
WINDOW = 12  # positions looked at from each start on
STARTS = np.unique(np.geomspace(1, 1e7, 43).astype(np.int64))
BUILDS = {
    "float32": "float32 angles, as models are trained",
    "float64": "float64 angles, rounded once",
    "bfloat16 table": "float32 angles, table in bfloat16",
    "bfloat16 positions": "positions in bfloat16",
}


def exact_cos(positions: np.ndarray) -> np.ndarray:
    """cos to 30 digits, as float64; sin behaves alike."""
    mpmath.mp.dps = 30
    frequencies = [mpmath.mpf(BASE) ** (-mpmath.mpf(2 * i) / ROT_DIM) for i in range(ROT_DIM // 2)]
    return np.array([[float(mpmath.cos(int(p) * f)) for f in frequencies] for p in positions])


def table_cos(positions: np.ndarray, build: str) -> np.ndarray:
    """Rows of the cos table, built as rope_table builds them."""
    dtype = torch.float64 if build == "float64" else torch.float32
    rows = torch.from_numpy(positions).to(dtype)
    if build == "bfloat16 positions":
        rows = rows.bfloat16().float()
    cos = (rows[:, None] * rope_frequencies(ROT_DIM, BASE, dtype=dtype)).cos().float()
    if build == "bfloat16 table":
        cos = cos.bfloat16().float()
    return cos.double().numpy()


def worst_errors() -> dict[str, list[float]]:
    """For each build, the largest error of any pair in the window at each start."""
    errors: dict[str, list[float]] = {build: [] for build in BUILDS}
    for start in STARTS:
        positions = np.arange(start, start + WINDOW)
        exact = exact_cos(positions)
        for build in BUILDS:
            errors[build].append(float(np.abs(table_cos(positions, build) - exact).max()))
    return errors


def main() -> None:
    errors = worst_errors()
    plt.rcParams |= {"svg.hashsalt": "table_precision", "svg.fonttype": "none", "font.size": 10}
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for build, label in BUILDS.items():
        axes.loglog(STARTS, errors[build], label=label)
    for name, half_ulp in (("bfloat16", 2.0**-9), ("float16", 2.0**-12), ("float32", 2.0**-25)):
        axes.axhline(half_ulp, color="grey", linewidth=0.7, linestyle=":")
        axes.text(1.1, half_ulp * 1.15, f"half a unit of {name} below 1", color="grey", fontsize=8)
    axes.set(xlabel="position", ylabel="largest error of cos over the pairs", ylim=(1e-9, 4))
    axes.set_title(f"Error of a cos table, rot_dim {ROT_DIM}, base {BASE:,.0f}")
    figure.legend(loc="outside lower center", ncols=2)
    path = Path(__file__).parent / "plots" / "table_precision.svg"
    figure.savefig(path, metadata={"Date": None})
    print("position", *BUILDS, sep="\t")
    for at in (1e3, 1e4, 1e5, 1e6, 1e7):
        column = int(np.abs(np.log(STARTS / at)).argmin())
        print(STARTS[column], *(f"{errors[build][column]:.1e}" for build in BUILDS), sep="\t")


if __name__ == "__main__":
    main()
