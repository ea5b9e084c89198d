"""The pool of candidate columns of one round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.prune import dominance
from ymir_opt.candidates.rules import Rules
from ymir_opt.candidates.sets import SetFinder
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import MODES, ColumnTable, concatenate
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["Pool", "generate"]

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
    """

    table: ColumnTable
    generated: int
    dominated: int
    dropped: int

    @property
    def exhaustive(self) -> bool:
        """No heuristic dropped anything: the bound holds for all groups of at most four."""
        return self.dropped == 0

    def by_mode(self) -> dict[str, int]:
        """Return the number of columns of each mode."""
        counts = np.bincount(self.table.mode, minlength=len(MODES))
        return {mode.value: int(counts[i]) for i, mode in enumerate(MODES)}


def generate(
    evaluator: Evaluator,
    limits: PoolLimits | None = None,
    *,
    merge: bool = True,
    barred: NDArray[np.bool_] | None = None,
) -> Pool:
    """Enumerate, evaluate and prune the columns of one round.

    Parameters
    ----------
    evaluator : Evaluator
    limits : PoolLimits, optional
    merge : bool
        False leaves out new groups of two or more (``ymir-no-merge``); running ones may stay.
    barred : bool[J], optional
        Jobs that may not start (they are being profiled).
    """
    limits = limits or PoolLimits()
    rules = Rules(evaluator)
    # what must go on as it runs is in no other group, whatever that would seem to gain
    startable = evaluator.jobs.startable & ~evaluator.pinned
    evaluator.jobs.startable = startable if barred is None else startable & ~barred
    expander = Expander(evaluator, rules, limits)
    alone = np.flatnonzero(evaluator.jobs.startable).reshape(-1, 1)
    tables: list[ColumnTable] = [expander.keeps(), expander.expand(Mode.SOLO, alone)]
    if merge and len(alone) > 1:
        finder = SetFinder(evaluator, rules, expander, limits)
        for mode in SHARED_MODES:
            tables.extend(finder.columns(mode))
    table = concatenate(tables)
    running = evaluator.instance.running_of >= 0
    table = dominance(table, expander.fewest, running)
    return Pool(table, expander.generated, table.notes.get("dominated", 0), expander.dropped)
