"""Priority classes: who may take GPUs from whom.

For every class ``k`` and capacity class ``d`` (a GPU type and a memory level, nested): GPUs given to
started, grown or moved groups whose highest class is at most ``k`` do not exceed those free before plus
those released by groups of class at most ``k``; exempt is only reclaim under ``Any``. A group's class is
the highest among the members that hold its GPUs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Reclaim
from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.instance import Instance, Running
from ymir_opt.formulation.linear import UNBOUNDED, ModelBuilder
from ymir_opt.formulation.quota_rows import QuotaContext

__all__ = ["column_classes", "group_class", "priority_rows"]

IntArray = NDArray[np.int64]


def group_class(instance: Instance, group: Running) -> int:
    """Return the highest class among the members that hold the GPUs."""
    return int(instance.job_class[list(group.holders)].max())


def column_classes(instance: Instance, table: ColumnTable) -> IntArray:
    """Return the class of every column, int64[C]."""
    holders = table.holders()
    classes = np.where(holders, instance.job_class[np.where(holders, table.jobs, 0)], 0)
    return np.asarray(classes.max(axis=1, initial=0))


def priority_rows(builder: ModelBuilder, context: QuotaContext) -> None:
    """Add a row for every class ``k`` below some running group's and every capacity class ``d``.

    ``sum_{c new, class <= k, in d} g_c x_c + sum_{r class <= k} a_r(d) x_keep(r)
    <= free(d) + sum_{r class <= k} a_r(d) + sum_q rho_kq``

    ``a_r(d)`` are the usable GPUs of ``d`` that running group ``r`` holds. What queue ``q`` may reclaim,
    ``rho_kq``, is bounded in `_reclaimed`.
    """
    instance, table = context.instance, context.table
    unit = context.quotas.unit
    classes = np.array([group_class(instance, g) for g in instance.running], dtype=np.int64)
    kept = np.flatnonzero(table.keep >= 0)
    keep_variable = dict(zip(table.keep[kept].tolist(), context.x[kept].tolist(), strict=True))
    stays = np.array([r in keep_variable for r in range(len(instance.running))] + [False], dtype=np.bool_)
    free = context.available & ~stays[instance.gpu_held]
    level = np.array([s.level for s in table.shapes] + [-1], dtype=np.int64)[table.shape]
    higher = [int(c) for r, c in enumerate(classes) if r in keep_variable]
    for k in range(max(higher, default=0)):
        for t in range(len(instance.types)):
            held = [r for r in keep_variable if instance.running[r].type == t]
            if not any(classes[r] > k for r in held):
                continue
            taken = (table.keep < 0) & (table.type == t) & (context.column_class <= k)
            if not taken.any():
                continue
            rho = _reclaimed(builder, context, k, t, taken, classes, held)
            for lowest in range(len(instance.levels[t])):
                inside = (instance.gpu_type == t) & (instance.gpu_level >= lowest) & context.available
                columns = np.flatnonzero(taken & (level >= lowest))
                mine = [r for r in held if classes[r] <= k]
                count = np.array([int(inside[instance.running[r].gpus].sum()) for r in mine], dtype=np.int64)
                upper = int((inside & free).sum()) + int(count.sum())
                if not len(columns):
                    continue
                scale = unit if len(rho) else 1
                builder.row(
                    np.concatenate(
                        [context.x[columns], np.array([keep_variable[r] for r in mine], np.int64), rho]
                    ),
                    np.concatenate([scale * table.gpus[columns], scale * count, np.full(len(rho), -1)]),
                    -UNBOUNDED,
                    scale * upper,
                    "priority",
                )


def _reclaimed(
    builder: ModelBuilder,
    context: QuotaContext,
    k: int,
    t: int,
    taken: NDArray[np.bool_],
    classes: IntArray,
    held: list[int],
) -> IntArray:
    """Add what queues below nominal may take from higher classes, in units; return the variables.

    ``rho_q <= max(0, N_q - u_q)`` and ``rho_q <= sum_{c new of q, class <= k} a_cq x_c``; for each cohort
    ``sum_q rho_q <= sum b_r (1 - x_keep(r))`` over groups of class above ``k``, with ``b_r`` the charges of
    members whose queue was above nominal before.
    """
    quotas, instance, table = context.quotas, context.instance, context.table
    found: list[int] = []
    above = {
        r for r, row in enumerate(quotas.rows) if row.cohort is not None and context.before(r) > row.nominal
    }
    for pool in quotas.pools():
        victims: dict[int, int] = {}
        for g in held:
            if classes[g] <= k:
                continue
            group = instance.running[g]
            share = int(context.available[group.gpus].sum()) * quotas.unit // len(group.holders)
            rows = quotas.job_rows(np.array(group.holders), t)
            charge = share * sum(int(r) in above and int(r) in pool.rows for r in rows)
            if charge:
                victims[g] = charge
        if not victims:
            continue
        members: list[int] = []
        for r in pool.rows:
            row = quotas.rows[r]
            headroom = row.nominal - context.before(r)
            if row.reclaim is not Reclaim.ANY or headroom <= 0:
                continue
            column, value = context.charges.of(r)
            mine = taken[column]
            if not mine.any():
                continue
            (rho,) = builder.variables(np.zeros(1, np.int64), 0, headroom, relaxable=True)
            builder.row(
                np.append(context.x[column[mine]], rho), np.append(value[mine], -1), 0, UNBOUNDED, "reclaim"
            )
            members.append(int(rho))
        if members:
            kept = np.flatnonzero(table.keep >= 0)
            keeps = dict(zip(table.keep[kept].tolist(), context.x[kept].tolist(), strict=True))
            builder.row(
                np.array([*members, *(keeps[g] for g in victims)], np.int64),
                np.array([*([1] * len(members)), *victims.values()], np.int64),
                -UNBOUNDED,
                sum(victims.values()),
                "reclaim",
            )
            found.extend(members)
    return np.array(found, dtype=np.int64)
