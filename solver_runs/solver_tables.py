"""Tables and plots from the lines that ``solver_peers.py`` wrote.

Run ``python solver_runs/solver_tables.py RESULTS.jsonl [-o FOLDER]``: prints Markdown tables and writes
``time_and_memory.png`` (over the number of jobs, for our planner) and ``gap_over_time.png`` (each method's
distance from the best bound that any of them proved, against its CPU time).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HEAD = (
    "| round | method | CPU s | CPU / calibration | planning wall s | MiB | objective | value gap "
    "| worse than ours | ended |"
)


PROVEN = 1e-8
"""Gaps below this are drawn here: optimal."""


def shown(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.4f} %"


def table(rows: list[Row]) -> str:
    """Return all runs as Markdown."""
    lines = [HEAD, "|" + " --- |" * HEAD.count(" | ") + " --- |"]
    best = {
        row["instance"]: row["objective"] for row in rows if row["method"] == "auto" and row.get("objective")
    }
    for row in rows:
        objective, ours = row.get("objective"), best.get(row["instance"])
        worse = (objective - ours) / ours if objective and ours and row["method"] != "auto" else None
        cells = [
            row["instance"],
            row["method"],
            shown(row["cpu_s"]),
            shown(row["cpu_s"] / row["calibration_s"], 1),
            shown(row.get("wall_s")),
            shown(row["peak_rss_mib"], 0),
            shown(objective, 4),
            percent(row.get("value_gap")),
            percent(worse),
            row.get("failed") or row.get("stopped_by") or "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot_sizes(rows: list[Row], path: Path) -> None:
    """Draw CPU time and memory over the number of jobs."""
    ours = [row for row in rows if row["method"] == "auto" and "x" in row["instance"].partition("/")[0]]
    ours.sort(key=lambda row: int(row["instance"].partition("x")[0]))
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6))
    jobs = [int(row["instance"].partition("x")[0]) for row in ours]
    for axis, key, label in zip(axes, ("cpu_s", "peak_rss_mib"), ("CPU s", "peak memory, MiB"), strict=True):
        axis.loglog(jobs, [row[key] for row in ours], "o-")
        for count, row in zip(jobs, ours, strict=True):
            axis.annotate(row["instance"].partition("/")[0], (count, row[key]), fontsize=7)
        axis.set(xlabel="jobs", ylabel=label)
        axis.grid(visible=True, which="both", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def plot_gaps(rows: list[Row], path: Path) -> None:
    """Draw each run's gap over its CPU time, one panel a round with peers."""
    by_round: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("objective"):
            by_round.setdefault(row["instance"], []).append(row)
    rounds = [name for name, found in by_round.items() if len(found) > 2]
    if not rounds:
        return
    pyplot = _pyplot()
    across = min(3, len(rounds))
    down = -(-len(rounds) // across)
    figure, axes = pyplot.subplots(down, across, figsize=(4.2 * across, 3.4 * down), squeeze=False)
    methods = sorted({row["method"] for name in rounds for row in by_round[name]})
    colour = {method: f"C{i}" for i, method in enumerate(methods)}
    for axis in axes.flat[len(rounds) :]:
        axis.set_axis_off()
    for axis, name in zip(axes.flat, rounds, strict=False):
        bound = max((row["bound"] for row in by_round[name] if row.get("bound")), default=None)
        for row in by_round[name]:
            gap = (row["objective"] - bound) / bound if bound else 0.0
            axis.scatter(row["cpu_s"], max(gap, PROVEN), s=70, color=colour[row["method"]], alpha=0.8)
        axis.set(yscale="log", title=name, ylim=(PROVEN / 2, 0.1))
        axis.set_xlim(left=0)
        axis.grid(visible=True, alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("CPU s")
    for row_of_axes in axes:
        row_of_axes[0].set_ylabel("(objective - best bound) / bound")
    points = [pyplot.Line2D([], [], marker="o", linestyle="", color=colour[m], label=m) for m in methods]
    figure.legend(handles=points, loc="lower center", ncol=len(methods), frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.results.read_text(encoding="utf-8").splitlines()]
    print(table(rows))
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        plot_sizes(rows, options.output / "time_and_memory.png")
        plot_gaps(rows, options.output / "gap_over_time.png")


if __name__ == "__main__":
    main()
