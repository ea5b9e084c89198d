"""A whole point near a relaxation: what it takes wholly stays, but around its fractions all is open.

Where a relaxation leaves few variables fractional, a point within the gap target mostly differs from it
only nearby. As in relaxation induced neighbourhood search (E. Danna, E. Rothberg, C. Le Pape, *Exploring
relaxation induced neighborhoods to improve MIP solutions*, Mathematical Programming 102 (2005)) a small
exact model is solved over an open part; which part is open grows from the fractions over shared equations.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers.base import Limits
from ymir_opt.solvers.filtered import restrict
from ymir_opt.solvers.highs_core import solve_whole
from ymir_opt.solvers.lp import LpResult

__all__ = ["nearby"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

INTEGRAL = 1e-6
LEAST_OPEN, SHARE_OPEN = 150, 8
"""At least so many equations are open, and one in so many of all."""
NEAR = 0.25
"""Share of the gap target that reduced costs may have for the open part to grow over their variables."""
HOPS, MOST_OPEN = 6, 1.5
WORK = 3.0


def nearby(model: LinearModel, lp: LpResult, gap: int, deadline: float | None, seed: int) -> IntArray | None:
    """Return a feasible point that differs from the relaxation nearby, None where none was found.

    Parameters
    ----------
    model : LinearModel
    lp : LpResult
        Its relaxation.
    gap : int
        Gap target in quanta.
    deadline : float or None
        Of ``time.monotonic()``.
    seed : int
    """
    fractional = np.abs(lp.x - np.rint(lp.x)) > INTEGRAL
    if not fractional.any():
        return None
    near = np.abs(lp.reduced_costs) <= gap
    equation = model.row_lower == model.row_upper
    entry = equation[model.row_of_entry]
    row, column = model.row_of_entry[entry], model.index[entry]
    # variables of no equation are open throughout
    shut = np.bincount(
        column[~_open(model, lp, fractional, row, column, gap)[row]], minlength=model.variables
    )
    single = np.bincount(model.index, minlength=model.variables) <= 1
    keep = (shut == 0) & (near | fractional | single)
    at = np.where(keep, 0, np.rint(lp.x).astype(np.int64))
    small, free = restrict(model, keep, at)
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    limits = replace(Limits(), gap_quanta=gap // 4, work=WORK, wall_s=left)
    found = solve_whole(small, None, limits, seed, None)
    if found.x is None:
        return None
    point = at.copy()
    point[free] = found.x
    return None if len(model.violated(point)) else point


def _open(
    model: LinearModel, lp: LpResult, fractional: BoolArray, row: IntArray, column: IntArray, gap: int
) -> BoolArray:
    """Return the equations that are open, bool[m], given the entries in equations."""
    link = np.abs(lp.reduced_costs) <= NEAR * gap
    opened = np.zeros(model.rows, np.bool_)
    opened[row[fractional[column]]] = True
    enough = max(LEAST_OPEN, int((model.row_lower == model.row_upper).sum()) // SHARE_OPEN)
    for _ in range(HOPS):
        if int(opened.sum()) >= enough:
            break
        touched = np.zeros(model.variables, np.bool_)
        touched[column[opened[row]]] = True
        more = opened.copy()
        more[row[(touched & link)[column]]] = True
        if int(more.sum()) > MOST_OPEN * enough:
            break
        opened = more
    return opened
