"""``prove_global``: the same as over all columns, never worse than without, honest where a limit strikes."""

from __future__ import annotations

import numpy as np
import pytest

from ymir_opt.candidates import PoolLimits
from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.plan import GapScope, Plan, StoppedBy
from ymir_opt.domain.snapshot import JobState, Snapshot
from ymir_opt.planner import pipeline, proving, solve
from ymir_opt.planner.pipeline import plan_round
from ymir_opt.planner.proving import asked_of
from ymir_opt.verify import check

EVERYTHING = PoolLimits(exhaustive_below=10**9)


def value(plan: Plan) -> tuple[float, float]:
    assert plan.solver.objective is not None
    assert plan.solver.bound is not None
    return plan.solver.objective, plan.solver.bound


@pytest.mark.parametrize(("jobs", "gpus", "seed"), [(20, 8, 0), (30, 64, 1), (40, 16, 2), (40, 64, 3)])
def test_pricing_and_enumeration_prove_the_same(jobs, gpus, seed, monkeypatch) -> None:
    snapshot = synthetic_snapshot(jobs, gpus, seed)
    full = plan_round(snapshot, gap=0.0, limits=EVERYTHING, alternatives=False)
    assert full.solver.gap_scope is GapScope.GLOBAL
    monkeypatch.setattr(pipeline, "FEW_SETS", 0)
    plan = solve(snapshot, gap=0.0, prove_global=True, alternatives=False)
    assert plan.solver.gap_scope is GapScope.GLOBAL
    assert int(plan.labels[pipeline.SETS_LABEL]) > 0
    assert int(plan.labels[pipeline.ROUNDS_LABEL]) > 0
    assert value(plan) == pytest.approx(value(full), rel=1e-9)
    assert check(snapshot, plan) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_jobs(seed) -> None:
    snapshot = synthetic_snapshot(100, 32, seed)
    full = plan_round(snapshot, gap=0.0, limits=EVERYTHING, alternatives=False)
    plan = solve(snapshot, gap=0.0, prove_global=True, alternatives=False)
    assert full.solver.gap_scope is plan.solver.gap_scope is GapScope.GLOBAL
    assert value(plan) == pytest.approx(value(full), rel=1e-9)


def test_never_worse_than_without() -> None:
    for seed in range(2):
        snapshot = synthetic_snapshot(110, 40, seed)
        before = solve(snapshot, alternatives=False)
        plan = solve(snapshot, prove_global=True, alternatives=False)
        assert plan.solver.gap_scope is GapScope.GLOBAL
        assert plan.solver.value_gap is not None
        assert plan.solver.value_gap <= 1e-4
        assert value(plan)[0] <= value(before)[0]
        assert plan.solver.candidates.exhaustive


def test_equal_twice() -> None:
    snapshot = synthetic_snapshot(100, 16, 1)
    one, two = (solve(snapshot, prove_global=True, alternatives=False) for _ in range(2))
    assert one.groups == two.groups
    assert one.labels == two.labels


def test_a_limit_leaves_the_pool_and_says_which(monkeypatch) -> None:
    snapshot = synthetic_snapshot(100, 16, 1)
    before = solve(snapshot, alternatives=False)
    monkeypatch.setattr(proving, "MOST_SETS", 100)
    plan = solve(snapshot, prove_global=True, alternatives=False)
    assert plan.solver.gap_scope is GapScope.POOL
    assert not plan.solver.candidates.exhaustive
    assert "more than 100 sets" in plan.labels["note"]
    assert value(plan)[0] <= value(before)[0]
    assert check(snapshot, plan) == []


def test_the_guard_is_honoured() -> None:
    snapshot = synthetic_snapshot(200, 128, 0)
    plan = solve(snapshot, prove_global=True, time_limit_s=0.4, alternatives=False)
    if plan.solver.gap_scope is GapScope.POOL:
        assert "(too little time)" in plan.labels["note"]
        assert plan.solver.stopped_by is StoppedBy.WALL_CLOCK
    assert check(snapshot, plan) == []


