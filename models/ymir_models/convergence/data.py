"""Titan's ten-point curves as arrays, and censored cases made of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_models.sources import require_folder
from ymir_opt.jobmodel import Curves

__all__ = ["NEVER", "POINTS", "SHARES", "Cases", "CurveSet", "cases", "titan_curves"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

POINTS = 10
SHARES = (0.95, 0.98, 0.995)
"""Targets as shares of a best metric."""
NEVER = POINTS + 1
"""Stands for: not reached in the ten evaluations (right-censored there)."""


@dataclass(frozen=True)
class CurveSet:
    """Curves of equal length.

    Attributes
    ----------
    values : float64[n, 10]
        Metric after every epoch, better when larger.
    task : array of str, [n]
    best : float64[n]
        Best metric of any setting of the same model and task.
    loss : bool[n]
        The metric is a negated loss.
    """

    values: FloatArray
    task: NDArray[np.str_]
    best: FloatArray
    loss: NDArray[np.bool_]


def titan_curves(folder: Path) -> CurveSet:
    """Return the single-task curves with ten points (a few have two runs under one key: left out)."""
    curves = Curves.read(require_folder(folder, "curves") / "curves")
    values, task, best, loss = [], [], [], []
    for (model, name), settings in sorted(curves.normal.items()):
        rows = [[v for _, v in curve] for _, curve in sorted(settings.items()) if len(curve) == POINTS]
        if not rows:
            continue
        top = max(max(row) for row in rows)
        values += rows
        task += [name] * len(rows)
        best += [top] * len(rows)
        loss += [curves.metrics[model, name] == "eval_loss"] * len(rows)
    return CurveSet(np.array(values), np.array(task), np.array(best), np.array(loss))


@dataclass(frozen=True)
class Cases:
    """Targets not yet reached after k evaluations.

    Attributes
    ----------
    seen : int
        k.
    curve : int64[m]
        Row of the curve set.
    target : float64[m]
    reached : int64[m]
        First evaluation at least at the target; :data:`NEVER` if none is.
    """

    seen: int
    curve: IntArray
    target: FloatArray
    reached: IntArray

    def take(self, mask: NDArray[np.bool_]) -> Cases:
        """Return some of the cases."""
        return Cases(self.seen, self.curve[mask], self.target[mask], self.reached[mask])


def cases(curves: CurveSet, seen: int, *, own: bool = True, absolute: bool = True) -> Cases:
    """Return the cases after some evaluations.

    Parameters
    ----------
    curves : CurveSet
    seen : int
    own : bool
        Targets that are shares of the curve's own best (always reached).
    absolute : bool
        Targets that are shares of the best of all settings (often never reached).
    """
    n = len(curves.values)
    index, target = [], []
    for share in SHARES:
        for wanted, best in ((own, curves.values.max(axis=1)), (absolute, curves.best)):
            if wanted:
                index.append(np.arange(n))
                target.append(best - (1 - share) * np.abs(best))
    curve, goal = np.concatenate(index), np.concatenate(target)
    hit = curves.values[curve] >= goal[:, None]
    reached = np.where(hit.any(axis=1), hit.argmax(axis=1) + 1, NEVER)
    open_ = reached > seen
    return Cases(seen, curve[open_], goal[open_], reached[open_])
