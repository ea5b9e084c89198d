"""The figures of one finished simulation, as ``compare --json`` prints them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.simulator.bounds import JctBound
from ymir_opt.simulator.results import JobRecord, SimulationResult

__all__ = ["ROW_FIELDS", "jain", "metrics_row", "rho"]

FloatArray = NDArray[np.float64]

ROW_FIELDS = (
    "trace",
    "policy",
    "seed",
    "jobs",
    "gpus",
    "mean_jct_s",
    "p50_jct_s",
    "p95_jct_s",
    "p99_jct_s",
    "makespan_s",
    "mean_rho",
    "max_rho",
    "jain",
    "preemptions",
    "gpu_hours_used",
    "gpu_hours_switching",
    "merges_kept",
    "merges_rolled_back",
    "lower_bound_jct_s",
    "plan_wall_p99_s",
    "max_value_gap",
    "unfinished",
)


def rho(jobs: Iterable[JobRecord]) -> FloatArray:
    """Return each job's finish-time fairness: its completion time over its time alone.

    rho = (completion - submission) / (true time alone on the requested GPUs from the submission on, one cold
    start included); 1 is what a cluster of one's own would give (Themis, NSDI'20, with the request as the
    job's share). The denominator is the truth of the trace, not a prediction and not what the job
    attained in the shared run. A job whose requested count cannot run is measured against its fastest count.
    """
    jobs = list(jobs)
    took = np.array([job.jct_s for job in jobs], dtype=np.float64)
    alone = np.array(
        [job.exclusive_s if math.isfinite(job.exclusive_s) else job.fastest_s for job in jobs],
        dtype=np.float64,
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = took / alone
    return np.asarray(ratio[np.isfinite(ratio)])


def jain(values: FloatArray) -> float | None:
    """Return Jain's index ``(sum v)^2 / (n sum v^2)``: 1 where all are equal; None without values."""
    if not len(values):
        return None
    square = float(values @ values)
    return float(values.sum()) ** 2 / (len(values) * square) if square > 0 else 1.0


def metrics_row(
    result: SimulationResult, bound: JctBound | None = None, trace: str | None = None
) -> dict[str, Any]:
    """Return the figures of one run; what is not known is None.

    Parameters
    ----------
    result : SimulationResult
        With its job records; where a sink took them, what depends on single jobs is None.
    bound : JctBound, optional
        Of the same jobs on the same cluster. Left out where jobs are unfinished that could have run: the
        mean of the others proves nothing about all.
    trace : str, optional
        The name to print; None: the result's.
    """
    jobs = result.jobs
    took = result.jct_s()
    ratios = rho(jobs)
    comparable = bound is not None and bound.jobs == result.jobs_finished
    wall = result.series.get("plan_wall_s", np.zeros(0))
    gaps = result.series.get("value_gap", np.zeros(0))
    gaps = gaps[np.isfinite(gaps)]

    def percentile(share: float) -> float | None:
        return float(np.percentile(took, share)) if len(took) else None

    return {
        "trace": trace if trace is not None else result.trace,
        "policy": result.policy,
        "seed": result.seed,
        "jobs": result.jobs_finished,
        "gpus": result.gpus,
        "mean_jct_s": result.mean_jct_s if result.jobs_finished else None,
        "p50_jct_s": percentile(50),
        "p95_jct_s": percentile(95),
        "p99_jct_s": percentile(99),
        "makespan_s": result.makespan_s if result.jobs_finished else None,
        "mean_rho": float(ratios.mean()) if len(ratios) else None,
        "max_rho": float(ratios.max()) if len(ratios) else None,
        "jain": jain(ratios),
        "preemptions": result.preemptions,
        "gpu_hours_used": sum(job.gpu_s for job in jobs) / 3600 if jobs else None,
        "gpu_hours_switching": sum(job.switch_gpu_s for job in jobs) / 3600 if jobs else None,
        "merges_kept": result.merges_kept,
        "merges_rolled_back": result.merges_rolled_back,
        "lower_bound_jct_s": bound.mean_s if comparable and bound is not None else None,
        "plan_wall_p99_s": float(np.percentile(wall, 99)) if len(wall) else None,
        "max_value_gap": float(gaps.max()) if len(gaps) else None,
        "unfinished": len(result.unfinished),
    }
