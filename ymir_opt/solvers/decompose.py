"""Large rounds: prices first, then whole groups.

1. The relaxation's prices by sifting, strengthened by odd-set inequalities (`strengthen`): once
   these are in, next to nothing separates it from the best whole point.
2. Where next to nothing is left, a dive ends at a whole point within the gap target (`dive`), or else a
   small exact model of what is around the relaxation's fractions (`nearby`).
3. If not: at these prices a group is worth a place in the plan only if its reduced cost is small, so the
   round is solved over few columns, and over more of them until the best point is proven within the
   gap target (`filtered`; exact, no step is heuristic).
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers.base import (
    UNLIMITED,
    Capabilities,
    Limits,
    Progress,
    SolveResult,
    Verdict,
    conclude,
    trivial,
)
from ymir_opt.solvers.dive import dive
from ymir_opt.solvers.filtered import Ladder, solve_reduced
from ymir_opt.solvers.highs_core import solve_whole
from ymir_opt.solvers.nearby import nearby
from ymir_opt.solvers.strengthen import strengthen

__all__ = ["DecomposeBackend", "make"]

IntArray = NDArray[np.int64]

PRESOLVE_TO = 2000
"""Rows up to which HiGHS's presolve pays."""
NEARBY_TO = 2000
"""Rows up to which a model of what is around the fractions is quick; beyond, the whole is as quick."""
FIRST_SHARE = 0.1
"""Share of the gap target up to which reduced costs count in the first small model."""
PER_ROW, GROWTH, PATIENCE = 2.0, 2.5, 0.5


class DecomposeBackend:
    """Sifting, inequalities and small exact models."""

    name = "decompose"
    capabilities = Capabilities(exact=True, deterministic=True, work_limit=True, imports=("highspy",))

    def solve(
        self,
        model: LinearModel,
        *,
        incumbent: IntArray | None = None,
        limits: Limits = UNLIMITED,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> SolveResult:
        """Minimise the model; see `Backend.solve`."""
        known = trivial(model, incumbent)
        if known is not None:
            return known
        deadline = None if limits.wall_s is None else time.monotonic() + limits.wall_s
        found = strengthen(model, deadline, limits.gap_quanta)
        if found is None:
            return conclude(model, incumbent, limits, verdict=Verdict.INFEASIBLE, point=None, bound=None)
        strong, lp, master = found
        if master is not None and limits.gap_quanta:
            point = dive(master, strong, lp, limits.gap_quanta, deadline)
            if point is None and lp.optimal and model.rows <= NEARBY_TO:
                point = nearby(strong, lp, limits.gap_quanta, deadline, seed)
            if point is not None and (
                incumbent is None or model.objective(point) < model.objective(incumbent)
            ):
                incumbent = point
        whole = partial(solve_whole, presolve=model.rows <= PRESOLVE_TO)
        first = int(limits.gap_quanta * FIRST_SHARE) if limits.gap_quanta else None
        ladder = Ladder(first, PER_ROW, GROWTH, PATIENCE, resume=False)
        result = solve_reduced(whole, strong, lp, incumbent, limits, deadline, seed, progress, ladder)
        return replace(result, row_duals=lp.row_duals[: model.rows] if lp.optimal else None)


def make() -> DecomposeBackend:
    """Return the backend (entry point)."""
    return DecomposeBackend()
