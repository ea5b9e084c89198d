"""The pool of candidate columns of one round."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.memory import ScoreMemory
from ymir_opt.candidates.prices import Prices, solo_prices
from ymir_opt.candidates.prune import dominance
from ymir_opt.candidates.rules import Rules
from ymir_opt.candidates.sets import SetFinder
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import MODES, ColumnTable, concatenate
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["Generator", "Pool", "generate"]

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
        At which it was last priced again.
    """

    table: ColumnTable
    generated: int
    dominated: int
    dropped: int
    prices: Prices | None = None

    @property
    def exhaustive(self) -> bool:
        """No heuristic dropped anything: the bound holds for all groups of at most four."""
        return self.dropped == 0

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
    """

    def __init__(
        self,
        evaluator: Evaluator,
        limits: PoolLimits | None = None,
        *,
        merge: bool = True,
        barred: NDArray[np.bool_] | None = None,
    ) -> None:
        self.evaluator = evaluator
        self.limits = limits or PoolLimits.of_size(evaluator.jobs.count)
        self.rules = Rules(evaluator)
        # what must go on as it runs is in no other group, whatever that would seem to gain
        startable = evaluator.jobs.startable & ~evaluator.pinned
        evaluator.jobs.startable = startable if barred is None else startable & ~barred
        self.expander = Expander(evaluator, self.rules, self.limits)
        self.memory = ScoreMemory(evaluator.jobs.count)
        self.merge = merge and int(evaluator.jobs.startable.sum()) > 1

    @property
    def passes(self) -> int:
        """How often pricing again is worth it."""
        return self.limits.passes if self.merge and not self.expander.exhaustive else 0

    def first(self) -> Pool:
        """Return the pool at prices of single jobs."""
        alone = np.flatnonzero(self.evaluator.jobs.startable).reshape(-1, 1)
        tables = [self.expander.keeps(), self.expander.expand(Mode.SOLO, alone)]
        if self.merge:
            instance = self.evaluator.instance
            capacity = np.bincount(instance.gpu_type[instance.gpu_ready], minlength=len(instance.types))
            prices = solo_prices(concatenate(tables), capacity.astype(np.int64))
            tables += self._shared(prices, -np.inf)
        return self._pool(tables)

    def again(self, pool: Pool, prices: Prices) -> Pool:
        """Return the pool enlarged by groups that improve its relaxation at these prices."""
        return replace(self._pool([pool.table, *self._shared(prices, 0.0)]), prices=prices)

    def _shared(self, prices: Prices, least: float) -> list[ColumnTable]:
        finder = SetFinder(self.evaluator, self.rules, self.expander, self.limits, prices, self.memory)
        return [table for mode in SHARED_MODES for table in finder.columns(mode, least=least)]

    def _pool(self, tables: list[ColumnTable]) -> Pool:
        table = concatenate(tables)
        running = self.evaluator.instance.running_of >= 0
        table = dominance(table, self.expander.fewest, running)
        return Pool(table, self.expander.generated, table.notes.get("dominated", 0), self.expander.dropped)


def generate(
    evaluator: Evaluator,
    limits: PoolLimits | None = None,
    *,
    merge: bool = True,
    barred: NDArray[np.bool_] | None = None,
) -> Pool:
    """Return the first pool of one round; see `Generator`."""
    return Generator(evaluator, limits, merge=merge, barred=barred).first()
