"""Fitting pair models: kernel parameters by leave-pair-out error in closed form, then calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ymir_models.colocation.data import PairRows
from ymir_models.colocation.model import Hyper, PairModel, family_kernel, pair_kernel, smooth_kernel
from ymir_models.conformal import LEVELS, radius
from ymir_models.logistic import fit_logistic

__all__ = ["GRID", "additive", "fit_pairs"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

GRID = tuple(
    Hyper(length, 0.02, key, weight, 0.3, noise)
    for length, key, weight, noise in product((2.0, 5.0), (0.01, 0.05), (0.01, 0.05), (0.0003, 0.001))
)
RIDGE = 0.05
"""Penalty of the logistic model's loads."""
SHRINK = 6.0
"""Cases at which the error scale of two families counts half against the overall one."""


def _blocks(groups: IntArray) -> Iterator[IntArray]:
    order = np.argsort(groups, kind="stable")
    edges = np.flatnonzero(np.diff(groups[order])) + 1
    yield from np.split(order, edges)


def _left_out(inverse: FloatArray, dual: FloatArray, groups: list[IntArray]) -> list[FloatArray]:
    """Return the residuals of each block of rows if it had been left out (exact, no refit)."""
    return [
        np.asarray(np.linalg.solve(inverse[np.ix_(block, block)], dual[block]), dtype=np.float64)
        for block in groups
    ]


def fit_pairs(rows: PairRows, grid: tuple[Hyper, ...] = GRID) -> PairModel:
    """Fit one set of measured pairs.

    Parameters
    ----------
    rows : PairRows
        At least three pairs that run.
    grid : tuple of Hyper
        Kernel parameters to choose from, by the mean absolute error with both orders of a pair left out.
    """
    runs = rows.take(rows.feasible)
    first, second, ratio = runs.first, runs.second, runs.ratio
    mean = float(np.median(ratio))
    same = family_kernel(rows.family, rows.family)
    pairs = list(_blocks(runs.pair))
    best: tuple[float, Hyper, FloatArray, FloatArray] | None = None
    for hyper in grid:
        smooth = smooth_kernel(rows.family, rows.log_batch, rows.family, rows.log_batch, hyper.length)
        kernel = pair_kernel(hyper, same, smooth, (first, second))
        inverse = np.asarray(np.linalg.inv(kernel + hyper.noise * np.eye(len(runs))), dtype=np.float64)
        dual = inverse @ (ratio - mean)
        error = float(np.mean(np.abs(np.concatenate(_left_out(inverse, dual, pairs)))))
        if best is None or error < best[0]:
            best = (error, hyper, inverse, dual)
    assert best is not None
    _, hyper, inverse, dual = best
    scale, radii = _calibrated(runs, inverse, dual, pairs)
    load, threshold = _fit_load(rows, hyper.length)
    n = len(rows.family)
    matrix = np.zeros((n, n))
    np.add.at(matrix, (first, second), dual)
    return PairModel(
        name=rows.name,
        gpu_type=rows.gpu_type,
        families=rows.families,
        family=rows.family,
        log_batch=rows.log_batch,
        hyper=hyper,
        mean=mean,
        total=float(dual.sum()),
        row=matrix.sum(axis=1),
        column=matrix.sum(axis=0),
        dual=matrix,
        load=load,
        threshold=threshold,
        scale=scale,
        radius=radii,
    )


def _calibrated(
    runs: PairRows, inverse: FloatArray, dual: FloatArray, pairs: list[IntArray]
) -> tuple[FloatArray, FloatArray]:
    """Return error scales by family of both, and half widths in their units for known and new keys."""
    residual = np.empty(len(runs))
    for block, values in zip(pairs, _left_out(inverse, dual, pairs), strict=True):
        residual[block] = np.abs(values)
    m = len(runs.families)
    cell = runs.family[runs.first] * m + runs.family[runs.second]
    number = np.bincount(cell, minlength=m * m)
    overall = max(float(residual.mean()), 1e-4)
    scale = (np.bincount(cell, weights=residual, minlength=m * m) + SHRINK * overall) / (number + SHRINK)
    # each row's own residual is taken out of its scale, as it is for a pair never seen
    own = scale[cell] - (residual - scale[cell]) / (number[cell] - 1 + SHRINK)
    known = residual / own
    keys = [np.flatnonzero((runs.first == k) | (runs.second == k)) for k in range(len(runs.family))]
    keys = [block for block in keys if len(block)]
    fresh = [
        np.abs(values) / scale[cell[block]]
        for block, values in zip(keys, _left_out(inverse, dual, keys), strict=True)
    ]
    radii = np.array(
        [
            [radius(known, level) for level in LEVELS],
            [radius(np.concatenate(fresh), level) for level in LEVELS],
        ]
    )
    radii[1] = np.maximum(radii[0], radii[1])
    return np.where(number > 0, scale, np.nan).reshape(m, m), radii


def _fit_load(rows: PairRows, length: float) -> tuple[FloatArray, float]:
    """Return the additive logistic model of pairs that do not run (ridge, Newton's method)."""
    n = len(rows.family)
    truth = ~rows.feasible
    if not truth.any() or truth.all():
        return np.zeros(n + 1), -50.0 if not truth.any() else 50.0
    smooth = smooth_kernel(rows.family, rows.log_batch, rows.family, rows.log_batch, length)
    single = np.concatenate([smooth, rows.log_batch[:, None]], axis=1)
    design = np.concatenate([single[rows.first] + single[rows.second], np.ones((len(rows), 1))], axis=1)
    penalty = np.append(np.full(n + 1, RIDGE), 1e-6)
    start = np.zeros(n + 2)
    start[-1] = math.log(truth.mean() / (1 - truth.mean()))
    weights = fit_logistic(design, truth, penalty, start)
    return weights[:-1], float(weights[-1])


def additive(train: PairRows, test: PairRows) -> FloatArray:
    """Return the ratio from a ridge regression on own and partner's key, family and batch, added up."""
    runs = train.take(train.feasible)
    m, n = len(train.families), len(train.family)
    family = np.eye(m)[train.family]
    centred = (train.log_batch - train.log_batch.mean())[:, None]
    single = np.concatenate([np.eye(n), family, family * centred], axis=1)

    def design(rows: PairRows) -> FloatArray:
        return np.concatenate([single[rows.first], single[rows.second]], axis=1)

    x, centre = design(runs), float(runs.ratio.mean())
    weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ (runs.ratio - centre))
    result: FloatArray = centre + design(test) @ weights
    return np.clip(result, 0.0, 1.02)
