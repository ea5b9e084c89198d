"""Work of every member of candidate groups: own rest, starts from other weights, joint ratios.

``W = rest`` alone; ``W = ratio x (done + remaining)`` after a start from other weights;
``W = ratio(S) x rest`` in a joint group; both ratios multiply where both apply (contract,
"Semantics of work and speed").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Mode, Sharing
from ymir_opt.estimates import WorkRatio
from ymir_opt.formulation.jobs import JobTable
from ymir_opt.formulation.numbering import Answers, Rows
from ymir_opt.formulation.rowwise import all_of, rank_of, sorted_columns

__all__ = ["Work", "WorkModel"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


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
        # by number of members: the tuples of tasks that were asked about, and what was answered
        self._joints: dict[int, Answers] = {}
        self._warm = Answers(2, 5, self._warm_rows)

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
        ratio, low, high, p, predicted = self._from_adapters(safe, start, from_adapter)
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

    def _from_adapters(
        self, jobs: IntArray, start: IntArray, used: BoolArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, BoolArray]:
        """Return ratio, low, high, p, predicted of starts from completed adapters, 1 where none is used."""
        if not used.any():
            one = np.ones(used.shape)
            return one, one, one, one, np.zeros(used.shape, np.bool_)
        table = self._starts
        cell = (self.task[jobs], np.where(used, start, len(self.adapters)))
        ratio, low, high, p = (np.where(used, table[k][cell], 1.0) for k in ("ratio", "low", "high", "p"))
        return ratio, low, high, p, used & (table["predicted"][cell] == 1.0)

    def _sequence(self, members: IntArray) -> FloatArray:
        """Return [5, M, K] ratio, low, high, p, predicted of each member from its predecessor."""
        out = np.full((5, *members.shape), np.nan)
        task = np.where(members >= 0, self.task[members], -1)
        for k in range(1, members.shape[1]):
            numbers = self._warm.numbers((task[:, k - 1], task[:, k]))
            out[:, :, k] = self._warm.known[numbers].T
        return out

    def _warm_rows(self, rows: Rows) -> list[Sequence[float]]:
        return [self._warm_row(row) for row in rows]

    def _joint_rows(self, rows: Rows) -> list[Sequence[float]]:
        return [self._joint_row(row) for row in rows]

    def _warm_row(self, row: tuple[int, ...]) -> Sequence[float]:
        """Return ratio, low, high, p, predicted of (source, target task)."""
        source, target = row
        if source >= 0 and target >= 0 and self.tasks[source][0] == self.tasks[target][0]:
            fm, name = self.tasks[target]
            found = self.jobs.estimates.transfer.warm_start(fm, self.tasks[source][1], name)
            if found is not None:
                return (found.ratio, found.low, found.high, found.p_benefit, float(found.predicted))
        return (np.nan,) * 5

    def _joint(self, members: IntArray) -> FloatArray:
        """Return [5, M, K] ratio, low, high, p, predicted of each member with all the others."""
        width = members.shape[1]
        task = np.where(members >= 0, self.task[members], -1)
        answers = self._joints.get(width)
        if answers is None:
            answers = self._joints[width] = Answers(width, 5 * width, self._joint_rows)
        # whatever the order of the members, a set of tasks is looked up once
        numbers = answers.numbers(sorted_columns(task))
        at = numbers[:, None] * (5 * width) + rank_of(task)
        figures = answers.known.reshape(-1)
        return np.stack([figures[at + width * i] for i in range(5)])

    def _joint_row(self, row: tuple[int, ...]) -> Sequence[float]:
        """Return the figures of one tuple of tasks (-1 pads), [5, K] one after the other."""
        width = len(row)
        figures = [np.nan] * (5 * width)
        # jobs without a task pad like absent members, but make the group unknown below
        tasks = [self.tasks[task] for task in row if task >= 0]
        names = [name for _, name in tasks]
        if len(names) < 2 or any(fm != tasks[0][0] for fm, _ in tasks):
            return figures
        known: dict[str, WorkRatio | None] = {}
        for k, target in enumerate(row):
            if target < 0:
                continue
            fm, name = self.tasks[target]
            if name not in known:
                at = names.index(name)
                known[name] = self.jobs.estimates.transfer.joint(fm, [*names[:at], *names[at + 1 :]], name)
            found = known[name]
            if found is not None:
                of = (found.ratio, found.low, found.high, found.p_benefit, float(found.predicted))
                figures[k::width] = of
        return figures


def _fill(table: dict[str, FloatArray], at: tuple[int, int], found: WorkRatio) -> None:
    table["ratio"][at] = found.ratio
    table["low"][at] = found.low
    table["high"][at] = found.high
    table["p"][at] = found.p_benefit
    table["predicted"][at] = float(found.predicted)
