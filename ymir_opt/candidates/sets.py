"""Sets of jobs worth expanding: a priced beam over partners (`every` has them all, for small instances)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.memory import Scored, ScoreMemory
from ymir_opt.candidates.partners import PairFinder
from ymir_opt.candidates.prices import Prices, saving_of
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.numbering import rank_in_runs, unique_rows
from ymir_opt.formulation.rowwise import any_of, sum_of

__all__ = ["SetFinder", "Stop"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# up to so many sets are scored at their two smallest counts instead of one
TWO_COUNTS_TO = 20_000
# so many sets are scored between two looks at the clock
BLOCK = 50_000


class Stop:
    """Remembers that the wall-clock guard has struck."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self.asked = asked
        self.struck = False

    def __call__(self) -> bool:
        """Say whether to stop."""
        self.struck = self.struck or self.asked()
        return self.struck


class SetFinder:
    """Finds the sets of one instance, mode by mode; of all jobs, or of ``among`` bool[J]."""

    def __init__(
        self,
        evaluator: Evaluator,
        rules: Rules,
        expander: Expander,
        limits: PoolLimits,
        prices: Prices,
        memory: ScoreMemory,
        stop: Stop,
        among: BoolArray | None = None,
    ) -> None:
        self.evaluator = evaluator
        self.rules = rules
        self.expander = expander
        self.limits = limits
        self.prices = prices
        self.memory = memory
        self.stop = stop
        self.finder = PairFinder(evaluator, rules, limits, prices.job, among)

    def columns(self, mode: Mode, *, least: float = -np.inf) -> list[ColumnTable]:
        """Return the columns of groups of two or more in a mode.

        Parameters
        ----------
        mode : Mode
        least : float
            Sets and columns of a lower reduced profit, in quanta, are left out.
        """
        if self.stop():
            return []
        return self._beam(mode, least)

    def of_sets(self, mode: Mode, sets: IntArray) -> ColumnTable:
        """Return the columns of given sets that may form a group, int64[M, K], the best counts of each."""
        return self._expand(mode, sets[self.rules.allowed(mode, sets)] if len(sets) else sets, -np.inf)

    def _beam(self, mode: Mode, least: float) -> list[ColumnTable]:
        pairs = self.finder.pairs(mode, self.score)
        self.expander.dropped += self.finder.dropped
        self.finder.dropped = 0
        if not len(pairs):
            return []
        value = self.score(mode, pairs)
        kept = self._best(pairs, value, self.limits.pairs_per_job, least)
        out = [self._expand(mode, pairs[kept], least)]
        partners = self._partners(mode, pairs, value)
        grown = pairs[self._best(pairs, value, self.limits.grown_per_job, -np.inf, count=False)]
        for _ in range(3, self._most_members(mode) + 1):
            if self.stop():
                break
            wider = self._grow(mode, grown, partners)
            if not len(wider):
                break
            value = self.score(mode, wider)
            kept = self._best(wider, value, self.limits.grown_per_job, least)
            grown = wider[self._best(wider, value, self.limits.grown_per_job, -np.inf, count=False)]
            if not len(grown):
                break
            out.append(self._expand(mode, wider[kept], least))
        return out

    def _most_members(self, mode: Mode) -> int:
        """Return how many members a group may have: speeds together are known from rows (or a predictor)."""
        if mode not in (Mode.GPU_SHARE, Mode.COLOCATE):
            return self.limits.max_members
        largest = self.evaluator.estimates.colocation.largest(mode)
        return self.limits.max_members if largest is None else min(self.limits.max_members, largest)

    def _expand(self, mode: Mode, sets: IntArray, least: float) -> ColumnTable:
        """Return the columns of the sets, the best counts of each."""
        if self.stop():
            sets = sets[:0]
        table = self.expander.expand(mode, sets) if len(sets) else self.expander.empty()
        if not len(table):
            return table
        value = self.prices.reduced(saving_of(table), table.type, table.gpus, table.jobs)
        _, group = unique_rows(table.jobs)
        order = np.lexsort((-value, group))
        rank = rank_in_runs(group[order])
        keep = np.zeros(len(table), dtype=np.bool_)
        keep[order[rank < self.limits.counts_per_set]] = True
        keep &= value >= least
        self.expander.dropped += int((~keep).sum())
        return table.take(np.flatnonzero(keep))

    def _best(
        self, sets: IntArray, value: FloatArray, per_job: int, least: float, *, count: bool = True
    ) -> IntArray:
        """Return the sets that are among the best of one of their members, ascending."""
        good = np.flatnonzero(np.isfinite(value) & (value >= least))
        members = sets[good]
        size = sets.shape[1]
        flat = members.reshape(-1)
        row = np.repeat(np.arange(len(good)), size)
        order = np.lexsort((row, -np.repeat(value[good], size), flat))
        rank = rank_in_runs(flat[order])
        keep = np.zeros(len(good), dtype=np.bool_)
        keep[row[order[rank < per_job]]] = True
        if count:
            self.expander.dropped += int(len(sets) - keep.sum())
        return good[keep]

    def score(self, mode: Mode, sets: IntArray) -> FloatArray:
        """Return the best reduced profit of each set over its smallest counts, -inf if inadmissible."""
        full = len(sets) <= TWO_COUNTS_TO
        found = self.memory.get(mode, sets, full, lambda some: self._savings(mode, some, full))
        price = np.repeat(self.prices.gpu, 1 + full)
        worth = sum_of(self.prices.job[sets])
        return np.asarray((found.saving - price * found.gpus).max(axis=1, initial=-np.inf) - worth)

    def _savings(self, mode: Mode, sets: IntArray, full: bool) -> Scored:
        """Return the savings of sets at their smallest count on each type, or their two smallest.

        Where the guard strikes the rest counts as inadmissible.
        """
        if len(sets) <= BLOCK:
            return self._savings_of(mode, sets, full)
        parts = []
        for begin in range(0, len(sets), BLOCK):
            block = sets[begin : begin + BLOCK]
            if self.stop():
                options = len(self.evaluator.instance.types) * (1 + full)
                none = np.full((len(sets) - begin, options), -np.inf)
                parts.append(Scored(none, np.zeros(none.shape, dtype=np.int16)))
                break
            parts.append(self._savings_of(mode, block, full))
        return Scored(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("saving", "gpus")))

    def _savings_of(self, mode: Mode, sets: IntArray, full: bool) -> Scored:
        evaluator = self.evaluator
        types, tried = len(evaluator.instance.types), 1 + full
        saving = np.full((len(sets), types * tried), -np.inf)
        count = np.zeros((len(sets), types * tried), dtype=np.int16)
        queued = sum_of(evaluator.queued_cost[sets])
        for t in range(types):
            row, gpus = self.expander._rows(mode, sets, t)
            rank = rank_in_runs(row)
            pick = rank < tried
            row, gpus, rank = row[pick], gpus[pick], rank[pick]
            if not len(row):
                continue
            members = sets[row]
            result = evaluator.evaluate(
                mode,
                members,
                np.full(len(row), t, dtype=np.int64),
                gpus,
                np.full(members.shape, -1, dtype=np.int64),
                np.zeros(len(row), np.bool_),
            )
            value = (queued[row] - result.cost) / evaluator.quantum
            at = (row, t * tried + rank)
            saving[at] = np.where(result.valid & ~np.isnan(value), value, -np.inf)
            count[at] = np.minimum(gpus, np.iinfo(np.int16).max)
        return Scored(saving, count)

    def _partners(self, mode: Mode, pairs: IntArray, value: FloatArray) -> IntArray:
        """Return the best partners of each job, int64[J, M], -1 pads (successors, in a sequence)."""
        good = np.isfinite(value)
        one, two, value = pairs[good, 0], pairs[good, 1], value[good]
        if mode is not Mode.SEQUENCE:
            one, two = np.concatenate([one, two]), np.concatenate([two, one])
            value = np.concatenate([value, value])
        order = np.lexsort((two, -value, one))
        rank = rank_in_runs(one[order])
        width = self.limits.partners_per_job
        out = np.full((self.evaluator.jobs.count, width), -1, dtype=np.int64)
        top = order[rank < width]
        self.expander.dropped += len(order) - len(top)
        out[one[top], rank[rank < width]] = two[top]
        return out

    def _grow(self, mode: Mode, sets: IntArray, partners: IntArray) -> IntArray:
        """Return the sets enlarged by a partner of one of their members (of the last, in a sequence)."""
        if not len(sets):
            return np.zeros((0, sets.shape[1] + 1), dtype=np.int64)
        sources = sets[:, -1:] if mode is Mode.SEQUENCE else sets
        extra = partners[sources].reshape(len(sets), -1)
        row, column = np.nonzero(extra >= 0)
        added = extra[row, column]
        fresh = ~any_of(sets[row] == added[:, None])
        wider = np.column_stack([sets[row[fresh]], added[fresh]])
        if mode is not Mode.SEQUENCE:
            wider = np.sort(wider, axis=1)
        wider = unique_rows(wider)[0]
        return wider[self.rules.allowed(mode, wider)] if len(wider) else wider
