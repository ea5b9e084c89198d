"""Standardised linear models: ridge for a figure, logistic for a probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_models.artefact import Fields
from ymir_models.logistic import fit_logistic, sigmoid

__all__ = ["Linear", "fit_benefit", "fit_ridge"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Linear:
    """Weights of standardised features.

    Attributes
    ----------
    mean, spread, weights : float64[F]
    intercept : float
    """

    mean: FloatArray
    spread: FloatArray
    weights: FloatArray
    intercept: float

    def __call__(self, features: FloatArray) -> FloatArray:
        """Return the linear score of features (float64[..., F])."""
        score: FloatArray = ((features - self.mean) / self.spread) @ self.weights + self.intercept
        return score

    def probability(self, features: FloatArray) -> FloatArray:
        """Return the probability of a logistic model."""
        return sigmoid(self(features))

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as they are written to an artefact."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_fields(cls, fields: Fields, size: int) -> Linear:
        """Read the parameters back; raises `InputError` where one is missing or wrong."""
        return cls(
            fields.array("mean", size),
            fields.array("spread", size),
            fields.array("weights", size),
            fields.number("intercept"),
        )


def _standardised(features: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    mean, spread = features.mean(axis=0), features.std(axis=0) + 1e-9
    return mean, spread, (features - mean) / spread


def fit_ridge(features: FloatArray, value: FloatArray, penalty: float) -> Linear:
    """Return the ridge regression of `value` (float64[n]) on features (float64[n, F])."""
    mean, spread, x = _standardised(features)
    centre = float(value.mean())
    gram = x.T @ x + penalty * np.eye(x.shape[1])
    weights = np.asarray(np.linalg.solve(gram, x.T @ (value - centre)), dtype=np.float64)
    return Linear(mean, spread, weights, centre)


def fit_benefit(features: FloatArray, truth: FloatArray, penalty: float) -> Linear:
    """Return the ridge logistic regression of a truth (0 or 1) on features."""
    mean, spread, x = _standardised(features)
    design = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    weights = fit_logistic(design, truth, np.append(np.full(x.shape[1], penalty), 1e-6))
    return Linear(mean, spread, weights[:-1], float(weights[-1]))
