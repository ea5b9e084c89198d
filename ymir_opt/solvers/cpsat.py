"""CP-SAT of OR-tools: one worker, full linear relaxation, deterministic time.

CP-SAT works on integers alone, so its bound and its proof are exact. It needs finite domains:
a variable without an upper bound gets the largest one that keeps every sum within 62 bits, at
most 2^40. A point that touches such a made-up bound proves nothing and is reported as unproven.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import SolverError
from ymir_opt.formulation.linear import UNBOUNDED, LinearModel
from ymir_opt.solvers.base import (
    UNLIMITED,
    Capabilities,
    Limits,
    Progress,
    SolveResult,
    StoppedBy,
    Verdict,
    conclude,
    trivial,
)
from ymir_opt.solvers.silence import silenced

__all__ = ["CpSatBackend", "finite_upper", "make"]

IntArray = NDArray[np.int64]
LARGEST_SUM = 2**61
LARGEST_DOMAIN = 2**40
SMALLEST_DOMAIN = 2**16


class CpSatBackend:
    """Exact search by CP-SAT."""

    name = "cpsat"
    capabilities = Capabilities(exact=True, deterministic=True, work_limit=True, imports=("ortools",))

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
        from ortools.sat.python import cp_model

        upper = finite_upper(model)
        if incumbent is not None:
            upper = np.maximum(upper, incumbent)
        stated, variables = _state(model, upper, incumbent)
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = 1
        parameters.linearization_level = 2
        parameters.random_seed = seed % (2**31)
        parameters.absolute_gap_limit = float(limits.gap_quanta)
        parameters.relative_gap_limit = 0.0
        parameters.log_search_progress = False
        if limits.work is not None:
            parameters.max_deterministic_time = limits.work
        if limits.wall_s is not None:
            parameters.max_time_in_seconds = max(limits.wall_s, 0.0)
        watch = None if progress is None else _watch(variables, model.offset, progress)
        with silenced():
            status = solver.solve(stated, watch)
        if status == cp_model.MODEL_INVALID:
            problem = stated.validate().splitlines()[0]
            raise SolverError("cpsat", f"the model was refused: {problem}", "try another backend")
        solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        point = np.array([solver.value(v) for v in variables], np.int64) if solved else None
        bound = _exact(solver.best_objective_bound, model) if status != cp_model.INFEASIBLE else None
        verdict = {
            cp_model.OPTIMAL: Verdict.PROVEN,
            cp_model.INFEASIBLE: Verdict.INFEASIBLE,
        }.get(status, Verdict.STOPPED)
        note = ""
        if point is not None and bool(np.any((model.upper >= UNBOUNDED) & (point >= upper))):
            verdict, bound = Verdict.STOPPED, None
            note = "a variable without an upper bound reached the one that CP-SAT needs"
        return conclude(
            model,
            incumbent,
            limits,
            verdict=verdict,
            point=point,
            bound=bound,
            stopped_by=_struck(solver.wall_time, limits),
            note=note,
        )


def make() -> CpSatBackend:
    """Return the backend (entry point)."""
    return CpSatBackend()


def finite_upper(model: LinearModel) -> IntArray:
    """Return int64[n] upper bounds, made up where the model has none.

    Raises
    ------
    SolverError
        The sums of the model leave no room for a useful bound within 62 bits.
    """
    free = model.upper >= UNBOUNDED
    if not np.any(free):
        return model.upper
    # Python's floats are wide enough to find the size of sums, and do not overflow
    reach = np.where(free, 0, np.maximum(np.abs(model.lower), np.abs(model.upper))).astype(np.float64)
    weight = np.abs(model.value).astype(np.float64)
    row = model.row_of_entry
    fixed = np.bincount(row, weight * reach[model.index], minlength=model.rows)
    slope = np.bincount(row, weight * free[model.index], minlength=model.rows)
    cost = np.abs(model.cost).astype(np.float64)
    fixed = np.append(fixed, float(cost @ reach))
    slope = np.append(slope, float(cost @ free))
    room = np.divide(LARGEST_SUM - fixed, slope, out=np.full(len(slope), np.inf), where=slope > 0)
    widest = int(min(LARGEST_DOMAIN, float(room.min(initial=np.inf))))
    if widest < SMALLEST_DOMAIN:
        raise SolverError("cpsat", "the sums of the model exceed 62 bits", "use the backend highs")
    return np.where(free, np.maximum(model.lower, 0) + widest, model.upper)


def _state(model: LinearModel, upper: IntArray, incumbent: IntArray | None) -> tuple[Any, list[Any]]:
    """Return the CpModel and its variables."""
    from ortools.sat.python import cp_model

    stated = cp_model.CpModel()
    variables = [
        stated.new_int_var(low, high, "")
        for low, high in zip(model.lower.tolist(), upper.tolist(), strict=True)
    ]
    start, index, value = model.row_start.tolist(), model.index.tolist(), model.value.tolist()
    weighted = cp_model.LinearExpr.weighted_sum
    bounds = zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)
    for row, (low, high) in enumerate(bounds):
        entries = slice(start[row], start[row + 1])
        if entries.start == entries.stop:
            continue
        expression = weighted([variables[j] for j in index[entries]], value[entries])
        stated.add_linear_constraint(
            expression,
            cp_model.INT_MIN if low <= -UNBOUNDED else low,
            cp_model.INT_MAX if high >= UNBOUNDED else high,
        )
    stated.minimize(weighted(variables, model.cost.tolist()))
    if incumbent is not None:
        for variable, hint in zip(variables, incumbent.tolist(), strict=True):
            stated.add_hint(variable, hint)
    return stated, variables


def _watch(variables: list[Any], offset: int, progress: Progress) -> Any:
    """Return a callback that passes every solution on."""
    from ortools.sat.python import cp_model

    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            point = np.array([self.value(v) for v in variables], np.int64)
            progress(point, self.best_objective_bound + offset)

    return Watch()


def _exact(bound: float, model: LinearModel) -> int | None:
    """Return CP-SAT's integer bound, which arrives as a float, in quanta with the offset."""
    if not math.isfinite(bound) or abs(bound) >= 2**53:
        return None
    return math.ceil(bound) + model.offset


def _struck(wall: float, limits: Limits) -> StoppedBy:
    if limits.wall_s is not None and (limits.work is None or wall >= limits.wall_s):
        return StoppedBy.WALL_CLOCK
    return StoppedBy.DETERMINISTIC_LIMIT
