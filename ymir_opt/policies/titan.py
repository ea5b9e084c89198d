"""Titan: a MILP over GPU counts that minimises the sum of slowdowns.

* Source: Gao et al., SoCC'22, as in its public simulator.
* Parameters: Counts {0, 1, 2, 3, 4, 8, 12, ...}; only the G jobs with the least predicted time on one GPU
  take part; cost of a count a: max(T(a), D) / max(T(fair), D) with fair = max(1, floor(G / N)); no GPUs
  costs 10 000; no switching cost.
* Cadence: Rounds of D = 120 s.
* Variants: ``:faithful`` uses the reference's predicted time (one accumulation step too many), ``:fixed``
  the time that the throughput implies.
"""

from __future__ import annotations

import numpy as np

from ymir_opt.policies.base import Cadence, variant
from ymir_opt.policies.choose import choose
from ymir_opt.policies.view import Decision, SnapshotView

__all__ = ["Titan"]

ROUND_S = 120.0
QUEUED_COST = 1e4


class Titan:
    """Sum of slowdowns by MILP."""

    def __init__(self, text: str = "") -> None:
        self.fixed = "fixed" in variant("titan", text, ())
        self.name = f"titan:{text}" if text else "titan"
        self.cadence = Cadence.rounds(ROUND_S)

    def reset(self) -> None:
        """Keep no state."""

    def decide(self, view: SnapshotView) -> Decision:
        """Solve the round's MILP."""
        gpus = np.zeros(len(view), dtype=np.int64)
        total = view.total_gpus
        rows = np.flatnonzero(view.startable | view.running)
        if not len(rows) or not total:
            return Decision(gpus)
        time_s = view.time_s if self.fixed else view.predicted_time_s
        one = time_s(rows, np.ones(len(rows), dtype=np.int64))
        rows = rows[np.lexsort((rows, view.running[rows], one))][:total]
        fair = max(1, total // len(rows))
        base = np.maximum(time_s(rows, np.minimum(fair, view.max_gpus[rows])), ROUND_S)
        counts = np.array([1, 2, 3, 4, *range(8, total + 1, 4)], dtype=np.int64)
        job = np.repeat(np.arange(len(rows)), len(counts))
        count = np.tile(counts, len(rows))
        allowed = (count <= view.max_gpus[rows][job]) & (count >= view.min_gpus[rows][job]) & (count <= total)
        job, count = job[allowed], count[allowed]
        cost = np.maximum(time_s(rows[job], count), ROUND_S) / base[job]
        known = np.isfinite(cost)
        job, count, cost = job[known], count[known], cost[known]
        job = np.concatenate([job, np.arange(len(rows))])
        count = np.concatenate([count, np.zeros(len(rows), dtype=np.int64)])
        cost = np.concatenate([cost, np.full(len(rows), QUEUED_COST)])
        chosen = choose([(j,) for j in job.tolist()], cost, count, np.array([total]), jobs=len(rows))
        gpus[rows[job[chosen]]] = count[chosen]
        return Decision(gpus, order=rows)
