"""A selection of columns with its GPUs, and what it really costs there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import MODES, ColumnTable
from ymir_opt.formulation.evaluate import Evaluation, Evaluator

__all__ = ["Selection", "settle"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """Chosen columns on concrete GPUs.

    Attributes
    ----------
    columns : int64[S]
        Column rows, ascending.
    gpus : tuple of int64 arrays
        GPU rows of each column.
    evaluations : tuple of (Evaluation, int)
        For each column where it is evaluated, and its row there.
    cost : int64[S]
        Cost of each column in quanta with the start (warm or cold) that its GPUs give.
    objective : int
        Total in quanta, left-out jobs included.
    terms : dict of float
        The objective by term, in units of the objective.
    """

    columns: IntArray
    gpus: tuple[IntArray, ...]
    evaluations: tuple[tuple[Evaluation, int], ...]
    cost: IntArray
    objective: int
    terms: dict[str, float] = field(default_factory=dict)

    def placed(self, table: ColumnTable) -> NDArray[np.bool_]:
        """Return bool[J]: the job is in a chosen column."""
        out = np.zeros(len(table.queued_cost), dtype=np.bool_)
        members = table.jobs[self.columns]
        out[members[members >= 0]] = True
        return out

    def kept(self, table: ColumnTable) -> IntArray:
        """Return the running groups that are kept."""
        keep = table.keep[self.columns]
        return keep[keep >= 0]


def settle(
    evaluator: Evaluator, table: ColumnTable, columns: IntArray, gpus: tuple[IntArray, ...]
) -> Selection:
    """Evaluate chosen columns on the GPUs that they got.

    A start is warm if every GPU holds the group's one foundation model (see `Evaluator.evaluate_placed`).
    """
    order = np.argsort(columns, kind="stable")
    columns, gpus = np.asarray(columns, np.int64)[order], tuple(gpus[i] for i in order)
    found: list[tuple[Evaluation, int] | None] = [None] * len(columns)
    batches: dict[tuple[int, int], list[int]] = {}
    for i, c in enumerate(columns):
        r = int(table.keep[c])
        if r >= 0:
            found[i] = (evaluator.keeps[r], 0)
        else:
            batches.setdefault((int(table.mode[c]), int(table.size[c])), []).append(i)
    for (mode, size), positions in batches.items():
        rows = columns[positions]
        members = table.jobs[rows, :size]
        warm = np.array([_warm(evaluator, members[k], gpus[i]) for k, i in enumerate(positions)])
        result = evaluator.evaluate_placed(
            MODES[mode], members, table.type[rows], table.gpus[rows], table.start[rows, :size], warm
        )
        for k, i in enumerate(positions):
            found[i] = (result, k)
    settled = [item for item in found if item is not None]
    cost = np.zeros(len(columns), dtype=np.int64)
    for i, (result, k) in enumerate(settled):
        if table.keep[columns[i]] >= 0:
            cost[i] = int(evaluator.quanta(result.cost[[k]])[0]) if result.known[k] else 0
        else:
            cost[i] = int(evaluator.quanta(result.cost[[k]])[0]) + 1
    placed = np.zeros(len(table.queued_cost), dtype=np.bool_)
    members = table.jobs[columns]
    placed[members[members >= 0]] = True
    objective = int(cost.sum()) + int(table.queued_cost[~placed].sum())
    return Selection(
        columns, gpus, tuple(settled), cost, objective, _terms(evaluator, table, columns, settled, ~placed)
    )


def _warm(evaluator: Evaluator, members: IntArray, gpus: IntArray) -> bool:
    fm = evaluator.jobs.fm[members]
    if fm[0] < 0 or not (fm == fm[0]).all():
        return False
    return bool((evaluator.instance.gpu_resident[gpus] == fm[0]).all())


def _terms(
    evaluator: Evaluator,
    table: ColumnTable,
    columns: IntArray,
    settled: list[tuple[Evaluation, int]],
    queued: NDArray[np.bool_],
) -> dict[str, float]:
    """Return the objective by term; they add up to it within the rounding to quanta."""
    sums = {"progress": 0.0, "deadlines": 0.0, "queued": 0.0, "transfer_credit": 0.0, "preemption": 0.0}
    for result, k in settled:
        if not result.known[k]:
            continue
        for name, values in result.terms.items():
            sums[name] += float(values[k])
    p = evaluator.parameters
    full = evaluator.jobs.importance * (p.kappa / p.d0_s)
    late = np.isfinite(evaluator.slack) & p.deadlines
    sums["queued"] += float(full[queued].sum())
    sums["deadlines"] += float(full[queued & late].sum())
    if p.preemption:
        sums["preemption"] = float(evaluator.preemption[queued].sum())
    waiting = [
        int(j) for c in columns if MODES[table.mode[c]] is Mode.SEQUENCE for j in table.jobs[c, 1:] if j >= 0
    ]
    if waiting:
        rows = np.array(waiting, dtype=np.int64)
        # a waiting member's queueing cost is inside its column; show its parts where they belong
        deadlines = float(full[rows][late[rows]].sum())
        stopped = float(evaluator.preemption[rows].sum()) if p.preemption else 0.0
        sums["queued"] -= deadlines + stopped
        sums["deadlines"] += deadlines
        sums["preemption"] += stopped
    moves = int((table.keep[columns] < 0).sum())
    stops = int((evaluator.queued_quanta - evaluator.quanta(evaluator.queued_cost))[queued].sum())
    sums["changes"] = (moves + stops) * table.quantum
    return sums
