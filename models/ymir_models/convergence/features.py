"""What a partial curve says: scale-free features of k evaluations and a target, and of a later moment.

Every metric here is better when larger (losses are negated). Evaluations are evenly spaced; the unit of
time is one evaluation, and everything enters as ratios, so that epochs and steps are the same thing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["CURVE_FEATURES", "FAR", "curve_features", "moment_features", "power_law"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FAR = 30.0
"""Extrapolations end here, in evaluations."""
POWERS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
CURVE_FEATURES = 13
_GAP, _GAIN, _GAP_OVER_GAIN, _SINCE_BEST, _POWER, _LINE = 0, 1, 2, 5, 7, 8


def power_law(curves: FloatArray, target: FloatArray) -> FloatArray:
    """Return when y(e) = a - b e^-c, b >= 0, fitted by least squares, reaches the target.

    Parameters
    ----------
    curves : float64[n, k]
    target : float64[n]

    Returns
    -------
    float64[n]
        In evaluations, from k to :data:`FAR`.
    """
    n, k = curves.shape
    moments = np.arange(1.0, k + 1)
    mean = curves.mean(axis=1)
    best = np.full(n, np.inf)
    reached = np.full(n, FAR)
    for power in POWERS:
        x = -(moments**-power)
        centred = x - x.mean()
        slope = np.maximum((curves - mean[:, None]) @ centred / (centred @ centred), 0.0)
        level = mean - slope * x.mean()
        error = np.sum((curves - level[:, None] - slope[:, None] * x) ** 2, axis=1)
        room = (level - target) / np.where(slope > 0, slope, 1.0)
        rising = (slope > 0) & (room > 0)
        moment = np.where(rising, np.maximum(room, 1e-12) ** (-1.0 / power), FAR)
        better = error < best - 1e-15
        reached[better] = np.clip(moment, k, FAR)[better]
        best[better] = error[better]
    return reached


def curve_features(curves: FloatArray, target: FloatArray) -> FloatArray:
    """Return float64[n, 13]: what is known after k evaluations.

    Parameters
    ----------
    curves : float64[n, k]
        k >= 2 evaluations, none of which reaches the target.
    target : float64[n]
    """
    _, k = curves.shape
    scale = np.maximum(np.abs(target), 1e-9)
    best = curves.max(axis=1)
    steps = np.diff(curves, axis=1) / scale[:, None]
    gap = np.maximum((target - best) / scale, 1e-5)
    gain = steps[:, -1]
    line = np.where(gain > 0, np.minimum(k + gap / np.maximum(gain, 1e-9), FAR), FAR)
    span = np.maximum(target - curves[:, 0], 1e-9)
    columns = [
        np.log(gap),
        gain,
        np.log(np.maximum(gap / np.maximum(gain, 1e-4), 1e-3)),
        steps.mean(axis=1),
        steps[:, 0],
        (k - 1 - curves.argmax(axis=1)).astype(np.float64),
        np.abs(np.minimum(steps, 0.0)).mean(axis=1),
        np.log(power_law(curves, target) / k),
        np.log(line / k),
        np.clip((best - curves[:, 0]) / span, 0.0, 1.0),
        (best - curves[:, -1]) / scale,
        np.log(np.maximum((target - curves.mean(axis=1)) / scale, 1e-5)),
        steps[:, -2:].mean(axis=1),
    ]
    return np.stack(columns, axis=1)


def moment_features(features: FloatArray, seen: FloatArray, moment: FloatArray) -> FloatArray:
    """Return the design of the hazard at a later moment.

    Parameters
    ----------
    features : float64[n, 13]
    seen : float64[n]
        Evaluations seen, k.
    moment : float64[n]
        The evaluation asked about, above k.
    """
    later = np.log(moment / seen)
    k = np.log(seen)
    power, line = features[:, _POWER], features[:, _LINE]
    extra = [
        later,
        later * features[:, _GAP_OVER_GAIN],
        later * features[:, _GAP],
        power - later,
        np.maximum(0.0, later - power),
        np.maximum(0.0, later - line),
        k,
        k * features[:, _GAP],
        k * features[:, _GAIN],
        k * features[:, _GAP_OVER_GAIN],
        k * features[:, _SINCE_BEST],
        k * later,
        (moment - seen == 1.0).astype(np.float64),
    ]
    return np.concatenate([features, np.stack(extra, axis=1)], axis=1)
