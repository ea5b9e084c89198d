"""Two simulated policies on two traces, by hand, with a merge, a resize, a preemption and odd names."""

from __future__ import annotations

from typing import Any

import numpy as np

from ymir_opt.simulator.bounds import JctBound
from ymir_opt.simulator.metrics import metrics_row
from ymir_opt.simulator.results import JobRecord, Segment, SimulationResult

ORIGIN = 1.5e9
NASTY_TRACE = "</script><img src=x onerror=alert(1)>/data/FM-1&/workload-0.csv"
NASTY_JOB = "job</script><b>&'\"`"
NASTY_REASON = f"b: starts on 3 V100 in joint with {NASTY_JOB} (Chosen)\n{NASTY_JOB}: goes along <script>"


def record(name: str, submitted: float, started: float, done: float, **fields: Any) -> JobRecord:
    given: dict[str, Any] = {
        "requested_gpus": 2,
        "gpu_s": 2 * (done - started),
        "switch_gpu_s": 60.0,
        "starts": 1,
        "preemptions": 0,
        "model": "vit",
        "task": "mnist",
        "queue": "default",
        "exclusive_s": 500.0,
        "fastest_s": 400.0,
        **fields,
    }
    return JobRecord(name, ORIGIN + submitted, ORIGIN + started, ORIGIN + done, **given)


def segment(
    group: int, mode: str, jobs: tuple[str, ...], nodes: dict[str, int], *times: float, by: str, **whys: str
) -> Segment:
    start, ready, end = (ORIGIN + time for time in times)
    return Segment(group, mode, jobs, tuple(nodes.items()), start, ready, end, by, **whys)


def result(trace: str, policy: str, seed: int, late: float = 0.0) -> SimulationResult:
    """Return a run; `late` delays its last completion."""
    jobs = [
        record("a", 0.0, 0.0, 600.0),
        record("b", 300.0, 600.0, 1500.0, starts=2),
        record(NASTY_JOB, 400.0, 600.0, 2000.0 + late, preemptions=1, exclusive_s=float("inf")),
        record("d", 1000.0, 1500.0, 1800.0, requested_gpus=1, model="", task=""),
    ]
    segments = [
        segment(1, "solo", ("a",), {"n2": 0b11}, 0.0, 30.0, 600.0, by="finished"),
        segment(
            2, "joint", ("b", NASTY_JOB), {"n2": 0b1011}, 600.0, 630.0, 1500.0, by="member", why=NASTY_REASON
        ),
        segment(
            2,
            "joint",
            (NASTY_JOB,),
            {"n2": 0b1011},
            *(1500.0, 1500.0, 1600.0),
            by="preempted",
            ended_why="changes to 4 V100",
        ),
        segment(3, "solo", (NASTY_JOB,), {"n10": 0b1111}, 1600.0, 1660.0, 2000.0 + late, by="finished"),
        segment(4, "solo", ("d",), {"n2": 0b100}, 1500.0, 1530.0, 1800.0, by="finished"),
    ]
    when = ORIGIN + np.array([0.0, 600.0, 1500.0, 1600.0])
    return SimulationResult(
        trace,
        policy,
        seed,
        8,
        jobs=jobs,
        segments=segments,
        series={
            "time_s": when,
            "used_gpus": np.array([2.0, 3.0, 4.0, 5.0]),
            "total_gpus": np.full(4, 8.0),
            "waiting_jobs": np.array([0.0, 0.0, 0.0, 0.0]),
            "running_jobs": np.array([1.0, 2.0, 2.0, 2.0]),
            "largest_gang": np.array([4.0, 4.0, 4.0, 1.0]),
            "plan_wall_s": np.full(4, 0.004),
            "value_gap": np.array([0.0, 0.001, np.nan, 0.0]),
        },
        preemptions=1,
        merges_kept=1,
        starts=5,
        jobs_finished=4,
        jct_sum_s=sum(job.jct_s for job in jobs),
        makespan_s=2000.0 + late,
        rounds=4,
    )


def comparison() -> tuple[list[dict[str, Any]], list[SimulationResult], list[JctBound | None]]:
    """Return rows, results and bounds of ``compare``: six seeds of the first trace, one of the second."""
    rows, results = [], []
    bound = JctBound(400.0, 300.0, 450.0, 4)
    for trace, seeds in ((NASTY_TRACE, 6), ("other.swf", 1)):
        for seed in range(seeds):
            for number, policy in enumerate(("tiresias", "ymir", "<i>odd</i>")):
                run = result(trace, policy, seed, late=500.0 * (number != 1) + 90.0 * seed)
                results.append(run)
                rows.append(metrics_row(run, bound, trace))
    return rows, results, [bound] * len(rows)
