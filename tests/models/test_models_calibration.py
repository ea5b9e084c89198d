"""Intervals, probabilities and scores, against definitions and against scikit-learn and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ymir_models.conformal import clustered_radius, platt, radius
from ymir_models.logistic import fit_logistic, sigmoid
from ymir_models.scores import (
    auc,
    bootstrap,
    brier_skill,
    calibration_error,
    mean_known,
    ndcg,
    ranks,
    regret,
    spearman,
)


@settings(deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), st.sampled_from([0.5, 0.8, 0.95]))
def test_radius_is_the_conformal_order_statistic(values: list[float], level: float) -> None:
    position = math.ceil((len(values) + 1) * level)
    expected = math.inf if position > len(values) else sorted(values)[position - 1]
    assert radius(values, level) == expected


def test_radius_covers_the_next_case_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        errors = rng.standard_cauchy(31)
        inside += abs(errors[-1]) <= radius(errors[:-1], 0.8)
    # exact coverage is 25/31 for 30 residuals; five standard errors of 2000 trials are 0.044
    assert abs(inside / 2000 - 25 / 31) < 0.044


def test_every_cluster_counts_the_same() -> None:
    # one cluster of a hundred small errors, nine of one large: 80 % of the clusters' weight is large
    residuals = [0.1] * 100 + [1.0] * 9
    clusters = [0] * 100 + list(range(1, 10))
    assert clustered_radius(residuals, clusters, 0.8) == 1.0
    assert clustered_radius(residuals, clusters, 0.1) == pytest.approx(0.1)
    assert radius(residuals, 0.8) == pytest.approx(0.1)


def test_logistic_regression_agrees_with_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 4))
    y = rng.random(200) < sigmoid(x @ [1.0, -2.0, 0.0, 0.5] + 0.3)
    design = np.column_stack([x, np.ones(200)])
    ours = fit_logistic(design, y, [2.0, 2.0, 2.0, 2.0, 0.0])
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=1000).fit(x, y)
    assert np.allclose(ours[:-1], theirs.coef_[0], atol=1e-4)
    assert ours[-1] == pytest.approx(theirs.intercept_[0], abs=1e-4)


def test_logistic_regression_does_not_run_away_on_separable_data() -> None:
    x = np.array([[-1.0, 1.0], [-0.5, 1.0], [0.5, 1.0], [1.0, 1.0]])
    weights = fit_logistic(x, [False, False, True, True], [0.1, 1e-6])
    assert np.isfinite(weights).all()
    slope, intercept = platt([False, False, True, True], [-1.0, -0.5, 0.5, 1.0])
    assert 0 < slope < 1e3
    assert abs(intercept) < 1.0


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_scores_agree_with_scikit_learn_and_scipy(seed: int) -> None:
    from scipy.stats import spearmanr
    from sklearn.metrics import ndcg_score, roc_auc_score

    rng = np.random.default_rng(seed)
    truth = rng.random(30) < 0.4
    score = np.round(rng.random(30), 1)
    if truth.any() and not truth.all():
        assert auc(truth, score) == pytest.approx(roc_auc_score(truth, score))
    value = rng.random(30)
    assert spearman(value, score) == pytest.approx(spearmanr(value, score).statistic)
    gains = (value - value.min()) / np.ptp(value)
    assert ndcg(value, rng.permutation(30) + 0.0) <= 1.0
    unique = rng.permutation(30).astype(float)
    assert ndcg(value, unique) == pytest.approx(ndcg_score(gains[None], unique[None]))


def test_auc_needs_both_classes() -> None:
    assert math.isnan(auc([True, True], [0.1, 0.2]))


def test_regret_is_what_the_choice_loses() -> None:
    worth, score = [1.0, 4.0, 2.0, math.nan], [0.9, 0.1, 0.5, 2.0]
    assert regret(worth, score, 1) == pytest.approx(0.75)
    assert regret(worth, score, 2) == pytest.approx(0.5)
    assert regret(worth, score, 3) == 0.0
    assert regret(worth, [math.nan, 1.0, math.nan, math.nan]) == 0.0


def test_ranks_share_ties_and_skip_gaps() -> None:
    found = ranks([3.0, 1.0, math.nan, 3.0])
    assert found[[0, 1, 3]].tolist() == [0.75, 0.0, 0.75]
    assert math.isnan(found[2])


def test_a_perfectly_calibrated_forecast_has_little_error_and_the_majority_has_no_skill() -> None:
    rng = np.random.default_rng(2)
    p = rng.random(20_000)
    y = rng.random(20_000) < p
    assert calibration_error(y, p) < 0.02
    assert calibration_error(y, np.clip(p + 0.2, 0, 1)) > 0.1
    share = np.full(20_000, y.mean())
    assert brier_skill(y, share, share) == 0.0
    assert brier_skill(y, p, share) > 0.25


def test_the_bootstrap_finds_the_standard_error_of_a_mean() -> None:
    values = np.random.default_rng(3).normal(size=100)
    error, low, high = bootstrap(100, lambda chosen: float(values[chosen].mean()))
    assert error == pytest.approx(values.std() / 10, rel=0.1)
    assert low < values.mean() < high


def test_the_mean_of_what_is_known() -> None:
    found = mean_known([[1.0, math.nan], [3.0, math.nan]], 0)
    assert found[0] == 2.0
    assert math.isnan(found[1])
