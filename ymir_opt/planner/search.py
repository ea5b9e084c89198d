"""The search of one round: solve, place, and where a placement fails add the exact node rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.prices import Prices
from ymir_opt.domain.plan import StoppedBy
from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.model import RoundModel, build
from ymir_opt.formulation.quota import QuotaTable
from ymir_opt.placement.pack import place
from ymir_opt.planner.selection import Selection, settle
from ymir_opt.solvers.base import SolveResult

__all__ = ["Outcome", "Round", "search"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# beyond this many nodes of a type the exact node-level model is not worth its size
EXACT_NODES = 400
ATTEMPTS = 6


@dataclass(frozen=True)
class Round:
    """What one round's search works on.

    Attributes
    ----------
    evaluator : Evaluator
    table : ColumnTable
    quotas : QuotaTable
    available : bool[U]
    profiled : int64[R]
    """

    evaluator: Evaluator
    table: ColumnTable
    quotas: QuotaTable
    available: BoolArray
    profiled: IntArray

    def model(self, exact_types: frozenset[int] = frozenset()) -> RoundModel:
        """State the model."""
        return build(
            self.evaluator.instance,
            self.table,
            self.quotas,
            available=self.available,
            pinned=self.evaluator.pinned,
            profiled=self.profiled,
            exact_types=exact_types,
        )

    def locate(self, columns: IntArray) -> tuple[Selection | None, tuple[int, ...]]:
        """Place chosen columns; return the selection, or None and the GPU types that failed."""
        instance, table = self.evaluator.instance, self.table
        keeps = [c for c in columns.tolist() if table.keep[c] >= 0]
        new = [c for c in columns.tolist() if table.keep[c] < 0]
        placement = place(
            instance,
            self.available,
            [int(table.keep[c]) for c in keeps],
            [table.shapes[table.shape[c]] for c in new],
            prefer=[self._before(c) for c in new],
        )
        if not placement.ok:
            return None, placement.failed_types
        gpus = (*(instance.running[table.keep[c]].gpus for c in keeps), *placement.gpus)
        return settle(self.evaluator, table, np.array([*keeps, *new], dtype=np.int64), gpus), ()

    def _before(self, c: int) -> IntArray | None:
        """Return the GPUs that a column's members hold now."""
        instance, table = self.evaluator.instance, self.table
        groups = {int(instance.running_of[j]) for j in table.jobs[c] if j >= 0} - {-1}
        held = [instance.running[r].gpus for r in groups if instance.running[r].type == table.type[c]]
        return np.concatenate(held) if held else None


@dataclass(frozen=True)
class Outcome:
    """What the search found.

    Attributes
    ----------
    selection : Selection or None
        The best placed selection of the solver, None if it has none.
    bound : int or None
        Lower bound on every plan from the pool, in quanta.
    stopped_by : StoppedBy
    notes : tuple of str
    exact_types : frozenset of int
        GPU types whose placement needed the exact node-level rows.
    prices : Prices or None
        Of the relaxation, where the solver told them.
    """

    selection: Selection | None
    bound: int | None
    stopped_by: StoppedBy
    notes: tuple[str, ...] = ()
    exact_types: frozenset[int] = frozenset()
    prices: Prices | None = None


def search(work: Round, solve: Callable[[RoundModel], SolveResult]) -> Outcome:
    """Solve and place until both agree, or nothing more can be learnt.

    Every model is a relaxation of the placeable plans, so each bound holds; the largest counts.
    """
    exact: frozenset[int] = frozenset()
    bound: int | None = None
    stopped = StoppedBy.OPTIMALITY
    notes: list[str] = []
    for _ in range(ATTEMPTS):
        stated = work.model(exact)
        result = solve(stated)
        stopped = result.stopped_by
        if result.note:
            notes.append(result.note)
        if result.bound is not None:
            bound = result.bound if bound is None else max(bound, result.bound)
        if result.x is None:
            return Outcome(None, bound, stopped, tuple(notes), exact)
        selection, failed = work.locate(stated.chosen(result.x))
        if selection is not None:
            return Outcome(selection, bound, stopped, tuple(notes), exact)
        more = frozenset(t for t in failed if _worth(work, t)) - exact
        if not more:
            notes.append("the solver's best selection has no placement")
            return Outcome(None, bound, StoppedBy.HEURISTIC, tuple(notes), exact)
        exact |= more
    return Outcome(None, bound, StoppedBy.ITERATION_LIMIT, tuple(notes), exact)


def _worth(work: Round, t: int) -> bool:
    return int((work.evaluator.instance.node_type == t).sum()) <= EXACT_NODES
