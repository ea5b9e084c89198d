"""Sequences that would pay at given prices.

In ``A -> B -> C`` the first member runs as if alone; a later one that starts at ``f`` gains its credit ``U
[1/max(f + x, D0) - 1/max(f + y, D0)]`` less its price, with ``x`` its run from the predecessor's weights
and ``y`` that from its own. What a chain's beginning gains does not depend on what follows, so chains grow
from their heads, and the most that may follow is known by dynamic programming over the predecessor's task
and a grid of times: where ``x < y`` the credit rises with ``f`` until ``f + x = D0`` and falls from there,
so that its supremum over all times from ``f`` on is its value at ``max(f, D0 - x)``, and never rises with
``f``; where ``x >= y`` (a probe may cost more than the transfer saves) it is never above 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.outside import Asked, Budget, Gains, Terms, Wanted
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation import objective
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["ChainSearch"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

GRID = 96
BLOCK = 400_000


class ChainSearch:
    """Finds the sequences of one instance; `wanted` for any prices."""

    def __init__(self, evaluator: Evaluator, rules: Rules, expander: Expander, terms: Terms) -> None:
        jobs = evaluator.jobs
        able = np.flatnonzero(jobs.startable & ~jobs.rigid & (evaluator.works.task >= 0) & (jobs.fm >= 0))
        self.families = [
            _Family(evaluator, rules, expander, terms, able[jobs.fm[able] == fm])
            for fm in np.unique(jobs.fm[able])
        ]

    def wanted(self, asked: Asked, budget: Budget) -> Iterator[Wanted]:
        """Yield sets that may have a column of a reduced cost below what is asked."""
        for family in self.families:
            yield from family.wanted(asked, budget)


class _Family:
    """Jobs of one foundation model."""

    def __init__(
        self, evaluator: Evaluator, rules: Rules, expander: Expander, terms: Terms, rows: IntArray
    ) -> None:
        self.evaluator, self.rules, self.expander, self.terms = evaluator, rules, expander, terms
        self.rows = rows
        self.ready = False

    def _prepare(self, budget: Budget) -> None:
        self.ready = True
        rows, works = self.rows, self.evaluator.works
        count = len(rows)
        one, two = np.triu_indices(count, 1)
        near = (
            self.rules.allowed(Mode.SEQUENCE, np.column_stack([rows[one], rows[two]]))
            if count > 1
            else one < 0
        )
        self.near = np.zeros((count, count), dtype=np.bool_)
        self.near[one[near], two[near]] = self.near[two[near], one[near]] = True
        budget.check()
        tasks, self.task = np.unique(works.task[rows], return_inverse=True)
        figures = np.full((len(tasks), len(tasks), 5), np.nan)
        named = [works.tasks[task] for task in tasks.tolist()]
        for i, (fm, source) in enumerate(named):
            for k, (_, target) in enumerate(named):
                found = self.evaluator.estimates.transfer.warm_start(fm, source, target)
                if found is not None:
                    figures[i, k] = found.ratio, found.low, found.high, found.p_benefit, found.predicted
        self.ratio, high, self.p = figures[:, :, 0], figures[:, :, 2], figures[:, :, 3]
        self.high = np.where(figures[:, :, 4] == 1.0, high, self.ratio)

    def wanted(self, asked: Asked, budget: Budget) -> Iterator[Wanted]:
        if not self.ready:
            self._prepare(budget)
        if len(self.rows) < 2:
            return
        gains, seen = Gains(self.evaluator, asked), asked.open(self.rows)
        for t, (menu, allowed) in enumerate(self.expander._used):
            for c, g in enumerate(menu.tolist()):
                budget.check()
                use = np.flatnonzero(allowed[self.rows, c] & seen)
                if len(use) > 1:
                    yield from _At(self, gains, budget, t, g, use).wanted(asked.least(t, g))


class _At:
    """One family at one type and count."""

    def __init__(self, family: _Family, gains: Gains, budget: Budget, t: int, g: int, use: IntArray) -> None:
        evaluator, terms = family.evaluator, family.terms
        p = evaluator.parameters
        self.gains, self.budget, self.t, self.g = gains, budget, t, g
        self.rows = rows = family.rows[use]
        self.task = family.task[use]
        self.near = family.near[np.ix_(use, use)]
        self.u = gains.importance[rows]
        self.price = gains.price[rows]
        jobs = evaluator.jobs
        rate = jobs.rate(rows, np.full(len(rows), t), np.full(len(rows), g))
        self.warm = jobs.warm[rows, t]
        cold = jobs.cold[rows, t]
        k = p.uncertainty
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            point = family.ratio[:, self.task] * jobs.whole[rows]
            run = objective.expected(
                point / rate, family.high[:, self.task] * jobs.whole_high[rows] / rate, p
            )
            gate = (1 - family.p[:, self.task]) * (p.probe_work_fraction * run + cold) if p.probes else 0.0
            # by the predecessor's task
            self.x = run + gate
            self.y = objective.expected(jobs.rest[rows] / rate, jobs.rest_high[rows] / rate, p)
            self.follows = np.isfinite(self.x) & np.isfinite(self.y) & (point < jobs.rest[rows])
            lead = terms.begin(rows, t, g) + ((1 - k) * terms.work[rows] + k * terms.high[rows]) / rate
        self.lead = lead
        self.d0 = gains.d0

    def credit(self, source: IntArray, who: IntArray, begin: FloatArray) -> FloatArray:
        """Return what followers gain at most from ``begin`` on, -inf where none may follow."""
        x, y = self.x[source, who], self.y[who]
        begin = np.maximum(begin, self.d0 - x)
        with np.errstate(invalid="ignore"):
            value = 1.0 / np.maximum(begin + x, self.d0) - 1.0 / np.maximum(begin + y, self.d0)
        value = np.maximum(value, 0.0)
        return np.where(self.follows[source, who], self.u[who] * value - self.price[who], -np.inf)

    def wanted(self, least: float) -> Iterator[Wanted]:
        head = self.gains.of(self.rows, self.lead)
        finite = np.isfinite(head)
        if not finite.any() or not self.follows.any():
            return
        grid = self._grid(self.lead[finite])
        after = self._after(grid)
        place = self._place(grid, self.lead)
        heads = np.flatnonzero(finite)
        heads = heads[head[heads] + after[2][self.task[heads], place[heads]] > least]
        yield from self._grow(heads[:, None], head[heads], self.lead[heads], grid, after, least)

    def _grow(
        self,
        sets: IntArray,
        value: FloatArray,
        finish: FloatArray,
        grid: FloatArray,
        after: list[FloatArray],
        least: float,
    ) -> Iterator[Wanted]:
        """Yield the chains that begin with these and may pay."""
        left = 4 - sets.shape[1]
        if not left or not len(sets):
            return
        count = len(self.rows)
        size = max(1, BLOCK // count)
        everyone = np.arange(count)[None, :]
        for begin in range(0, len(sets), size):
            some, at = sets[begin : begin + size], slice(begin, begin + size)
            fits = self.near[some].all(axis=1) & self.follows[self.task[some[:, -1]]]
            self.budget.look(int(fits.sum()))
            source = self.task[some[:, -1]][:, None]
            start = finish[at][:, None] + self.warm[None, :]
            gain = self.credit(source, everyone, start)
            total = np.where(fits, value[at][:, None] + gain, -np.inf)
            row, added = np.nonzero(total > least)
            if len(row):
                yield Wanted(Mode.SEQUENCE, self.t, self.g, self.rows[np.column_stack([some[row], added])])
            if left == 1:
                continue
            done = start + self.x[source, everyone]
            with np.errstate(invalid="ignore"):
                best = after[left - 2][self.task[None, :], self._place(grid, done)]
            row, added = np.nonzero(fits & (total + best > least))
            yield from self._grow(
                np.column_stack([some[row], added]), total[row, added], done[row, added], grid, after, least
            )

    def _grid(self, lead: FloatArray) -> FloatArray:
        first = max(float(lead.min()), 1e-3)
        last = max(float(lead.max()), 2 * first) * 4
        return np.asarray(np.concatenate([[0.0], np.geomspace(first, last, GRID - 1)]))

    @staticmethod
    def _place(grid: FloatArray, times: FloatArray) -> IntArray:
        return np.maximum(np.searchsorted(grid, times, side="right") - 1, 0)

    def _after(self, grid: FloatArray) -> list[FloatArray]:
        """Return the most that 1, 2, 3 more gain after a task that ends at a time, [tasks, grid]."""
        tasks = len(self.x)
        source, everyone = np.arange(tasks)[:, None, None], np.arange(len(self.rows))[None, :, None]
        start = grid[None, None, :] + self.warm[None, :, None]
        one = self.credit(source, everyone, np.broadcast_to(start, (tasks, len(self.rows), len(grid))))
        out = [one.max(axis=1)]
        with np.errstate(invalid="ignore"):
            place = self._place(grid, np.where(self.follows, self.x, 0.0)[:, :, None] + start)
        for _ in range(2):
            further = one + np.maximum(out[-1], 0.0)[self.task[None, :, None], place]
            out.append(further.max(axis=1))
        return out
