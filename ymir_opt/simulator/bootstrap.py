"""Traces resampled in blocks of time, for confidence intervals of what a simulation says.

Arrivals come in bursts and follow the day, and jobs of one user come together; drawing single jobs anew would
destroy that. So blocks of time are drawn with replacement and laid end to end (circular block bootstrap,
Politis and Romano, 1992, in time instead of observations): within a block nothing changes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import InputError
from ymir_opt.simulator.workload import TraceJob, Workload

__all__ = ["DEFAULT_BLOCKS", "bootstrap", "interval", "interval_factor"]

DEFAULT_BLOCKS = 12
"""Blocks that a trace is made of unless a length is given."""
_MOST_BLOCKS = 100_000
_LEAST_REPLICATES = 4


def bootstrap(workload: Workload, seed: int, block_s: float | None = None) -> Workload:
    """Return a trace of the same length in time, made of blocks of the original; seed 0 is the original.

    The number of jobs varies, as it would from week to week. A job that is drawn again gets a new id
    (``name~2``); everything else about it stays.

    Parameters
    ----------
    workload : Workload
        Its jobs are held in memory.
    seed : int
        The same seed gives the same trace.
    block_s : float, optional
        Length of a block, seconds; None: a twelfth of the trace.

    Raises
    ------
    InputError
        The seed is negative, or the length not positive or so short that there are too many blocks.
    """
    if seed < 0:
        raise InputError("--seeds", f"{seed} is negative", "use seeds from 0 on")
    if block_s is not None and not (block_s > 0 and math.isfinite(block_s)):
        raise InputError("block", f"{block_s} s is not a length", "give a positive number of seconds")
    if seed == 0:
        return workload
    jobs = list(workload.jobs())
    if not jobs:
        return workload
    times = np.array([job.submitted_at_s for job in jobs])
    first = float(times[0])
    span = float(times[-1]) - first
    # The gap after the last job, so that the end of the trace does not collide with its begin.
    span += span / (len(jobs) - 1) if len(jobs) > 1 and span > 0 else 1.0
    length = min(block_s if block_s is not None else span / DEFAULT_BLOCKS, span)
    if span / length > _MOST_BLOCKS:
        raise InputError(
            "block", f"{length:g} s cuts the trace into {span / length:.3g} blocks", f"at most {_MOST_BLOCKS}"
        )
    rng = np.random.default_rng([seed, 0xB10C])
    drawn: list[TraceJob] = []
    copies: dict[str, int] = {}
    begin = 0.0
    while begin < span:
        width = min(length, span - begin)
        origin = float(rng.uniform(0.0, span))
        since = np.mod(times - first - origin, span)
        rows = np.flatnonzero(since < width)
        for row in rows[np.argsort(since[rows], kind="stable")].tolist():
            job = jobs[row]
            copies[job.id] = copies.get(job.id, 0) + 1
            copy = copies[job.id]
            moved = first + begin + float(since[row]) - job.submitted_at_s
            drawn.append(
                replace(
                    job,
                    id=job.id if copy == 1 else f"{job.id}~{copy}",
                    submitted_at_s=job.submitted_at_s + moved,
                    deadline_s=job.deadline_s + moved,
                )
            )
        begin += length
    held = tuple(drawn)
    return replace(workload, name=f"{workload.name}#{seed}", jobs=lambda: iter(held), length=len(held))


def interval(values: NDArray[np.float64], level: float = 0.95) -> tuple[float, float] | None:
    """Return a confidence interval of a statistic from its values on bootstrapped traces.

    The spread of the replicates estimates the standard error of the original's value; the interval is
    that value -+ the quantile of Student's t times the spread.

    Parameters
    ----------
    values : float64[n]
        The original's value first, then the replicates'.
    level : float

    Returns
    -------
    (float, float) or None
        None with fewer than four replicates: their spread is no estimate.
    """
    factor = interval_factor(len(values), level)
    if factor is None:
        return None
    half = factor * float(values[1:].std(ddof=1))
    return float(values[0]) - half, float(values[0]) + half


def interval_factor(number: int, level: float = 0.95) -> float | None:
    """Return half the interval's width over the replicates' spread, for so many values; None below five."""
    from scipy.special import stdtrit

    return None if number < 1 + _LEAST_REPLICATES else float(stdtrit(number - 2, 0.5 + level / 2))
