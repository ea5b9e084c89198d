"""The Lagrangian bound: never above an optimum, at every step, and next to the linear relaxation's."""

from __future__ import annotations

import numpy as np
import pytest
from solver_models import brute_force, packing_model, small_model

from ymir_opt.solvers.lp import proven, relax
from ymir_opt.solvers.sifting import Relaxation
from ymir_opt.solvers.subgradient import subgradient


def exact(model, prices):
    return proven(model, Relaxation(prices, np.zeros(model.variables), optimal=False)).bound


def test_no_step_of_it_exceeds_the_optimum() -> None:
    raised = 0
    for seed in range(120):
        model = small_model(seed)
        best = brute_force(model)
        if best is None:
            continue
        found = subgradient(model, upper_bound=best, iterations=60)
        assert found.history.max() == pytest.approx(found.bound)
        assert np.all(found.history <= best + 1e-6 * max(1, abs(best)))
        bound = exact(model, found.row_duals)
        assert bound is None or bound <= best
        raised += found.bound > found.history[0] + 1e-9
    assert raised > 30


@pytest.mark.parametrize("seed", range(4))
def test_it_comes_close_to_the_relaxation_that_sifting_finds(seed: int) -> None:
    model = packing_model(seed)
    lp = relax(model)
    assert lp is not None
    found = subgradient(model, iterations=600)
    assert found.bound <= lp.objective + 1e-6 * abs(lp.objective)
    assert found.bound == pytest.approx(lp.objective, rel=1e-2)
    assert exact(model, found.row_duals) == pytest.approx(found.bound, abs=2)


def test_good_prices_need_no_steps_and_no_step_loses_them() -> None:
    model = packing_model(7)
    lp = relax(model)
    assert lp is not None
    assert lp.bound is not None
    found = subgradient(model, start=lp.row_duals, iterations=20)
    assert found.bound >= lp.bound - 1 - 1e-6 * abs(lp.bound)


def test_it_is_the_same_every_time() -> None:
    model = packing_model(3)
    one, two = (subgradient(model, iterations=50) for _ in range(2))
    assert np.array_equal(one.row_duals, two.row_duals)
