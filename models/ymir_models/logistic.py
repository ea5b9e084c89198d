"""Ridge logistic regression by Newton's method: small, and the same on every run."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["fit_logistic", "sigmoid"]

FloatArray = NDArray[np.float64]


def sigmoid(value: ArrayLike) -> FloatArray:
    """Return 1/(1+exp(-x)) without overflow."""
    x = np.clip(np.asarray(value, dtype=np.float64), -500.0, 500.0)
    result: FloatArray = 1.0 / (1.0 + np.exp(-x))
    return result


def fit_logistic(
    design: FloatArray,
    truth: ArrayLike,
    penalty: ArrayLike,
    start: FloatArray | None = None,
    rounds: int = 100,
) -> FloatArray:
    """Return the weights that minimise log loss plus half the penalised squares.

    Parameters
    ----------
    design : float64[n, k]
        With a column of ones where an intercept is wanted.
    truth : bool[n] or float[n]
        Classes, or target probabilities.
    penalty : float[k]
        Ridge penalty of every weight.
    start : float64[k], optional
        Where to begin; zero by default.
    """
    y = np.asarray(truth, dtype=np.float64)
    ridge = np.asarray(penalty, dtype=np.float64)
    weights = np.zeros(design.shape[1]) if start is None else start.copy()
    for _ in range(rounds):
        p = sigmoid(design @ weights)
        gradient = design.T @ (p - y) + ridge * weights
        hessian = (design.T * (p * (1 - p))) @ design + np.diag(ridge + 1e-10)
        step = np.linalg.solve(hessian, gradient)
        largest = float(np.abs(step).max())
        weights = weights - step * min(1.0, 5.0 / max(1e-12, largest))
        if largest < 1e-9:
            break
    return weights
