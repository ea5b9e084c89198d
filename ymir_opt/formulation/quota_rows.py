"""Rows on quotas: queue limits, cohorts with lending, protection within nominal, reclaim.

Symbols: ``a_cr`` the charge of column ``c`` on quota row ``r`` (see `quota`), ``N_r`` nominal,
``L_r`` nominal plus borrowing limit, ``G_r`` what is never lent, ``u_r`` the use before, ``f_r`` what
profile actions use; ``y_j`` job ``j`` is left out. Kueue's ClusterQueue and Cohort are the model for
the meaning; quotas bind what starts or grows, so that kept use may exceed a lowered quota.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Reclaim
from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import UNBOUNDED, ModelBuilder
from ymir_opt.formulation.quota import Charges, QuotaPool, QuotaTable

__all__ = ["QuotaContext", "cohort_rows", "protection_rows", "queue_rows", "reclaim_rows"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class QuotaContext:
    """What the quota rows of one model share.

    Attributes
    ----------
    instance : Instance
    quotas : QuotaTable
    table : ColumnTable
    charges : Charges
    x, y : int64[C], int64[J]
        Variables of columns and of left-out jobs.
    can_stop : bool[J]
        The job runs and may be left out.
    fixed : int64[R]
        Use by profile actions, in units.
    column_class : int64[C]
        Highest priority class among each column's holders.
    available : bool[U]
        GPUs on which something may start if nothing is kept there.
    """

    instance: Instance
    quotas: QuotaTable
    table: ColumnTable
    charges: Charges
    x: IntArray
    y: IntArray
    can_stop: BoolArray
    fixed: IntArray
    column_class: IntArray
    available: BoolArray

    def before(self, row: int) -> int:
        """Return a row's use by what runs now and can stay, in units."""
        column, value = self.charges.of(row)
        return int(value[self.table.keep[column] >= 0].sum())


def queue_rows(builder: ModelBuilder, context: QuotaContext) -> None:
    """Add each queue's limit: ``sum_c a_cr x_c + f_r <= L_r``.

    Where kept use exceeds the limit, a binary ``s`` says that a job starts or grows (is charged more than
    now), and then the limit holds: ``x_c <= s`` for those columns and
    ``sum_c a_cr x_c <= u_r - (u_r - L_r + f_r) s``.
    """
    for r, row in enumerate(context.quotas.rows):
        column, value = context.charges.of(r)
        if row.limit is None or not len(column):
            continue
        limit = row.limit - int(context.fixed[r])
        growing = context.charges.growing(r)
        start = context.x[column[growing]], value[growing]
        _limited(builder, context.x[column], value, start, limit, context.before(r), "quota")


def _limited(
    builder: ModelBuilder,
    index: IntArray,
    value: IntArray,
    start: tuple[IntArray, IntArray],
    limit: int,
    before: int,
    family: str,
) -> None:
    """Add ``value @ x[index] <= limit``; kept use above it stays as long as nothing in ``start`` begins."""
    if before <= limit:
        builder.row(index, value, -UNBOUNDED, limit, family)
        return
    (starts,) = builder.variables(np.zeros(1, np.int64))
    if len(start[0]):
        # each new column alone: an unbounded multiplier would weaken the relaxation
        count = len(start[0])
        builder.row(
            np.append(start[0], starts),
            np.append(np.ones(count, np.int64), -count),
            -UNBOUNDED,
            0,
            family,
        )
    builder.row(np.append(index, starts), np.append(value, before - limit), -UNBOUNDED, before, family)


