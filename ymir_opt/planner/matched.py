"""The ``matching`` backend: best pairs at a GPU price by maximum-weight matching, then filled greedily.

With one Lagrange multiplier a GPU type, groups of at most two are a matching: exact for pairs at that
price. The bound ``queue everything - (best matching + sum_t price_t GPUs_t)`` holds for every plan whose
groups have at most two members; where the pool has larger ones there is none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.prices import saving_of, solo_prices
from ymir_opt.domain.plan import StoppedBy
from ymir_opt.planner.greedy import fill
from ymir_opt.planner.search import Outcome, Round
from ymir_opt.planner.selection import settle
from ymir_opt.solvers.matching import best_pairs

__all__ = ["matched"]

IntArray = NDArray[np.int64]


def matched(work: Round) -> Outcome:
    """Return the selection that keeps what runs, starts matched pairs first, and fills what is left."""
    table, instance = work.table, work.evaluator.instance
    jobs = len(table.queued_cost)
    capacity = np.bincount(instance.gpu_type[instance.gpu_exists], minlength=len(instance.types))
    alone = table.take(np.flatnonzero(table.size == 1))
    prices = solo_prices(alone, capacity.astype(np.int64))
    gpu = np.rint(prices.gpu).astype(np.int64)
    small = np.flatnonzero(table.size <= 2)
    members = np.sort(table.jobs[small][:, :2], axis=1)
    gain = saving_of(table)[small].astype(np.int64) - gpu[table.type[small]] * table.gpus[small]
    solo = np.zeros(jobs, dtype=np.int64)
    one = members[:, 0] < 0
    np.maximum.at(solo, members[one, 1], gain[one])
    code, inverse = np.unique(members[~one, 0] * jobs + members[~one, 1], return_inverse=True)
    pair_gain = np.zeros(len(code), dtype=np.int64)
    np.maximum.at(pair_gain, inverse, gain[~one])
    pairs = np.column_stack([code // max(jobs, 1), code % max(jobs, 1)]).astype(np.int64)
    rows, _, total = best_pairs(jobs, solo, pairs, pair_gain)
    keeps = np.flatnonzero(table.keep >= 0)
    first = np.zeros(len(table), dtype=np.bool_)
    wanted = {tuple(pair) for pair in pairs[rows].tolist()}
    first[small[~one]] = [tuple(pair) in wanted for pair in members[~one].tolist()]
    columns, gpus = fill(
        instance,
        table,
        work.quotas,
        available=work.available,
        profiled=work.profiled,
        chosen=keeps,
        first=first,
    )
    bound = None
    if (table.size <= 2).all():
        bound = int(table.queued_cost.sum()) - total - int((gpu * capacity).sum())
    return Outcome(settle(work.evaluator, table, columns, gpus), bound, StoppedBy.HEURISTIC)
