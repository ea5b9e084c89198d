"""The bound that exhaustive pricing proves, against the optimum that trying everything finds."""

from __future__ import annotations

import pytest
from brute import brute_force
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_generate import small_snapshot

from ymir_opt.candidates import PoolLimits
from ymir_opt.domain.plan import GapScope
from ymir_opt.planner.pipeline import plan_round
from ymir_opt.verify import check

# a pool that lacks much of what pays, so that pricing has something to find
NARROW = PoolLimits(
    exhaustive_below=0,
    pairs_per_job=1,
    grown_per_job=1,
    partners_per_job=1,
    counts_per_set=1,
    all_counts_to=1,
)


def improved(seed: int) -> bool:
    """Prove one case; return whether pricing found a better plan than the narrow pool has."""
    better = False
    snapshot = small_snapshot(seed)
    best = brute_force(snapshot)
    tolerance = max(1e-6 * abs(best.objective), 1e-8 * best.queueing)
    for gap in (0.0, 0.01):
        before = plan_round(snapshot, gap=gap, limits=NARROW, alternatives=False)
        plan = plan_round(snapshot, gap=gap, limits=NARROW, alternatives=False, prove=True)
        solver = plan.solver
        assert solver.gap_scope is GapScope.GLOBAL, seed
        assert solver.bound is not None
        assert solver.objective is not None
        assert before.solver.objective is not None
        assert solver.bound <= best.objective + tolerance, seed
        assert solver.objective <= before.solver.objective + 1e-12, seed
        if gap == 0.0:
            assert abs(solver.objective - best.objective) <= tolerance, seed
            assert abs(solver.bound - best.objective) <= tolerance, seed
            assert check(snapshot, plan) == []
            better |= solver.objective < before.solver.objective - tolerance
    return better


def test_the_bound_is_global_and_never_above_the_optimum() -> None:
    assert sum(improved(seed) for seed in range(12)) > 0


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(12, 10**6))
def test_the_bound_of_any_case(seed) -> None:
    improved(seed)
