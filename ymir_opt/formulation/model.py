"""One round as a mixed-integer linear model, stated once for every backend.

Sets: jobs ``j``, columns ``c`` (`columns`), running groups ``r``, GPU domains ``D`` (`domains`), quota rows
``q`` (`quota`), priority classes ``k``. Variables: ``x_c`` column ``c`` is chosen, ``y_j`` job ``j`` is left
out, all binary, and a few bounded integers that the families below introduce.

minimise ``sum_c cost_c x_c + sum_j queued_j y_j`` (quanta; terms in `objective`)

subject to

* coverage ``sum_{c contains j} x_c + y_j = 1``; ``y_j = 0`` for protected jobs (`coverage_rows`);
* capacity, resident GPUs, node-shape rungs, CPUs and host memory (`capacity`, `rungs`), and where these
  do not suffice the exact node-level model (`nodes`);
* queue limits, cohorts with lending, protection of use within nominal, reclaim (`quota_rows`);
* priority classes (`priority`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.capacity import capacity_rows, resident_rows, resource_rows
from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import LinearModel, ModelBuilder
from ymir_opt.formulation.nodes import node_rows
from ymir_opt.formulation.priority import column_classes, priority_rows
from ymir_opt.formulation.quota import QuotaTable
from ymir_opt.formulation.quota_rows import (
    QuotaContext,
    cohort_rows,
    protection_rows,
    queue_rows,
    reclaim_rows,
)
from ymir_opt.formulation.rungs import rung_rows

__all__ = ["RoundModel", "build", "coverage_rows"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class RoundModel:
    """A model and where its variables are: ``x`` int64[C] of columns, ``y`` int64[J] of left-out jobs."""

    model: LinearModel
    table: ColumnTable
    x: IntArray
    y: IntArray

    def chosen(self, point: IntArray) -> IntArray:
        """Return the columns that a point chooses."""
        return np.flatnonzero(point[self.x] > 0)


def coverage_rows(builder: ModelBuilder, table: ColumnTable, x: IntArray, y: IntArray) -> None:
    """Add ``sum_{c contains j} x_c + y_j = 1`` for every job."""
    column, position = np.nonzero(table.jobs >= 0)
    job = table.jobs[column, position]
    jobs = np.arange(len(y), dtype=np.int64)
    one = np.ones(len(y), dtype=np.int64)
    builder.rows(
        np.concatenate([job, jobs]),
        np.concatenate([x[column], y]),
        np.ones(len(job) + len(y), np.int64),
        one,
        one,
        "coverage",
    )


def build(
    instance: Instance,
    table: ColumnTable,
    quotas: QuotaTable,
    *,
    available: BoolArray,
    pinned: BoolArray,
    profiled: IntArray,
    exact_types: Iterable[int] = (),
) -> RoundModel:
    """State the model of one round.

    Parameters
    ----------
    instance : Instance
    table : ColumnTable
        Columns that may be chosen.
    quotas : QuotaTable
    available : bool[U]
        GPUs on which something may start if nothing is kept there: ready and not reserved.
    pinned : bool[J]
        Jobs that must go on as they run.
    profiled : int64[R]
        Charges of profile actions on each quota row, in units.
    exact_types : iterable of int
        GPU types that get the exact node-level rows.
    """
    builder = ModelBuilder()
    x = builder.variables(table.cost)
    y = builder.variables(table.queued_cost, 0, (~pinned).astype(np.int64))
    coverage_rows(builder, table, x, y)
    capacity_rows(builder, instance, available, table, x)
    resident_rows(builder, instance, available, table, x)
    rung_rows(builder, instance, available, table, x)
    resource_rows(builder, instance, available, table, x)
    node_rows(builder, instance, available, table, x, exact_types)
    runs = np.zeros(len(y), dtype=np.bool_)
    for group in instance.running:
        if group.keepable:
            runs[list(group.holders)] = True
    context = QuotaContext(
        instance=instance,
        quotas=quotas,
        table=table,
        charges=quotas.charges(table),
        x=x,
        y=y,
        can_stop=runs & ~pinned,
        fixed=profiled,
        column_class=column_classes(instance, table),
        available=available,
    )
    queue_rows(builder, context)
    cohort_rows(builder, context)
    protection_rows(builder, context)
    reclaim_rows(builder, context)
    priority_rows(builder, context)
    return RoundModel(builder.build(), table, x, y)
