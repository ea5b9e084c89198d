"""HiGHS through its own Python interface: the model passes as arrays, nothing else is imported.

Precision. Costs are quanta up to about 1e10, HiGHS's tolerances are absolute (1e-7 on reduced
costs, 1e-6 on integrality). Costs are multiplied by a power of two, which is exact, so that the
largest is near 2^20: an error of one tolerance in a reduced cost is then at most about 1e-3
quanta, and the simplex works in the range that it is tuned for. Objectives of integer points are
integers, so an absolute gap below one quantum proves optimality; the relative gap is switched off.
HiGHS is a floating-point solver: its bound is not a certificate in exact arithmetic, and
`conclude` rounds it up only after an allowance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import SolverError
from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers.base import (
    Limits,
    Progress,
    SolveResult,
    StoppedBy,
    Verdict,
    conclude,
    float_bounds,
    trivial,
)
from ymir_opt.solvers.silence import silenced

__all__ = [
    "Watch",
    "cost_scale",
    "new_solver",
    "pass_model",
    "solve_whole",
    "unscaled",
    "verdict_of",
]

IntArray = NDArray[np.int64]
LARGEST_COST_BITS = 20


def solve_whole(
    model: LinearModel,
    incumbent: IntArray | None,
    limits: Limits,
    seed: int,
    progress: Progress | None,
    *,
    presolve: bool = True,
) -> SolveResult:
    """Hand the whole model to HiGHS; see `Backend.solve`.

    ``presolve=False`` spares HiGHS's own reductions, which cost more than they save where the
    columns are already chosen by their reduced costs.
    """
    known = trivial(model, incumbent)
    if known is not None:
        return known
    import highspy

    scale = cost_scale(model.cost)
    solver = new_solver()
    pass_model(solver, model, scale, relax=False)
    options: dict[str, Any] = {
        "random_seed": seed % (2**31),
        "mip_rel_gap": 0.0,
        "mip_abs_gap": max(limits.gap_quanta, 0.5) * scale,
        "presolve": "choose" if presolve else "off",
    }
    if limits.wall_s is not None:
        options["time_limit"] = max(limits.wall_s, 0.0)
    for key, value in options.items():
        solver.setOptionValue(key, value)
    if incumbent is not None:
        start = highspy.HighsSolution()
        start.col_value = incumbent.astype(np.float64).tolist()
        solver.setSolution(start)
    Watch(model, scale, limits, progress).attach(solver)
    solver.run()
    status = solver.getModelStatus()
    info = solver.getInfo()
    point = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        point = np.asarray(solver.getSolution().col_value, dtype=np.float64)
    verdict, stopped_by = verdict_of(status, solver)
    return conclude(
        model,
        incumbent,
        limits,
        verdict=verdict,
        point=point,
        bound=unscaled(info.mip_dual_bound, scale, model.offset),
        stopped_by=stopped_by,
    )


class Watch:
    """Stops the solver at the work limit and reports improvements and bounds on the way.

    HiGHS reports no iteration count from inside a MIP, and one node of a large model may take
    minutes. What it offers is a callback at fixed points of the algorithm, several a node; on
    one thread their number is a deterministic measure of work.
    """

    def __init__(self, model: LinearModel, scale: float, limits: Limits, progress: Progress | None) -> None:
        self.model = model
        self.scale = scale
        self.progress = progress
        self.best: int | None = None
        self.calls = 0
        self.budget = math.inf if limits.work is None else limits.work / seconds_per_call(model)

    def attach(self, solver: Any) -> None:
        """Register the callbacks that are needed."""
        if math.isfinite(self.budget) or self.progress is not None:
            solver.cbMipInterrupt += self.interrupt
        if self.progress is not None:
            solver.cbMipImprovingSolution += self.improved

    def interrupt(self, event: Any) -> None:
        """Count one point of the algorithm."""
        self.calls += 1
        if self.calls > self.budget:
            event.data_in.user_interrupt = True
        if self.progress is not None:
            bound = unscaled(event.data_out.mip_dual_bound, self.scale, self.model.offset)
            if bound is not None:
                self.progress(None, bound)

    def improved(self, event: Any) -> None:
        """Report a better point, once it is verified."""
        x = np.rint(np.asarray(event.data_out.mip_solution)).astype(np.int64)
        if self.progress is None or len(x) != self.model.variables or len(self.model.violated(x)):
            return
        objective = self.model.objective(x)
        if self.best is None or objective < self.best:
            self.best = objective
            self.progress(x, unscaled(event.data_out.mip_dual_bound, self.scale, self.model.offset))


def seconds_per_call(model: LinearModel) -> float:
    """Return the work between two interrupt callbacks.

    A line through models of planning rounds and random packings of 700 to 200 000 entries, which
    it meets within a factor of three.
    """
    return 2e-3 + 2e-6 * len(model.index)


def new_solver() -> Any:
    """Return a silent single-threaded ``highspy.Highs``."""
    import highspy

    with silenced():  # the banner appears before any option can forbid it
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("parallel", "off")
    return solver


def cost_scale(cost: IntArray) -> float:
    """Return the power of two that brings the largest cost to at most 2^20; 1 where it is smaller."""
    largest = int(np.abs(cost).max(initial=0))
    return 2.0 ** -max(0, largest.bit_length() - LARGEST_COST_BITS)


def pass_model(solver: Any, model: LinearModel, scale: float, *, relax: bool) -> None:
    """Hand the arrays to HiGHS; the offset stays behind, it would only cost digits."""
    import highspy

    infinity = highspy.kHighsInf
    kinds = highspy.HighsVarType
    kind = np.full(model.variables, kinds.kInteger.value, dtype=np.int32)
    if relax:
        kind[:] = kinds.kContinuous.value
    status = solver.passModel(
        model.variables,
        model.rows,
        len(model.index),
        highspy.MatrixFormat.kRowwise.value,
        highspy.ObjSense.kMinimize.value,
        0.0,
        model.cost * scale,
        float_bounds(model.lower, infinity),
        float_bounds(model.upper, infinity),
        float_bounds(model.row_lower, infinity),
        float_bounds(model.row_upper, infinity),
        model.row_start[:-1].astype(np.int32),
        model.index.astype(np.int32),
        model.value.astype(np.float64),
        kind,
    )
    if status == highspy.HighsStatus.kError:
        raise SolverError("highs", "the model was refused", "check its coefficients and bounds")


def verdict_of(status: Any, solver: Any) -> tuple[Verdict, StoppedBy | None]:
    """Translate a model status of HiGHS; raises `SolverError` where it is no answer."""
    import highspy

    statuses = highspy.HighsModelStatus
    stopped = {
        statuses.kTimeLimit: StoppedBy.WALL_CLOCK,
        statuses.kIterationLimit: StoppedBy.ITERATION_LIMIT,
        statuses.kSolutionLimit: StoppedBy.NODE_LIMIT,
        statuses.kInterrupt: StoppedBy.DETERMINISTIC_LIMIT,
    }
    if status == statuses.kOptimal:
        return Verdict.PROVEN, None
    if status == statuses.kInfeasible:
        return Verdict.INFEASIBLE, None
    if status in stopped:
        return Verdict.STOPPED, stopped[status]
    if status in (statuses.kUnbounded, statuses.kUnboundedOrInfeasible):
        raise SolverError("highs", "the model is unbounded or infeasible", "bound its variables")
    text = solver.modelStatusToString(status)
    raise SolverError("highs", f"it ended with status {text!r}", "try another backend")


def unscaled(value: float, scale: float, offset: int) -> float | None:
    """Return an objective value of HiGHS in quanta with the offset, None where it is infinite."""
    return value / scale + offset if math.isfinite(value) else None
