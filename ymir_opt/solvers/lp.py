"""The linear relaxation: its bound, its prices, and what they prove about single variables.

Sign conventions, for minimisation. The dual ``y_i`` of row i is the change of the optimum per
unit by which the binding bound of the row is raised: ``y_i >= 0`` where the lower bound binds,
``y_i <= 0`` where the upper one does (raising a capacity lowers the cost), 0 where none does. The
reduced cost is ``d = cost - A^T y``; at an optimum ``d_j > 0`` only where x_j is at its lower
bound, ``d_j < 0`` only where it is at its upper bound.

Any y gives a lower bound (weak duality):
``offset + sum_i (y_i L_i if y_i > 0 else y_i U_i) + sum_j (d_j l_j if d_j > 0 else d_j u_j)``.
Here y is rounded to multiples of 2^-10 quanta and the sum is taken in integers, so the bound and
the reduced costs are exact consequences of the model, whatever the solver's tolerances were.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import SolverError
from ymir_opt.formulation.linear import UNBOUNDED, LinearModel
from ymir_opt.solvers.base import FloatArray
from ymir_opt.solvers.highs_core import cost_scale, new_solver, pass_model
from ymir_opt.solvers.sifting import Relaxation, sift

__all__ = ["LpResult", "fixable", "proven", "relax"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FRACTION = 2**10
"""Duals are multiples of 1/FRACTION quanta."""
LARGEST = 2**61
SIFT_FROM = 1000
SIFT_COLUMNS_PER_ROW = 4


@dataclass(frozen=True)
class LpResult:
    """An optimum of the linear relaxation.

    Attributes
    ----------
    objective : float
        The solver's optimum in quanta, offset included.
    bound : int or None
        Proven lower bound on every integer point in quanta, rounded up; None where the duals
        prove nothing (a variable without an upper bound and with a negative reduced cost).
    row_duals : float64[m]
        Prices of the rows in quanta per unit, see the module.
    reduced_costs : float64[n]
        In quanta per unit, exact for these prices.
    x : float64[n]
        The fractional optimum.
    optimal : bool
        False where the deadline struck: the bound holds, but the rest is not an optimum.
    """

    objective: float
    bound: int | None
    row_duals: FloatArray
    reduced_costs: FloatArray
    x: FloatArray
    optimal: bool = True


def relax(model: LinearModel, *, deadline: float | None = None) -> LpResult | None:
    """Solve the linear relaxation with HiGHS; None where it is infeasible.

    Models with many more columns than rows are solved by sifting.

    Parameters
    ----------
    model : LinearModel
    deadline : float or None
        Of ``time.monotonic()``; the duals reached by then give the bound.

    Raises
    ------
    SolverError
        The relaxation is unbounded, or the solver failed.
    """
    if model.variables == 0:
        return _without_variables(model)
    found = None
    if model.variables >= max(SIFT_FROM, SIFT_COLUMNS_PER_ROW * model.rows):
        found = sift(model, deadline)
    if found is None:
        found = _simplex(model, deadline)
    return None if found is None else proven(model, found)


def proven(model: LinearModel, found: Relaxation) -> LpResult:
    """Return what a relaxation's prices prove, in exact arithmetic, whatever the solver's tolerances were.

    Raises
    ------
    SolverError
        The prices are too large for 62-bit arithmetic.
    """
    duals, reduced = _exact_prices(model, found.row_duals)
    return LpResult(
        objective=float(model.cost @ found.x) + model.offset,
        bound=_bound(model, duals, reduced),
        row_duals=duals / FRACTION,
        reduced_costs=reduced / FRACTION,
        x=found.x,
        optimal=found.optimal,
    )


def _simplex(model: LinearModel, deadline: float | None) -> Relaxation | None:
    """Solve the relaxation as a whole; None where it is infeasible."""
    import highspy

    scale = cost_scale(model.cost)
    solver = new_solver()
    pass_model(solver, model, scale, relax=True)
    if deadline is not None:
        solver.setOptionValue("time_limit", max(0.0, deadline - time.monotonic()))
    solver.run()
    statuses = highspy.HighsModelStatus
    if solver.getModelStatus() == statuses.kUnboundedOrInfeasible:
        solver.setOptionValue("presolve", "off")  # the simplex method tells the two apart
        solver.run()
    status = solver.getModelStatus()
    if status == statuses.kInfeasible:
        return None
    if status == statuses.kTimeLimit:
        return Relaxation(np.zeros(model.rows), np.zeros(model.variables), optimal=False)
    if status != statuses.kOptimal:
        text = solver.modelStatusToString(status)
        raise SolverError("highs", f"the relaxation ended with status {text!r}", "bound its variables")
    solution = solver.getSolution()
    duals = np.asarray(solution.row_dual, dtype=np.float64) / scale
    return Relaxation(duals, np.asarray(solution.col_value, dtype=np.float64), optimal=True)


def fixable(model: LinearModel, lp: LpResult, upper_bound: int) -> BoolArray:
    """Return bool[n]: variables that sit at one bound in every point as good as `upper_bound`.

    A variable with ``d_j > 0`` is at its lower bound, one with ``d_j < 0`` at its upper bound:
    moving it by one unit would lift the proven bound above `upper_bound`.

    Parameters
    ----------
    model : LinearModel
    lp : LpResult
    upper_bound : int
        In quanta. Give the objective of a known point to keep all equally good ones, one less to
        keep only better ones.
    """
    if lp.bound is None:
        return np.zeros(model.variables, np.bool_)
    # lp.bound was rounded up by less than one quantum
    slack = upper_bound - (lp.bound - 1)
    return np.asarray(np.abs(lp.reduced_costs) > slack)


def _exact_prices(model: LinearModel, raw: FloatArray) -> tuple[IntArray, IntArray]:
    """Return (duals, reduced costs) as integers in 1/FRACTION quanta, with every sign that a bound needs."""
    largest = float(np.abs(raw).max(initial=0.0)) * float(np.abs(model.value).max(initial=1)) * FRACTION
    if largest * max(1, int(np.bincount(model.index, minlength=1).max(initial=1))) > LARGEST:
        raise SolverError("lp", "the prices exceed 62 bits", "check the model's coefficients")
    duals = np.rint(raw * FRACTION).astype(np.int64)
    duals[(duals > 0) & (model.row_lower <= -UNBOUNDED)] = 0
    duals[(duals < 0) & (model.row_upper >= UNBOUNDED)] = 0
    reduced = _reduced(model, duals)
    for j in np.flatnonzero((reduced < 0) & (model.upper >= UNBOUNDED)):
        _repair(model, duals, int(j), int(-_reduced(model, duals)[j]))
    return duals, _reduced(model, duals)


def _reduced(model: LinearModel, duals: IntArray) -> IntArray:
    row = model.row_of_entry
    total = np.zeros(model.variables, np.int64)
    np.add.at(total, model.index, model.value * duals[row])
    return np.asarray(model.cost * FRACTION - total)


def _repair(model: LinearModel, duals: IntArray, j: int, missing: int) -> None:
    """Move prices towards 0, in place, until the reduced cost of variable j is not negative.

    Rounding leaves the reduced cost of a variable without an upper bound a few units below 0,
    which would make the bound minus infinity.
    """
    for entry in np.flatnonzero(model.index == j):
        row = int(np.searchsorted(model.row_start, entry, side="right")) - 1
        weight = int(model.value[entry])
        price = int(duals[row])
        if missing <= 0 or weight * price <= 0:
            continue
        step = min(abs(price), -(-missing // abs(weight)))
        duals[row] -= step if price > 0 else -step
        missing -= step * abs(weight)


def _bound(model: LinearModel, duals: IntArray, reduced: IntArray) -> int | None:
    """Return the weak-duality bound in quanta, rounded up, in Python's unlimited integers."""
    total = _at_bound(duals, model.row_lower, model.row_upper)
    other = _at_bound(reduced, model.lower, model.upper)
    if total is None or other is None:
        return None
    return model.offset - (-(total + other) // FRACTION)


def _at_bound(price: IntArray, lower: IntArray, upper: IntArray) -> int | None:
    side = np.where(price > 0, lower, upper)
    used = price != 0
    if np.any(np.abs(side[used]) >= UNBOUNDED):
        return None
    price, side = price[used], side[used]
    largest = int(np.abs(price).max(initial=0)) * int(np.abs(side).max(initial=0))
    if largest > LARGEST:
        pairs: list[tuple[int, int]] = list(zip(price.tolist(), side.tolist(), strict=True))
        return sum((p * s for p, s in pairs), 0)
    products = price * side
    # halves of 31 bits, whose sums do not overflow
    return (int((products >> 31).sum()) << 31) + int((products & (2**31 - 1)).sum())


def _without_variables(model: LinearModel) -> LpResult | None:
    if np.any((model.row_lower > 0) | (model.row_upper < 0)):
        return None
    empty: Any = np.zeros(0)
    return LpResult(float(model.offset), model.offset, np.zeros(model.rows), empty, empty)
