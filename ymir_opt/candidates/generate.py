"""The pool of candidate columns of one round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.every import every_set
from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.memory import ScoreMemory
from ymir_opt.candidates.partners import PairFinder
from ymir_opt.candidates.prices import Prices, solo_prices
from ymir_opt.candidates.prune import dominance
from ymir_opt.candidates.rules import Rules
from ymir_opt.candidates.sets import SetFinder, Stop
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import MODES, ColumnTable, concatenate
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["Generator", "Pool", "generate"]

IntArray = NDArray[np.int64]
# so many sets become columns between two prunings
BLOCK = 50_000
SHARED_MODES = (Mode.GPU_SHARE, Mode.COLOCATE, Mode.JOINT, Mode.SEQUENCE)


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
    """

    table: ColumnTable
    generated: int
    dominated: int
    dropped: int
    prices: Prices | None = None
    cut: bool = False

    @property
    def exhaustive(self) -> bool:
        """No heuristic dropped anything: the bound holds for all groups of at most four."""
        return self.dropped == 0 and not self.cut

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
    """

    def __init__(
        self,
        evaluator: Evaluator,
        limits: PoolLimits | None = None,
        *,
        merge: bool = True,
        barred: NDArray[np.bool_] | None = None,
        stop: Callable[[], bool] = lambda: False,
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
        self.memory = ScoreMemory(evaluator.jobs.count)

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

    def first(self, known: Callable[[ColumnTable], Prices | None] = lambda _: None) -> Pool:
        """Return the pool at prices of single jobs, or at those that ``known`` gives from their columns."""
        alone = np.flatnonzero(self.evaluator.jobs.startable).reshape(-1, 1)
        tables = [self.expander.keeps(), self.expander.expand(Mode.SOLO, alone)]
        prices = None
        if self.merge:
            instance = self.evaluator.instance
            capacity = np.bincount(instance.gpu_type[instance.gpu_ready], minlength=len(instance.types))
            alone_table = concatenate(tables)
            good = known(alone_table)
            prices = good or solo_prices(alone_table, capacity.astype(np.int64))
            # prices of single jobs are too rough to leave a group out for
            tables += self._shared(prices, -np.inf if good is None else 0.0)
        return replace(self._pool(tables), prices=prices)

    def again(self, pool: Pool, prices: Prices) -> Pool:
        """Return the pool enlarged by groups that improve its relaxation at these prices."""
        return replace(self._pool([pool.table, *self._shared(prices, 0.0)]), prices=prices)

    def _shared(self, prices: Prices, least: float) -> list[ColumnTable]:
        if self.expander.exhaustive:
            return [
                self._undominated(self.expander.expand(mode, sets[begin : begin + BLOCK]))
                for mode, found in (self.merge_sets() or {}).items()
                for sets in found
                for begin in range(0, len(sets), BLOCK)
                if not self.stop()
            ]
        finder = SetFinder(
            self.evaluator, self.rules, self.expander, self.limits, prices, self.memory, self.stop
        )
        return [table for mode in SHARED_MODES for table in finder.columns(mode, least=least)]

    def _undominated(self, table: ColumnTable) -> ColumnTable:
        running = self.evaluator.instance.running_of >= 0
        return dominance(table, self.expander.fewest, running)

    def _pool(self, tables: list[ColumnTable]) -> Pool:
        table = self._undominated(concatenate(tables))
        return Pool(
            table,
            self.expander.generated,
            table.notes.get("dominated", 0),
            self.expander.dropped,
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
    return Generator(evaluator, limits, merge=merge, barred=barred).first()
