"""Work of every member of candidate groups: own rest, starts from other weights, joint ratios.

``W = rest`` alone; ``W = ratio x (done + remaining)`` after a start from other weights;
``W = ratio(S) x rest`` in a joint group; both ratios multiply where both apply (contract,
"Semantics of work and speed").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Mode, Sharing
from ymir_opt.estimates import WorkRatio
from ymir_opt.formulation.jobs import JobTable
from ymir_opt.formulation.rowwise import all_of

__all__ = ["Work", "WorkModel", "unique_rows"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

CODES = 2**62


def unique_rows(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct rows of int64[M, K] (values >= -1) and each row's index among them."""
    if not len(values):
        return values, np.zeros(0, np.int64)
    code, size = np.zeros(len(values), np.int64), 1
    for column in values.T:
        width = int(column.max()) + 2
        if size * width >= CODES:
            # the ranks among the prefixes so far keep the order of the rows
            code = np.unique(code, return_inverse=True)[1]
            size = int(code.max()) + 1
        code = code * width + (column + 1)
        size *= width
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return values[first], inverse


@dataclass(frozen=True)
class Work:
    """Work per member, [M, K]; zeros pad.

    Attributes
    ----------
    point, low, high : float64[M, K]
        Samples (seconds if rigid) with 80 % limits.
    planning_high : float64[M, K]
        The pessimistic work of the objective: limits of measured ratios do not enter.
    alone, alone_high : float64[M, K]
        Work without the joint ratio: what the member would do alone from the same start.
    ratio : float64[M, K]
        All ratios multiplied.
    p_benefit : float64[M, K]
        Probability that the transfer helps; 1 where none is used.
    transferred : bool[M, K]
        A ratio applies, so the merge must prove itself.
    predicted : bool[M, K]
    known : bool[M]
        Every ratio needed is known.
    """

    point: FloatArray
    low: FloatArray
    high: FloatArray
    planning_high: FloatArray
    alone: FloatArray
    alone_high: FloatArray
    ratio: FloatArray
    p_benefit: FloatArray
    transferred: BoolArray
    predicted: BoolArray
    known: BoolArray


