"""Joint groups that would pay at given prices.

The members of a joint group share its samples in proportion to their batches: with ``s(B)`` the samples/s
by unit of batch at the active members' summed batch ``B``, each member's progress by unit of its batch is
the same, and member ``j`` ends once it is ``u_j = ratio_j work_j / batch_j``:

    ``run_j = integral_0^{u_j} du / s(sum of the batches with u_k > u)``.

A lower bound on ``run_j`` has in place of ``s`` the largest ``s`` over the sums of at least ``B`` that up
to four jobs can have, ``cap(B)``: never less, and never rising with ``B``, so that the bound holds when
only some members are known (the active batch is at least theirs) and rises with every member's work. Where
a larger batch takes longer a step, as it does, ``cap`` is ``s`` and the bound of a whole group is exact.
Ratios are exact by tuple of tasks (rows, rules and fitted models alike are asked about each), and the least
over all groups where some members are open. The pessimistic run is at least ``h`` times the other, with
``h`` the least ratio of pessimistic to expected work among the members, because runs scale with the works
and rise with each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.outside import Asked, Budget, Gains, LimitError, Terms, Wanted
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["JointSearch"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

MOST_TASKS = 40
MOST_SUMS = 20_000
LARGEST_BATCH = 2_000_000
BLOCK = 400_000


class JointSearch:
    """Finds the joint groups of one instance; `wanted` for any prices."""

    def __init__(self, evaluator: Evaluator, rules: Rules, expander: Expander, terms: Terms) -> None:
        jobs = evaluator.jobs
        able = np.flatnonzero(jobs.startable & ~jobs.rigid & (evaluator.works.task >= 0) & (jobs.fm >= 0))
        kinds = rules.trained[able]
        self.families = [
            _Family(evaluator, rules, expander, terms, able[kinds == kind]) for kind in np.unique(kinds)
        ]

    def wanted(self, asked: Asked, budget: Budget) -> Iterator[Wanted]:
        """Yield sets that may have a column of a reduced cost below what is asked."""
        for family in self.families:
            yield from family.wanted(asked, budget)


@dataclass(frozen=True)
class _Ratios:
    """By tuple of tasks (first the member's own): ratio, pessimistic over it, and 1 - p; inf unknown."""

    ratio: FloatArray
    spread: FloatArray
    doubt: FloatArray

    def least(self, axis: int) -> _Ratios:
        """Return the least figures over the last tasks."""
        axes = tuple(range(self.ratio.ndim - axis, self.ratio.ndim))
        return _Ratios(self.ratio.min(axes), self.spread.min(axes), self.doubt.min(axes))

    def at(self, tasks: tuple[IntArray, ...]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the three figures."""
        return self.ratio[tasks], self.spread[tasks], self.doubt[tasks]


class _Family:
    """Jobs that train the same kind of adapter on the same model."""

    def __init__(
        self, evaluator: Evaluator, rules: Rules, expander: Expander, terms: Terms, rows: IntArray
    ) -> None:
        self.evaluator, self.rules, self.expander, self.terms = evaluator, rules, expander, terms
        self.rows = rows
        self.ready = False

    def _prepare(self, budget: Budget) -> None:
        evaluator, rows = self.evaluator, self.rows
        self.ready = True
        count = len(rows)
        one, two = np.triu_indices(count, 1)
        near = (
            self.rules.allowed(Mode.JOINT, np.column_stack([rows[one], rows[two]])) if count > 1 else one < 0
        )
        self.near = np.zeros((count, count), dtype=np.bool_)
        self.near[one[near], two[near]] = self.near[two[near], one[near]] = True
        some = self.near.any(axis=1)
        self.rows, self.near = rows[some], self.near[np.ix_(some, some)]
        if not len(self.rows):
            return
        budget.check()
        tasks, self.task = np.unique(evaluator.works.task[self.rows], return_inverse=True)
        if len(tasks) > MOST_TASKS:
            raise LimitError(f"more than {MOST_TASKS} tasks of one foundation model")
        self.by_size = {n: self._ratios(tasks, n) for n in (2, 3, 4)}
        wide, wider = self.by_size[3].least(1), self.by_size[4].least(2)
        self.pair_least = _Ratios(
            np.minimum(wide.ratio, wider.ratio),
            np.minimum(wide.spread, wider.spread),
            np.minimum(wide.doubt, wider.doubt),
        )
        self.triple_least = self.by_size[4].least(1)
        self.batch = evaluator.speeds.batch[self.rows]
        self._sums()

    def _ratios(self, tasks: IntArray, size: int) -> _Ratios:
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
        return _Ratios(ratio, spread, doubt)

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

    def wanted(self, asked: Asked, budget: Budget) -> Iterator[Wanted]:
        if not self.ready:
            self._prepare(budget)
        if len(self.rows) < 2:
            return
        jobs = self.evaluator.jobs
        gains = Gains(self.evaluator, asked)
        top = int(np.sort(jobs.max[self.rows])[-4:].sum())
        for t, menu in enumerate(self.expander.menu):
            for g in menu[menu <= top].tolist():
                budget.check()
                rows = self.rows
                use = self.expander._typed[rows, t] & (jobs.min[rows] <= g)
                if int(use.sum()) > 1:
                    yield from _At(self, gains, budget, t, g, np.flatnonzero(use)).wanted(asked.least(t, g))


class _At:
    """One family at one type and count; its jobs in the order of what they can gain at best."""

    def __init__(self, family: _Family, gains: Gains, budget: Budget, t: int, g: int, use: IntArray) -> None:
        self.family, self.gains, self.budget, self.t, self.g = family, gains, budget, t, g
        self._speeds()
        self._take(use)

    def _speeds(self) -> None:
        """Fill the most samples/s by unit of batch at a summed batch of so much or more."""
        family, t, g = self.family, self.t, self.g
        evaluator = family.evaluator
        lead = family.rows[0]
        key = int(evaluator.speeds.key[lead])
        found = evaluator.estimates.throughput(
            evaluator.speeds.keys[key],
            evaluator.instance.types[t],
            np.full(len(family.sums), g, dtype=np.int64),
            family.sums,
        )
        rate = found[0] / family.sums
        top = int(family.sums[-1]) + 1
        first = np.array([family.rows[np.argmax(family.batch == b)] for b in family.single], dtype=np.int64)
        same = np.full(len(first), t), np.full(len(first), g)
        alone = evaluator.jobs.rate_or_largest(first, *same) / family.single
        share = np.zeros(top)
        share[family.single] = np.where(np.isfinite(alone), alone, 0.0)
        share[family.sums] = np.fmax(share[family.sums], np.where(np.isfinite(rate), rate, 0.0))
        self.cap = np.maximum.accumulate(share[::-1])[::-1]
        self.known = np.zeros(top, dtype=np.bool_)
        self.known[family.sums] = np.isfinite(rate)
        self.possible = bool(np.isfinite(rate).any())

    def _take(self, use: IntArray) -> None:
        family, t, g = self.family, self.t, self.g
        terms = family.terms
        self.local = use
        self.rows = family.rows[use]
        self.task, self.batch = family.task[use], family.batch[use]
        self.unit = terms.work[self.rows] / np.maximum(self.batch, 1)
        self.spread = terms.spread[self.rows]
        self.begin = terms.begin(self.rows, t, g)
        self.cold = terms.evaluator.jobs.cold[self.rows, t]
        self.most = terms.evaluator.jobs.max[self.rows]
        p = terms.evaluator.parameters
        self.probe = p.probe_work_fraction if p.probes else 0.0
        self.gate = 1.0 if p.probes else 0.0
        self.near = family.near[np.ix_(use, use)]

    def wanted(self, least: float) -> Iterator[Wanted]:
        if not self.possible:
            return
        pairs, value = self._pairs()
        yield from self._told(pairs, value, least)
        bound = self._pair_bounds()
        best = bound.max(axis=1, initial=-np.inf)
        order = np.argsort(-best, kind="stable")
        # who cannot be in a group that pays even with the best three others
        top = np.maximum(np.sort(best)[::-1][:3], 0.0)
        top = top[np.isfinite(top)].sum()
        order = order[best[order] + top > least]
        if len(order) < 3:
            return
        self._take(self.local[order])
        bound = bound[np.ix_(order, order)]
        yield from self._wider(bound, least)

    def _told(self, sets: IntArray, value: FloatArray, least: float) -> Iterator[Wanted]:
        sets = sets[value > least]
        if len(sets):
            rows = np.sort(self.rows[sets], axis=1)
            yield Wanted(Mode.JOINT, self.t, self.g, rows)

    # -- pairs ----------------------------------------------------------------------------------

    def _pairs(self) -> tuple[IntArray, FloatArray]:
        """Return the pairs and what their members gain."""
        one, two = np.nonzero(np.triu(self.near, 1))
        sets = np.column_stack([one, two])
        sets = sets[self.most[sets].sum(axis=1) >= self.g]
        self.budget.look(len(sets))
        return sets, self._value(sets)

    def _pair_bounds(self) -> FloatArray:
        """Return what each job gains at most in a group of three or four with each other job."""
        ratio, spread, doubt = self.family.pair_least.at((self.task[:, None], self.task[None, :]))
        unit = self.unit[:, None] * ratio
        unit = np.where(np.isfinite(unit), unit, np.inf)
        both = np.minimum(unit, unit.T)
        with np.errstate(invalid="ignore", divide="ignore"):
            run = both / self.cap[self.batch[:, None] + self.batch[None, :]]
            run = run + np.where(unit > both, (unit - both) / self.cap[self.batch][:, None], 0.0)
            factor = self.family.terms.run_factor(spread.min() * self.spread.min())
            finish = self._finish(run, factor, doubt, np.arange(len(self.rows))[:, None])
        out = self.gains.of(self.rows[:, None], finish)
        return np.where(self.near, out, -np.inf)

    def _finish(self, run: FloatArray, factor: FloatArray, doubt: FloatArray, who: IntArray) -> FloatArray:
        doubt = np.where(np.isfinite(doubt), doubt, 1.0) * self.gate
        return np.asarray(self.begin[who] + run * factor * (1 + self.probe * doubt) + doubt * self.cold[who])

    # -- three and four -------------------------------------------------------------------------

    def _wider(self, bound: FloatArray, least: float) -> Iterator[Wanted]:
        count = len(bound)
        # after[i, j]: the most that a job behind j gains with i
        after = np.full((count, count + 1), -np.inf)
        after[:, :count] = np.maximum.accumulate(bound.T[:, ::-1], axis=1)[:, ::-1]
        own = after[np.arange(count), np.arange(1, count + 1)]
        one, two = np.nonzero(np.triu(self.near, 1))
        rest = np.minimum(after[one, two + 1], own[two])
        pair = bound[one, two] + bound[two, one]
        good = pair + rest + np.maximum(rest, 0.0) > least
        one, two = one[good], two[good]
        follow = np.triu(self.near, 1)
        size = np.maximum(1, BLOCK // max(1, count))
        for begin in range(0, len(one), size):
            i, j = one[begin : begin + size], two[begin : begin + size]
            row, k = np.nonzero(follow[i] & follow[j])
            self.budget.look(len(row))
            i, j = i[row], j[row]
            total = np.minimum(bound[i, j], bound[i, k])
            total += np.minimum(bound[j, i], bound[j, k])
            total += np.minimum(bound[k, i], bound[k, j])
            rest = np.minimum(np.minimum(after[i, k + 1], after[j, k + 1]), own[k])
            good = total + np.maximum(rest, 0.0) > least
            if good.any():
                sets = np.column_stack([i[good], j[good], k[good]])
                yield from self._triples(sets, rest[good], bound, follow, least)

    def _triples(
        self, sets: IntArray, rest: FloatArray, bound: FloatArray, follow: BoolArray, least: float
    ) -> Iterator[Wanted]:
        enough = self.most[sets].sum(axis=1) >= self.g
        yield from self._told(sets[enough], self._value(sets[enough]), least)
        value = self._value(sets, partial=True)
        good = value + rest > least
        sets, value = sets[good], value[good]
        count = len(bound)
        size = max(1, BLOCK // max(1, count))
        for begin in range(0, len(sets), size):
            some = sets[begin : begin + size]
            row, added = np.nonzero(follow[some[:, 0]] & follow[some[:, 1]] & follow[some[:, 2]])
            if not len(row):
                continue
            self.budget.look(len(row))
            three = some[row]
            joins = np.minimum(
                np.minimum(bound[added, three[:, 0]], bound[added, three[:, 1]]), bound[added, three[:, 2]]
            )
            good = value[begin : begin + size][row] + joins > least
            four = np.column_stack([three[good], added[good]])
            four = four[self.most[four].sum(axis=1) >= self.g]
            if len(four):
                yield from self._told(four, self._value(four), least)

    def _value(self, sets: IntArray, *, partial: bool = False) -> FloatArray:
        """Return what the members gain together, exactly; ``partial``: at most, with one more member."""
        out = np.empty(len(sets))
        for begin in range(0, len(sets), BLOCK):
            out[begin : begin + BLOCK] = self._value_of(sets[begin : begin + BLOCK], partial)
        return out

    def _value_of(self, sets: IntArray, partial: bool) -> FloatArray:
        size = sets.shape[1]
        table = self.family.triple_least if partial else self.family.by_size[size]
        task = self.task[sets]
        columns = list(range(size))
        ratio, spread, doubt = (np.empty(sets.shape) for _ in range(3))
        for k in columns:
            at = (task[:, k], *(task[:, m] for m in columns if m != k))
            ratio[:, k], spread[:, k], doubt[:, k] = table.at(at)
        unit = self.unit[sets] * ratio
        batch = self.batch[sets]
        order = np.argsort(unit, axis=1, kind="stable")
        unit = np.take_along_axis(unit, order, axis=1)
        batch = np.take_along_axis(batch, order, axis=1)
        left = np.cumsum(batch[:, ::-1], axis=1)[:, ::-1]
        known = np.isfinite(unit).all(axis=1)
        if not partial:
            known &= self.known[left[:, 0]]
        clock = np.zeros(len(sets))
        run = np.empty(sets.shape)
        before = np.zeros(len(sets))
        with np.errstate(invalid="ignore", divide="ignore"):
            for k in columns:
                step = unit[:, k] - before
                clock = clock + np.where(step > 0, step / self.cap[left[:, k]], 0.0)
                before = unit[:, k]
                run[:, k] = clock
            back = np.empty(sets.shape)
            np.put_along_axis(back, order, run, axis=1)
            low = (self.spread[sets] * spread).min(axis=1)
            if partial:
                low = np.minimum(low, self.spread.min() * self.family.by_size[4].spread.min())
            factor = self.family.terms.run_factor(low)[:, None]
            finish = self._finish(back, factor, doubt, sets)
        total = self.gains.of(self.rows[sets], finish).sum(axis=1)
        return np.where(known, total, -np.inf)
