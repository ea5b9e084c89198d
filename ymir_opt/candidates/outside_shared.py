"""gpu_share and colocate groups that would pay at given prices.

While members ``j`` and ``k`` both run, ``j`` is no faster than ``rho_jk`` times its speed alone ``s_j``,
with ``rho_jk`` the best ratio that any row (or fitted model) gives ``j``'s signature in a group with
``k``'s; afterwards no faster than ``rho_j``, the best anywhere (at least 1, alone). So ``k`` runs at least
until ``tau = work_k / (rho_kj s_k)``, or ``j`` ends first, and with ``e = work_j / (rho_jk s_j)``

    ``run_j >= e`` if ``e <= tau``, else ``run_j >= tau + (work_j - rho_jk s_j tau) / (rho_j s_j)``

in every group that contains both. In a larger set each member's least bound over its partners counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.outside import Asked, Budget, Gains, Terms, Wanted
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["SharedSearch"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

MOST_ASKED = 20_000
"""Groups of signatures that a fitted model is asked about; beyond, its ratios bound nothing."""
BLOCK = 400_000
NEVER = -np.inf


class SharedSearch:
    """Finds the groups of one of the two modes; `wanted` for any prices."""

    def __init__(
        self, mode: Mode, evaluator: Evaluator, rules: Rules, expander: Expander, terms: Terms
    ) -> None:
        self.mode = mode
        self.evaluator, self.rules, self.expander, self.terms = evaluator, rules, expander, terms
        jobs = evaluator.jobs
        self.able = np.flatnonzero(jobs.startable & ~jobs.rigid & (jobs.signature >= 0))
        self.near: BoolArray | None = None

    def _prepare(self) -> BoolArray:
        rows = self.able
        near = np.zeros((len(rows), len(rows)), dtype=np.bool_)
        one, two = np.triu_indices(len(rows), 1)
        if len(one):
            good = self.rules.allowed(self.mode, np.column_stack([rows[one], rows[two]]))
            near[one[good], two[good]] = near[two[good], one[good]] = True
        return near

    def wanted(self, asked: Asked, budget: Budget) -> Iterator[Wanted]:
        """Yield sets that may have a column of a reduced cost below what is asked."""
        if self.evaluator.estimates.colocation.largest(self.mode) == 0:
            return
        if self.near is None:
            self.near = self._prepare()
        gains, seen = Gains(self.evaluator, asked), asked.open(self.able)
        for t, (menu, allowed) in enumerate(self.expander._used):
            for c, g in enumerate(menu.tolist()):
                budget.check()
                use = np.flatnonzero(allowed[self.able, c] & seen)
                if len(use) > 1:
                    yield from self._at(gains, budget, t, g, use, asked.least(t, g))

    def _caps(self, t: int, g: int) -> tuple[FloatArray, int]:
        """Return the best ratio of each signature together with another, [S, S], and the largest group."""
        evaluator = self.evaluator
        jobs = evaluator.jobs
        count = len(jobs.signature_keys)
        caps = np.full((count, count), NEVER)
        if evaluator.estimates.predictor is not None:
            return self._asked(t, g, caps)
        base: dict[tuple[object, int], list[int]] = {}
        for i, key in enumerate(jobs.signature_keys):
            base.setdefault((key.key, key.batch_size), []).append(i)
        largest = 0
        for row, members in evaluator.estimates.colocation.rows:
            if row.mode is not self.mode or row.gpus != g or row.gpu_type != evaluator.instance.types[t]:
                continue
            largest = max(largest, len(members))
            match = [
                [
                    i
                    for i in base.get((m.key, m.batch_size), ())
                    if m.task in (None, jobs.signature_keys[i].task)
                ]
                for m in members
            ]
            for a in range(len(members)):
                for b in range(len(members)):
                    if a != b and match[a] and match[b]:
                        at = np.ix_(match[a], match[b])
                        caps[at] = np.maximum(caps[at], row.speed_ratio[a])
        return caps, largest

    def _asked(self, t: int, g: int, caps: FloatArray) -> tuple[FloatArray, int]:
        """Ask about every group of signatures; where there are too many no ratio bounds anything."""
        used = np.unique(self.evaluator.jobs.signature[self.able]).tolist()
        number = len(used)
        if number * (number + 1) * (number + 2) * (number + 3) // 24 > MOST_ASKED:
            caps[:] = np.inf
            return caps, 4
        largest = 0
        colocation, name = self.evaluator.estimates.colocation, self.evaluator.instance.types[t]
        keys = self.evaluator.jobs.signature_keys
        for size in (2, 3, 4):
            for group in combinations_with_replacement(used, size):
                found = colocation.lookup(self.mode, name, g, [keys[s] for s in group])
                if found is None:
                    continue
                largest = size
                for a in range(size):
                    for b in range(size):
                        if a != b:
                            value = max(caps[group[a], group[b]], found.speed_ratio[a])
                            caps[group[a], group[b]] = value
        return caps, largest

    def _at(
        self, gains: Gains, budget: Budget, t: int, g: int, use: IntArray, least: float
    ) -> Iterator[Wanted]:
        caps, largest = self._caps(t, g)
        if largest < 2:
            return
        assert self.near is not None
        rows, near = self.able[use], self.near[np.ix_(use, use)]
        bound = self._bounds(gains, t, g, rows, near, caps)
        near = near & np.isfinite(bound) & np.isfinite(bound.T)
        bound = np.where(near, bound, NEVER)
        best = bound.max(axis=1, initial=NEVER)
        order = np.argsort(-best, kind="stable")
        top = np.maximum(np.sort(best)[::-1][: largest - 1], 0.0)
        order = order[best[order] + top[np.isfinite(top)].sum() > least]
        if len(order) < 2:
            return
        bound, near, rows = bound[np.ix_(order, order)], near[np.ix_(order, order)], rows[order]
        for sets in _grown(bound, near, budget, least, min(largest, 4)):
            yield Wanted(self.mode, t, g, np.sort(rows[sets], axis=1))

    def _bounds(
        self, gains: Gains, t: int, g: int, rows: IntArray, near: BoolArray, caps: FloatArray
    ) -> FloatArray:
        """Return what each job gains at most in a group with each other one, [n, n]."""
        jobs, terms = self.evaluator.jobs, self.terms
        kind = jobs.signature[rows]
        speed = jobs.rate_or_largest(rows, np.full(len(rows), t), np.full(len(rows), g))
        best = np.maximum(caps.max(axis=1, initial=1.0), 1.0)[kind]
        ratio = caps[kind[:, None], kind[None, :]]
        known = np.isfinite(ratio) | (ratio > 0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            alone = terms.work[rows] / speed
            mine = alone[:, None] / ratio
            other = mine.T
            later = other + (alone[:, None] - ratio * other) / best[:, None]
            run = np.where(mine <= other, mine, later)
            # without a known ratio nothing is known of the run
            run = np.where(np.isposinf(ratio) | np.isposinf(best)[:, None], 0.0, run)
            run = np.maximum(np.nan_to_num(run, nan=0.0, posinf=np.inf), 0.0)
            factor = terms.run_factor(np.minimum(terms.spread[rows].min(), 1e300))
            finish = terms.begin(rows, t, g)[:, None] + run * factor
        out = gains.of(rows[:, None], finish)
        return np.where(near & known & np.isfinite(speed)[:, None], out, NEVER)


def _grown(
    bound: FloatArray, near: BoolArray, budget: Budget, least: float, largest: int
) -> Iterator[IntArray]:
    """Yield the sets whose members' bounds exceed ``least``; jobs in the order of what they gain at best."""
    count = len(bound)
    after = np.full((count, count + 1), NEVER)
    after[:, :count] = np.maximum.accumulate(bound.T[:, ::-1], axis=1)[:, ::-1]
    follow = np.triu(near, 1)
    step = max(1, BLOCK // max(1, count))

    def grown(some: IntArray) -> Iterator[IntArray]:
        budget.look(len(some))
        size = some.shape[1]
        each = np.full(some.shape, np.inf)
        for a in range(size):
            for b in range(size):
                if a != b:
                    each[:, a] = np.minimum(each[:, a], bound[some[:, a], some[:, b]])
        value = each.sum(axis=1)
        if (value > least).any():
            yield some[value > least]
        if size >= largest:
            return
        last = some[:, -1] + 1
        rest = np.min([after[some[:, k], last] for k in range(size)], axis=0)
        some = some[value + rest + (largest - size - 1) * np.maximum(rest, 0.0) > least]
        for begin in range(0, len(some), step):
            block = some[begin : begin + step]
            fits = follow[block[:, 0]].copy()
            for k in range(1, size):
                fits &= follow[block[:, k]]
            row, added = np.nonzero(fits)
            if len(row):
                yield from grown(np.column_stack([block[row], added]))

    yield from grown(np.argwhere(follow))
