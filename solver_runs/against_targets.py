"""Planning time, gap and memory of the synthetic rounds that have targets, and how well a time limit holds.

``python solver_runs/against_targets.py [--repetitions N] [--limits] [-o FILE.jsonl]``. Every run is a new
``ymir-plan solve``; the sizes take turns, so that a busy minute of the machine meets all of them. Before
each a fixed loop is timed: planning times of different minutes compare by it. A Markdown table is printed.

*Memory* is the largest sum over the command's processes of their proportional set sizes, sampled.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import describe
from rich.progress import Progress
from run_rows import append_row

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import dump_json, parse_plan

TARGETS = {
    "100x32": (0.2, 0.0),
    "300x240": (0.5, 2e-4),
    "1000x240": (2.0, 1e-4),
    "1000x1024": (2.0, 1e-4),
    "3000x1024": (3.0, 1e-3),
    "10000x1024": (15.0, 1e-4),
    "10000x10000": (20.0, 1e-3),
}
"""Planning wall seconds on two quiet cores, and the proven value gap."""
LIMITS = {"1000x1024": (1.0, 2.0), "3000x1024": (2.0, 4.0), "10000x1024": (5.0, 10.0)}
ADDITIONS = 3_000_000
SAMPLE_S = 0.1

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One run: a size, and a time limit or None."""

    size: str
    limit_s: float | None
    repetition: int


def calibration_s() -> float:
    """Return the CPU seconds of ten million additions, from a part of them."""
    begun, total = time.process_time(), 0
    for i in range(ADDITIONS):
        total += i
    return (time.process_time() - begun) * 10_000_000 / ADDITIONS


def tree(pid: int) -> Iterator[int]:
    """Yield a process and what it started."""
    yield pid
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return
    for child in text.split():
        yield from tree(int(child))


def memory_mib(pid: int) -> float:
    """Return the proportional set size of a process and what it started, in MiB."""
    total = 0
    for one in tree(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def run(task: Task, source: Path, target: Path) -> Row:
    """Run the command once and return what it took."""
    command = [sys.executable, "-m", "ymir_opt", "solve", str(source), "-o", str(target)]
    if task.limit_s is not None:
        command += ["--time-limit", str(task.limit_s)]
    quick = calibration_s()
    begun, peak = time.perf_counter(), 0.0
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
        peak = max(peak, memory_mib(child.pid))
        time.sleep(SAMPLE_S)
    wall, usage = time.perf_counter() - begun, ended[2]
    child.returncode = os.waitstatus_to_exitcode(ended[1])
    if child.returncode:
        raise SystemExit(f"ymir-plan solve failed with {child.returncode} at {task.size}")
    solver = parse_plan(target.read_bytes()).solver
    return {
        "benchmark": "against_targets",
        "size": task.size,
        "limit_s": task.limit_s,
        "calibration_s": round(quick, 3),
        "wall_s": round(solver.wall_s, 4),
        "process_wall_s": round(wall, 4),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 4),
        "memory_mib": round(peak, 1),
        "objective": solver.objective,
        "value_gap": solver.value_gap,
        "gap_scope": solver.gap_scope.value,
        "stopped_by": solver.stopped_by.value,
        "machine": describe(),
    }


def table(rows: list[Row]) -> str:
    """Return the figures of runs without a limit beside their targets, as Markdown."""
    lines = [
        "| jobs/GPUs | target | planning, wall s: least (median) | whole command, CPU s | value gap | MiB "
        "| calibration, s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for size, (seconds, gap) in TARGETS.items():
        mine = [row for row in rows if row["size"] == size and row["limit_s"] is None]
        if not mine:
            continue
        wall, cpu, quick = ([row[k] for row in mine] for k in ("wall_s", "cpu_s", "calibration_s"))
        cells = (
            size.replace("x", "/"),
            f"{seconds:g} s, {gap:.2%}",
            f"{min(wall):.2f} ({statistics.median(wall):.2f})",
            f"{min(cpu):.1f} ({statistics.median(cpu):.1f})",
            f"{max(row['value_gap'] for row in mine):.4%}",
            f"{max(row['memory_mib'] for row in mine):.0f}",
            f"{min(quick):.2f} to {max(quick):.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def limits_table(rows: list[Row]) -> str:
    """Return how planning times compare with their limits, as Markdown."""
    lines = ["| jobs/GPUs | limit, s | planning, wall s | ended |", "| --- | --- | --- | --- |"]
    for row in rows:
        if row["limit_s"] is not None:
            size = row["size"].replace("x", "/")
            lines.append(f"| {size} | {row['limit_s']:g} | {row['wall_s']:.2f} | {row['stopped_by']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--sizes", default=",".join(TARGETS))
    parser.add_argument("--limits", action="store_true", help="runs with a time limit besides")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    sizes = options.sizes.split(",")
    tasks = [Task(size, None, k) for k in range(options.repetitions) for size in sizes]
    if options.limits:
        tasks += [
            Task(size, limit, 0) for size, limits in LIMITS.items() for limit in limits if size in sizes
        ]
    rows = []
    with tempfile.TemporaryDirectory() as folder, Progress(transient=True) as progress:
        bar = progress.add_task("rounds", total=len(tasks))
        for size in sizes:
            jobs, gpus = (int(part) for part in size.split("x"))
            (Path(folder) / f"{size}.json").write_text(dump_json(synthetic_snapshot(jobs, gpus)))
        for task in tasks:
            progress.update(bar, description=task.size)
            rows.append(run(task, Path(folder) / f"{task.size}.json", Path(folder) / "plan.json"))
            if options.output is not None:
                append_row(options.output, rows[-1])
            progress.advance(bar)
    print(table(rows))
    if options.limits:
        print(limits_table(rows))


if __name__ == "__main__":
    main()
