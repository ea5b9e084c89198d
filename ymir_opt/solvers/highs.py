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
    UNLIMITED,
    Capabilities,
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

__all__ = ["HighsBackend", "cost_scale", "make", "new_solver", "pass_model"]

IntArray = NDArray[np.int64]
LARGEST_COST_BITS = 20
ITERATIONS_PER_WORK = 4000.0


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
        import highspy

        scale = cost_scale(model.cost)
        solver = new_solver()
        pass_model(solver, model, scale, relax=False)
        options: dict[str, Any] = {
            "random_seed": seed % (2**31),
            "mip_rel_gap": 0.0,
            "mip_abs_gap": max(limits.gap_quanta, 0.5) * scale,
        }
        if limits.wall_s is not None:
            options["time_limit"] = max(limits.wall_s, 0.0)
        for key, value in options.items():
            solver.setOptionValue(key, value)
        if incumbent is not None:
            start = highspy.HighsSolution()
            start.col_value = incumbent.astype(np.float64).tolist()
            solver.setSolution(start)
        watch = _Watch(model, limits, progress)
        watch.attach(solver)
        solver.run()
        status = solver.getModelStatus()
        info = solver.getInfo()
        point = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            point = np.asarray(solver.getSolution().col_value, dtype=np.float64)
        verdict, stopped_by = _verdict(status, highspy.HighsModelStatus, solver)
        return conclude(
            model,
            incumbent,
            limits,
            verdict=verdict,
            point=point,
            bound=_bound(info.mip_dual_bound, scale, model.offset),
            stopped_by=stopped_by,
        )


def make() -> HighsBackend:
    """Return the backend (entry point)."""
    return HighsBackend()


class _Watch:
    """Counts simplex iterations, stops the solver at the work limit and reports improvements."""

    def __init__(self, model: LinearModel, limits: Limits, progress: Progress | None) -> None:
        self.model = model
        self.progress = progress
        self.best: int | None = None
        self.budget = math.inf if limits.work is None else iteration_budget(model, limits.work)

    def attach(self, solver: Any) -> None:
        """Register the callbacks that are needed."""
        if math.isfinite(self.budget):
            solver.cbMipInterrupt += self._interrupt
        if self.progress is not None:
            solver.cbMipImprovingSolution += self._improved

    def _interrupt(self, event: Any) -> None:
        if event.data_out.simplex_iteration_count > self.budget:
            event.data_in.user_interrupt = True

    def _improved(self, event: Any) -> None:
        x = np.rint(np.asarray(event.data_out.mip_solution)).astype(np.int64)
        if self.progress is None or len(x) != self.model.variables or len(self.model.violated(x)):
            return
        objective = self.model.objective(x)
        if self.best is None or objective < self.best:
            self.best = objective
            self.progress(x)


def iteration_budget(model: LinearModel, work: float) -> float:
    """Return the number of simplex iterations that a work budget buys.

    An iteration costs about as much as a pass over the rows and a few columns, so the number
    per second falls with the size of the model.
    """
    return work * ITERATIONS_PER_WORK / (1.0 + len(model.index) / 2e4)


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


def _verdict(status: Any, statuses: Any, solver: Any) -> tuple[Verdict, StoppedBy | None]:
    stopped = {
        statuses.kTimeLimit: StoppedBy.WALL_CLOCK,
        statuses.kIterationLimit: StoppedBy.ITERATION_LIMIT,
        statuses.kSolutionLimit: StoppedBy.NODE_LIMIT,
        statuses.kInterrupt: StoppedBy.ITERATION_LIMIT,
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


def _bound(value: float, scale: float, offset: int) -> float | None:
    return value / scale + offset if math.isfinite(value) else None
