"""What a plan uses and predicts, as figures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.plan import Fairness, Metrics
from ymir_opt.planner.profiling import Reservation
from ymir_opt.planner.search import Round
from ymir_opt.planner.selection import Selection

__all__ = ["fragmentation", "jain", "metrics"]

# isolated times below this, seconds, are not told apart
LEAST_S = 1e-9


def jain(values: NDArray[np.float64]) -> float | None:
    """Return Jain's fairness index ``(sum v)^2 / (n sum v^2)``, 1 if all are equal; None without values."""
    if not len(values):
        return None
    top = float(values.max())
    if top <= 0:
        return 1.0
    # the index does not change with the unit, and squares of figures below 1 cannot overflow
    shares = values / top
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


def fragmentation(free: NDArray[np.int64], size: NDArray[np.int64]) -> float | None:
    """Return the share of free GPUs that lie on nodes which are not entirely free; None if none is free."""
    total = int(free.sum())
    return None if total == 0 else float(free[free < size].sum() / total)


def metrics(work: Round, selection: Selection, reservation: Reservation) -> Metrics:
    """Return the plan's metrics.

    ``rho`` is finish-time fairness: (age + seconds to completion) over the fastest isolated time from
    the beginning, of the placed jobs whose speed is known (Themis, NSDI'20).
    """
    instance, jobs = work.evaluator.instance, work.evaluator.jobs
    used = np.zeros(len(instance.gpu_node), dtype=np.bool_)
    for rows in (*selection.gpus, *reservation.gpus.values()):
        used[rows] = True
    finishes, ratios = [], []
    for i, c in enumerate(selection.columns):
        result, row = selection.evaluations[i]
        for k, j in enumerate(int(j) for j in work.table.jobs[c] if j >= 0):
            finish = float(result.finish_s[row, k])
            if not np.isfinite(finish):
                continue
            finishes.append(finish)
            if np.isfinite(jobs.t_iso[j]) and jobs.t_iso[j] > 0:
                ratios.append((float(jobs.age[j]) + finish) / max(float(jobs.t_iso[j]), LEAST_S))
    open_gpu = instance.gpu_ready & ~used
    count = len(instance.nodes)
    free = np.bincount(instance.gpu_node[open_gpu], minlength=count)
    size = np.bincount(instance.gpu_node[instance.gpu_ready], minlength=count)
    return Metrics(
        gpus_used=int(used.sum()),
        gpus_total=int(instance.gpu_exists.sum()),
        predicted_mean_finish_at_s=(
            instance.snapshot.taken_at_s + float(np.mean(finishes)) if finishes else None
        ),
        fairness=Fairness(
            max_rho=max(ratios) if ratios else None, jain=jain(np.array(ratios, dtype=np.float64))
        ),
        fragmentation=fragmentation(free, size),
    )
