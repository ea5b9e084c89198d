"""Prices first, then whole groups: exact at gap 0, within the target and honest above it."""

from __future__ import annotations

import numpy as np
import pytest
from solver_models import brute_force, packing_model, queue_all, small_model

from ymir_opt.solvers import registry
from ymir_opt.solvers.base import Limits, Status
from ymir_opt.solvers.dive import dive
from ymir_opt.solvers.strengthen import strengthen


def test_decompose_equals_enumeration() -> None:
    backend = registry.get("decompose")
    for seed in range(150):
        model = small_model(seed)
        best = brute_force(model)
        result = backend.solve(model)
        if best is None:
            assert result.status is Status.INFEASIBLE, seed
        else:
            assert result.status is Status.OPTIMAL, seed
            assert result.objective == result.bound == best, seed


@pytest.mark.parametrize("jobs", [40, 60])
def test_within_the_gap_of_exact_backends(jobs: int) -> None:
    for seed in range(4):
        model = packing_model(seed, jobs=jobs, columns=jobs * 5)
        best = registry.get("cpsat").solve(model).objective
        assert best is not None
        assert registry.get("decompose").solve(model).objective == best
        total = model.objective(queue_all(model, jobs))
        for share in (1e-4, 1e-2):
            gap = int(share * (total - best))
            result = registry.get("decompose").solve(model, limits=Limits(gap_quanta=gap))
            assert result.status is Status.OPTIMAL
            assert result.objective is not None
            assert result.bound is not None
            assert result.bound <= best <= result.objective <= result.bound + gap


def test_a_dive_ends_within_the_gap_or_nowhere() -> None:
    ended = 0
    for seed in range(12):
        model = packing_model(seed)
        best = registry.get("decompose").solve(model).objective
        assert best is not None
        total = model.objective(queue_all(model))
        for share in (1e-3, 0.02, 0.2):
            gap = int(share * (total - best))
            found = strengthen(model)
            assert found is not None
            strong, lp, master = found
            assert lp.bound is not None
            assert lp.bound <= best
            assert master is not None
            point = dive(master, strong, lp, gap)
            if point is not None:
                ended += 1
                assert not len(model.violated(point)), seed
                assert best <= model.objective(point) <= lp.bound + gap, seed
            elif share == 0.2:
                pytest.fail(f"no point within a fifth of the value, seed {seed}")
    assert ended >= 20


def test_the_incumbent_is_never_lost() -> None:
    for seed in range(6):
        model = packing_model(seed)
        best = registry.get("decompose").solve(model)
        assert best.x is not None
        assert best.objective is not None
        gap = abs(best.objective) // 5
        again = registry.get("decompose").solve(model, incumbent=best.x, limits=Limits(gap_quanta=gap))
        assert again.objective == best.objective


def test_equal_inputs_give_equal_points() -> None:
    model = packing_model(3, jobs=80, columns=600)
    gap = 10**6
    one, two = (registry.get("decompose").solve(model, limits=Limits(gap_quanta=gap)) for _ in range(2))
    assert one.x is not None
    assert two.x is not None
    assert np.array_equal(one.x, two.x)
    assert one.bound == two.bound
