"""Fitting the gain model; targets left out in folds for its intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ymir_models.conformal import LEVELS, clustered_radius
from ymir_models.scores import mean_known
from ymir_models.transfer.data import TaskWeb
from ymir_models.transfer.features import FEATURES, NEW_TASK, History
from ymir_models.transfer.linear import Linear, fit_benefit, fit_ridge
from ymir_models.transfer.model import GainModel, Head

__all__ = [
    "MODELS",
    "Answers",
    "calibrated",
    "fit_gain",
    "fit_heads",
    "history_of",
    "predict_heads",
]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

PENALTY = 100.0
"""Ridge penalty of the standardised features: fixed beforehand, not searched."""
MOST_GAIN = 0.3
"""Gains are clipped here for fitting: a few tasks jump from chance to solved."""
FOLDS = 5
SEEDS = 8

MODELS = {
    "gpt2m": "gpt2-medium",
    "roberta": "roberta-base",
    "t5s": "t5-small",
    "t5b": "t5-base",
    "t5l": "t5-large",
}
"""Our reading of the data set's abbreviations of fully fine-tuned settings."""


@dataclass(frozen=True)
class Answers:
    """Predictions for some targets, float64[n, K, S] each."""

    order: FloatArray
    gain: FloatArray
    benefit: FloatArray


def _head(features: FloatArray, level: FloatArray, gain: FloatArray, size: int) -> Head:
    x = features[..., :size]
    scored, known = np.isfinite(level), np.isfinite(gain)
    clipped = np.clip(gain[known], -MOST_GAIN, MOST_GAIN)
    return Head(
        order=fit_ridge(x[scored], level[scored], PENALTY),
        gain=fit_ridge(x[known], clipped, PENALTY),
        benefit=fit_benefit(x[known], (gain[known] > 0).astype(np.float64), PENALTY),
        radius=np.full(2, np.inf),
    )


def fit_heads(history: History, gain: FloatArray, mask: BoolArray) -> tuple[Head, Head]:
    """Return the heads for known and for new tasks, fitted on the targets of a mask.

    Parameters
    ----------
    history : History
    gain : float64[K, T, S]
    mask : bool[T]
        Nothing of the other targets' results is used.
    """
    features = history.features(mask)[mask]
    level = np.swapaxes(history.level, 0, 1)[mask]
    values = np.swapaxes(gain, 0, 1)[mask]
    return _head(features, level, values, len(FEATURES)), _head(features, level, values, NEW_TASK)


def _answers(head: Head, features: FloatArray) -> Answers:
    def apply(model: Linear) -> FloatArray:
        return model(features[..., : len(model.weights)])

    return Answers(
        apply(head.order),
        apply(head.gain),
        head.benefit.probability(features[..., : len(head.benefit.weights)]),
    )


def predict_heads(
    heads: tuple[Head, Head], history: History, mask: BoolArray, targets: BoolArray
) -> tuple[Answers, Answers]:
    """Return what both heads say of some targets, from the results of the targets of a mask."""
    features = history.features(mask)[targets]
    known, new = (_answers(head, features) for head in heads)
    return known, new


def calibrated(
    heads: tuple[Head, Head], history: History, gain: FloatArray, mask: BoolArray
) -> tuple[Head, Head]:
    """Return the heads with half widths from targets left out in folds, every target counting the same."""
    members = np.flatnonzero(mask)
    residual: list[list[FloatArray]] = [[], []]
    cluster: list[NDArray[np.int64]] = []
    values = np.swapaxes(gain, 0, 1)
    for k in range(FOLDS):
        out = np.zeros(len(mask), dtype=np.bool_)
        out[members[k::FOLDS]] = True
        trained = fit_heads(history, gain, mask & ~out)
        answers = predict_heads(trained, history, mask & ~out, out)
        known = np.isfinite(values[out])
        for part, answer in zip(residual, answers, strict=True):
            part.append((answer.gain - values[out])[known])
        rows = np.broadcast_to(np.flatnonzero(out)[:, None, None], known.shape)
        cluster.append(rows[known])
    groups = np.concatenate(cluster)
    radii = [
        np.array([clustered_radius(np.concatenate(part), groups, level) for level in LEVELS])
        for part in residual
    ]
    return replace(heads[0], radius=radii[0]), replace(heads[1], radius=radii[1])


def history_of(data: TaskWeb) -> History:
    """Return the history of a data set."""
    return History.build(data.targets, data.sources, data.score, data.llm, data.retrieval)


def fit_gain(data: TaskWeb) -> GainModel:
    """Fit on every target."""
    history = history_of(data)
    everyone = np.ones(len(data.targets), dtype=np.bool_)
    known, new = calibrated(fit_heads(history, data.gain, everyone), history, data.gain, everyone)
    # the two halves of the seeds differ by twice the standard error of their mean
    error = np.abs(data.halves[0] - data.halves[1]) / 2 / data.reference[:, :, None]
    typical = np.sqrt(mean_known(error**2, 2))[:, :, None]
    spread = np.where(np.isfinite(data.gain), np.broadcast_to(typical, data.gain.shape), np.nan)
    return GainModel(
        settings=data.settings,
        models=tuple(MODELS.get(name, "") for name in data.settings),
        history=history,
        measured=data.gain,
        spread=spread,
        known=known,
        new=new,
    )