def test_at_the_prices_no_column_of_the_pool_pays(monkeypatch) -> None:
    """Columns at their upper bound hand their price over, without lowering the bound."""
    seen = []

    def spied(work, stated, pool, gap, deadline):
        found = asked_of(work, stated, pool, gap, deadline)
        if found is not None:
            seen.append((work.table, *found))
        return found

    monkeypatch.setattr(proving, "asked_of", spied)
    solve(synthetic_snapshot(100, 16, 0), prove_global=True, alternatives=False)
    assert seen
    for table, floor, asked in seen:
        new = table.take(np.flatnonzero(table.keep < 0))
        worth = np.append(asked.worth, 0.0)[new.jobs].sum(axis=1)
        # other rows and inequalities only raise reduced costs
        assert floor > 0
        alone = new.size == 1
        reduced = new.cost - worth + asked.gpu[new.type] * new.gpus
        assert reduced[alone].min() >= -1e-6 * abs(floor)
        assert (asked.worth <= table.queued_cost + 1e-9).all()


def with_twins(snapshot: Snapshot, copies: int) -> Snapshot:
    """Return the snapshot with every waiting job so many times over."""
    waiting = [job for job in snapshot.jobs if job.state is JobState.PENDING]
    twins = [job.model_copy(update={"id": f"{job.id}-{k}"}) for job in waiting for k in range(1, copies)]
    return snapshot.model_copy(update={"jobs": (*snapshot.jobs, *twins)})


@pytest.mark.parametrize("seed", range(3))
def test_equal_jobs_are_looked_at_four_at_a_time(seed, monkeypatch) -> None:
    snapshot = with_twins(synthetic_snapshot(6, 8, seed), 6)
    full = plan_round(snapshot, gap=0.0, limits=EVERYTHING, alternatives=False)
    assert full.solver.gap_scope is GapScope.GLOBAL
    monkeypatch.setattr(pipeline, "FEW_SETS", 0)
    plan = solve(snapshot, gap=0.0, prove_global=True, alternatives=False)
    assert plan.solver.gap_scope is GapScope.GLOBAL
    assert value(plan) == pytest.approx(value(full), rel=1e-9)


def test_many_equal_jobs_are_no_burden() -> None:
    snapshot = with_twins(synthetic_snapshot(8, 64, 1), 30)
    plan = solve(snapshot, prove_global=True, alternatives=False)
    assert plan.solver.gap_scope is GapScope.GLOBAL
    assert int(plan.labels[pipeline.SETS_LABEL]) < 1_000_000


def test_what_a_limit_leaves_is_of_one_pool(monkeypatch) -> None:
    """Columns that joined after the last solution are no part of what its bound was proven over."""
    snapshot = synthetic_snapshot(200, 128, 0)
    before = solve(snapshot, alternatives=False)
    monkeypatch.setattr(proving, "PRICINGS", 1)
    plan = solve(snapshot, prove_global=True, alternatives=False)
    assert plan.solver.gap_scope is GapScope.POOL
    assert "more than 1 pricings" in plan.labels["note"]
    assert plan.solver.candidates.columns == before.solver.candidates.columns
    assert value(plan) == value(before)


def test_who_starts_no_groups_proves_among_single_jobs() -> None:
    snapshot = synthetic_snapshot(60, 64, 2)
    plan = solve(snapshot, policy="ymir-no-merge", prove_global=True, alternatives=False)
    assert plan.solver.gap_scope is GapScope.GLOBAL
    assert all(len(group.jobs) == 1 for group in plan.groups)
    hasty = solve(snapshot, policy="ymir-no-merge", prove_global=True, time_limit_s=1e-3, alternatives=False)
    assert all(len(group.jobs) == 1 for group in hasty.groups)
