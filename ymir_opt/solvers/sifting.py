"""The linear relaxation of a model with many more columns than rows, by sifting.

A master problem holds a few columns; its duals price all the others at once, and the most
promising ones join, until none has a negative reduced cost (R. E. Bixby et al., *Very large-scale
linear programming: a case study in combining interior point and simplex methods*, Operations
Research 40 (1992)). Only some percent of the columns ever enter, so the optimum is reached many
times faster than by the simplex method on the whole. Rows may join later (`Master.add_cuts`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import LinearModel
from ymir_opt.formulation.numbering import rank_in_runs
from ymir_opt.solvers.base import FloatArray, float_bounds
from ymir_opt.solvers.cuts import Cut
from ymir_opt.solvers.highs_core import cost_scale, new_solver
from ymir_opt.solvers.matrix import Columns

__all__ = ["Master", "Relaxation", "sift"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
COLUMNS_PER_ROW = 2
GUESSED_PER_ROW, ENTERING_PER_ROW = 4, 1
"""Columns an equation to begin with, where the prices are good; and of those that enter later."""
FEW_PER_ROW = 8
"""So many columns a row, of the smallest reduced costs, are looked at row by row."""
ROUNDS = 200
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
        the simplex method on the whole. Its ``guess`` of the duals chooses the first columns.
    deadline : float or None
        Of ``time.monotonic()``.
    """
    return Master(model).solve(deadline)


