"""Every backend on every model: the same optimum, verified points, honest bounds."""

from __future__ import annotations

import os

import numpy as np
import pytest
from solver_models import brute_force, greedy_point, packing_model, queue_all, small_model

from ymir_opt.domain.errors import NotFoundError, SolverError
from ymir_opt.formulation.linear import UNBOUNDED, ModelBuilder
from ymir_opt.solvers import registry
from ymir_opt.solvers.base import Backend, Limits, Status, StoppedBy

NAMES = registry.names()
SMALL = {"highs": range(120), "cpsat": range(80), "pulp-highs": range(60), "cbc": range(40)}


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest) -> Backend:
    return registry.get(request.param)


def test_the_backends_of_the_contract_are_installed() -> None:
    assert {"highs", "pulp-highs", "cbc", "cpsat"} <= set(NAMES)
    assert all(registry.get(name).name == name for name in NAMES)


def test_small_models_match_enumeration(backend: Backend) -> None:
    infeasible = 0
    for seed in SMALL.get(backend.name, range(40)):
        model = small_model(seed)
        best = brute_force(model)
        result = backend.solve(model)
        if best is None:
            infeasible += 1
            assert result.status is Status.INFEASIBLE, seed
            assert (result.x, result.objective, result.bound) == (None, None, None)
            continue
        assert result.status is Status.OPTIMAL, seed
        assert result.x is not None
        assert len(model.violated(result.x)) == 0
        assert model.objective(result.x) == result.objective == result.bound == best, seed
        assert result.stopped_by is StoppedBy.OPTIMALITY
    assert infeasible >= 2


def test_same_optimum_to_the_quantum_on_set_packing(backend: Backend) -> None:
    reference = registry.get("cpsat")
    for seed in range(6):
        model = packing_model(seed)
        result = backend.solve(model)
        expected = reference.solve(model)
        assert result.status is Status.OPTIMAL
        assert result.objective == expected.objective == expected.bound
        assert result.bound == result.objective


def test_costs_that_differ_by_one_quantum_in_ten_billion(backend: Backend) -> None:
    builder = ModelBuilder()
    x = builder.variables(np.array([10**10 + 3, 10**10 + 1, 10**10 + 2, 10**10]))
    builder.row(x, 1, 2, 2, "coverage")
    builder.row(x[[1, 3]], 1, -UNBOUNDED, 1, "capacity")
    result = backend.solve(builder.build())
    assert result.objective == 2 * 10**10 + 2
    assert result.x is not None
    assert result.x.tolist() == [0, 0, 1, 1]


def test_gap_target_is_met_and_stated(backend: Backend) -> None:
    model = packing_model(3)
    best = registry.get("highs").solve(model).objective
    assert best is not None
    gap = best // 50
    result = backend.solve(model, limits=Limits(gap_quanta=gap))
    assert result.status is Status.OPTIMAL
    assert result.objective is not None
    assert result.bound is not None
    assert result.bound <= best <= result.objective <= result.bound + gap


@pytest.mark.parametrize("start", [queue_all, greedy_point])
def test_the_incumbent_survives_a_tiny_budget(backend: Backend, start: object) -> None:
    model = packing_model(8, jobs=60, columns=400, capacity=40)
    point = queue_all(model, 60) if start is queue_all else greedy_point(model, 60)
    for limits in (Limits(work=1e-6), Limits(wall_s=0.0)):
        result = backend.solve(model, incumbent=point, limits=limits)
        assert result.status in (Status.FEASIBLE, Status.OPTIMAL)
        assert result.x is not None
        assert len(model.violated(result.x)) == 0
        assert result.objective == model.objective(result.x) <= model.objective(point)
        assert result.bound is None or result.bound <= result.objective


def test_bounds_of_stopped_runs_hold(backend: Backend) -> None:
    model = packing_model(2)
    best = registry.get("cpsat").solve(model).objective
    assert best is not None
    for work in (1e-6, 1e-3, 1e-2):
        result = backend.solve(model, limits=Limits(work=work))
        if result.bound is not None:
            assert result.bound <= best
        if result.x is None:
            assert result.status is Status.NO_SOLUTION
            assert result.objective is None
        else:
            assert result.objective is not None
            assert result.objective >= best
        if result.status is Status.FEASIBLE:
            assert result.stopped_by in (StoppedBy.NODE_LIMIT, StoppedBy.DETERMINISTIC_LIMIT)


