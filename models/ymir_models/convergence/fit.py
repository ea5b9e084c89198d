"""Fitting the hazard of reaching a target, and widening its limits on held-out tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ymir_models.convergence.data import NEVER, POINTS, Cases, CurveSet, cases
from ymir_models.convergence.features import curve_features, moment_features
from ymir_models.convergence.model import HazardModel
from ymir_models.logistic import fit_logistic

__all__ = ["Table", "calibrated", "conditional", "fit_hazard", "spread_levels", "table"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

SEEN = (2, 3, 4, 5, 6, 7, 8)
RIDGE = 10.0
WANTED = ((0.1, 0.9), (0.025, 0.975))
"""Levels of the 80 and 95 % limits."""


@dataclass(frozen=True)
class Table:
    """One row for every case and later moment at which it was still open.

    Attributes
    ----------
    design : float64[m, 26]
    reached : bool[m]
    task : array of str, [m]
    """

    design: FloatArray
    reached: BoolArray
    task: NDArray[np.str_]


def _rows(curves: CurveSet, some: Cases) -> tuple[FloatArray, BoolArray, NDArray[np.str_]]:
    features = curve_features(curves.values[some.curve, : some.seen], some.target)
    designs, reached, tasks = [], [], []
    for moment in range(some.seen + 1, POINTS + 1):
        still = some.reached >= moment
        number = int(still.sum())
        designs.append(
            moment_features(
                features[still], np.full(number, float(some.seen)), np.full(number, float(moment))
            )
        )
        reached.append(some.reached[still] == moment)
        tasks.append(curves.task[some.curve[still]])
    return np.concatenate(designs), np.concatenate(reached), np.concatenate(tasks)


def table(curves: CurveSet) -> Table:
    """Return the training rows of a curve set: both kinds of target, after two to eight evaluations."""
    parts = [_rows(curves, cases(curves, seen)) for seen in SEEN]
    return Table(*(np.concatenate([part[i] for part in parts]) for i in range(3)))


def fit_hazard(rows: Table) -> HazardModel:
    """Fit the hazard by ridge logistic regression; its limits are not widened yet."""
    mean = rows.design.mean(axis=0)
    spread = rows.design.std(axis=0) + 1e-9
    design = np.concatenate([(rows.design - mean) / spread, np.ones((len(rows.design), 1))], axis=1)
    penalty = np.append(np.full(design.shape[1] - 1, RIDGE), 1e-6)
    return HazardModel(mean, spread, fit_logistic(design, rows.reached, penalty), np.array(WANTED))


def conditional(survival: FloatArray) -> FloatArray:
    """Return the distribution function over later moments, given that the target is reached by the last."""
    share: FloatArray = (1.0 - survival) / np.maximum(1.0 - survival[:, -1:], 1e-12)
    return share


def spread_levels(share: FloatArray, position: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return between which levels of its own distribution each truth lies (it is known to an interval).

    Parameters
    ----------
    share : float64[n, m]
        Distribution function at the later moments.
    position : int64[n]
        Which of the moments is the truth.
    """
    padded = np.concatenate([np.zeros((len(share), 1)), share], axis=1)
    rows = np.arange(len(share))
    return padded[rows, position], padded[rows, position + 1]


def level_for(low: FloatArray, high: FloatArray, wanted: float) -> float:
    """Return the level below which the wanted share of truths lies (recalibration, Kuleshov et al. 2018).

    Each truth is spread evenly over its interval of levels.
    """
    grid = np.linspace(0.0, 1.0, 401)
    inside = np.clip((grid[:, None] - low) / np.maximum(high - low, 1e-12), 0.0, 1.0).mean(axis=1)
    return float(np.interp(wanted, inside, grid))


def calibrated(model: HazardModel, curves: CurveSet, rows: Table, folds: int = 5) -> HazardModel:
    """Return the model with limits that hold on tasks left out.

    Parameters
    ----------
    model : HazardModel
        Fitted on all of `rows`.
    curves : CurveSet
    rows : Table
    folds : int
        Parts into which the tasks are divided.
    """
    names = np.unique(rows.task)
    below: list[FloatArray] = []
    above: list[FloatArray] = []
    for k in range(folds):
        out = names[k::folds]
        keep = ~np.isin(rows.task, out)
        if not rows.reached[keep].any():
            continue
        trained = fit_hazard(Table(rows.design[keep], rows.reached[keep], rows.task[keep]))
        for seen in SEEN:
            some = cases(curves, seen)
            some = some.take(np.isin(curves.task[some.curve], out) & (some.reached < NEVER))
            if len(some.curve):
                survival = trained.survival(curves.values[some.curve, :seen], some.target, POINTS)
                low, high = spread_levels(conditional(survival), some.reached - seen - 1)
                below.append(low)
                above.append(high)
    if not below:
        return model
    low, high = np.concatenate(below), np.concatenate(above)
    levels = [[level_for(low, high, p) for p in pair] for pair in WANTED]
    return replace(model, levels=np.array(levels))