class Master:
    """The columns that have entered, in a HiGHS model that keeps its basis as it grows."""

    def __init__(self, model: LinearModel) -> None:
        import highspy

        self.model = model
        self.scale = cost_scale(model.cost)
        self.cost: FloatArray = np.asarray(model.cost * self.scale, dtype=np.float64)
        self.columns = Columns.of(model)
        self.length = self.columns.length
        self.infinity = highspy.kHighsInf
        self.upper = float_bounds(model.upper, self.infinity)
        self.lower = float_bounds(model.lower, self.infinity)
        self.inside = np.zeros(model.variables, np.bool_)
        self.entered: list[IntArray] = []
        self.cuts: list[Cut] = []
        self.reached: FloatArray | None = None
        self.solver = new_solver()
        self.solver.setOptionValue("presolve", "off")
        rows = highspy.HighsLp()
        rows.num_row_ = model.rows
        rows.row_lower_ = float_bounds(model.row_lower, self.infinity)
        rows.row_upper_ = float_bounds(model.row_upper, self.infinity)
        self.solver.passModel(rows)

    def solve(self, deadline: float | None = None) -> Relaxation | None:
        """Solve the relaxation, from where the last one ended; see `sift`."""
        import highspy

        if not self.entered:
            self.add(self._first())
        for _ in range(ROUNDS):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return self._interrupted()
            status = self._run(left)
            if status == highspy.HighsModelStatus.kTimeLimit:
                return self._interrupted()
            if status != highspy.HighsModelStatus.kOptimal:
                return None
            duals = self.reached = self._duals()
            reduced = self.price(duals)
            reduced[self.inside] = 0.0
            entering = np.flatnonzero(reduced < -TOLERANCE)
            if len(entering) == 0:
                return Relaxation(duals / self.scale, self._point(), optimal=True)
            self.add(self._promising(entering, reduced))
        return None

    def price(self, duals: FloatArray) -> FloatArray:
        """Return the scaled reduced cost of every column at scaled duals of the rows and cuts."""
        reduced = self.columns.price(self.cost, duals[: self.model.rows])
        for dual, cut in zip(duals[self.model.rows :], self.cuts, strict=True):
            reduced[cut.columns] -= dual * cut.values
        return reduced

    def add(self, columns: IntArray) -> None:
        """Let columns enter."""
        entry, begin = self.columns.entries(columns)
        row, value = self.columns.row[entry], self.columns.value[entry]
        if self.cuts:
            row, value, begin = self._with_cuts(columns, row, value, begin)
        self.solver.addCols(
            len(columns),
            self.cost[columns],
            self.lower[columns],
            self.upper[columns],
            len(row),
            begin[:-1].astype(np.int32),
            row.astype(np.int32),
            value,
        )
        self.inside[columns] = True
        self.entered.append(columns)

    def add_cuts(self, cuts: list[Cut]) -> None:
        """Add inequalities as rows."""
        place = self._places()
        for cut in cuts:
            at = place[cut.columns]
            inside = at >= 0
            index, value = at[inside].astype(np.int32), cut.values[inside].astype(np.float64)
            self.solver.addRow(-self.infinity, float(cut.upper), len(index), index, value)
        self.cuts.extend(cuts)

    def bound(self, columns: IntArray, lower: IntArray, upper: IntArray) -> None:
        """Change the bounds of columns that have entered."""
        at = self._places()[columns].astype(np.int32)
        low, high = float_bounds(lower, self.infinity), float_bounds(upper, self.infinity)
        self.solver.changeColsBounds(len(at), at, low, high)

    def value_below(self, target: float, left: float | None = None) -> FloatArray | None:
        """Solve the master as it is; return its point, None where its scaled optimum exceeds the target."""
        import highspy

        if self._run(left) != highspy.HighsModelStatus.kOptimal:
            return None
        if self.solver.getInfo().objective_function_value > target:
            return None
        return self._point()

    # -- inside ---------------------------------------------------------------------------------

    def _first(self) -> IntArray:
        """Return the columns to begin with: those that rows cannot do without, and the most promising."""
        model = self.model
        needed = (self.length <= 1) | (model.lower != 0) | (model.upper > 1)
        guess: FloatArray = self._guess() if model.guess is None else model.guess * self.scale
        promising = self._promising(np.flatnonzero(~needed), self.price(guess))
        return np.union1d(np.flatnonzero(needed), promising)

    def _places(self) -> IntArray:
        """Return the place of each column in the solver, int64[n], -1 of those that have not entered."""
        place = np.full(self.model.variables, -1, np.int64)
        order = np.concatenate(self.entered)
        place[order] = np.arange(len(order))
        return place

    def _guess(self) -> FloatArray:
        """Return first prices: what the cheapest column with this row alone asks for it."""
        prices = self.columns.asked(self.cost, self.model.rows)
        return np.where(np.isfinite(prices), prices, 0.0)

    def _promising(self, among: IntArray, reduced: FloatArray) -> IntArray:
        """Return the columns that enter.

        Where the prices are good from the start, a few for every equation; else those of the
        smallest reduced costs, since early prices say more about rows than about columns.
        """
        if self.model.guess is None:
            count = COLUMNS_PER_ROW * self.model.rows
            if len(among) <= count:
                return among
            return among[np.argpartition(reduced[among], count - 1)[:count]]
        few = FEW_PER_ROW * self.model.rows
        if len(among) > few:
            among = among[np.sort(np.argpartition(reduced[among], few - 1)[:few])]
        entry, begin = self.columns.entries(among)
        row = self.columns.row[entry]
        which = np.repeat(np.arange(len(among)), np.diff(begin))
        equation = self.model.row_lower[row] == self.model.row_upper[row]
        row, which = row[equation], which[equation]
        order = np.lexsort((which, reduced[among][which], row))
        row, which = row[order], which[order]
        rank = rank_in_runs(row)
        chosen = np.zeros(len(among), np.bool_)
        most = ENTERING_PER_ROW if self.entered else GUESSED_PER_ROW
        chosen[which[rank < most]] = True
        # columns of no equation have no other way in
        chosen[np.bincount(which, minlength=len(among)) == 0] = True
        return among[chosen]

    def _with_cuts(
        self, columns: IntArray, row: IntArray, value: FloatArray, begin: IntArray
    ) -> tuple[IntArray, FloatArray, IntArray]:
        """Add the entries of the cuts to those of the rows."""
        place = np.full(self.model.variables, -1, np.int64)
        place[columns] = np.arange(len(columns))
        owner = [np.repeat(np.arange(len(columns)), np.diff(begin))]
        rows, values = [row], [value]
        for k, cut in enumerate(self.cuts):
            mine = place[cut.columns]
            entering = mine >= 0
            owner.append(mine[entering])
            rows.append(np.full(int(entering.sum()), self.model.rows + k, np.int64))
            values.append(cut.values[entering].astype(np.float64))
        joined = np.concatenate(owner)
        order = np.argsort(joined, kind="stable")
        length = np.bincount(joined, minlength=len(columns))
        begin = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)]).astype(np.int64)
        return np.concatenate(rows)[order], np.concatenate(values)[order], begin

    def _run(self, left: float | None) -> Any:
        """Solve the master; returns HiGHS's model status."""
        if left is not None:
            # HiGHS counts the time of all runs together
            self.solver.setOptionValue("time_limit", self.solver.getRunTime() + left)
        self.solver.run()
        return self.solver.getModelStatus()

    def _interrupted(self) -> Relaxation:
        """Return the last complete prices, if any."""
        rows = self.model.rows + len(self.cuts)
        duals = np.zeros(rows)
        if self.reached is not None:
            duals[: len(self.reached)] = self.reached
        elif self.model.guess is not None:
            duals[: self.model.rows] = self.model.guess * self.scale
        return Relaxation(duals / self.scale, np.zeros(self.model.variables), optimal=False)

    def _duals(self) -> FloatArray:
        """Return the prices of the rows and cuts, scaled."""
        return np.asarray(self.solver.getSolution().row_dual, dtype=np.float64)

    def _point(self) -> FloatArray:
        """Return the master's point among all columns, float64[n]."""
        x = np.zeros(self.model.variables)
        values = np.asarray(self.solver.getSolution().col_value, dtype=np.float64)
        if self.entered and len(values):
            x[np.concatenate(self.entered)] = values
        return x
