"""The exact filter of columns and sifting: nothing is lost, whatever the thresholds."""

from __future__ import annotations

import time

import numpy as np
import pytest
from solver_models import brute_force, packing_model, queue_all, small_model

from ymir_opt.formulation.linear import UNBOUNDED, LinearModel
from ymir_opt.solvers import filtered, highs, lp, registry
from ymir_opt.solvers.base import Limits, SolveResult, Status, StoppedBy
from ymir_opt.solvers.filtered import restrict, solve_filtered
from ymir_opt.solvers.highs_core import solve_whole
from ymir_opt.solvers.sifting import sift


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with next to no columns, so that every step of the loop is taken."""
    monkeypatch.setattr(filtered, "LEAST_COLUMNS", 1)
    monkeypatch.setattr(filtered, "COLUMNS_PER_ROW", 0)
    monkeypatch.setattr(filtered, "GROWTH", 2)


@pytest.mark.usefixtures("_tiny")
def test_filtered_equals_enumeration() -> None:
    outcomes = []
    for seed in range(200):
        model = small_model(seed)
        best = brute_force(model)
        result = solve_filtered(solve_whole, model, None, Limits(), 0, None)
        outcomes.append(result.status)
        if best is None:
            assert result.status is Status.INFEASIBLE, seed
        else:
            assert result.status is Status.OPTIMAL, seed
            assert result.objective == result.bound == best, seed
    assert outcomes.count(Status.INFEASIBLE) >= 5


@pytest.mark.usefixtures("_tiny")
def test_filtered_takes_several_steps_and_keeps_the_gap() -> None:
    steps: list[int] = []

    def counted(model: LinearModel, *rest: object) -> SolveResult:
        steps.append(model.variables)
        return solve_whole(model, *rest)  # type: ignore[arg-type]

    for seed in range(6):
        model = packing_model(seed)
        best = registry.get("cpsat").solve(model).objective
        assert best is not None
        points: list[int] = []
        bounds: list[float] = []

        def note(
            x: np.ndarray | None, bound: float | None, model=model, points=points, bounds=bounds
        ) -> None:
            if x is not None:
                assert len(model.violated(x)) == 0
                points.append(model.objective(x))
            if bound is not None:
                bounds.append(bound)

        steps.clear()
        exact = solve_filtered(counted, model, None, Limits(), 0, note)
        assert exact.objective == exact.bound == best
        assert len(steps) > 1
        assert steps == sorted(steps)
        assert min(points) == best
        assert max(bounds) <= best + 0.5
        gap = best // 100
        loose = solve_filtered(counted, model, queue_all(model), Limits(gap_quanta=gap), 0, None)
        assert loose.status is Status.OPTIMAL
        assert loose.bound is not None
        assert loose.objective is not None
        assert loose.bound <= best <= loose.objective <= loose.bound + gap


@pytest.mark.usefixtures("_tiny")
def test_stopped_runs_keep_the_incumbent_and_a_valid_bound() -> None:
    for seed in range(4):
        model = packing_model(seed)
        best = registry.get("cpsat").solve(model).objective
        assert best is not None
        for limits in (Limits(wall_s=0.0), Limits(work=1e-6)):
            result = solve_filtered(solve_whole, model, queue_all(model), limits, 0, None)
            assert result.objective is not None
            assert best <= result.objective <= model.objective(queue_all(model))
            assert result.bound is None or result.bound <= best
    assert solve_filtered(solve_whole, model, None, Limits(wall_s=0.0), 0, None).status is Status.NO_SOLUTION


def test_restricted_models_mean_the_same() -> None:
    for seed in range(60):
        model = small_model(seed)
        rng = np.random.default_rng(seed)
        keep = rng.random(model.variables) < 0.6
        finite = np.where(model.upper >= UNBOUNDED, model.lower + 2, model.upper)
        at = rng.integers(model.lower, finite + 1)
        small, free = restrict(model, keep, at)
        x = at.copy()
        x[free] = rng.integers(model.lower[free], finite[free] + 1)
        assert small.objective(x[free]) == model.objective(x)
        assert np.array_equal(small.violated(x[free]), model.violated(x))


def test_sifting_reaches_the_optimum_of_the_simplex_method() -> None:
    for seed in range(5):
        model = packing_model(seed, jobs=25, columns=1200, capacity=20)
        found = sift(model)
        assert found is not None
        assert found.optimal
        whole = lp._simplex(model, None)
        assert whole is not None
        assert model.cost @ found.x == pytest.approx(model.cost @ whole.x, rel=1e-12)
        assert np.all(found.x >= -1e-9)
        relaxed = lp.relax(model)
        assert relaxed is not None
        assert relaxed.bound is not None
        assert 0 <= relaxed.bound - relaxed.objective <= 1


def test_a_late_relaxation_still_bounds() -> None:
    model = packing_model(0, jobs=25, columns=1200, capacity=20)
    late = lp.relax(model, deadline=time.monotonic() - 1.0)
    assert late is not None
    assert not late.optimal
    assert late.bound is not None
    best = registry.get("highs").solve(model, limits=Limits(gap_quanta=10**8))
    assert best.objective is not None
    assert late.bound <= best.objective
    result = solve_filtered(solve_whole, model, queue_all(model, 25), Limits(wall_s=0.0), 0, None)
    assert result.stopped_by is StoppedBy.WALL_CLOCK


def test_large_models_are_filtered_and_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    model = packing_model(2, jobs=30, columns=900, capacity=20)
    assert model.variables >= highs.FILTER_FROM
    filtered_result = registry.get("highs").solve(model)
    monkeypatch.setattr(highs, "FILTER_FROM", 10**9)
    whole_result = registry.get("highs").solve(model)
    assert filtered_result.status is Status.OPTIMAL
    assert filtered_result.objective == whole_result.objective == filtered_result.bound
