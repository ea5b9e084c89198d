"""Scores of features: known values, invariances, and that they see structure where there is some."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from ymir_profiler.scores.features import cosine, h_score, leep, logme, transrate
from ymir_profiler.scores.registry import task2vec_similarity


def _clusters(separation: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(240) % 3
    centres = rng.normal(size=(3, 16)) * separation
    return centres[labels] + rng.normal(size=(240, 16)), labels


@pytest.mark.parametrize("score", [logme, h_score, transrate])
def test_better_separated_classes_score_higher(score: object) -> None:
    values = [score(*_clusters(s)) for s in (0.0, 0.5, 2.0)]  # type: ignore[operator]
    assert values[0] < values[1] < values[2]


def test_logme_is_the_evidence_of_the_linear_model() -> None:
    features, labels = _clusters(0.7)
    features, labels = features[:40, :5], labels[:40]
    # brute force: the largest marginal likelihood over a fine grid of both precisions
    best = []
    for label in np.unique(labels):
        y = (labels == label).astype(float)
        grid = [
            stats.multivariate_normal.logpdf(y, cov=np.eye(40) / beta + features @ features.T / alpha)
            for alpha in np.logspace(0, 3, 16)
            for beta in np.logspace(0, 1.5, 16)
        ]
        best.append(max(grid) / 40)
    assert logme(features, labels) == pytest.approx(np.mean(best), abs=0.01)


def test_h_score_without_shrinkage_is_its_definition() -> None:
    features, labels = _clusters(1.0)
    centred = features - features.mean(axis=0)
    means = np.stack([centred[labels == label].mean(axis=0) for label in labels])
    plain = np.trace(np.linalg.inv(np.cov(centred.T)) @ np.cov(means.T))
    assert h_score(features, labels) == pytest.approx(plain, rel=0.1)


def test_leep_of_perfect_and_useless_sources() -> None:
    labels = np.arange(60) % 3
    assert leep(np.eye(3)[labels], labels) == pytest.approx(0.0, abs=1e-9)
    assert leep(np.eye(3)[(labels + 1) % 3], labels) == pytest.approx(0.0, abs=1e-9)
    assert leep(np.full((60, 4), 0.25), labels) == pytest.approx(np.log(1 / 3))


def test_cosines() -> None:
    a = np.array([1.0, 2.0, 0.0])
    assert cosine(a, 3 * a) == pytest.approx(1.0)
    assert cosine(a, np.zeros(3)) == 0.0
    assert task2vec_similarity(a, a) == pytest.approx(1.0)
    assert task2vec_similarity(a, a[::-1]) < 1.0
