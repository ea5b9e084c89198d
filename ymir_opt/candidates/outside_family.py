"""Jobs that may train jointly: their ratios by tuple of tasks, and the sums of their batches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.outside import Budget, LimitError, Terms
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["Family", "Ratios"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

MOST_TASKS = 40
MOST_SUMS = 20_000
LARGEST_BATCH = 2_000_000


@dataclass(frozen=True)
class Ratios:
    """By tuple of tasks (first the member's own): ratio, pessimistic over it, and 1 - p; inf unknown."""

    ratio: FloatArray
    spread: FloatArray
    doubt: FloatArray

    def least(self, axis: int) -> Ratios:
        """Return the least figures over the last tasks."""
        axes = tuple(range(self.ratio.ndim - axis, self.ratio.ndim))
        return Ratios(self.ratio.min(axes), self.spread.min(axes), self.doubt.min(axes))

    def at(self, tasks: tuple[IntArray, ...]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the three figures."""
        return self.ratio[tasks], self.spread[tasks], self.doubt[tasks]


class Family:
    """Jobs that train the same kind of adapter on the same model."""

    def __init__(
        self, evaluator: Evaluator, rules: Rules, expander: Expander, terms: Terms, rows: IntArray
    ) -> None:
        self.evaluator, self.rules, self.expander, self.terms = evaluator, rules, expander, terms
        self.rows = rows
        self.ready = False

    def prepare(self, budget: Budget) -> None:
        """Ask about every tuple of tasks, once."""
        if self.ready:
            return
        evaluator, rows = self.evaluator, self.rows
        count = len(rows)
        one, two = np.triu_indices(count, 1)
        near = (
            self.rules.allowed(Mode.JOINT, np.column_stack([rows[one], rows[two]])) if count > 1 else one < 0
        )
        self.near = np.zeros((count, count), dtype=np.bool_)
        self.near[one[near], two[near]] = self.near[two[near], one[near]] = True
        tasks, task = np.unique(evaluator.works.task[rows], return_inverse=True)
        some = self.near.any(axis=1) & self._answered(tasks)[task]
        self.rows, self.near = rows[some], self.near[np.ix_(some, some)]
        if not len(self.rows):
            self.ready = True
            return
        budget.check()
        tasks, self.task = np.unique(evaluator.works.task[self.rows], return_inverse=True)
        if len(tasks) > MOST_TASKS:
            raise LimitError(f"more than {MOST_TASKS} tasks of one foundation model")
        self.by_size = {n: self._ratios(tasks, n) for n in (2, 3, 4)}
        wide, wider = self.by_size[3].least(1), self.by_size[4].least(2)
        self.pair_least = Ratios(
            np.minimum(wide.ratio, wider.ratio),
            np.minimum(wide.spread, wider.spread),
            np.minimum(wide.doubt, wider.doubt),
        )
        self.triple_least = self.by_size[4].least(1)
        self.batch = evaluator.speeds.batch[self.rows]
        self._sums()
        self.ready = True

    def _answered(self, tasks: IntArray) -> BoolArray:
        """Say for which tasks anything is known of joint groups; without, a task is in none."""
        transfer = self.evaluator.estimates.transfer
        if self.evaluator.estimates.predictor is not None:
            return np.ones(len(tasks), dtype=np.bool_)
        named = [self.evaluator.works.tasks[task] for task in tasks.tolist()]
        place = {name: i for i, name in enumerate(named)}
        known = np.zeros(len(tasks), dtype=np.bool_)
        for i, (fm, target) in enumerate(named):
            for k, (_, other) in enumerate(named):
                if transfer.joint(fm, [other], target) is not None:
                    known[[i, k]] = True
        for fm, group in transfer.measured_together():
            known[[place[fm, name] for name in group if (fm, name) in place]] = True
        return known

    def _ratios(self, tasks: IntArray, size: int) -> Ratios:
        count = len(tasks)
        shape = (count,) * size
        ratio, spread, doubt = np.full(shape, np.inf), np.full(shape, np.inf), np.full(shape, np.inf)
        named = [self.evaluator.works.tasks[task] for task in tasks.tolist()]
        for k in range(count):
            fm, target = named[k]
            for others in combinations_with_replacement(range(count), size - 1):
                found = self.evaluator.estimates.transfer.joint(fm, [named[i][1] for i in others], target)
                if found is None:
                    continue
                over = found.high / found.ratio if found.ratio > 0 else 1.0
                figures = found.ratio, over if found.predicted else min(1.0, over), 1.0 - found.p_benefit
                for order in permutations(others):
                    at = (k, *order)
                    ratio[at], spread[at], doubt[at] = figures
        return Ratios(ratio, spread, doubt)

    def _sums(self) -> None:
        """Collect the sums that the batches of up to four jobs can have."""
        single = np.unique(self.batch)
        if int(single[-1]) * 4 > LARGEST_BATCH:
            raise LimitError("too large batches")
        sums = single
        every = [single]
        for _ in range(3):
            sums = np.unique(sums[:, None] + single[None, :])
            every.append(sums)
        self.single = single
        self.sums = np.unique(np.concatenate(every[1:]))
        if len(self.sums) > MOST_SUMS:
            raise LimitError("too many batch sizes")
