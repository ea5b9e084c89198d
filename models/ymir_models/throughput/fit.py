"""Fitting step models: weighted non-linear least squares on log step, then residual correction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ymir_models.conformal import LEVELS, radius
from ymir_models.throughput.data import StepRows
from ymir_models.throughput.model import StepModel, pure_step
from ymir_opt.domain.errors import InputError

__all__ = ["Key", "calibrate", "fit_step", "predict"]

FloatArray = NDArray[np.float64]

NOISE = 0.01
"""Relative error of one measured step that the fit allows for."""
PRIOR_SD = 1.5
"""Standard deviation of the logarithm of every parameter around its start value."""
SHRINK = 4.0
"""Rows at which a residual correction counts half."""
FOLDS = 5
BEYOND = (0.10, 0.20)
"""Least half widths of log step beyond the measured counts: the noise there is not known."""


@dataclass(frozen=True)
class Key:
    """What one step model is for."""

    foundation_model: str
    peft_type: str | None
    config: str
    gpu_type: str
    node_gpus: int = 4


def _pooled(rows: StepRows) -> StepRows:
    """Return one row for every (one node or several, GPUs, local batch): geometric mean steps."""
    several = (rows.nodes > 1).astype(np.int64)
    keys = np.stack([several, rows.gpus, rows.local], axis=1)
    unique, where, number = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    where = where.reshape(-1)
    step = np.exp(np.bincount(where, weights=np.log(rows.step_s)) / number)
    sync = np.bincount(where, weights=rows.sync_s) / number
    return StepRows(unique[:, 0] + 1, unique[:, 1], unique[:, 2], step, sync, np.ones(len(unique), np.bool_))


def _start(rows: StepRows) -> FloatArray:
    """Return start values: a relative least-squares line for compute, fractions of it for the network."""
    few = rows.gpus == rows.gpus.min()
    compute = np.where(np.isnan(rows.sync_s), rows.step_s, rows.step_s - rows.sync_s)
    x, y = rows.local[few].astype(np.float64), compute[few]
    if len(np.unique(x)) > 1:
        design = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
        a, c = np.linalg.lstsq(design, np.ones_like(y), rcond=None)[0]
    else:
        a, c = 0.1 * y.mean(), 0.9 * y.mean() / x.mean()
    smallest = float(y.min())
    a, c = max(float(a), 0.02 * smallest), max(float(c), 1e-3 * smallest / float(x.max()))
    guess = np.log([a, c, 0.05 * a, 0.02 * a, 0.3 * a, 0.08 * a])
    return np.append(guess, np.log(0.1))


def _theta(raw: FloatArray) -> FloatArray:
    return np.append(np.exp(raw[:6]), 1.0 + np.exp(raw[6]))


def fit_step(key: Key, rows: StepRows, memory: tuple[FloatArray, FloatArray] | None = None) -> StepModel:
    """Fit one model.

    Parameters
    ----------
    key : Key
    rows : StepRows
        At least two rows.
    memory : (float64[m], float64[m]), optional
        Local batches and GiB per GPU.

    Returns
    -------
    StepModel
        Without intervals (infinite half widths); see :func:`calibrate`.

    Raises
    ------
    InputError
        If there are fewer than two rows.
    """
    from scipy.optimize import least_squares

    if len(rows) < 2:
        raise InputError(
            f"{key.foundation_model} on {key.gpu_type}",
            f"{len(rows)} throughput rows are too few",
            "measure at least two batches or GPU counts",
        )
    pool = _pooled(rows)
    start = _start(pool)
    local, gpus = pool.local.astype(np.float64), pool.gpus.astype(np.float64)
    shared = ~np.isnan(pool.sync_s) & (pool.gpus > 1)

    def residuals(raw: FloatArray) -> FloatArray:
        theta = _theta(raw)
        step = pure_step(theta, local, gpus, pool.nodes)
        compute = theta[0] + theta[1] * local
        error = np.log(step / pool.step_s) / NOISE
        sync = ((step - compute - pool.sync_s) / pool.step_s)[shared] / NOISE
        return np.concatenate([error, sync, (raw - start) / PRIOR_SD])

    low = np.append(start[:6] - 9.0, np.log(1e-3))
    high = np.append(start[:6] + 6.0, np.log(9.0))
    found = least_squares(residuals, start, bounds=(low, high), x_scale=1.0, max_nfev=300)
    model = StepModel(
        foundation_model=key.foundation_model,
        peft_type=key.peft_type,
        config=key.config,
        gpu_type=key.gpu_type,
        node_gpus=key.node_gpus,
        smallest=int(rows.local.min()),
        largest=int(rows.local.max()),
        most_gpus=int(rows.gpus.max()),
        most_nodes=int(rows.nodes.max()),
        theta=_theta(found.x),
        batch_knots=np.zeros(0),
        batch_correction=np.zeros(0),
        count_knots=np.zeros(0),
        count_correction=np.zeros(0),
        memory=_memory(memory),
        radius=np.full((2, 2), np.inf),
    )
    return _corrected(model, rows)


def _memory(memory: tuple[FloatArray, FloatArray] | None) -> FloatArray:
    """Return intercept and slope of memory over local batch."""
    if memory is None or len(np.unique(memory[0])) < 2:
        return np.full(2, np.nan)
    slope, intercept = np.polyfit(memory[0], memory[1], 1)
    return np.array([intercept, slope])


def _corrected(model: StepModel, rows: StepRows) -> StepModel:
    """Add the mean residual at every batch, then at every count, shrunk where rows are few."""
    residual = np.log(rows.step_s / predict(model, rows))
    knots, correction = _means(rows.local, residual)
    model = replace(model, batch_knots=knots, batch_correction=correction)
    residual = np.log(rows.step_s / predict(model, rows))
    knots, correction = _means(rows.gpus, residual)
    return replace(model, count_knots=knots, count_correction=correction)


def _means(values: NDArray[np.int64], residual: FloatArray) -> tuple[FloatArray, FloatArray]:
    unique, where, number = np.unique(values, return_inverse=True, return_counts=True)
    mean = np.bincount(where, weights=residual) / (number + SHRINK)
    return np.log(unique.astype(np.float64)), mean


def predict(model: StepModel, rows: StepRows) -> FloatArray:
    """Return the predicted step seconds of rows."""
    return model.step_s(rows.local, rows.gpus, rows.nodes)


def calibrate(key: Key, rows: StepRows, model: StepModel) -> StepModel:
    """Return the model with conformal half widths.

    Inside the measured counts they come from held-out counts, beyond from the upper half of the counts
    predicted from the lower half. Too few rows give infinite half widths, never none.
    """
    counts = np.unique(rows.gpus)
    inside: list[FloatArray] = []
    if len(counts) >= 3:
        held = [counts[k::FOLDS] for k in range(min(FOLDS, len(counts)))]
    else:
        batches = np.unique(rows.local)
        held = [batches[k::FOLDS] for k in range(min(FOLDS, len(batches)))] if len(batches) >= 3 else []
    axis = rows.gpus if len(counts) >= 3 else rows.local
    for part in held:
        out = np.isin(axis, part)
        if (~out).sum() >= 2 and out.any():
            trained = fit_step(key, rows.take(~out))
            inside.append(np.log(predict(trained, rows.take(out)) / rows.step_s[out]))
    beyond: list[FloatArray] = []
    lower = rows.gpus <= counts[len(counts) // 2 - 1] if len(counts) >= 4 else np.zeros(len(rows), np.bool_)
    if lower.sum() >= 4:
        trained = fit_step(key, rows.take(lower))
        beyond.append(np.log(predict(trained, rows.take(~lower)) / rows.step_s[~lower]))
    widths = [
        [radius(np.concatenate(errors), level) if errors else np.inf for level in LEVELS]
        for errors in (inside, beyond)
    ]
    # an interval beyond the measured counts is never narrower than one inside
    table = np.array(widths)
    table[1] = np.maximum(np.maximum(table[0], table[1]), BEYOND)
    return replace(model, radius=table)
