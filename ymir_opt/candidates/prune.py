"""Pruning that provably loses nothing.

1. *Equal footprint*: of new columns with the same members, holders, shape and hence the same entries
   in every constraint, only the cheapest can be in an optimum.
2. *Fewer GPUs*: a new column is dominated by one of the same holders and members with fewer GPUs, no
   higher cost, a level no higher, and the same fewest number of nodes: wherever the larger gang lies,
   a part of its GPUs can hold the smaller one (host memory per GPU aside, hence equal there).
3. *No gain*: a new column that costs no less than queueing its members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import MODES, ColumnTable
from ymir_opt.formulation.numbering import unique_rows
from ymir_opt.formulation.rowwise import any_of, sum_of
from ymir_opt.formulation.shapes import Shape

__all__ = ["dominance", "undominated"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def dominance(table: ColumnTable, fewest: Callable[[Shape], int], running: BoolArray) -> ColumnTable:
    """Return the table without dominated columns; ``notes['dominated']`` counts them.

    Parameters
    ----------
    fewest : callable
        Fewest nodes of a shape.
    running : bool[J]
        Jobs that hold GPUs now: rule 3 spares columns that contain one, because moving such a job
        and stopping it are different things to the quota rules.
    """
    kept = undominated(table, fewest, running)
    lost = len(table) - len(kept)
    table = table.take(kept)
    return replace(table, notes={**table.notes, "dominated": table.notes.get("dominated", 0) + lost})


def undominated(table: ColumnTable, fewest: Callable[[Shape], int], running: BoolArray) -> IntArray:
    """Return the rows of the columns that `dominance` keeps, ascending; see there."""
    rows = np.flatnonzero(_gains(table, running))
    part = table.take(rows)
    footprint = _footprint(part)
    kept = _cheapest(part, footprint)
    rows = rows[kept]
    return np.asarray(rows[~_larger(part.take(kept), footprint[kept], fewest)])


def _gains(table: ColumnTable, running: BoolArray) -> BoolArray:
    present = table.jobs >= 0
    safe = np.where(present, table.jobs, 0)
    queued = sum_of(np.where(present, table.queued_cost[safe], 0))
    spared = any_of(present & running[safe])
    return np.asarray((table.keep >= 0) | (table.cost < queued) | spared)


def _footprint(table: ColumnTable) -> IntArray:
    """Return int64[C], equal for columns of the same members, in sequences with the same head."""
    sequence = (table.mode == MODES.index(Mode.SEQUENCE)) & (table.size > 1)
    members = np.sort(table.jobs, axis=1)
    head = np.where(sequence, table.jobs[:, 0], -1)
    return unique_rows(np.column_stack([members, head]))[1]


def _cheapest(table: ColumnTable, footprint: IntArray) -> IntArray:
    inverse = unique_rows(np.column_stack([footprint, table.shape, table.keep]))[1]
    # among equal costs prefer what shares less: the earlier mode, then the earlier row
    order = np.lexsort((table.mode, table.cost, inverse))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = inverse[order[1:]] != inverse[order[:-1]]
    return np.sort(order[first])


def _larger(table: ColumnTable, footprint: IntArray, fewest: Callable[[Shape], int]) -> BoolArray:
    out = np.zeros(len(table), dtype=np.bool_)
    if not table.shapes:
        return out
    shapes = table.shapes
    kinds: dict[tuple[object, ...], int] = {}
    kind = np.array(
        [
            -1
            if s.whole or s.worker
            else kinds.setdefault(
                (s.type, s.selector, s.resident, s.cpus_per_gpu, s.host_gib_per_gpu, fewest(s)), len(kinds)
            )
            for s in shapes
        ]
        + [-1],
        dtype=np.int64,
    )
    level = np.array([s.level for s in shapes] + [0], dtype=np.int64)[table.shape]
    family = kind[table.shape]
    _, group = unique_rows(np.column_stack([footprint, family, level]))
    mine = np.flatnonzero(family >= 0)
    order = mine[np.lexsort((table.cost[mine], table.gpus[mine], group[mine]))]
    if len(order) < 2:
        return out
    # later groups lie lower, so that the running minimum starts afresh in each
    floor = int(table.cost.min())
    span = int(table.cost.max()) - floor + 1
    rank = np.cumsum(np.r_[0, np.diff(group[order]) != 0])
    lowered = table.cost[order] - floor - rank * span
    out[order[1:]] = lowered[1:] >= np.minimum.accumulate(lowered)[:-1]
    return out
