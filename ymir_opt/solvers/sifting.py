"""The linear relaxation of a model with many more columns than rows, by sifting.

A master problem holds a few columns; its duals price all the others at once, and the most
promising ones join, until none has a negative reduced cost (R. E. Bixby et al., *Very large-scale
linear programming: a case study in combining interior point and simplex methods*, Operations
Research 40 (1992)). Only some percent of the columns ever enter, so the optimum is reached many
times faster than by the simplex method on the whole.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers.base import FloatArray, float_bounds
from ymir_opt.solvers.highs_core import cost_scale, new_solver

__all__ = ["Relaxation", "sift"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
COLUMNS_PER_ROW = 2
ROUNDS = 100
TOLERANCE = 1e-7
"""HiGHS's own tolerance on reduced costs, in scaled costs."""


@dataclass(frozen=True)
class Relaxation:
    """What a solver says of the relaxation.

    Attributes
    ----------
    row_duals : float64[m]
        In quanta per unit.
    x : float64[n]
    optimal : bool
        False where the deadline struck; the duals still give a valid bound.
    """

    row_duals: FloatArray
    x: FloatArray
    optimal: bool


def sift(model: LinearModel, deadline: float | None = None) -> Relaxation | None:
    """Solve the relaxation by sifting; None where it does not apply and the whole must be solved.

    Parameters
    ----------
    model : LinearModel
        With columns that are 0 unless they enter. Infeasible and unbounded masters are left to
        the simplex method on the whole.
    deadline : float or None
        Of ``time.monotonic()``.
    """
    import highspy

    master = _Master(model)
    batch = COLUMNS_PER_ROW * model.rows
    reduced = master.price(master.guess())
    master.add(_first(model, master, reduced, batch))
    duals = np.zeros(model.rows)
    for _ in range(ROUNDS):
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return Relaxation(duals / master.scale, master.point(), optimal=False)
        status = master.run(left)
        if status == highspy.HighsModelStatus.kTimeLimit:
            return Relaxation(duals / master.scale, np.zeros(model.variables), optimal=False)
        if status != highspy.HighsModelStatus.kOptimal:
            return None
        duals = master.duals()
        reduced = master.price(duals)
        reduced[master.inside] = 0.0
        entering = np.flatnonzero(reduced < -TOLERANCE)
        if len(entering) == 0:
            return Relaxation(duals / master.scale, master.point(), optimal=True)
        master.add(_smallest(entering, reduced, batch))
    return None


class _Master:
    """The columns that have entered, in a HiGHS model that keeps its basis as it grows."""

    def __init__(self, model: LinearModel) -> None:
        import highspy

        self.model = model
        self.scale = cost_scale(model.cost)
        self.cost = model.cost * self.scale
        row = np.repeat(np.arange(model.rows), np.diff(model.row_start))
        order = np.argsort(model.index, kind="stable")
        self.length = np.bincount(model.index, minlength=model.variables).astype(np.int64)
        self.start = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.length)])
        self.row = row[order]
        self.value = model.value[order].astype(np.float64)
        self.column = model.index[order]
        self.infinity = highspy.kHighsInf
        self.upper = float_bounds(model.upper, self.infinity)
        self.lower = float_bounds(model.lower, self.infinity)
        self.inside = np.zeros(model.variables, np.bool_)
        self.entered: list[IntArray] = []
        self.solver = new_solver()
        self.solver.setOptionValue("presolve", "off")
        rows = highspy.HighsLp()
        rows.num_row_ = model.rows
        rows.row_lower_ = float_bounds(model.row_lower, self.infinity)
        rows.row_upper_ = float_bounds(model.row_upper, self.infinity)
        self.solver.passModel(rows)

    def guess(self) -> FloatArray:
        """Return first prices: what the cheapest column with this row alone asks for it."""
        single = np.flatnonzero(self.length == 1)
        entry = self.start[single]
        asked = self.cost[single] / self.value[entry]
        prices = np.full(self.model.rows, np.inf)
        np.minimum.at(prices, self.row[entry], asked)
        return np.where(np.isfinite(prices), prices, 0.0)

    def price(self, duals: FloatArray) -> FloatArray:
        """Return the reduced cost of every column."""
        covered = np.bincount(self.column, self.value * duals[self.row], minlength=self.model.variables)
        return np.asarray(self.cost - covered)

    def add(self, columns: IntArray) -> None:
        """Let columns enter."""
        length = self.length[columns]
        begin = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
        entry = np.repeat(self.start[columns] - begin[:-1], length) + np.arange(begin[-1])
        self.solver.addCols(
            len(columns),
            self.cost[columns],
            self.lower[columns],
            self.upper[columns],
            len(entry),
            begin[:-1].astype(np.int32),
            self.row[entry].astype(np.int32),
            self.value[entry],
        )
        self.inside[columns] = True
        self.entered.append(columns)

    def run(self, left: float | None) -> Any:
        """Solve the master; returns HiGHS's model status."""
        if left is not None:
            # HiGHS counts the time of all runs together
            self.solver.setOptionValue("time_limit", self.solver.getRunTime() + left)
        self.solver.run()
        return self.solver.getModelStatus()

    def duals(self) -> FloatArray:
        """Return the prices of the rows, scaled."""
        return np.asarray(self.solver.getSolution().row_dual, dtype=np.float64)

    def point(self) -> FloatArray:
        """Return the master's point among all columns, float64[n]."""
        x = np.zeros(self.model.variables)
        values = np.asarray(self.solver.getSolution().col_value, dtype=np.float64)
        if self.entered and len(values):
            x[np.concatenate(self.entered)] = values
        return x


def _first(model: LinearModel, master: _Master, reduced: FloatArray, batch: int) -> IntArray:
    """Return the columns to begin with: those that rows cannot do without, and the most promising."""
    needed = (master.length <= 1) | (model.lower != 0) | (model.upper > 1)
    return np.union1d(np.flatnonzero(needed), _smallest(np.flatnonzero(~needed), reduced, batch))


def _smallest(columns: IntArray, reduced: FloatArray, count: int) -> IntArray:
    """Return at most `count` of the columns, those of the smallest reduced costs."""
    if len(columns) <= count:
        return columns
    return columns[np.argpartition(reduced[columns], count - 1)[:count]]
