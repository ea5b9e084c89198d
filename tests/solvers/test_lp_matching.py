"""The relaxation's bound and prices, reduced-cost fixing, and matching, against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from solver_models import brute_force, packing_model, small_model

from ymir_opt.domain.errors import InputError, SolverError
from ymir_opt.formulation.linear import UNBOUNDED, ModelBuilder
from ymir_opt.solvers import registry
from ymir_opt.solvers.lp import fixable, relax
from ymir_opt.solvers.matching import best_pairs


def test_weak_duality_and_signs_on_small_models() -> None:
    bounded = 0
    for seed in range(150):
        model = small_model(seed)
        best = brute_force(model)
        lp = relax(model)
        if lp is None:
            assert best is None
            continue
        assert np.all((lp.row_duals <= 0) | (model.row_lower > -UNBOUNDED))
        assert np.all((lp.row_duals >= 0) | (model.row_upper < UNBOUNDED))
        # complementary slackness gives the sign convention; prices are rounded to 2^-10 quanta
        tolerance = 0.1 + 1e-6 * np.abs(model.cost).max()
        high, low = lp.reduced_costs > tolerance, lp.reduced_costs < -tolerance
        assert np.all(lp.x[high] <= model.lower[high] + 1e-6)
        assert np.all(lp.x[low] >= model.upper[low] - 1e-6)
        dense = np.zeros((model.rows, model.variables))
        row = np.repeat(np.arange(model.rows), np.diff(model.row_start))
        np.add.at(dense, (row, model.index), model.value)
        assert np.allclose(lp.reduced_costs, model.cost - dense.T @ lp.row_duals, rtol=0, atol=1e-6)
        if lp.bound is not None:
            bounded += 1
            assert lp.bound >= lp.objective - 1.0 - 1e-9 * abs(lp.objective)
            if best is not None:
                assert lp.objective <= best + 0.5
                assert lp.bound <= best
    assert bounded > 100


def test_a_capacity_price_is_the_value_of_one_more_unit() -> None:
    builder = ModelBuilder()
    run, wait = builder.variables(np.array([1, 2, 3])), builder.variables(np.array([10, 20, 30]))
    for job in range(3):
        builder.row([run[job], wait[job]], 1, 1, 1, "coverage")
    builder.row(run, 2, -UNBOUNDED, 3, "capacity")
    lp = relax(builder.build())
    assert lp is not None
    # 1.5 jobs run: the third wholly, half of the second; two more units are worth 18
    assert lp.row_duals[-1] == pytest.approx(-9.0)
    assert lp.objective == pytest.approx(3 + 0.5 * 2 + 0.5 * 20 + 10)


def test_fixing_by_reduced_costs_keeps_every_good_point() -> None:
    fixed = 0
    for seed in range(6):
        model = packing_model(seed)
        lp = relax(model)
        best = registry.get("highs").solve(model)
        assert lp is not None
        assert best.x is not None
        assert best.objective is not None
        mask = fixable(model, lp, best.objective)
        fixed += int(mask.sum())
        at = np.where(lp.reduced_costs > 0, model.lower, model.upper)
        assert np.array_equal(best.x[mask], at[mask])
        # nothing can be fixed for points that need not be good
        assert not fixable(model, lp, best.objective + 10**14).any()
    for seed in range(60):
        model = small_model(seed)
        best_value, lp = brute_force(model), relax(model)
        if best_value is None or lp is None:
            continue
        for j in np.flatnonzero(fixable(model, lp, best_value)):
            # moving the variable off its bound costs more than the optimum
            moved = ModelBuilder(offset=model.offset)
            low, high = model.lower.copy(), model.upper.copy()
            if lp.reduced_costs[j] > 0:
                low[j] += 1
            else:
                high[j] -= 1
            if low[j] > high[j]:
                continue
            moved.variables(model.cost, low, high)
            for row in range(model.rows):
                part = slice(model.row_start[row], model.row_start[row + 1])
                moved.row(
                    model.index[part],
                    model.value[part],
                    int(model.row_lower[row]),
                    int(model.row_upper[row]),
                    "copy",
                )
            other = brute_force(moved.build())
            assert other is None or other > best_value
            fixed += 1
    assert fixed > 100


def test_relaxations_without_an_optimum() -> None:
    builder = ModelBuilder()
    x = builder.variables(np.array([-1, 1]), upper=UNBOUNDED)
    builder.row(x, [1, -1], 0, UNBOUNDED, "cover")
    with pytest.raises(SolverError, match="relaxation"):
        relax(builder.build())
    builder.row(x, [1, 1], -UNBOUNDED, -1, "impossible")
    assert relax(builder.build()) is None
    empty = relax(ModelBuilder(offset=3).build())
    assert empty is not None
    assert (empty.objective, empty.bound) == (3.0, 3)


def pairs_by_enumeration(solo: np.ndarray, pair: np.ndarray, gain: np.ndarray) -> int:
    best = 0
    for size in range(len(solo) // 2 + 1):
        for rows in itertools.combinations(range(len(pair)), size):
            used = pair[list(rows)].ravel()
            if len(set(used.tolist())) < len(used):
                continue
            rest = np.setdiff1d(np.arange(len(solo)), used)
            best = max(best, int(gain[list(rows)].sum() + np.maximum(solo[rest], 0).sum()))
    return best


def test_matching_equals_enumeration() -> None:
    for seed in range(120):
        rng = np.random.default_rng(seed)
        jobs = int(rng.integers(0, 7))
        every = np.array(list(itertools.combinations(range(jobs), 2)), dtype=np.int64).reshape(-1, 2)
        pair = every[rng.random(len(every)) < 0.7]
        pair = np.concatenate([pair, pair[:1, ::-1]])  # a repeated pair, turned round
        solo, gain = rng.integers(-5, 20, jobs), rng.integers(-10, 45, len(pair)) * 10**8
        solo = solo * 10**8
        chosen, singles, total = best_pairs(jobs, solo, pair, gain)
        assert total == pairs_by_enumeration(solo, pair, gain)
        assert total == int(gain[chosen].sum() + solo[singles].sum())
        used = np.concatenate([pair[chosen].ravel(), singles])
        assert len(set(used.tolist())) == len(used)


def test_matching_refuses_what_is_no_pair() -> None:
    with pytest.raises(InputError, match="two different jobs"):
        best_pairs(2, np.array([1, 1]), np.array([[1, 1]]), np.array([3]))
    with pytest.raises(InputError, match="two different jobs"):
        best_pairs(2, np.array([1, 1]), np.array([[0, 2]]), np.array([3]))
    with pytest.raises(InputError, match="different lengths"):
        best_pairs(2, np.array([1]), np.array([[0, 1]]), np.array([3]))
