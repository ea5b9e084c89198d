"""HiGHS as a backend: small models as they are, larger ones after the exact filter of columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers.base import UNLIMITED, Capabilities, Limits, Progress, SolveResult, trivial
from ymir_opt.solvers.filtered import solve_filtered
from ymir_opt.solvers.highs_core import solve_whole

__all__ = ["FILTER_FROM", "HighsBackend", "make"]

IntArray = NDArray[np.int64]
FILTER_FROM = 600
"""Number of variables from which columns are filtered first."""


class HighsBackend:
    """Exact branch and cut by HiGHS on one thread."""

    name = "highs"
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
        if model.variables < FILTER_FROM:
            return solve_whole(model, incumbent, limits, seed, progress)
        return solve_filtered(solve_whole, model, incumbent, limits, seed, progress)


def make() -> HighsBackend:
    """Return the backend (entry point)."""
    return HighsBackend()