def cohort_rows(builder: ModelBuilder, context: QuotaContext) -> None:
    """Add each cohort's total: ``sum_r z_r <= sum_r (N_r - G_r)`` with ``z_r >= use_r - G_r``, ``z_r >= 0``.

    ``z_r`` is what queue ``r`` takes from what may be lent; without lending limits (``G_r = 0``) this is
    "the cohort's use is at most the sum of its nominal quotas". Kept use above it: as in `queue_rows`.
    """
    for pool in context.quotas.pools():
        limit = sum(context.quotas.rows[r].lendable for r in pool.rows)
        before = 0
        index, values, start, starting = [], [], [], []
        for r in pool.rows:
            row = context.quotas.rows[r]
            column, value = context.charges.of(r)
            fixed = int(context.fixed[r])
            use = context.before(r) + fixed
            growing = context.charges.growing(r)
            start.append(context.x[column[growing]])
            starting.append(value[growing])
            before += max(0, use - row.guaranteed)
            if row.guaranteed == 0 or not len(column):
                # nothing is kept back: all use counts, that of profile actions as a constant
                index.append(context.x[column])
                values.append(value)
                constant = max(0, fixed - row.guaranteed)
                limit -= constant
                before -= constant
                continue
            (z,) = builder.variables(np.zeros(1, np.int64), 0, UNBOUNDED, relaxable=True)
            builder.row(
                np.append(context.x[column], z),
                np.append(value, -1),
                -UNBOUNDED,
                row.guaranteed - fixed,
                "lending",
            )
            index.append(np.array([z]))
            values.append(np.ones(1, np.int64))
        joined = np.concatenate(index)
        if len(joined):
            starts = np.concatenate(start), np.concatenate(starting)
            _limited(builder, joined, np.concatenate(values), starts, limit, before, "cohort")


def protection_rows(builder: ModelBuilder, context: QuotaContext) -> None:
    """Add "use within nominal is never preempted by borrowing".

    Binary ``e_r`` only if row ``r`` keeps what it used within nominal: ``use_r >= m_r e_r``,
    ``m_r = min(u_r, N_r)``. Preempting a job of ``r`` needs that, or that nobody borrows more than
    before (binary ``w`` of the area): ``y_j <= e_r + w`` and, for every row ``q`` of the area,
    ``use_q <= max(N_q, u_q) + M_q (1 - w)``.
    """
    for area in context.quotas.areas():
        victims = _within_nominal(context, area)
        borrowers = [
            (r, most) for r in area.rows if (most := _could_borrow(context, r)) is not None and most > 0
        ]
        if not victims or not borrowers:
            continue
        (quiet,) = builder.variables(np.zeros(1, np.int64))
        for r, level, jobs in victims:
            column, value = context.charges.of(r)
            (safe,) = builder.variables(np.zeros(1, np.int64))
            builder.row(np.append(context.x[column], safe), np.append(value, -level), 0, UNBOUNDED, "nominal")
            for j in jobs:
                builder.row([context.y[j], safe, quiet], [1, -1, -1], -UNBOUNDED, 0, "nominal")
        for r, most in borrowers:
            column, value = context.charges.of(r)
            level = max(context.quotas.rows[r].nominal, context.before(r))
            builder.row(
                np.append(context.x[column], quiet),
                np.append(value, most),
                -UNBOUNDED,
                level + most,
                "nominal",
            )


def _within_nominal(context: QuotaContext, area: QuotaPool) -> list[tuple[int, int, list[int]]]:
    """Return (row, use within nominal, jobs that could be stopped) of rows that have any."""
    out = []
    for r in area.rows:
        level = min(context.before(r), context.quotas.rows[r].nominal)
        if level <= 0:
            continue
        jobs = [
            j
            for group in context.instance.running
            if group.keepable
            for j in group.holders
            if context.can_stop[j] and context.quotas.row_of[context.quotas.queue_of[j], group.type] == r
        ]
        if jobs:
            out.append((r, level, jobs))
    return out


def _could_borrow(context: QuotaContext, r: int) -> int | None:
    """Return by how much a row's borrowing could grow, in units; None if it cannot be used."""
    row = context.quotas.rows[r]
    column, value = context.charges.of(r)
    if not len(column) or row.cohort is None:
        return None
    types = np.array(row.types, dtype=np.int64)
    most = int(np.isin(context.instance.gpu_type, types).sum()) * context.quotas.unit
    most = min(most, int(value.sum()), sum(o.nominal for o in context.quotas.rows if o.cohort == row.cohort))
    if row.limit is not None:
        most = min(most, row.limit)
    return most - max(row.nominal, context.before(r))


