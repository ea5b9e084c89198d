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
NEARLY = 0.6
"""Variables above this are set together."""
SHARE = 4
"""At most one in so many of the fractional variables are set together."""
RELAXATIONS = 40


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
    # a point within the target uses no other column: each would lift the bound by its reduced cost
    useful = np.flatnonzero((np.abs(lp.reduced_costs) <= gap) & ~master.inside)
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
            if not _back(master, model, steps):
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
        _set(master, steps, _Step(_nearest_one(x, binary), 1))
    return None


def _nearest_one(x: FloatArray, fractional: IntArray) -> IntArray:
    """Return the variables to set to 1 next, the largest first."""
    order = fractional[np.argsort(-x[fractional], kind="stable")]
    count = max(1, min(int((x[order] > NEARLY).sum()), len(order) // SHARE))
    return order[:count]


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
