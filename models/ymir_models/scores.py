"""Judging predictions: errors, ranking, probabilities, coverage, and how sure each figure is.

Sign accuracy is left out on purpose: where 80 % of pairs share a sign it measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "auc",
    "bootstrap",
    "brier",
    "brier_skill",
    "calibration_error",
    "coverage",
    "mean_known",
    "ndcg",
    "ranks",
    "regret",
    "spearman",
]

FloatArray = NDArray[np.float64]


def ranks(values: ArrayLike) -> FloatArray:
    """Return ranks scaled to [0, 1] (ties share their mean rank); NaN stays NaN.

    Parameters
    ----------
    values : float array of any shape
        Ranked along the last axis.
    """
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    flat = array.reshape(-1, array.shape[-1])
    out = np.full_like(flat, np.nan)
    for row, target in zip(flat, out, strict=True):
        known = np.flatnonzero(~np.isnan(row))
        if len(known) == 0:
            continue
        _, where, number = np.unique(row[known], return_inverse=True, return_counts=True)
        first = np.cumsum(number) - number
        target[known] = (first + (number - 1) / 2)[where] / max(len(known) - 1, 1)
    return out.reshape(array.shape)


def mean_known(values: ArrayLike, axis: int | tuple[int, ...]) -> FloatArray:
    """Return the mean over an axis without NaN; NaN where there is nothing else."""
    array = np.asarray(values, dtype=np.float64)
    known = np.isfinite(array)
    number = known.sum(axis=axis)
    total = np.where(known, array, 0.0).sum(axis=axis)
    return np.asarray(np.where(number > 0, total / np.maximum(number, 1), np.nan), dtype=np.float64)


def auc(truth: ArrayLike, score: ArrayLike) -> float:
    """Return the area under the ROC curve (ties count half); NaN if one class is absent."""
    positive = np.asarray(truth, dtype=bool)
    n1 = int(positive.sum())
    n0 = len(positive) - n1
    if n1 == 0 or n0 == 0:
        return float("nan")
    order = ranks(np.asarray(score, dtype=np.float64)) * (len(positive) - 1)
    return float((order[positive].sum() - n1 * (n1 - 1) / 2) / (n1 * n0))


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Return Spearman's rank correlation; NaN if one side is constant."""
    a, b = ranks(first), ranks(second)
    if a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def brier(truth: ArrayLike, probability: ArrayLike) -> float:
    """Return the mean squared error of probabilities."""
    difference = np.asarray(probability, dtype=np.float64) - np.asarray(truth, dtype=np.float64)
    return float(np.mean(difference**2))


def brier_skill(truth: ArrayLike, probability: ArrayLike, reference: ArrayLike) -> float:
    """Return 1 - Brier/Brier of the reference probability: 0 is no better, 1 is perfect."""
    return 1.0 - brier(truth, probability) / brier(truth, reference)


def calibration_error(truth: ArrayLike, probability: ArrayLike, bins: int = 10) -> float:
    """Return the expected calibration error over bins of equal count."""
    y, p = np.asarray(truth, dtype=np.float64), np.asarray(probability, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return float(sum(len(part) * abs(y[part].mean() - p[part].mean()) for part in parts) / len(p))


def coverage(truth: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Return the share of truths inside their interval."""
    y = np.asarray(truth, dtype=np.float64)
    return float(np.mean((y >= np.asarray(low)) & (y <= np.asarray(high))))


def regret(value: ArrayLike, score: ArrayLike, k: int = 1) -> float:
    """Return what the best of the k highest-scored choices loses against the best, over the best.

    Parameters
    ----------
    value : float[n]
        What each choice is worth; NaN choices do not exist.
    score : float[n]
        Prediction; unknown (NaN) ranks last.
    """
    worth, wanted = np.asarray(value, dtype=np.float64), np.asarray(score, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(worth))
    order = known[np.argsort(-np.nan_to_num(wanted[known], nan=-np.inf), kind="stable")][:k]
    best = worth[known].max()
    return float((best - worth[order].max()) / abs(best))


def ndcg(value: ArrayLike, score: ArrayLike) -> float:
    """Return the normalised discounted cumulative gain; gains are values scaled to [0, 1]."""
    worth, wanted = np.asarray(value, dtype=np.float64), np.asarray(score, dtype=np.float64)
    known = ~np.isnan(worth)
    worth, wanted = worth[known], np.nan_to_num(wanted[known], nan=-np.inf)
    span = np.ptp(worth)
    gains = (worth - worth.min()) / span if span > 0 else np.ones_like(worth)
    discount = 1 / np.log2(np.arange(len(worth)) + 2)
    ideal = float(np.sort(gains)[::-1] @ discount)
    return float(gains[np.argsort(-wanted, kind="stable")] @ discount) / ideal


def bootstrap(
    clusters: int, statistic: Callable[[NDArray[np.int64]], float], rounds: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Return standard error and 2.5 %, 97.5 % limits of a statistic over resampled clusters.

    Parameters
    ----------
    clusters : int
        Number of clusters (targets, tasks, keys): the unit that was left out.
    statistic : callable
        Maps cluster indices, drawn with replacement, to the figure.
    """
    rng = np.random.default_rng(seed)
    values = np.array([statistic(rng.integers(0, clusters, clusters)) for _ in range(rounds)])
    low, high = np.nanquantile(values, [0.025, 0.975])
    return float(np.nanstd(values)), float(low), float(high)