class WorkModel:
    """Looks ratios up once for every distinct (foundation model, task)."""

    def __init__(self, jobs: JobTable) -> None:
        self.jobs = jobs
        instance = jobs.instance
        rows: dict[tuple[str, str], int] = {}
        self.task = np.array(
            [
                -1
                if j.foundation_model is None or j.task is None
                else rows.setdefault((j.foundation_model, j.task), len(rows))
                for j in instance.jobs
            ],
            dtype=np.int64,
        )
        self.tasks = tuple(rows)
        self.adapters = instance.snapshot.adapters
        self._joint_rows: dict[tuple[int, ...], FloatArray] = {}
        self._warm_rows: dict[tuple[int, int], tuple[float, ...]] = {}

    @cached_property
    def _starts(self) -> dict[str, FloatArray]:
        """Arrays [task, adapter] of ratio, low, high, p_benefit, predicted."""
        shape = (len(self.tasks) + 1, len(self.adapters) + 1)
        table = {name: np.full(shape, np.nan) for name in ("ratio", "low", "high", "p", "predicted")}
        for i, (fm, task) in enumerate(self.tasks):
            for a, adapter in enumerate(self.adapters):
                if adapter.foundation_model != fm:
                    continue
                found = self._adapter_ratio(fm, adapter.id, adapter.task, task)
                if found is not None:
                    _fill(table, (i, a), found)
        return table

    def _adapter_ratio(self, fm: str, adapter: str, source: str, task: str) -> WorkRatio | None:
        transfer = self.jobs.estimates.transfer
        return transfer.warm_start(fm, adapter, task) or transfer.warm_start(fm, source, task)

    def start_allowed(self, j: int, a: int) -> bool:
        """Say whether a job may start from a completed adapter, by both sides' sharing levels."""
        instance = self.jobs.instance
        job, adapter = instance.jobs[j], self.adapters[a]
        if self.task[j] < 0 or np.isnan(self._starts["ratio"][self.task[j], a]):
            return False
        same = (adapter.tenant if adapter.tenant is not None else None) == instance.tenant(j)
        levels = (job.sharing, adapter.sharing)
        if any(level in (Sharing.NONE, Sharing.BACKBONE) for level in levels):
            return False
        return same or all(level is Sharing.ALL for level in levels)

    def warm_pair(self, source: int, target: int) -> WorkRatio | None:
        """Return the ratio of job ``target`` started from unfinished job ``source``'s task."""
        if self.task[source] < 0 or self.task[target] < 0:
            return None
        fm, task = self.tasks[self.task[target]]
        origin_fm, origin = self.tasks[self.task[source]]
        if fm != origin_fm:
            return None
        return self.jobs.estimates.transfer.warm_start(fm, origin, task)

    def work(self, mode: Mode, members: IntArray, start: IntArray) -> Work:
        """Return the work of new groups; rows of ``members`` int64[M, K], -1 pads.

        For a sequence the members after the first start from their predecessor.
        """
        jobs = self.jobs
        present = members >= 0
        safe = np.where(present, members, 0)
        from_adapter = present & (start >= 0)
        table = self._starts
        task = self.task[safe]
        cell = (task, np.where(from_adapter, start, len(self.adapters)))
        ratio = np.where(from_adapter, table["ratio"][cell], 1.0)
        low = np.where(from_adapter, table["low"][cell], 1.0)
        high = np.where(from_adapter, table["high"][cell], 1.0)
        p = np.where(from_adapter, table["p"][cell], 1.0)
        predicted = from_adapter & (table["predicted"][cell] == 1.0)
        transferred = from_adapter.copy()
        fresh = from_adapter
        if mode is Mode.SEQUENCE:
            pair = self._sequence(members)
            later = present.copy()
            later[:, 0] = False
            ratio, low, high = (np.where(later, pair[i], v) for i, v in enumerate((ratio, low, high)))
            p = np.where(later, pair[3], p)
            predicted = np.where(later, pair[4] == 1.0, predicted)
            transferred |= later
            fresh = fresh | later
        base = np.where(fresh, jobs.whole[safe], jobs.rest[safe])
        base_low = np.where(fresh, jobs.whole_low[safe], jobs.rest_low[safe])
        base_high = np.where(fresh, jobs.whole_high[safe], jobs.rest_high[safe])
        alone = base * ratio
        alone_high = base_high * np.where(predicted, high, ratio)
        if mode is Mode.JOINT:
            joint = self._joint(members)
            ratio = ratio * joint[0]
            low, high = low * joint[1], high * joint[2]
            # two independent gates: both transfers must help
            p = p * joint[3]
            predicted = predicted | (joint[4] == 1.0)
            transferred = present.copy()
        known = all_of(~present | np.isfinite(ratio))

        def padded(values: FloatArray) -> FloatArray:
            return np.where(present, values, 0.0)

        return Work(
            point=padded(base * ratio),
            low=padded(base_low * low),
            high=padded(base_high * high),
            planning_high=padded(base_high * np.where(predicted, high, ratio)),
            alone=padded(alone),
            alone_high=padded(alone_high),
            ratio=np.where(present, ratio, 1.0),
            p_benefit=np.where(present & transferred, p, 1.0),
            transferred=present & transferred,
            predicted=present & predicted,
            known=known,
        )

    def _sequence(self, members: IntArray) -> FloatArray:
        """Return [5, M, K] ratio, low, high, p, predicted of each member from its predecessor."""
        out = np.full((5, *members.shape), np.nan)
        present = members >= 0
        tasks = np.where(present, self.task[np.where(present, members, 0)], -1)
        for k in range(1, members.shape[1]):
            pairs, inverse = unique_rows(tasks[:, k - 1 : k + 1])
            values = np.full((5, len(pairs)), np.nan)
            for i, pair in enumerate(pairs.tolist()):
                values[:, i] = self._warm_row(*pair)
            out[:, :, k] = values[:, inverse]
        return out

    def _warm_row(self, source: int, target: int) -> tuple[float, ...]:
        """Return ratio, low, high, p, predicted of a task from another one, remembered."""
        known = self._warm_rows.get((source, target))
        if known is None:
            known = (np.nan,) * 5
            if source >= 0 and target >= 0 and self.tasks[source][0] == self.tasks[target][0]:
                fm, name = self.tasks[target]
                found = self.jobs.estimates.transfer.warm_start(fm, self.tasks[source][1], name)
                if found is not None:
                    known = (found.ratio, found.low, found.high, found.p_benefit, float(found.predicted))
            self._warm_rows[source, target] = known
        return known

    def _joint(self, members: IntArray) -> FloatArray:
        """Return [5, M, K] ratio, low, high, p, predicted of each member with all the others."""
        present = members >= 0
        tasks = np.where(present, self.task[np.where(present, members, 0)], -1)
        # whatever the order of the members, a set of tasks is looked up once
        order = np.argsort(tasks, axis=1, kind="stable")
        groups, inverse = unique_rows(np.take_along_axis(tasks, order, axis=1))
        found = np.full((5, *groups.shape), np.nan)
        for i, row in enumerate(groups.tolist()):
            found[:, i, :] = self._joint_row(tuple(row))
        out = np.empty((5, *members.shape))
        np.put_along_axis(out, np.broadcast_to(order, out.shape), found[:, inverse, :], axis=2)
        return out

    def _joint_row(self, row: tuple[int, ...]) -> FloatArray:
        """Return [5, K] of one tuple of tasks (-1 pads), remembered."""
        known = self._joint_rows.get(row)
        if known is not None:
            return known
        out = np.full((5, len(row)), np.nan)
        # jobs without a task pad like absent members, but make the group unknown below
        names = [task for task in row if task >= 0]
        for k, target in enumerate(row):
            if target < 0:
                continue
            fm, name = self.tasks[target]
            others = list(names)
            others.remove(target)
            if any(self.tasks[other][0] != fm for other in others) or not others:
                continue
            found = self.jobs.estimates.transfer.joint(fm, [self.tasks[o][1] for o in others], name)
            if found is not None:
                out[:, k] = (found.ratio, found.low, found.high, found.p_benefit, found.predicted)
        self._joint_rows[row] = out
        return out


def _fill(table: dict[str, FloatArray], at: tuple[int, int], found: WorkRatio) -> None:
    table["ratio"][at] = found.ratio
    table["low"][at] = found.low
    table["high"][at] = found.high
    table["p"][at] = found.p_benefit
    table["predicted"][at] = float(found.predicted)
