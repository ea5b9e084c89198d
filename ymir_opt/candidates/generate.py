"""The pool of candidate columns of one round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.every import every_set
from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.partners import PairFinder
from ymir_opt.candidates.prices import Prices, solo_prices
from ymir_opt.candidates.prune import dominance
from ymir_opt.candidates.rules import Rules
from ymir_opt.candidates.sets import Stop
from ymir_opt.candidates.shards import SHARED_MODES, Look, Part, make_shards
from ymir_opt.candidates.spread import Spread
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import MODES, ColumnTable, concatenate
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["Generator", "Pool", "generate"]

IntArray = NDArray[np.int64]
# so many sets become columns between two prunings
BLOCK = 50_000


@dataclass(frozen=True)
class Pool:
    """Columns and how they came about.

    Attributes
    ----------
    table : ColumnTable
        Keep columns first, then new ones, in a deterministic order.
    generated, dominated, dropped : int
        Evaluated columns; dropped without loss; dropped by heuristics (sets, counts, starts).
    prices : Prices or None
        At which it was last priced.
    cut : bool
        The wall-clock guard struck before every group was looked at.
    proven : bool
        No group outside can be in a better plan than the bound says, by exhaustive pricing.
    """

    table: ColumnTable
    generated: int
    dominated: int
    dropped: int
    prices: Prices | None = None
    cut: bool = False
    proven: bool = False

    @property
    def exhaustive(self) -> bool:
        """No heuristic dropped anything that counts: the bound holds for all groups of at most four."""
        return (self.dropped == 0 and not self.cut) or self.proven

    def by_mode(self) -> dict[str, int]:
        """Return the number of columns of each mode."""
        counts = np.bincount(self.table.mode, minlength=len(MODES))
        return {mode.value: int(counts[i]) for i, mode in enumerate(MODES)}


class Generator:
    """Generates the pool of one round, and prices it again with the duals of its relaxation.

    Parameters
    ----------
    evaluator : Evaluator
    limits : PoolLimits, optional
        By default in proportion to the number of jobs.
    merge : bool
        False leaves out new groups of two or more (``ymir-no-merge``); running ones may stay.
    barred : bool[J], optional
        Jobs that may not start.
    stop : callable, optional
        Says whether the wall-clock guard has struck; then no more groups are looked for.
    cores : int, optional
        Cores to look for groups on; the pool is the same on any number.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        limits: PoolLimits | None = None,
        *,
        merge: bool = True,
        barred: NDArray[np.bool_] | None = None,
        stop: Callable[[], bool] = lambda: False,
        cores: int | None = None,
    ) -> None:
        self.stop = Stop(stop)
        self.evaluator = evaluator
        self.limits = limits or PoolLimits.of_size(evaluator.jobs.count)
        self.rules = Rules(evaluator)
        # what must go on as it runs is in no other group, whatever that would seem to gain
        startable = evaluator.jobs.startable & ~evaluator.pinned
        evaluator.jobs.startable = startable if barred is None else startable & ~barred
        self.merge = merge and int(evaluator.jobs.startable.sum()) > 1
        self.every: dict[Mode, tuple[IntArray, ...]] | None = None
        self.expander = Expander(evaluator, self.rules, self.limits)
        if self.expander.exhaustive and self.merge_sets() is None:
            self.expander.exhaustive = False
        self.cores = cores
        self.informed = False
        """The first pool was made at prices of the round before."""
        self.spread: Spread | None = None

    def close(self) -> None:
        """End the processes that looked for groups, if any."""
        if self.spread is not None:
            self.spread.close()

    def merge_sets(self) -> dict[Mode, tuple[IntArray, ...]] | None:
        """Return every set of each mode, None where there are too many."""
        if self.every is None:
            found = {}
            finder = PairFinder(self.evaluator, self.rules, self.limits, np.zeros(self.evaluator.jobs.count))
            for mode in SHARED_MODES if self.merge else ():
                sets = every_set(self.rules, finder, mode, self.limits.max_members, self.limits.most_sets)
                if sets is None:
                    return None
                found[mode] = sets
            self.every = found
        return self.every

    @property
    def passes(self) -> int:
        """How often pricing again is worth it."""
        return self.limits.passes if self.merge and not self.expander.exhaustive else 0

    def first(self, known: Callable[[ColumnTable], Look | None] = lambda _: None) -> Pool:
        """Return the pool at prices of single jobs, or as ``known`` says from their columns."""
        alone = np.flatnonzero(self.evaluator.jobs.startable).reshape(-1, 1)
        table = concatenate([self.expander.keeps(), self.expander.expand(Mode.SOLO, alone)])
        self.base = self._undominated(table)
        if not self.merge:
            return self._pool([self.base], None)
        instance = self.evaluator.instance
        capacity = np.bincount(instance.gpu_type[instance.gpu_ready], minlength=len(instance.types))
        look = known(table)
        if look is not None:
            self.informed = self.passes > 1
            return self._grown(look)
        prices = solo_prices(table, capacity.astype(np.int64))
        # prices of single jobs are too rough to leave a group out for
        return self._grown(Look(prices, -np.inf, rough=self.passes > 1))

    def again(self, prices: Prices) -> Pool:
        """Return the pool enlarged by groups that improve its relaxation at these prices."""
        return self._grown(Look(prices))

    def _grown(self, look: Look) -> Pool:
        if self.expander.exhaustive:
            return self._pool([self.base, *self._every()], look.prices)
        if self.spread is None:
            shards = make_shards(self.evaluator, self.rules, self.expander, self.limits, self.stop)
            self.spread = Spread(shards, self.cores)
        parts = self.spread.columns(look)
        self.stop.struck |= any(part.struck for part in parts)
        return self._pool([self.base, *(part.table for part in parts)], look.prices, parts)

    def _every(self) -> list[ColumnTable]:
        tables = [
            self._undominated(self.expander.expand(mode, sets[begin : begin + BLOCK]))
            for mode, found in (self.merge_sets() or {}).items()
            for sets in found
            for begin in range(0, len(sets), BLOCK)
            if not self.stop()
        ]
        # the same jobs may be in tables of several modes
        return [self._undominated(concatenate(tables))] if tables else []

    def _undominated(self, table: ColumnTable) -> ColumnTable:
        running = self.evaluator.instance.running_of >= 0
        return dominance(table, self.expander.fewest, running)

    def _pool(self, tables: list[ColumnTable], prices: Prices | None, parts: Sequence[Part] = ()) -> Pool:
        table = concatenate(tables)
        return Pool(
            table,
            self.expander.generated + sum(part.generated for part in parts),
            table.notes.get("dominated", 0),
            self.expander.dropped + sum(part.dropped for part in parts),
            prices,
            cut=self.stop.struck,
        )


def generate(
    evaluator: Evaluator,
    limits: PoolLimits | None = None,
    *,
    merge: bool = True,
    barred: NDArray[np.bool_] | None = None,
) -> Pool:
    """Return the first pool of one round; see `Generator`."""
    return Generator(evaluator, limits, merge=merge, barred=barred, cores=1).first()
