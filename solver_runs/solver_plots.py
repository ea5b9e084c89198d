"""The two plots of the solver's benchmark; see `solver_tables`."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from run_rows import CLOCKED, OURS, Row, best_bound, size_of

OPTIMAL = 1e-7
"""Distances below this are drawn here: next to nothing is left to gain."""
TARGET = 1e-4
ORDER = ("auto", "highs", "highs-whole", "cpsat", "cbc", "pop-4", "greedy")
COLOURS = ("black", "C0", "C9", "C1", "C2", "C3", "C7")
ACROSS = 3
FITTED_FROM = 1000


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _plain(axis: Any) -> None:
    """Label a logarithmic axis at 1, 2, 5, 10 and so on."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def exponent(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return (a, b) of the line y = b x^a of least squares in logarithms."""
    x, y = np.log(np.array(points, dtype=np.float64)).T
    slope, level = np.polyfit(x, y, 1)
    return float(slope), float(np.exp(level))


def plot_sizes(rows: list[Row], path: Path) -> None:
    """Draw our CPU time and memory over the number of jobs, every seed, with a fitted power and slope 1."""
    ours = [row for row in rows if row["method"] == OURS and size_of(row) and row["planning_cpu_s"]]
    if not ours:
        return
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.2))
    panels = (("planning_cpu_s", "planning, CPU s"), ("peak_rss_mib", "peak memory, MiB"))
    for axis, (name, label) in zip(axes, panels, strict=True):
        _over_jobs(axis, ours, name)
        axis.set(xlabel="jobs", ylabel=label)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _over_jobs(axis: Any, rows: list[Row], name: str) -> None:
    sizes: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        sizes.setdefault(size_of(row) or (0, 0), []).append(float(row[name]))
    axis.set(xscale="log", yscale="log")
    points = [(float(jobs), value) for (jobs, _), values in sizes.items() for value in values]
    axis.plot([jobs for jobs, _ in points], [value for _, value in points], "o", color="C0", alpha=0.45, ms=5)
    middles = {size: median(values) for size, values in sizes.items()}
    jobs_of = sorted({jobs for jobs, _ in sizes})
    typical = [(float(jobs), middle) for (jobs, _), middle in middles.items()]
    for (jobs, gpus), middle in middles.items():
        # two sizes of as many jobs: the upper one's label above, the lower one's below
        alike = [m for (j, _), m in middles.items() if j == jobs]
        above = middle == max(alike)
        axis.annotate(
            f"{jobs}/{gpus}",
            (jobs, max(sizes[jobs, gpus]) if above else min(sizes[jobs, gpus])),
            xytext=(0, 6 if above else -6),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            fontsize=8,
        )
    if len(jobs_of) > 1:
        large = [point for point in typical if point[0] >= FITTED_FROM]
        # below, what does not depend on the size counts
        fitted = large if len({jobs for jobs, _ in large}) > 1 else typical
        slope, level = exponent(fitted)
        x = np.array([min(fitted)[0], jobs_of[-1]], dtype=np.float64)
        axis.plot(x, level * x**slope, "-", color="C0", lw=1.2, label=f"fitted to medians: power {slope:.2f}")
        last = max(middle for (jobs, _), middle in middles.items() if jobs == jobs_of[-1])
        axis.plot(x, last * x / x[-1], "--", color="0.5", lw=1, label="linear: power 1")
        axis.legend(loc="upper left", fontsize=8, frameon=False)
    axis.margins(x=0.12, y=0.2)
    _plain(axis.xaxis)
    _plain(axis.yaxis)
    axis.grid(visible=True, which="major", alpha=0.4)


def plot_gaps(rows: list[Row], path: Path) -> None:
    """Draw for each round with peers how far each method's best plan was from the best bound, when."""
    rounds: dict[str, list[Row]] = {}
    for row in rows:
        if row["method"] not in CLOCKED:
            rounds.setdefault(row["instance"], []).append(row)
    drawn = {name: found for name, found in rounds.items() if _drawable(found)}
    if not drawn:
        return
    pyplot = _pyplot()
    across = min(ACROSS, len(drawn))
    down = -(-len(drawn) // across)
    figure, axes = pyplot.subplots(down, across, figsize=(4.6 * across, 3.5 * down + 0.7), squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.set_axis_off()
    for axis, (name, found) in zip(axes.flat, drawn.items(), strict=False):
        _over_time(axis, found)
        axis.set_title(name, fontsize=10)
    for axis in axes[:, 0]:
        axis.set_ylabel("(plan - best bound) / value", fontsize=9)
    for axis in list(axes.flat)[max(len(drawn) - across, 0) : len(drawn)]:
        axis.set_xlabel("planning, CPU s", fontsize=9)
    used = {row["method"] for found in drawn.values() for row in found}
    lines = [pyplot.Line2D([], [], **_style(method), label=method) for method in _ordered(used)]
    lines += [
        pyplot.Line2D([], [], marker="o", color="0.3", linestyle="", label="ended"),
        pyplot.Line2D([], [], marker="x", color="0.3", linestyle="", label="CPU time used up"),
        pyplot.Line2D([], [], color="black", linestyle=":", label="auto has ended"),
        pyplot.Line2D([], [], color="0.5", linestyle="--", label="gap target"),
    ]
    figure.legend(handles=lines, loc="lower center", ncol=min(len(lines), 6), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.7 / (3.5 * down + 0.7), 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _drawable(rows: list[Row]) -> bool:
    ours = next((row for row in rows if row["method"] == OURS), None)
    return (
        len(rows) > 2 and ours is not None and ours["queue_all"] is not None and best_bound(rows) is not None
    )


def _ordered(methods: set[str]) -> list[str]:
    return [*(m for m in ORDER if m in methods), *sorted(methods - set(ORDER))]


def _style(method: str) -> dict[str, Any]:
    colours = dict(zip(ORDER, COLOURS, strict=True))
    ours = method == OURS
    return {"color": colours.get(method, "C4"), "lw": 2.4 if ours else 1.5, "alpha": 1.0 if ours else 0.85}


def _over_time(axis: Any, rows: list[Row]) -> None:
    bound = best_bound(rows) or 0.0
    ours = next(row for row in rows if row["method"] == OURS)
    value = max(float(ours["queue_all"]) - bound, 1e-12)
    for row in sorted(rows, key=lambda row: row["method"] == OURS):
        known = [(when, objective) for when, objective, _ in row["profile"] if objective is not None]
        if not known:
            continue
        ended = row["planning_cpu_s"] is not None
        last = row["planning_cpu_s"] if ended else row["budget_cpu_s"] or known[-1][0]
        when = [*(w for w, _ in known), last]
        gap = [max((objective - bound) / value, OPTIMAL) for _, objective in known]
        style = _style(row["method"])
        axis.plot(when, [*gap, gap[-1]], drawstyle="steps-post", **style)
        axis.plot([last], [gap[-1]], "o" if ended else "x", color=style["color"], ms=6, mew=2)
    axis.axvline(ours["planning_cpu_s"], color="black", linestyle=":", lw=1)
    axis.axhline(TARGET, color="0.5", linestyle="--", lw=1)
    axis.set(xscale="log", yscale="log", ylim=(OPTIMAL / 2, None))
    _plain(axis.xaxis)
    axis.grid(visible=True, which="major", alpha=0.3)
