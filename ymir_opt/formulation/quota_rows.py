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

    Where kept use exceeds the limit, a binary ``s`` says that something starts or grows, and then the
    limit holds: ``sum_{c new} a_cr x_c <= L_r s`` and ``sum_c a_cr x_c <= u_r - (u_r - L_r + f_r) s``.
    """
    for r, row in enumerate(context.quotas.rows):
        column, value = context.charges.of(r)
        if row.limit is None or not len(column):
            continue
        limit = row.limit - int(context.fixed[r])
        _limited(builder, context, context.x[column], value, column, limit, context.before(r), "quota")


def _limited(
    builder: ModelBuilder,
    context: QuotaContext,
    index: IntArray,
    value: IntArray,
    column: IntArray,
    limit: int,
    before: int,
    family: str,
    extra: tuple[IntArray, IntArray] | None = None,
    new_values: IntArray | None = None,
) -> None:
    """Add ``value @ x[index] <= limit``, or its form for kept use above the limit."""
    new = context.table.keep[column] < 0
    charged = value if new_values is None else new_values
    if extra is not None:
        index, value = np.concatenate([index, extra[0]]), np.concatenate([value, extra[1]])
    if before <= limit:
        builder.row(index, value, -UNBOUNDED, limit, family)
        return
    # an unbounded multiplier would weaken the relaxation: new use within the limit is all there can be
    (starts,) = builder.variables(np.zeros(1, np.int64))
    most = max(limit, 0) if extra is None else int(charged[new].sum())
    if new.any():
        builder.row(
            np.append(context.x[column[new]], starts), np.append(charged[new], -most), -UNBOUNDED, 0, family
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
        columns, values, lent = [], [], []
        for r in pool.rows:
            row = context.quotas.rows[r]
            column, value = context.charges.of(r)
            fixed = int(context.fixed[r])
            use = context.before(r) + fixed
            if row.guaranteed == 0:
                columns.append(column)
                values.append(value)
                limit -= fixed
                before += use - fixed
                continue
            before += max(0, use - row.guaranteed)
            if not len(column):
                limit -= max(0, fixed - row.guaranteed)
                before -= max(0, fixed - row.guaranteed)
                continue
            (z,) = builder.variables(np.zeros(1, np.int64), 0, UNBOUNDED, relaxable=True)
            builder.row(
                np.append(context.x[column], z),
                np.append(value, -1),
                -UNBOUNDED,
                row.guaranteed - fixed,
                "lending",
            )
            lent.append(int(z))
        column = np.concatenate([*columns, np.zeros(0, np.int64)])
        value = np.concatenate([*values, np.zeros(0, np.int64)])
        if not len(column) and not lent:
            continue
        extra = (np.array(lent, np.int64), np.ones(len(lent), np.int64)) if lent else None
        if before > limit:
            # every new column of the pool waits for the total, also those charged within guarantees
            parts = [context.charges.of(r) for r in pool.rows]
            column = np.concatenate([c for c, _ in parts])
            charged = np.concatenate([v for _, v in parts])
            guaranteed = np.concatenate(
                [
                    np.full(len(c), context.quotas.rows[r].guaranteed > 0)
                    for r, (c, _) in zip(pool.rows, parts, strict=True)
                ]
            )
            _limited(
                builder,
                context,
                context.x[column],
                np.where(guaranteed, 0, charged),
                column,
                limit,
                before,
                "cohort",
                extra or (np.zeros(0, np.int64), np.zeros(0, np.int64)),
                charged,
            )
            continue
        _limited(builder, context, context.x[column], value, column, limit, before, "cohort", extra)


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

    ``Never``: on every type what the queue gets is covered by GPUs free before, its own releases, those
    of queues outside the cohort, and those of the cohort's groups that move or merge instead of stopping.
    ``LowerPriority``: for every class ``k``, what its groups of class at most ``k`` get is covered by those
    and by stopped jobs of the cohort of a class below ``k``.
    With ``b_j`` the charge of running job ``j`` of group ``r(j)``:
    ``sum_{c new of q} a_cq x_c <= free + sum_{j allowed} b_j (1 - x_keep(r(j)))
    + sum_{j not allowed} b_j (1 - x_keep(r(j)) - y_j)``.
    """
    instance, quotas, table = context.instance, context.quotas, context.table
    cohort_of = [queue.cohort for queue in instance.queues.values()] + [None]
    keep_variable = {int(r): int(context.x[c]) for c, r in enumerate(table.keep) if r >= 0}
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
                        upper += share
                        index.append(np.array([keep_variable[g]]))
                        coefficient.append(np.array([share]))
                        inside = (
                            cohort_of[quotas.queue_of[j]] == row.cohort
                            and instance.jobs[j].queue != row.queue
                        )
                        if inside and instance.job_class[j] >= below and context.can_stop[j]:
                            index.append(np.array([context.y[j]]))
                            coefficient.append(np.array([share]))
                            binds = True
                if binds:
                    builder.row(
                        np.concatenate(index), np.concatenate(coefficient), -UNBOUNDED, upper, "reclaim"
                    )


def _kept_mask(instance: Instance) -> BoolArray:
    """Return bool[running + 1]: the group can stay (last: nothing runs)."""
    return np.array([group.keepable for group in instance.running] + [False], dtype=np.bool_)
