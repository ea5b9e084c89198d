"""What the state beside a plan saves the next round: after churn, from scratch against with the state.

``python solver_runs/warm_start.py [--sizes 1000x240,...] [--seeds N] [-o FILE.jsonl]``. Of a planned round
5 % of the jobs, waiting ones, leave and as many others come; what was planned runs. Both ways take turns in
one process, the least CPU time of some repetitions counts. *Loss* is (objective with the state - from
scratch) / (cost of queueing everything - objective from scratch).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from machine import describe

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.outcome import outcome
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import JobState, Snapshot
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.planner.pipeline import plan_round
from ymir_opt.planner.state import SolverMemory

CHURN = 20
"""One job in so many leaves."""


def churned(jobs: int, gpus: int, seed: int = 0) -> tuple[Snapshot, Snapshot, Plan, SolverMemory]:
    """Return a round, the one after churn, the plan of the first, and what its solver left."""
    leaving = jobs // CHURN
    every = synthetic_snapshot(jobs + leaving, gpus, seed)
    before = every.model_copy(update={"jobs": every.jobs[:jobs]})
    there = {job.id for job in before.jobs}
    groups = tuple(group for group in before.groups if there.issuperset(group.jobs))
    before = before.model_copy(update={"groups": groups})
    memory = SolverMemory()
    plan = plan_round(before, memory=memory, alternatives=False)
    carried = outcome(before, plan)
    held = {name for group in carried.groups for name in group.jobs}
    waiting = [j.id for j in carried.jobs if j.state is JobState.PENDING and j.id not in held]
    gone = set(waiting[:leaving])
    coming = [j.model_copy(update={"state": JobState.PENDING}) for j in every.jobs[jobs:] if j.id not in held]
    stay = tuple(job for job in carried.jobs if job.id not in gone)
    return before, carried.model_copy(update={"jobs": (*stay, *coming)}), plan, memory


def measure(size: str, seed: int, repetitions: int) -> dict[str, Any]:
    """Measure one size and seed."""
    jobs, gpus = (int(part) for part in size.split("x"))
    _, after, plan, left = churned(jobs, gpus, seed)
    best: dict[str, float] = {}
    objective: dict[str, float] = {}
    for _ in range(repetitions):
        for name, state in (("scratch", None), ("state", left.after)):
            begun = time.process_time()
            found = plan_round(
                after, previous=plan, memory=SolverMemory(state), alternatives=False, cores=1
            ).solver
            best[name] = min(best.get(name, float("inf")), time.process_time() - begun)
            objective[name] = found.objective or 0.0
    queued = float(Evaluator(Instance.of(after), Estimates(after)).queued_cost.sum())
    return {
        "benchmark": "warm_start",
        "size": size,
        "seed": seed,
        "scratch_cpu_s": round(best["scratch"], 3),
        "state_cpu_s": round(best["state"], 3),
        "loss": (objective["state"] - objective["scratch"]) / (queued - objective["scratch"]),
        "machine": describe(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="420x128,1000x240,1000x1024,3000x1024")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    print("| jobs/GPUs | CPU with the state / from scratch, by seed | loss of value, by seed |")
    print("| --- | --- | --- |")
    lines = []
    for size in options.sizes.split(","):
        rows = [measure(size, seed, options.repetitions) for seed in range(options.seeds)]
        lines += [json.dumps(row) for row in rows]
        ratios = [row["state_cpu_s"] / row["scratch_cpu_s"] for row in rows]
        losses = ", ".join(f"{row['loss']:.3%}" for row in rows)
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        name = size.replace("x", "/")
        print(f"| {name} | {each} (median {statistics.median(ratios):.2f}) | {losses} |", flush=True)
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
