"""How fast the simulator is: CPU seconds and memory of some runs, each in a process of its own.

    python solver_runs/simulator_speed.py --shared ../shared/data -o solver_runs/results/simulator_speed.json

Cases: FM-2-vit (640 jobs, 32 GPUs) under every heuristic policy and under ours; 100 000 synthetic rigid jobs
on 10 000 GPUs under fifo; and the same with a quarter of the jobs, so that cost per event and memory can be
compared. CPU seconds leave out the interpreter's start and the imports, and count reading the trace.

A core that is shared with other work does less in a CPU second. A fixed loop of Python and numpy is timed
beside every case (before and after); `cpu_s_quiet` is the case's CPU time divided by how much slower the loop
was than `quiet_loop_s`, its time on the machine at rest (``--quiet-loop``, or the fastest seen).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machine import describe

HEURISTICS = ("fifo", "srtf", "tiresias", "themis", "optimus", "gavel", "pollux")
SOLVERS = ("titan", "sia", "ymir-no-merge", "ymir")
LARGE = 100_000


def loop_s() -> float:
    """Return the CPU seconds of a fixed loop, about a quarter of a second."""
    import numpy as np

    begin, total = time.process_time(), 0.0
    values = np.arange(2000, dtype=np.float64)
    for i in range(12000):
        total += float(np.sqrt(values + i).sum())
        total += sum({j: j * j for j in range(100)}.values())
    assert total > 0
    return time.process_time() - begin


def titan_case(shared: Path, trace: str, policy: str) -> dict[str, Any]:
    from ymir_opt.jobmodel import JobModel
    from ymir_opt.policies.base import load_policy
    from ymir_opt.simulator.cluster import parse_cluster
    from ymir_opt.simulator.engine import simulate
    from ymir_opt.simulator.workload import titan_workload

    folder = shared / "titan"
    chosen = load_policy(policy)
    before = loop_s()
    begin = time.process_time()
    workload = titan_workload(folder / "workloads" / trace / "workload-0.csv", JobModel(folder))
    result = simulate(workload, parse_cluster("8x4:V100"), chosen)
    return measured(begin, before, result)


def rigid_case(jobs: int) -> dict[str, Any]:
    from ymir_opt.policies.base import load_policy
    from ymir_opt.simulator.cluster import parse_cluster
    from ymir_opt.simulator.engine import simulate
    from ymir_opt.simulator.workload import synthetic_rigid

    chosen = load_policy("fifo")
    before = loop_s()
    begin = time.process_time()
    result = simulate(
        synthetic_rigid(jobs, gpus=10_000),
        parse_cluster("1250x8:V100"),
        chosen,
        sink=lambda _: None,
        series=False,
    )
    return measured(begin, before, result)


def measured(begin: float, before: float, result: Any) -> dict[str, Any]:
    cpu = time.process_time() - begin
    return {
        "cpu_s": round(cpu, 3),
        "loop_s": round((before + loop_s()) / 2, 4),
        "jobs": result.jobs_finished,
        "events": result.events,
        "rounds": result.rounds,
        "us_per_event": round(1e6 * cpu / max(1, result.events), 1),
        "mean_jct_s": round(result.mean_jct_s, 3),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def in_own_process(arguments: list[str]) -> dict[str, Any]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=True, env=env
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared/data"))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument(
        "--titan", nargs=2, metavar=("TRACE", "POLICY"), help="Measure one case (used internally)."
    )
    parser.add_argument("--rigid", type=int, metavar="JOBS", help="Measure one case (used internally).")
    parser.add_argument("--quick", action="store_true", help="Leave out ours and the large cases.")
    parser.add_argument(
        "--quiet-loop", type=float, metavar="S", help="The loop's time on the machine at rest."
    )
    given = parser.parse_args()
    if given.titan:
        print(json.dumps(titan_case(given.shared, *given.titan)))
        return
    if given.rigid:
        print(json.dumps(rigid_case(given.rigid)))
        return
    cases = [["--titan", "FM-2-vit", policy] for policy in HEURISTICS]
    if not given.quick:
        cases += [["--rigid", str(jobs)] for jobs in (LARGE // 4, LARGE)]
        cases += [["--titan", "FM-2-vit", policy] for policy in SOLVERS]
    rows: list[dict[str, Any]] = []
    for case in cases:
        row = in_own_process(["--shared", str(given.shared), *case])
        rigid = case[0] == "--rigid"
        name = f"rigid-{case[1]}-on-10000" if rigid else case[1]
        rows.append({"case": name, "policy": "fifo" if rigid else case[2], **row})
        print(json.dumps(rows[-1]), flush=True)
        if given.output is not None:
            keep(given.output, rows, given.quiet_loop)


def keep(path: Path, rows: list[dict[str, Any]], quiet_loop: float | None) -> None:
    quiet = quiet_loop or min(row["loop_s"] for row in rows)
    for row in rows:
        row["cpu_s_quiet"] = round(row["cpu_s"] * min(1.0, quiet / row["loop_s"]), 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": describe(), "quiet_loop_s": quiet, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
