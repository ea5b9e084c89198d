"""Solve a large model exactly by leaving out the columns that the relaxation rules out.

With the relaxation's proven bound L and reduced costs d, a point in which a variable leaves its
bound has an objective of at least L + |d_j| (G. B. Dantzig, R. Fulkerson, S. Johnson, *Solution of
a large-scale traveling-salesman problem*, 1954). So the model is solved over the columns with
|d_j| <= t alone, and L + t bounds every point that uses another one: once the best point is within
the gap target of both that and the small model's bound, it is proven for the whole model. If not,
t grows to what the best point now asks for. No step is heuristic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import UNBOUNDED, LinearModel
from ymir_opt.solvers.base import (
    Limits,
    Progress,
    SolveResult,
    Status,
    StoppedBy,
    Verdict,
    conclude,
)
from ymir_opt.solvers.lp import LpResult, relax

__all__ = ["Ladder", "Whole", "restrict", "solve_filtered", "solve_reduced"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Whole = Callable[[LinearModel, IntArray | None, Limits, int, Progress | None], SolveResult]
"""Solves a model as it is: (model, incumbent, limits, seed, progress)."""

LEAST_COLUMNS = 300
COLUMNS_PER_ROW = 4
GROWTH = 4
USED = 1e-6


def solve_filtered(
    whole: Whole,
    model: LinearModel,
    incumbent: IntArray | None,
    limits: Limits,
    seed: int,
    progress: Progress | None,
) -> SolveResult:
    """Minimise the model with `whole` on as few columns as the proof allows.

    The work limit applies to each of the few small models (rarely more than two); the relaxation
    is not counted.
    """
    deadline = None if limits.wall_s is None else time.monotonic() + limits.wall_s
    lp = relax(model, deadline=deadline)
    if lp is None:
        return conclude(model, incumbent, limits, verdict=Verdict.INFEASIBLE, point=None, bound=None)
    ladder = Ladder(None, COLUMNS_PER_ROW, GROWTH)
    return solve_reduced(whole, model, lp, incumbent, limits, deadline, seed, progress, ladder)


@dataclass(frozen=True)
class Ladder:
    """By which steps columns join.

    Attributes
    ----------
    first : int or None
        First threshold on reduced costs, in quanta, if it keeps fewer columns than `per_row`.
    per_row : float
        Columns a row in the first step, at most.
    growth : float
        How many times as many columns the next step has, at most.
    patience : float
        Share of the gap target that a small model may be short of its own optimum.
    resume : bool
        Start each small model from the best point so far. HiGHS does better without: from a point
        near the optimum its local searches take longer than they gain.
    """

    first: int | None
    per_row: float
    growth: float
    patience: float = 1.0
    resume: bool = True


def solve_reduced(
    whole: Whole,
    model: LinearModel,
    lp: LpResult,
    incumbent: IntArray | None,
    limits: Limits,
    deadline: float | None,
    seed: int,
    progress: Progress | None,
    ladder: Ladder,
) -> SolveResult:
    """Minimise the model whose relaxation is `lp`; see `solve_filtered`.

    Parameters
    ----------
    deadline : float or None
        Of ``time.monotonic()``, in place of ``limits.wall_s``.
    ladder : Ladder
    """
    if not lp.optimal:
        struck = StoppedBy.WALL_CLOCK
        return conclude(
            model,
            incumbent,
            limits,
            verdict=Verdict.STOPPED,
            point=None,
            bound=lp.bound,
            stopped_by=struck,
        )
    if lp.bound is None:
        return whole(model, incumbent, _left(limits, deadline), seed, progress)
    if progress is not None:
        progress(None, float(lp.bound))
    state = _State(model, lp, lp.bound, incumbent)
    threshold = state.threshold_for(max(LEAST_COLUMNS, int(ladder.per_row * model.rows)))
    if ladder.first is not None:
        threshold = min(threshold, ladder.first)
    bound, note, stopped = lp.bound, "", None
    patience = int(limits.gap_quanta * ladder.patience)
    while stopped is None and not state.proven(bound, limits.gap_quanta):
        if state.best is not None:
            threshold = min(threshold, state.excess() - limits.gap_quanta)
        left = _left(limits, deadline)
        if left.wall_s == 0.0:
            stopped = StoppedBy.WALL_CLOCK
            break
        keep = state.within(threshold)
        small, free = restrict(model, keep, state.at)
        # every point that uses a column left out costs at least this
        outside = None if keep.all() else state.floor + threshold
        start = state.best[free] if ladder.resume and state.best is not None else None
        watch = None if progress is None else state.passing(progress, free, outside)
        result = whole(small, start, replace(left, gap_quanta=patience), seed, watch)
        note = result.note
        if result.x is not None:
            state.improve(free, result.x)
        if result.status is Status.INFEASIBLE:
            if outside is None:
                return conclude(model, incumbent, limits, verdict=Verdict.INFEASIBLE, point=None, bound=None)
            bound = outside
        else:
            inside = state.floor if result.bound is None else max(result.bound, state.floor)
            bound = inside if outside is None else min(inside, outside)
            if result.status is not Status.OPTIMAL:
                stopped = result.stopped_by
        threshold = max(threshold + 1, state.threshold_for(int(ladder.growth * keep.sum())))
    return conclude(
        model,
        incumbent,
        limits,
        verdict=Verdict.STOPPED,
        point=state.best,
        bound=bound,
        stopped_by=stopped,
        note=note,
    )


class _State:
    """The relaxation's proof and the best point so far."""

    def __init__(self, model: LinearModel, lp: LpResult, floor: int, incumbent: IntArray | None) -> None:
        self.model = model
        self.floor = floor
        self.distance = np.abs(lp.reduced_costs)
        self.at = np.where(lp.reduced_costs >= 0, model.lower, model.upper)
        self.best = incumbent
        # what the relaxation uses, and what leaves its jobs out, makes the small model feasible
        self.needed = (lp.x > USED) | (np.bincount(model.index, minlength=model.variables) <= 1)

    def excess(self) -> int:
        """Return by how much the best point exceeds the relaxation's bound."""
        assert self.best is not None
        return self.model.objective(self.best) - self.floor

    def proven(self, bound: int, gap: int) -> bool:
        """Return whether the best point is within the gap of a bound."""
        return self.best is not None and self.model.objective(self.best) - bound <= gap

    def threshold_for(self, count: int) -> int:
        """Return the smallest whole threshold that keeps at least `count` variables, or all."""
        rank = min(count, self.model.variables) - 1
        return math.ceil(float(np.partition(self.distance, rank)[rank]))

    def within(self, threshold: int) -> BoolArray:
        """Return the variables to keep, those of the best point among them."""
        keep = (self.distance <= threshold) | self.needed
        if self.best is not None:
            keep |= self.best != self.at
        return np.asarray(keep)

    def complete(self, free: IntArray, small: IntArray) -> IntArray:
        """Return a point of the whole model from one of the small model."""
        x = self.at.copy()
        x[free] = small
        return x

    def improve(self, free: IntArray, small: IntArray) -> None:
        """Take over a point of the small model where it is better."""
        x = self.complete(free, small)
        if self.best is None or self.model.objective(x) < self.model.objective(self.best):
            self.best = x

    def passing(self, progress: Progress, free: IntArray, outside: int | None) -> Progress:
        """Return a progress callback for the small model that speaks of the whole one."""

        def passed(x: IntArray | None, bound: float | None) -> None:
            limit = bound if bound is None or outside is None else min(bound, float(outside))
            progress(None if x is None else self.complete(free, x), limit)

        return passed