def test_optimal_incumbent_is_returned(backend: Backend) -> None:
    model = packing_model(1)
    best = backend.solve(model)
    again = backend.solve(model, incumbent=best.x)
    assert again.status is Status.OPTIMAL
    assert again.objective == best.objective


def test_two_runs_give_the_same_point(backend: Backend) -> None:
    for seed, limits in ((2, Limits()), (5, Limits(work=0.02))):
        model = packing_model(seed)
        first, second = (backend.solve(model, limits=limits, seed=7) for _ in range(2))
        assert (first.x is None) == (second.x is None)
        if first.x is not None and second.x is not None:
            assert np.array_equal(first.x, second.x)
        assert (first.status, first.bound, first.stopped_by) == (
            second.status,
            second.bound,
            second.stopped_by,
        )


def test_models_without_variables_or_rows(backend: Backend) -> None:
    empty = ModelBuilder(offset=5).build()
    result = backend.solve(empty)
    assert (result.status, result.objective, result.bound) == (Status.OPTIMAL, 5, 5)
    builder = ModelBuilder(offset=1)
    builder.variables(np.array([3, -2, 0]), upper=4)
    result = backend.solve(builder.build())
    assert (result.status, result.objective) == (Status.OPTIMAL, -7)
    builder.row([0], 0, 1, 1, "impossible")
    assert backend.solve(builder.build()).status is Status.INFEASIBLE
    unbounded = ModelBuilder()
    unbounded.variables(np.array([-1]), upper=UNBOUNDED)
    with pytest.raises(SolverError, match="unbounded"):
        backend.solve(unbounded.build())


def test_infeasible_incumbent_is_refused(backend: Backend) -> None:
    model = packing_model(0)
    with pytest.raises(SolverError, match=r"row 0 \(coverage\)"):
        backend.solve(model, incumbent=np.zeros(model.variables, np.int64))
    with pytest.raises(SolverError, match="one for each of 200 variables"):
        backend.solve(model, incumbent=np.zeros(3, np.int64))


def test_nothing_reaches_the_descriptors(backend: Backend, capfd: pytest.CaptureFixture[str]) -> None:
    backend.solve(packing_model(1), limits=Limits(wall_s=30.0))
    backend.solve(packing_model(2), limits=Limits(work=1e-6))
    os.write(1, b"out")
    os.write(2, b"err")
    assert capfd.readouterr() == ("out", "err")


def test_progress_reports_improving_points_and_valid_bounds() -> None:
    model = packing_model(4)
    for name in ("highs", "pulp-highs", "cpsat"):
        points: list[int] = []
        bounds: list[float] = []

        def note(x: np.ndarray | None, bound: float | None, points=points, bounds=bounds) -> None:
            if x is not None:
                assert len(model.violated(x)) == 0
                points.append(model.objective(x))
            if bound is not None:
                bounds.append(bound)

        result = registry.get(name).solve(model, progress=note)
        assert result.objective is not None
        assert points
        assert points == sorted(points, reverse=True)
        assert points[-1] == result.objective
        assert bounds
        assert max(bounds) <= result.objective + 0.5


def test_cpsat_refuses_sums_that_overflow() -> None:
    builder = ModelBuilder()
    x = builder.variables(np.array([2**50]), upper=UNBOUNDED)
    builder.row(x, 1, 1, UNBOUNDED, "cover")
    with pytest.raises(SolverError, match="62 bits"):
        registry.get("cpsat").solve(builder.build())
    assert registry.get("highs").solve(builder.build()).objective == 2**50


def test_unknown_names_are_met_with_the_nearest() -> None:
    with pytest.raises(NotFoundError, match=r"'hihgs'.*did you mean 'highs'") as caught:
        registry.get("hihgs")
    assert caught.value.exit_code == 2
    with pytest.raises(NotFoundError, match="choose one of"):
        registry.get("zzz")
    with pytest.raises(SolverError, match="does not make a backend"):
        registry.load("builtins:object")


def test_auto_is_a_registered_exact_backend() -> None:
    chosen = registry.choose(packing_model(0), 40)
    assert chosen.name in NAMES
    assert chosen.capabilities.exact
    assert chosen.capabilities.deterministic
