"""The Lagrangian bound by the subgradient method: prices for every row, and no linear program.

With a price for every row the model falls apart into its variables, each at the bound that its
reduced cost likes, so any prices give a valid lower bound (the one of `lp`, by weak duality). A
step moves the prices along the violation of the rows, deflected by the last step where the two
point against each other (P. M. Camerini, L. Fratta and F. Maffioli, *On improving relaxation methods
by modified gradient techniques*, Mathematical Programming Study 3 (1975)), by Polyak's length for a
known upper bound (B. T. Polyak, *Minimization of unsmooth functionals*, USSR Computational Mathematics
and Mathematical Physics 9 (1969)), halved whenever the bound stops to rise. Every
variable is 0-1 or an excess, so the best such bound is the linear relaxation's optimum: sifting is
checked against it, and where a clock stops sifting before its first prices, this has prices.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers.base import float_bounds
from ymir_opt.solvers.matrix import Columns

__all__ = ["Prices", "subgradient"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

ITERATIONS = 300
PATIENCE = 20
"""Steps without a better bound after which the step is halved."""
SMALLEST = 1e-4
"""Factor of Polyak's length below which nothing moves any more."""
DEFLECTION = 1.5
MARGIN = 0.05
"""Without a known point, the optimum is thought at least this share above the bound."""


@dataclass(frozen=True)
class Prices:
    """The best prices that were met.

    Attributes
    ----------
    row_duals : float64[m]
        In quanta per unit, with the signs of `lp`.
    bound : float
        Their bound in quanta, offset included, in floating point; `lp.proven` has the exact one.
    history : float64[k]
        The bound of each step, the first at the prices that it began with.
    """

    row_duals: FloatArray
    bound: float
    history: FloatArray


def subgradient(
    model: LinearModel,
    *,
    start: FloatArray | None = None,
    upper_bound: int | None = None,
    iterations: int = ITERATIONS,
    deadline: float | None = None,
) -> Prices:
    """Return prices that raise the Lagrangian bound.

    Parameters
    ----------
    model : LinearModel
    start : float64[m], optional
        Prices to begin with; the model's guess by default, else what leaving each job out costs.
    upper_bound : int, optional
        Objective of a known point in quanta: the step's length follows it.
    iterations : int
        At most.
    deadline : float, optional
        Of ``time.monotonic()``.
    """
    dual = _Lagrangian(model)
    prices = start if start is not None else model.guess
    prices = dual.signed(dual.asked if prices is None else np.asarray(prices, np.float64))
    # leaving everything out is a point of every round
    top = dual.without() if upper_bound is None else float(upper_bound)
    best, best_prices = -np.inf, prices
    history: list[float] = []
    factor, idle, move = 1.0, 0, np.zeros(model.rows)
    for _ in range(iterations + 1):
        value, direction = dual.at(prices)
        history.append(value)
        if value > best + 1e-9 * abs(best if np.isfinite(best) else 0.0):
            best, best_prices, idle = value, prices, 0
        else:
            idle += 1
            if idle >= PATIENCE:
                factor, idle, prices = factor / 2, 0, best_prices
                value, direction = dual.at(prices)
                move = np.zeros(model.rows)
        against = float(move @ direction)
        move = direction - (DEFLECTION * against / float(move @ move) * move if against < 0 else 0.0)
        length = float(move @ (dual.scale * move))
        target = upper_bound if upper_bound is not None else max(top, best + MARGIN * max(1.0, abs(best)))
        if length == 0 or target <= value or factor < SMALLEST:
            break
        if deadline is not None and time.monotonic() >= deadline:
            break
        prices = dual.signed(prices + factor * (target - value) / length * dual.scale * move)
    return Prices(best_prices, best, np.array(history))


class _Lagrangian:
    """The bound as a function of the prices."""

    def __init__(self, model: LinearModel) -> None:
        self.model = model
        self.columns = Columns.of(model)
        self.cost = model.cost.astype(np.float64)
        whole = np.bincount(self.columns.row, np.abs(self.columns.value), minlength=model.rows)
        # a capacity has thousands of columns, a job some tens: the same step would not do for both
        self.scale = 1.0 / np.maximum(1.0, whole)
        self.row_lower = float_bounds(model.row_lower, np.inf)
        self.row_upper = float_bounds(model.row_upper, np.inf)
        self.lower = float_bounds(model.lower, np.inf)
        self.upper = float_bounds(model.upper, np.inf)
        free = np.flatnonzero(np.isinf(self.upper))
        if len(free):
            self.upper[free] = self._reach(free)

    def _reach(self, free: IntArray) -> FloatArray:
        """Return a bound for variables that have none: the largest that one of its rows can ask for.

        Only steps use it; the exact bound of the prices is taken without it.
        """
        entry, begin = self.columns.entries(free)
        row, value = self.columns.row[entry], np.abs(self.columns.value[entry])
        sides = np.maximum(
            np.where(np.isfinite(self.row_lower), np.abs(self.row_lower), 0.0),
            np.where(np.isfinite(self.row_upper), np.abs(self.row_upper), 0.0),
        )
        whole = 1.0 / self.scale
        asked = (sides + whole)[row] / value
        owner = np.repeat(np.arange(len(free)), np.diff(begin))
        reach = np.ones(len(free))
        np.maximum.at(reach, owner, asked)
        return reach

    @cached_property
    def asked(self) -> FloatArray:
        """Return for each equation what the cheapest variable of that row alone asks: a job's waiting."""
        prices = self.columns.asked(self.cost, self.model.rows)
        return np.where(np.isfinite(prices) & (self.row_lower == self.row_upper), prices, 0.0)

    def without(self) -> float:
        """Return what it costs to pay every equation's asking price, in quanta."""
        priced = self.asked != 0
        return float(self.asked[priced] @ self.row_lower[priced]) + self.model.offset

    def signed(self, prices: FloatArray) -> FloatArray:
        """Return the prices with those set to 0 whose sign no bound of the row supports."""
        wrong = ((prices > 0) & np.isinf(self.row_lower)) | ((prices < 0) & np.isinf(self.row_upper))
        return np.where(wrong, 0.0, prices)

    def at(self, prices: FloatArray) -> tuple[float, FloatArray]:
        """Return the bound at some prices in quanta, and a direction in which it rises."""
        reduced = self.columns.price(self.cost, prices)
        x = np.where(reduced > 0, self.lower, np.where(reduced < 0, self.upper, self.lower))
        activity = np.bincount(
            self.columns.row, self.columns.value * x[self.columns.column], minlength=self.model.rows
        )
        # a row without a price asks for nothing unless it is broken
        idle = np.clip(activity, self.row_lower, self.row_upper)
        side = np.where(prices > 0, self.row_lower, np.where(prices < 0, self.row_upper, idle))
        priced = prices != 0
        value = float(reduced @ x) + float(prices[priced] @ side[priced]) + self.model.offset
        return value, np.asarray(side - activity)