def restrict(model: LinearModel, keep: BoolArray, at: IntArray) -> tuple[LinearModel, IntArray]:
    """Fix the variables that are not kept; return the smaller model and its variables' old indices.

    Parameters
    ----------
    model : LinearModel
    keep : bool[n]
    at : int64[n]
        Values of the variables that are not kept; their share moves into row bounds and offset.
    """
    free = np.flatnonzero(keep).astype(np.int64)
    rest = np.where(keep, 0, at)
    used = model.activity(rest)
    new = np.cumsum(keep) - 1
    entry = keep[model.index]
    row = model.row_of_entry[entry]
    length = np.bincount(row, minlength=model.rows).astype(np.int64)
    small = replace(
        model,
        cost=model.cost[free],
        lower=model.lower[free],
        upper=model.upper[free],
        relaxable=model.relaxable[free],
        row_start=np.concatenate([np.zeros(1, np.int64), np.cumsum(length)]),
        index=new[model.index[entry]],
        value=model.value[entry],
        row_lower=np.where(model.row_lower <= -UNBOUNDED, model.row_lower, model.row_lower - used),
        row_upper=np.where(model.row_upper >= UNBOUNDED, model.row_upper, model.row_upper - used),
        offset=model.offset + int(model.cost @ rest),
    )
    return small, free


def _left(limits: Limits, deadline: float | None) -> Limits:
    return limits if deadline is None else replace(limits, wall_s=max(0.0, deadline - time.monotonic()))
