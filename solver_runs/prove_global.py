"""``--prove-global``: what a proof against every group of at most four costs, by size.

Run ``python solver_runs/prove_global.py [--sizes AxB,...] [-o FILE]``. Each run is a fresh process of
``ymir-plan solve`` on the synthetic snapshot of that size, once without and once with ``--prove-global``;
rows are appended as they come.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import describe

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import dump_json, parse_plan

SIZES = "100x32,200x128,300x240,1000x240,1000x1024"
PER_MIB = 1 << 20 if sys.platform == "darwin" else 1 << 10


def one_run(source: Path, target: Path, options: list[str]) -> dict[str, Any]:
    """Run the command once; return its cost and what its plan says."""
    command = [sys.executable, "-m", "ymir_opt", "solve", str(source), "-o", str(target), *options]
    begun = time.perf_counter()
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"ymir-plan solve failed with {child.returncode}")
    plan = parse_plan(target.read_bytes())
    return {
        "process_wall_s": round(time.perf_counter() - begun, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_rss_mib": round(usage.ru_maxrss / PER_MIB, 1),
        "objective": plan.solver.objective,
        "bound": plan.solver.bound,
        "value_gap": plan.solver.value_gap,
        "gap_scope": plan.solver.gap_scope.value,
        "columns": plan.solver.candidates.columns,
        "labels": {name: text for name, text in plan.labels.items() if name.startswith(("global", "note"))},
    }


def measure(size: str, seed: int) -> dict[str, Any]:
    """Measure one size without and with the proof."""
    jobs, gpus = (int(part) for part in size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "snapshot.json", Path(folder) / "plan.json"
        source.write_text(dump_json(synthetic_snapshot(jobs, gpus, seed)))
        machine = describe()
        pool = one_run(source, target, [])
        proven = one_run(source, target, ["--prove-global"])
    return {
        "benchmark": "prove_global",
        "size": size,
        "seed": seed,
        "pool": pool,
        "global": proven,
        "machine": machine,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    for size in options.sizes.split(","):
        for seed in range(options.seeds):
            line = json.dumps(measure(size, seed)) + "\n"
            if options.output is None:
                print(line, end="", flush=True)
            else:
                with options.output.open("a") as stream:
                    stream.write(line)


if __name__ == "__main__":
    main()
