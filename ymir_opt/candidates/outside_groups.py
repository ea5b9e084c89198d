"""Joint groups of one family that may pay at one GPU type and count; `outside_joint` derives the bounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.outside import Budget, Gains
from ymir_opt.candidates.outside_family import Family

__all__ = ["Groups"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

BLOCK, CHUNK = 400_000, 16_000
"""Sets bounded, and evaluated, at once: what is evaluated should stay in the cache."""


class Groups:
    """One family at one type and count; its jobs in the order of what they can gain at best."""

    def __init__(self, family: Family, gains: Gains, budget: Budget, t: int, g: int, use: IntArray) -> None:
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

    def found(self, least: float) -> Iterator[IntArray]:
        """Yield sets of job rows, int64[M, K], whose members may gain more than ``least``."""
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

    def _told(self, sets: IntArray, value: FloatArray, least: float) -> Iterator[IntArray]:
        sets = sets[value > least]
        if len(sets):
            yield np.sort(self.rows[sets], axis=1)

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

    def _wider(self, bound: FloatArray, least: float) -> Iterator[IntArray]:
        count = len(bound)
        # after[i, j]: the most that a job from j on gains with i
        after = np.full((count, count + 1), -np.inf)
        after[:, :count] = np.maximum.accumulate(bound.T[:, ::-1], axis=1)[:, ::-1]
        own = after[np.arange(count), np.arange(1, count + 1)]
        follow = np.triu(self.near, 1)
        one, two = np.nonzero(follow)
        rest = np.minimum(after[one, two + 1], own[two])
        pair = bound[one, two] + bound[two, one]
        good = pair + rest + np.maximum(rest, 0.0) > least
        one, two = one[good], two[good]
        size = max(1, BLOCK // max(1, count))
        for begin in range(0, len(one), size):
            i, j = one[begin : begin + size], two[begin : begin + size]
            row, k = np.nonzero(follow[i] & follow[j])
            self.budget.look(len(row))
            i, j = i[row], j[row]
            total = np.minimum(bound[i, j], bound[i, k])
            total += np.minimum(bound[j, i], bound[j, k])
            total += np.minimum(bound[k, i], bound[k, j])
            sets = np.column_stack([i, j, k])
            three = sets[(total > least) & (self.most[sets].sum(axis=1) >= self.g)]
            yield from self._told(three, self._value(three), least)
            # whoever is fourth is the third of another triple with the same two
            best = np.full(len(one), -np.inf)
            np.maximum.at(best, row, np.minimum(bound[k, i], bound[k, j]))
            good = total + best[row] > least
            yield from self._fours(row[good], sets[good], bound, least)

    def _fours(self, row: IntArray, sets: IntArray, bound: FloatArray, least: float) -> Iterator[IntArray]:
        """Yield the groups of four from triples int64[M, 3] of which those of equal ``row`` begin alike.

        Two triples ``(i, j, k)`` and ``(i, j, l)`` bound what each member gains in ``(i, j, k, l)``.
        """
        if not len(sets):
            return
        gain = np.concatenate(
            [
                self._gains_of(sets[begin : begin + CHUNK], partial=True)
                for begin in range(0, len(sets), CHUNK)
            ]
        )
        for _ in range(2):
            first = np.r_[True, row[1:] != row[:-1]][: len(row)]
            best = np.maximum.reduceat(gain[:, 2], np.flatnonzero(first)) if len(row) else gain[:, 2]
            good = gain.sum(axis=1) + best[np.cumsum(first) - 1] > least
            row, sets, gain = row[good], sets[good], gain[good]
        if not len(row):
            return
        place = np.arange(len(row))
        later = np.searchsorted(row, row, side="right") - place - 1
        ends = np.cumsum(later)
        head, other, third = (np.ascontiguousarray(gain[:, m]) for m in range(3))
        last = np.ascontiguousarray(sets[:, 2])
        begin = 0
        while begin < len(row):
            taken = ends[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, taken + 2 * BLOCK, side="right")))
            one = np.repeat(place[begin:end], later[begin:end])
            if len(one):
                self.budget.look(len(one))
                offset = np.arange(len(one)) - np.repeat(
                    ends[begin:end] - later[begin:end] - taken, later[begin:end]
                )
                two = one + 1 + offset
                total = third[one] + third[two]
                total += np.minimum(head[one], head[two])
                total += np.minimum(other[one], other[two])
                good = np.flatnonzero(total > least)
                one, two = one[good], two[good]
                k, l = last[one], last[two]  # noqa: E741
                total = np.minimum(head[one], head[two])
                total += np.minimum(other[one], other[two])
                total += np.minimum(third[one], bound[k, l])
                total += np.minimum(third[two], bound[l, k])
                good = total > least
                four = np.column_stack([sets[one[good]], last[two[good]]])
                four = four[self.most[four].sum(axis=1) >= self.g]
                if len(four):
                    yield from self._told(four, self._value(four), least)
            begin = end

    def _value(self, sets: IntArray) -> FloatArray:
        """Return what the members of whole groups gain together."""
        out = np.empty(len(sets))
        for begin in range(0, len(sets), CHUNK):
            out[begin : begin + CHUNK] = self._gains_of(sets[begin : begin + CHUNK], partial=False).sum(
                axis=1
            )
        return out

    def _gains_of(self, sets: IntArray, *, partial: bool) -> FloatArray:
        """Return what each member gains at most, [M, K]; ``partial``: with one more member."""
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
        known: BoolArray = np.asarray(np.isfinite(unit).all(axis=1))
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
        return np.asarray(np.where(known[:, None], self.gains.of(self.rows[sets], finish), -np.inf))
