"""When a target is reached: features without a scale, an honest distribution, and real curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ymir_models import FITTED
from ymir_models.artefact import read_artefact
from ymir_models.convergence.data import NEVER, CurveSet, cases, titan_curves
from ymir_models.convergence.evaluate import evaluate, last_increment, paper_curve
from ymir_models.convergence.features import FAR, curve_features, power_law
from ymir_models.convergence.fit import level_for, spread_levels
from ymir_models.convergence.model import HazardModel
from ymir_models.evaluation import markdown, summary

from ymir_opt.domain.errors import InputError

SHIPPED = HazardModel.from_fields(read_artefact(FITTED / "convergence.json", "convergence", 1).fields())


@pytest.fixture(scope="module")
def model() -> HazardModel:
    return SHIPPED


def curve(number: int, slope: float = 0.4) -> list[tuple[float, float]]:
    return [(1000.0 * e, 0.9 - slope / e) for e in range(1, number + 1)]


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_features_have_no_scale(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    curves = np.sort(rng.uniform(0.2, 0.8, (4, 5)), axis=1)
    target = np.full(4, 0.9)
    assert np.allclose(
        curve_features(curves, target), curve_features(factor * curves, factor * target), atol=1e-6
    )


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0, 2.0])
def test_an_exact_power_law_is_continued(power: float) -> None:
    moments = np.arange(1.0, 6.0)
    curves = (0.9 - 0.5 * moments**-power)[None, :]
    for reached in (7.0, 12.0, 25.0):
        target = np.array([0.9 - 0.5 * reached**-power])
        assert power_law(curves, target)[0] == pytest.approx(reached, rel=1e-6)
    assert power_law(curves, np.array([0.91]))[0] == FAR


def test_the_baselines_continue_what_they_should() -> None:
    line = np.array([[0.1, 0.2, 0.3]])
    assert last_increment(line, np.array([0.55]))[0] == 6
    assert last_increment(np.array([[0.3, 0.2]]), np.array([0.5]))[0] == 10
    moments = np.arange(1.0, 6.0)
    loss = 1 / (0.02 * moments**2 + 0.3 * moments + 1.5)
    wanted = 1 / (0.02 * 64 + 0.3 * 8 + 1.5)
    score = (1 - loss)[None, :]
    assert paper_curve(score, np.array([1 - wanted]), np.array([False]))[0] == pytest.approx(8, abs=1)


def test_a_reached_target_leaves_nothing_to_do(model: HazardModel) -> None:
    found = model.remaining(curve(4), 0.5, 1e5)
    assert found is not None
    assert (found.samples, found.low, found.high, found.p_reached) == (0.0, 0.0, 0.0, 1.0)


def test_too_little_is_abstained_from(model: HazardModel) -> None:
    assert model.remaining([], 0.9, 1e5) is None
    assert model.remaining(curve(1), 0.9, 1e5) is None
    assert model.remaining(curve(3), 0.95, 3000.0) is None


@pytest.mark.parametrize(
    ("points", "target", "message"),
    [
        ([(1.0, 0.1), (1.0, 0.2)], 0.9, "do not ascend"),
        ([(-1.0, 0.1), (1.0, 0.2)], 0.9, "do not ascend"),
        ([(1.0, math.nan), (2.0, 0.2)], 0.9, "not finite"),
        ([(1.0, 0.1), (2.0, 0.2)], math.inf, "not finite"),
    ],
)
def test_bad_curves_are_refused(
    model: HazardModel, points: list[tuple[float, float]], target: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model.remaining(points, target, 1e5)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 30), st.floats(0.05, 0.6), st.floats(0.6, 0.95), st.floats(1.05, 20))
def test_limits_are_ordered_and_inside_the_horizon(
    number: int, slope: float, target: float, more: float
) -> None:
    points = curve(number, slope)
    most = more * points[-1][0]
    found = SHIPPED.remaining(points, target, most)
    assert found is not None
    assert 0 <= found.low <= found.samples <= found.high <= most - points[-1][0] + 1e-6
    assert 0 <= found.p_reached <= 1


def test_samples_are_the_only_unit(model: HazardModel) -> None:
    small = model.remaining(curve(4), 0.85, 2e4)
    large = model.remaining([(50 * s, v) for s, v in curve(4)], 0.85, 1e6)
    assert small is not None
    assert large is not None
    assert large.samples == pytest.approx(50 * small.samples)
    assert large.p_reached == pytest.approx(small.p_reached)


def test_a_further_target_takes_longer_and_is_less_likely(model: HazardModel) -> None:
    near, far = (model.remaining(curve(4), target, 2e4) for target in (0.82, 0.89))
    assert near is not None
    assert far is not None
    assert near.p_reached > far.p_reached
    assert near.samples < far.samples


def test_what_is_left_shrinks_while_a_job_runs(model: HazardModel) -> None:
    left = [model.remaining(curve(seen), 0.86, 2e4) for seen in (3, 5, 7)]
    samples = [found.samples for found in left if found is not None]
    assert samples == sorted(samples, reverse=True)


def test_a_level_is_recalibrated_to_the_share_below_it() -> None:
    # truths always in the lower half of their distribution: the upper 80 % limit lies at its 0.45 level
    low, high = np.zeros(50), np.full(50, 0.5)
    assert level_for(low, high, 0.9) == pytest.approx(0.45, abs=0.01)
    share = np.array([[0.2, 0.7, 1.0]])
    bottom, top = spread_levels(share, np.array([1]))
    assert (bottom[0], top[0]) == (0.2, 0.7)


def test_cases_are_only_targets_that_are_still_open() -> None:
    values = np.array([np.linspace(0.1, 1.0, 10), np.full(10, 0.5)])
    curves = CurveSet(values, np.array(["a", "b"]), np.array([1.0, 1.0]), np.zeros(2, dtype=bool))
    some = cases(curves, 3)
    assert (values[some.curve, :3].max(axis=1) < some.target).all()
    assert ((some.reached > 3) & (some.reached <= NEVER)).all()
    # the flat curve never reaches a share of the other's best
    assert (some.reached[some.curve == 1] == NEVER).all()


@pytest.mark.data
def test_the_curves_are_read_as_documented(data_dir: Path) -> None:
    curves = titan_curves(data_dir / "titan")
    assert curves.values.shape == (1024, 10)
    assert np.isfinite(curves.values).all()
    assert (curves.best >= curves.values.max(axis=1)).all()
    assert set(curves.task[curves.loss]) == {"wikitext-103"}


@pytest.mark.data
@pytest.mark.slow
def test_the_quick_evaluation_of_curves_runs(data_dir: Path) -> None:
    rows = evaluate(data_dir / "titan", quick=True)
    assert {row.split for row in rows} == {"first epoch, reached", "any target", "control: shuffled labels"}


@pytest.mark.slow
@pytest.mark.data
def test_every_baseline_is_beaten_with_certainty(data_dir: Path, documented: Callable[[str], str]) -> None:
    rows = evaluate(data_dir / "titan")
    assert documented("convergence") == markdown(summary(rows))
    for row in rows:
        if row.split == "first epoch, reached":
            best = min(metrics["mae"] for metrics in row.baselines.values())
            assert row.metrics["mae"] < best
            assert row.metrics["gain, low"] > 0
            for level in (80, 95):
                off = abs(row.metrics[f"cover{level}"] - level / 100)
                assert off <= max(3 * row.metrics[f"cover{level} se"], 0.03)
        if row.split == "any target":
            assert row.metrics["brier skill"] > 0.2
    assert all(t.reached(row.metrics) for row in rows for t in row.targets)
