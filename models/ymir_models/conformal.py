"""Intervals and probabilities that hold on data never seen.

Split conformal prediction (Vovk et al. 2005): the ceil((n+1)(1-a))-th smallest absolute residual of
held-out predictions bounds the next error with probability at least 1-a, if cases are exchangeable.
Where whole tasks are held out, cases inside one task are not exchangeable: residuals are then those
of held-out *tasks*, and every task counts the same.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ymir_models.logistic import fit_logistic

__all__ = ["LEVELS", "clustered_radius", "logit", "platt", "radius"]

FloatArray = NDArray[np.float64]

LEVELS = (0.80, 0.95)


def radius(residuals: ArrayLike, level: float) -> float:
    """Return the half width that covers the next case with probability `level`.

    Parameters
    ----------
    residuals : float[n]
        Absolute (or scaled absolute) errors of held-out predictions.
    """
    ordered = np.sort(np.abs(np.asarray(residuals, dtype=np.float64)))
    position = math.ceil((len(ordered) + 1) * level)
    return float("inf") if position > len(ordered) else float(ordered[position - 1])


def clustered_radius(residuals: ArrayLike, clusters: ArrayLike, level: float) -> float:
    """Return the half width that covers `level` of the cases with every cluster weighing the same.

    Right on average over clusters such as those seen. There is no guarantee for one new cluster: that
    would need a correction of one cluster's weight (Lee et al. 2023), which at twenty clusters makes 95 %
    limits cover everything ever seen.
    """
    absolute = np.abs(np.asarray(residuals, dtype=np.float64))
    _, where, number = np.unique(np.asarray(clusters), return_inverse=True, return_counts=True)
    order = np.argsort(absolute, kind="stable")
    share = np.cumsum((1.0 / number)[where][order]) / len(number)
    position = int(np.searchsorted(share, level - 1e-12, side="left"))
    return float(absolute[order[min(position, len(absolute) - 1)]])


def logit(probability: ArrayLike) -> FloatArray:
    """Return log(p/(1-p)) with p kept off 0 and 1."""
    p = np.clip(np.asarray(probability, dtype=np.float64), 1e-6, 1 - 1e-6)
    result: FloatArray = np.log(p / (1 - p))
    return result


def platt(truth: ArrayLike, score: ArrayLike) -> tuple[float, float]:
    """Return slope and intercept of P(true) = sigmoid(slope score + intercept) (Platt 1999).

    Targets are (n1+1)/(n1+2) and 1/(n0+2) instead of 1 and 0, as Platt proposes, so that few or
    separable cases do not give certainty.
    """
    y, s = np.asarray(truth, dtype=bool), np.asarray(score, dtype=np.float64)
    n1, n0 = int(y.sum()), int((~y).sum())
    target = np.where(y, (n1 + 1) / (n1 + 2), 1 / (n0 + 2))
    x = np.column_stack([s, np.ones_like(s)])
    start = np.array([0.0, math.log((n1 + 1) / (n0 + 1))])
    w = fit_logistic(x, target, np.full(2, 1e-6), start)
    return float(w[0]), float(w[1])
