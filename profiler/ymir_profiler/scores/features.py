"""Scores of features and labels; numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["cosine", "h_score", "leep", "logme", "transrate"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ROUNDS = 11


def cosine(a: FloatArray, b: FloatArray) -> float:
    """Return the cosine of two vectors, 0 where one of them is zero."""
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / scale if scale > 0 else 0.0


def logme(features: FloatArray, labels: IntArray) -> float:
    """Return LogME: the log evidence a row of a Bayesian linear model from features to labels.

    You, Liu, Wang and Long, "LogME: practical assessment of pre-trained models for transfer learning",
    ICML 2021: one regression a class on its indicator, prior and noise precision by fixed-point
    iteration, mean over classes.

    Parameters
    ----------
    features : array, shape (n, d)
    labels : array of int, shape (n,)
    """
    n, d = features.shape
    u, s, vt = np.linalg.svd(features, full_matrices=False)
    del vt
    squared = s**2
    total = 0.0
    classes = np.unique(labels)
    for label in classes:
        y = (labels == label).astype(float)
        projected = (u.T @ y) ** 2
        outside = max(float(y @ y) - float(projected.sum()), 0.0)
        alpha, beta = 1.0, 1.0
        for _ in range(ROUNDS):
            gamma = float((beta * squared / (alpha + beta * squared)).sum())
            mean2 = float((beta**2 * squared * projected / (alpha + beta * squared) ** 2).sum())
            residual2 = float((projected * (alpha / (alpha + beta * squared)) ** 2).sum()) + outside
            alpha = gamma / max(mean2, 1e-12)
            beta = (n - gamma) / max(residual2, 1e-12)
        mean2 = float((beta**2 * squared * projected / (alpha + beta * squared) ** 2).sum())
        residual2 = float((projected * (alpha / (alpha + beta * squared)) ** 2).sum()) + outside
        determinant = float(np.log(alpha + beta * squared).sum()) + (d - len(s)) * np.log(alpha)
        evidence = 0.5 * (
            d * np.log(alpha)
            + n * np.log(beta)
            - beta * residual2
            - alpha * mean2
            - determinant
            - n * np.log(2 * np.pi)
        )
        total += evidence / n
    return float(total / len(classes))


def h_score(features: FloatArray, labels: IntArray) -> float:
    """Return the H-score trace(cov(f)^-1 cov(E[f|y])), the covariance shrunk towards its diagonal.

    Bao et al., "An information-theoretic approach to transferability", ICIP 2019; the shrinkage
    follows Ibrahim, Ponomareva and Mazumder (2022), with the weight of Ledoit and Wolf.

    Parameters
    ----------
    features : array, shape (n, d)
    labels : array of int, shape (n,)
    """
    from sklearn.covariance import ledoit_wolf

    centred = features - features.mean(axis=0)
    covariance, weight = ledoit_wolf(centred, assume_centered=True)
    means = np.zeros_like(centred)
    for label in np.unique(labels):
        chosen = labels == label
        means[chosen] = centred[chosen].mean(axis=0)
    between = means.T @ means / len(means)
    return float((1 - weight) * np.trace(np.linalg.pinv(covariance, hermitian=True) @ between))


def transrate(features: FloatArray, labels: IntArray, epsilon: float = 1e-4) -> float:
    """Return TransRate: coding rate of the features less that within the classes.

    Huang et al., "Frustratingly easy transferability estimation", ICML 2022.

    Parameters
    ----------
    features : array, shape (n, d)
    labels : array of int, shape (n,)
    epsilon : float
        Distortion.
    """

    def rate(z: FloatArray) -> float:
        n, d = z.shape
        singular = np.linalg.svd(z, compute_uv=False)
        return 0.5 * float(np.log1p(singular**2 / (n * epsilon)).sum()) if d else 0.0

    centred = features - features.mean(axis=0)
    centred = centred / max(float(np.linalg.norm(centred)), 1e-12) * np.sqrt(len(centred))
    within = 0.0
    for label in np.unique(labels):
        part = centred[labels == label]
        within += len(part) / len(centred) * rate(part)
    return rate(centred) - within


def leep(source_probabilities: FloatArray, labels: IntArray) -> float:
    """Return LEEP: mean log-likelihood of labels through the source classifier's classes.

    Nguyen, Hassner, Seeger and Archambeau, "LEEP: a new measure to evaluate transferability of learned
    representations", ICML 2020.

    Parameters
    ----------
    source_probabilities : array, shape (n, source classes)
        Rows sum to 1.
    labels : array of int, shape (n,)
    """
    classes, index = np.unique(labels, return_inverse=True)
    joint = np.zeros((len(classes), source_probabilities.shape[1]))
    np.add.at(joint, index, source_probabilities / len(labels))
    conditional = joint / np.maximum(joint.sum(axis=0, keepdims=True), 1e-12)
    likelihood = (source_probabilities * conditional[index]).sum(axis=1)
    return float(np.log(np.maximum(likelihood, 1e-300)).mean())
