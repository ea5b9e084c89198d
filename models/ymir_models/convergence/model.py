"""When a target will be reached: a discrete-time hazard over evaluations; numpy alone.

The first evaluation at or above the target is only known to the evaluation (interval-censored), and may
lie beyond the end (right-censored): both are what a discrete hazard h(e) = P(reached at e | not before)
is made for (Cox 1972, section 6; Singer and Willett 1993). Its logit is linear in the features of
`ymir_models.convergence.features`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_models.artefact import Fields
from ymir_models.convergence.features import CURVE_FEATURES, curve_features, moment_features
from ymir_models.logistic import sigmoid
from ymir_opt.domain.errors import InputError

__all__ = ["HazardModel", "Remaining"]

FloatArray = NDArray[np.float64]

MOST_SEEN = 8
"""Longer curves are thinned to this many evaluations."""
LATEST_RATIO = 3.4
"""The hazard is held constant beyond this multiple of the evaluations seen: it was never fitted there."""


@dataclass(frozen=True)
class Remaining:
    """Samples still to train until the target.

    Attributes
    ----------
    samples : float
        Median, given that the target is reached.
    low, high : float
        80 % limits, given that it is reached.
    p_reached : float
        Probability that it is reached by the limit of samples.
    """

    samples: float
    low: float
    high: float
    p_reached: float


@dataclass(frozen=True)
class HazardModel:
    """Fitted hazard.

    Attributes
    ----------
    mean, spread : float64[26]
        Standardisation of the design.
    weights : float64[27]
        Of the standardised design, and the intercept.
    levels : float64[2, 2]
        Levels of its own distribution that are the lower and upper limits: rows 80 and 95 %.
    """

    mean: FloatArray
    spread: FloatArray
    weights: FloatArray
    levels: FloatArray

    def hazard(self, features: FloatArray, seen: int, moments: FloatArray) -> FloatArray:
        """Return float64[n, len(moments)]: the hazard at each later moment.

        Parameters
        ----------
        features : float64[n, 13]
        seen : int
        moments : float64[m]
            Evaluations after ``seen``, ascending.
        """
        n, m = len(features), len(moments)
        latest = max(seen * LATEST_RATIO, seen + 1.0)
        when = np.asarray(np.minimum(moments, latest), dtype=np.float64)
        design: FloatArray = moment_features(
            np.repeat(features, m, axis=0), np.full(n * m, float(seen)), np.tile(when, n)
        )
        score: FloatArray = ((design - self.mean) / self.spread) @ self.weights[:-1] + self.weights[-1]
        hazard: FloatArray = sigmoid(score).reshape(n, m)
        return hazard

    def survival(self, curves: FloatArray, target: FloatArray, last: int) -> FloatArray:
        """Return float64[n, last - k]: probability that each target is still open after k+1..last."""
        seen = curves.shape[1]
        hazard = self.hazard(curve_features(curves, target), seen, np.arange(seen + 1.0, last + 1.0))
        return np.asarray(np.cumprod(1.0 - hazard, axis=1), dtype=np.float64)

    def remaining(
        self, points: Sequence[tuple[float, float]], target: float, most_samples: float
    ) -> Remaining | None:
        """Return the samples that a running job still trains; None where too little is known.

        Parameters
        ----------
        points : sequence of (float, float)
            Samples trained and metric (better when larger) at every evaluation, ascending.
        target : float
        most_samples : float
            Where the job ends at the latest.

        Raises
        ------
        InputError
            If a figure is not finite or samples do not ascend.
        """
        at = np.array([p[0] for p in points], dtype=np.float64)
        value = np.array([p[1] for p in points], dtype=np.float64)
        place = "learning curve"
        if not (np.isfinite(at).all() and np.isfinite(value).all() and np.isfinite(target)):
            raise InputError(place, "contains a figure that is not finite", "leave the evaluation out")
        if len(at) and (at[0] <= 0 or (np.diff(at) <= 0).any()):
            raise InputError(place, "samples do not ascend from above 0", "sort the evaluations")
        if len(at) and value.max() >= target:
            return Remaining(0.0, 0.0, 0.0, 1.0)
        if len(at) < 2 or not most_samples > at[-1]:
            return None
        seen = min(len(at), MOST_SEEN)
        unit = float(at[-1]) / seen
        grid = unit * np.arange(1, seen + 1)
        curve = np.interp(grid, at, value)[None, :]
        last = min(int(np.ceil(most_samples / unit - 1e-9)), 100 * seen)
        survival = self.survival(curve, np.array([target]), max(last, seen + 1))[0]
        later = unit * np.arange(seen + 1, seen + 1 + len(survival))
        edges = np.append(grid[-1], np.minimum(later, most_samples))
        p_reached = 1.0 - float(survival[-1])
        if p_reached < 1e-6:
            rest = most_samples - float(at[-1])
            return Remaining(rest, rest, rest, p_reached)
        levels = (0.5, float(self.levels[0, 0]), float(self.levels[0, 1]))
        found = [_quantile(edges, survival, level) for level in levels]
        middle, low, high = (f - float(at[-1]) for f in found)
        return Remaining(middle, min(low, middle), max(high, middle), p_reached)

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as they are written to an artefact."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_fields(cls, fields: Fields) -> HazardModel:
        """Read the parameters back; raises `InputError` where one is missing or wrong."""
        size = 2 * CURVE_FEATURES
        return cls(
            mean=fields.array("mean", size),
            spread=fields.array("spread", size),
            weights=fields.array("weights", size + 1),
            levels=fields.array("levels", 2, 2),
        )


def _quantile(edges: FloatArray, survival: FloatArray, level: float) -> float:
    """Return a quantile given that the event comes; spread evenly inside an interval."""
    share = (1.0 - survival) / (1.0 - survival[-1])
    return float(np.interp(level, np.append(0.0, share), edges))
