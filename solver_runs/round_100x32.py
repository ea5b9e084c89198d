"""The whole command on 100 jobs and 32 GPUs: wall, CPU and memory of a fresh process.

Run ``python solver_runs/round_100x32.py [--repetitions N] [-o FILE]``. Every repetition is a new
``ymir-plan solve`` with ``--backend auto`` on the synthetic snapshot of that size and seed; the first
one only warms the file cache. The target is a whole command under 1 s and 200 MiB on a quiet core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import describe

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import dump_json, parse_plan

PER_MIB = 1 << 20 if sys.platform == "darwin" else 1 << 10


def one_run(source: Path, target: Path, backend: str) -> dict[str, float]:
    """Run the command once; return wall and CPU seconds, and the peak memory in MiB."""
    command = [sys.executable, "-m", "ymir_opt", "solve", str(source), "-o", str(target)]
    begun = time.perf_counter()
    child = subprocess.Popen([*command, "--backend", backend], stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - begun
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"ymir-plan solve failed with {child.returncode}")
    return {
        "process_wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_mib": usage.ru_maxrss / PER_MIB,
        "wall_s": parse_plan(target.read_bytes()).solver.wall_s,
    }


def measure(jobs: int, gpus: int, seed: int, backend: str, repetitions: int) -> dict[str, Any]:
    """Measure one size."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "snapshot.json", Path(folder) / "plan.json"
        source.write_text(dump_json(synthetic_snapshot(jobs, gpus, seed)))
        runs = [one_run(source, target, backend) for _ in range(repetitions + 1)][1:]
        solver = parse_plan(target.read_bytes()).solver
    return {
        "benchmark": "round",
        "size": f"{jobs}x{gpus}",
        "seed": seed,
        "backend": solver.backend,
        "repetitions": repetitions,
        **{
            f"{name}_{which}": round(pick(run[name] for run in runs), 4)
            for name in ("process_wall_s", "cpu_s", "peak_rss_mib", "wall_s")
            for which, pick in (("min", min), ("median", statistics.median), ("max", max))
        },
        "columns": solver.candidates.columns,
        "value_gap": solver.value_gap,
        "gap_scope": solver.gap_scope.value,
        "machine": describe(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--gpus", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = [
        measure(options.jobs, options.gpus, seed, options.backend, options.repetitions)
        for seed in range(options.seeds)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
