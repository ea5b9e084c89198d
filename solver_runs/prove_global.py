"""``--prove-global``: what a proof against every group of at most four costs, by size.

Run ``python solver_runs/prove_global.py [--sizes AxB,...] [-o FILE]``. Each run is a fresh process of
``ymir-plan solve`` on the synthetic snapshot of that size, once without and once with ``--prove-global``;
rows are appended as they come. With ``--titan`` the rounds of `solver_peers` from published workloads
follow (shared data). ``--one-model`` gives the sizes at which all jobs are of one foundation model and open
to all others, the hardest case.
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
from solver_peers import TITAN, write_instance

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import dump_json, parse_plan
from ymir_opt.domain.snapshot import Sharing

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


def write_round(name: str, path: Path) -> bool:
    """Write the snapshot of a round; False where its data are absent."""
    kind, _, rest = name.partition("/")
    if kind != "one-model":
        return write_instance(name, path)
    jobs, gpus = (int(part) for part in rest.split("x"))
    snapshot = synthetic_snapshot(jobs, gpus, 0)
    change = {"foundation_model": "fm0", "sharing": Sharing.ALL}
    path.write_text(
        dump_json(
            snapshot.model_copy(update={"jobs": tuple(j.model_copy(update=change) for j in snapshot.jobs)})
        )
    )
    return True


def measure(name: str) -> dict[str, Any] | None:
    """Measure one round without and with the proof; None where its data are absent."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "snapshot.json", Path(folder) / "plan.json"
        if not write_round(name, source):
            return None
        machine = describe()
        pool = one_run(source, target, [])
        proven = one_run(source, target, ["--prove-global"])
    return {
        "benchmark": "prove_global",
        "instance": name,
        "pool": pool,
        "global": proven,
        "machine": machine,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--one-model", default="", metavar="AxB,...", help="sizes with one foundation model")
    parser.add_argument("--titan", action="store_true", help="rounds from Titan's traces too (shared data)")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    names = [
        f"{size}/{seed}" for size in filter(None, options.sizes.split(",")) for seed in range(options.seeds)
    ]
    names += [f"titan/{trace}@{at}" for trace, at, _ in TITAN] if options.titan else []
    names += [f"one-model/{size}" for size in filter(None, options.one_model.split(","))]
    for name in names:
        row = measure(name)
        if row is None:
            continue
        line = json.dumps(row) + "\n"
        if options.output is None:
            print(line, end="", flush=True)
        else:
            with options.output.open("a") as stream:
                stream.write(line)


if __name__ == "__main__":
    main()