def reclaim_rows(builder: ModelBuilder, context: QuotaContext) -> None:
    """Add what a queue may not take from others of its cohort by preemption.

    ``Never``: on every type what the queue gets is covered by GPUs free before, its own releases, stopped
    jobs outside the cohort, and what any other group gives up by shrinking, merging or leaving the type.
    ``LowerPriority``: for every class ``k``, what its groups of class at most ``k`` get is covered by those
    and by stopped jobs of the cohort of a class below ``k``.
    With ``b_j`` the charge of running job ``j`` of group ``r(j)``, ``a_cj`` its charge in ``c``:
    ``sum_{c new of q} a_cq x_c <= free + sum_{j of q} b_j (1 - x_keep(r(j)))
    + sum_{j not of q} sum_{c new with j} max(0, b_j - a_cj) x_c + sum_{j may be stopped} b_j y_j``.
    A job that moves takes GPUs itself: only what it then has less is given up.
    """
    instance, quotas, table = context.instance, context.quotas, context.table
    cohort_of = [queue.cohort for queue in instance.queues.values()] + [None]
    kept = np.flatnonzero(table.keep >= 0)
    keep_variable = dict(zip(table.keep[kept].tolist(), context.x[kept].tolist(), strict=True))
    free = context.available & ((instance.gpu_held < 0) | ~_kept_mask(instance)[instance.gpu_held])
    for r, row in enumerate(quotas.rows):
        if row.cohort is None or row.reclaim is Reclaim.ANY:
            continue
        column, value = context.charges.of(r)
        new = table.keep[column] < 0
        for t in row.types:
            mine = new & (table.type[column] == t)
            if not mine.any():
                continue
            classes = np.unique(context.column_class[column[mine]])
            ceilings = [int(classes[-1])] if row.reclaim is Reclaim.NEVER else [int(k) for k in classes]
            for k in ceilings:
                below = k if row.reclaim is Reclaim.LOWER_PRIORITY else -1
                taken = mine & (context.column_class[column] <= k)
                index, coefficient = [context.x[column[taken]]], [value[taken]]
                upper = int((free & (instance.gpu_type == t)).sum()) * quotas.unit
                binds = False
                for g, group in enumerate(instance.running):
                    if group.type != t or g not in keep_variable:
                        continue
                    usable = int(context.available[group.gpus].sum()) * quotas.unit
                    share = usable // len(group.holders)
                    for j in group.holders:
                        if instance.jobs[j].queue == row.queue:
                            upper += share
                            index.append(np.array([keep_variable[g]]))
                            coefficient.append(np.array([share]))
                            continue
                        given, amount = _given_up(context, j, t, share)
                        index.append(given)
                        coefficient.append(-amount)
                        inside = cohort_of[quotas.queue_of[j]] == row.cohort
                        if inside and instance.job_class[j] >= below:
                            binds = binds or bool(context.can_stop[j])
                        else:
                            index.append(np.array([context.y[j]]))
                            coefficient.append(np.array([-share]))
                if binds:
                    builder.row(
                        np.concatenate(index), np.concatenate(coefficient), -UNBOUNDED, upper, "reclaim"
                    )


def _given_up(context: QuotaContext, j: int, t: int, share: int) -> tuple[IntArray, IntArray]:
    """Return the new columns with a running job, and what it gives up of a type in each, in units."""
    table = context.table
    holders = table.holders()
    mine = (table.jobs == j).any(axis=1) & (table.keep < 0)
    columns = np.flatnonzero(mine)
    held = ((table.jobs[columns] == j) & holders[columns]).any(axis=1) & (table.type[columns] == t)
    charge = context.quotas.share(table.gpus[columns], np.maximum(holders[columns].sum(axis=1), 1))
    amount = np.maximum(share - np.where(held, charge, 0), 0)
    return context.x[columns], amount


def _kept_mask(instance: Instance) -> BoolArray:
    """Return bool[running + 1]: the group can stay (last: nothing runs)."""
    return np.array([group.keepable for group in instance.running] + [False], dtype=np.bool_)
