"""Prices of GPUs and jobs: what a candidate group must beat to be worth a column.

A group is promising if its *reduced profit* is high: what it saves against queueing its members, less the
GPUs it takes at ``gpu[t]`` each, less ``job[j]``, what each member is worth elsewhere. Prices first come from
the relaxation with solo columns alone (one Lagrange multiplier a GPU type), then from the duals of the
relaxation over the pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.linear import LinearModel
from ymir_opt.formulation.model import RoundModel
from ymir_opt.formulation.numbering import rank_in_runs
from ymir_opt.formulation.rowwise import sum_of

__all__ = ["Prices", "dual_prices", "row_guess", "saving_of", "solo_prices", "worthwhile"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

STEPS = 60


@dataclass(frozen=True)
class Prices:
    """Prices in quanta.

    Attributes
    ----------
    gpu : float64[T]
        Of one GPU of each type.
    job : float64[J]
        Of covering each job.
    """

    gpu: FloatArray
    job: FloatArray

    def reduced(self, saving: FloatArray, types: IntArray, gpus: IntArray, members: IntArray) -> FloatArray:
        """Return the reduced profit of groups, float64[M], in quanta.

        Parameters
        ----------
        saving : float64[M]
            Queueing cost of the members less the group's cost, quanta.
        types, gpus : int64[M]
        members : int64[M, K]
            -1 pads.
        """
        worth = sum_of(np.append(self.job, 0.0)[members])
        return np.asarray(saving - self.gpu[types] * gpus - worth)


def saving_of(table: ColumnTable) -> FloatArray:
    """Return the queueing cost of each column's members less its cost, float64[C], in quanta."""
    queued = sum_of(np.append(table.queued_cost, 0)[table.jobs])
    return np.asarray(queued - table.cost, dtype=np.float64)


def solo_prices(table: ColumnTable, capacity: IntArray) -> Prices:
    """Return prices from columns of single jobs: a subgradient on one multiplier a GPU type.

    Parameters
    ----------
    table : ColumnTable
        Columns with one member each, at least.
    capacity : int64[T]
        GPUs on which something may run.
    """
    saving = saving_of(table)
    jobs = len(table.queued_cost)
    price = np.zeros(len(capacity))
    if not len(table) or not len(capacity):
        return Prices(price, np.zeros(jobs))
    lead = table.jobs[:, 0]
    order = np.argsort(lead, kind="stable")
    start = np.flatnonzero(np.r_[True, lead[order][1:] != lead[order][:-1]])
    kinds, gpus, saved = table.type[order], table.gpus[order], saving[order]
    density = np.maximum(saved / np.maximum(gpus, 1), 0.0)
    step = float(np.quantile(density, 0.9)) if len(density) else 0.0
    best = price.copy()
    for k in range(STEPS):
        reduced = saved - price[kinds] * gpus
        top = np.maximum.reduceat(reduced, start)
        # the first best column of each job, if it pays at all
        chosen = reduced >= np.repeat(top, np.diff(np.r_[start, len(reduced)]))
        chosen &= reduced > 0
        first = np.flatnonzero(chosen)
        _, keep = np.unique(lead[order][first], return_index=True)
        use = np.bincount(kinds[first[keep]], weights=gpus[first[keep]], minlength=len(capacity))
        excess = (use - capacity) / np.maximum(capacity, 1)
        price = np.maximum(0.0, price + step * np.clip(excess, -1.0, 1.0) / (1 + 0.3 * k))
        best = price if k < STEPS // 2 else 0.9 * best + 0.1 * price
    reduced = saved - best[kinds] * gpus
    worth = np.zeros(jobs)
    np.maximum.at(worth, lead[order], np.maximum(reduced, 0.0))
    return Prices(best, worth)


def worthwhile(table: ColumnTable, prices: Prices, per_job: int) -> IntArray:
    """Return the columns of two or more that are among the best of one of their members, ascending.

    Parameters
    ----------
    table : ColumnTable
    prices : Prices
    per_job : int
        So many of each job, by reduced profit.
    """
    shared = np.flatnonzero((table.size > 1) & (table.keep < 0))
    some = table.take(shared)
    value = prices.reduced(saving_of(some), some.type, some.gpus, some.jobs)
    row, place = np.nonzero(some.jobs >= 0)
    job = some.jobs[row, place]
    order = np.lexsort((row, -value[row], job))
    return shared[np.unique(row[order[rank_in_runs(job[order]) < per_job]])]


def dual_prices(stated: RoundModel, row_duals: FloatArray, types: int) -> Prices:
    """Return prices from the duals of a relaxation over a pool.

    A job's price is what covering it saves against leaving it out; a GPU's the mean, over the
    columns of its type, of what their other rows cost, by GPU.

    Parameters
    ----------
    stated : RoundModel
    row_duals : float64[m]
        In quanta per unit; negative where an upper bound binds.
    types : int
        Number of GPU types.
    """
    model, table = stated.model, stated.table
    coverage = np.array([family == "coverage" for family in model.row_family], dtype=np.bool_)
    duals = row_duals[coverage]
    job = np.asarray(table.queued_cost - duals)
    other = _other_rows(model, row_duals, coverage)[stated.x]
    new = table.keep < 0
    gpu = np.zeros(types)
    for t in range(types):
        mine = new & (table.type == t)
        if mine.any():
            gpu[t] = max(0.0, float(np.median(-other[mine] / table.gpus[mine])))
    return Prices(gpu, np.maximum(job, 0.0))


def row_guess(stated: RoundModel, prices: Prices) -> FloatArray:
    """Return a guess at the duals of a model's rows, float64[m], from prices of jobs and GPUs.

    The largest capacity row of each GPU type takes the price of its GPUs.
    """
    model, table = stated.model, stated.table
    guess = np.zeros(model.rows)
    family = np.array(model.row_family, dtype=np.str_)
    guess[family == "coverage"] = table.queued_cost - prices.job
    kind = np.full(model.variables, -1, dtype=np.int64)
    kind[stated.x] = table.type
    size = np.diff(model.row_start)
    largest: dict[int, int] = {}
    for row in np.flatnonzero((family == "capacity") & (size > 0)).tolist():
        t = int(kind[model.index[model.row_start[row]]])
        if t >= 0 and (t not in largest or size[row] > size[largest[t]]):
            largest[t] = row
    for t, row in largest.items():
        guess[row] = -prices.gpu[t]
    return guess


def _other_rows(model: LinearModel, row_duals: FloatArray, coverage: NDArray[np.bool_]) -> FloatArray:
    """Return ``A^T y`` over all rows but coverage, float64[n]."""
    y = np.where(coverage, 0.0, row_duals)
    row = model.row_of_entry
    total = np.bincount(model.index, weights=model.value * y[row], minlength=model.variables)
    return np.asarray(total, dtype=np.float64)
