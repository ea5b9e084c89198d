"""A whole point within the gap target of a relaxation, by diving with backtracking.

Where next to nothing separates the relaxation from the best whole point, that point need not be
searched for by a solver of its own: variables that are nearly 1 are set to 1, the relaxation is
solved again from its last basis, and whatever lifts it above the target is taken back. A whole
point that is reached lies within the target of the relaxation's proven bound.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers.lp import LpResult
from ymir_opt.solvers.sifting import Master

__all__ = ["dive"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
INTEGRAL = 1e-6
LEAST, SHARE = 0.3, 2
"""Variables above this are set together, at most one in so many of the fractional ones."""
FLIPS = 6
"""A dive that had to set so many variables to 0 went wrong too early to be mended by steps back."""
RELAXATIONS = 24
JOIN_PER_ROW = 2


@dataclass
class _Step:
    """Variables set to a value together."""

    columns: IntArray
    value: int


def dive(
    master: Master, model: LinearModel, lp: LpResult, gap: int, deadline: float | None = None
) -> IntArray | None:
    """Return a feasible point within ``gap`` quanta of the relaxation's bound, None where none was found.

    Parameters
    ----------
    master : Master
        Holds the optimum `lp`; its bounds are changed.
    model : LinearModel
        With the master's inequalities as rows.
    lp : LpResult
    gap : int
    deadline : float or None
        Of ``time.monotonic()``.
    """
    if lp.bound is None or not lp.optimal:
        return None
    useful = _useful(master, model, lp, gap)
    if len(useful):
        master.add(useful)
    target = (lp.bound + gap - model.offset) * master.scale
    steps: list[_Step] = []
    for _ in range(RELAXATIONS):
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return None
        x = master.value_below(target, left)
        if x is None:
            if not _back(master, model, steps) or sum(step.value == 0 for step in steps) >= FLIPS:
                return None
            continue
        fractional = np.flatnonzero(np.abs(x - np.rint(x)) > INTEGRAL)
        if not len(fractional):
            point = np.rint(x).astype(np.int64)
            fits = not len(model.violated(point)) and model.objective(point) <= lp.bound + gap
            return point if fits else None
        binary = fractional[model.upper[fractional] <= 1]
        if not len(binary):
            return None
        _set(master, steps, _Step(_nearest_one(master, model, x, binary), 1))
    return None


def _useful(master: Master, model: LinearModel, lp: LpResult, gap: int) -> IntArray:
    """Return the columns that join: a point within the target uses none whose reduced cost exceeds it."""
    distance = np.abs(lp.reduced_costs)
    among = np.flatnonzero((distance <= gap) & ~master.inside)
    most = JOIN_PER_ROW * model.rows
    if len(among) > most:
        among = np.sort(among[np.argsort(distance[among], kind="stable")[:most]])
    return among


def _nearest_one(master: Master, model: LinearModel, x: FloatArray, fractional: IntArray) -> IntArray:
    """Return the variables to set to 1 next: the largest, and no two that an equation holds apart."""
    order = fractional[np.argsort(-x[fractional], kind="stable")]
    most = max(1, len(order) // SHARE)
    taken: set[int] = set()
    chosen: list[int] = []
    for column in order.tolist():
        if len(chosen) >= most or (chosen and x[column] < LEAST):
            break
        rows = master.columns.row[master.columns.start[column] : master.columns.start[column + 1]]
        rows = rows[model.row_lower[rows] == model.row_upper[rows]]
        if taken.isdisjoint(rows.tolist()):
            taken.update(rows.tolist())
            chosen.append(column)
    return np.array(chosen, dtype=np.int64)


def _set(master: Master, steps: list[_Step], step: _Step) -> None:
    steps.append(step)
    values = np.full(len(step.columns), step.value, np.int64)
    master.bound(step.columns, values, values)


def _back(master: Master, model: LinearModel, steps: list[_Step]) -> bool:
    """Take the last step back and try less, or the opposite; False where nothing is left to try."""
    while steps:
        last = steps.pop()
        master.bound(last.columns, model.lower[last.columns], model.upper[last.columns])
        if last.value == 0:
            continue
        if len(last.columns) > 1:
            _set(master, steps, _Step(last.columns[: len(last.columns) // 2], 1))
        else:
            _set(master, steps, _Step(last.columns, 0))
        return True
    return False
