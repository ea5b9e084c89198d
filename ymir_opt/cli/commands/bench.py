"""``ymir-plan bench``: how long one round takes at some sizes, and how good the plan is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import emit
from ymir_opt.cli.formats import figure, percent
from ymir_opt.cli.options import Backend, Json
from ymir_opt.domain.errors import InputError, SolverError

__all__ = ["parse_sizes", "register"]

DEFAULT_SIZES = "100x32,300x240"
LARGEST = 100_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def parse_sizes(text: str) -> list[tuple[int, int]]:
    """Return (jobs, GPUs) from ``100x32,300x240``; raises `InputError`."""
    sizes = []
    for part in text.split(","):
        jobs, _, gpus = part.strip().partition("x")
        if not (jobs.isdecimal() and gpus.isdecimal() and len(jobs) < 9 and len(gpus) < 9):
            raise InputError("--sizes", f"{part!r} is not JOBSxGPUS", "write sizes such as 100x32,300x240")
        if not (1 <= int(jobs) <= LARGEST and 1 <= int(gpus) <= LARGEST):
            raise InputError("--sizes", f"{part!r} is out of range", f"give numbers from 1 to {LARGEST}")
        sizes.append((int(jobs), int(gpus)))
    return sizes


def bench(
    sizes: Annotated[
        str, typer.Option(metavar="AxB,...", help="Jobs x GPUs of each instance.")
    ] = DEFAULT_SIZES,
    backend: Backend = "auto",
    as_json: Json = False,
) -> None:
    """Time one planning round at some sizes.

    The snapshots are synthetic; each is planned in a process of its own.
    """
    out = Output(json=as_json)
    console = out.console() if out.wants_tables else None
    for jobs, gpus in parse_sizes(sizes):
        row = _measure(jobs, gpus, backend)
        if out.wants_json:
            emit(json.dumps(row) + "\n")
        if console is not None:
            scope = f" ({row['gap_scope']})" if row["value_gap"] is not None else ""
            console.print(
                f"{row['size']:>12}  {row['backend']:<10}  plan {row['wall_s']:.3f} s"
                f"  process {row['process_wall_s']:.3f} s  cpu {row['cpu_s']:.3f} s"
                f"  gap {percent(row['value_gap'])}{scope}"
                f"  objective {figure(row['objective'])}"
                f"  {row['peak_rss_mib']:.0f} MiB",
                soft_wrap=True,
            )


def _measure(jobs: int, gpus: int, backend: str) -> dict[str, Any]:
    """Solve one instance with the whole command in a child process and report what it took."""
    from ymir_opt.cli.synthetic import synthetic_snapshot
    from ymir_opt.domain.documents import dump_json, parse_plan

    with tempfile.TemporaryDirectory(prefix="ymir-bench-") as folder:
        source, target, log = (Path(folder) / name for name in ("snapshot.json", "plan.json", "log"))
        source.write_text(dump_json(synthetic_snapshot(jobs, gpus)), encoding="utf-8")
        command = [sys.executable, "-m", "ymir_opt", "solve", str(source)]
        command += ["-o", str(target), "--backend", backend]
        begun = time.perf_counter()
        with log.open("wb") as stream:
            child = subprocess.Popen(command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begun
        if child.returncode != 0:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            message = (lines[-1] if lines else f"exit code {child.returncode}").removeprefix("ymir-plan: ")
            if child.returncode == InputError.exit_code:
                raise InputError("", message)
            raise SolverError(f"{jobs}x{gpus}", message)
        solver = parse_plan(target.read_bytes(), "plan").solver
    per_mib = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return {
        "size": f"{jobs}x{gpus}",
        "jobs": jobs,
        "gpus": gpus,
        "backend": solver.backend,
        "wall_s": round(solver.wall_s, 4),
        "process_wall_s": round(wall, 4),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 4),
        "objective": solver.objective,
        "bound": solver.bound,
        "gap": solver.gap,
        "value_gap": solver.value_gap,
        "gap_scope": solver.gap_scope.value,
        "peak_rss_mib": round(usage.ru_maxrss / per_mib, 1),
    }
