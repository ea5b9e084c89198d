"""Properties of plans: the invariants, agreement of all backends, growth never hurts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from scenario_kit import job, node, share_rows, snapshot
from strategies import random_snapshot, snapshots

from ymir_opt import check, outcome, solve
from ymir_opt.candidates import PoolLimits
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Mode, Sharing, Snapshot
from ymir_opt.planner.pipeline import plan_round
from ymir_opt.solvers import registry

EXACT = ("highs", "cpsat", "cbc", "pulp-highs")


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots())
def test_every_plan_holds_its_ten_invariants(made: Snapshot) -> None:
    plan = solve(made)
    assert check(made, plan) == []
    assert "note" not in plan.labels
    assert _same(plan, solve(made))
    after = outcome(made, plan)
    again = solve(after, previous=plan)
    assert check(after, again) == []
    profiles = {a.job: a.to for a in plan.actions if a.action == "profile"}
    assert {a.job: a.to for a in again.actions if a.action == "profile"} == profiles
    assert {a.action.value for a in again.actions} <= {"keep", "wait", "profile"}


def _same(one: Plan, two: Plan) -> bool:
    def timeless(plan: Plan) -> Plan:
        return plan.model_copy(update={"solver": plan.solver.model_copy(update={"wall_s": 0.0})})

    return timeless(one) == timeless(two)


@pytest.mark.parametrize("seed", range(4))
def test_all_backends_agree_at_gap_zero(seed: int) -> None:
    made = random_snapshot(seed, jobs=40, nodes=8, exact_jobs=True)
    plans = {name: solve(made, backend=name, gap=0.0) for name in EXACT}
    best = plans["highs"].solver
    assert best.objective is not None
    for plan in plans.values():
        assert plan.solver.status == "optimal"
        assert plan.solver.objective == pytest.approx(best.objective, rel=1e-6)
        assert plan.solver.bound == pytest.approx(best.objective, rel=1e-6)
        assert check(made, plan) == []


@pytest.mark.parametrize("backend", ["greedy", "matching"])
@pytest.mark.parametrize("seed", range(12))
def test_heuristics_are_valid_and_never_better_than_the_optimum(backend: str, seed: int) -> None:
    made = random_snapshot(seed)
    plan = solve(made, backend=backend)
    best = solve(made, gap=0.0).solver.objective
    assert check(made, plan) == []
    assert plan.solver.objective is not None
    assert best is not None
    assert plan.solver.objective >= best * (1 - 1e-9)
    assert plan.solver.bound is None or plan.solver.bound <= best * (1 + 1e-9)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    snapshots(node_sizes=(4,), gpu_types=("A100",), imperfect_nodes=False, selectors=False, pipeline=False)
)
def test_a_node_more_of_the_one_size_never_worsens_the_optimum(made: Snapshot) -> None:
    # exhaustive pool, gap 0; reserves for profiling grow with the cluster, so jobs are known here
    before = plan_round(made, gap=0.0, limits=PoolLimits(exhaustive_below=10**9))
    cluster = made.cluster
    first = cluster.nodes[0] if cluster.nodes else None
    extra = node("extra", 4, memory=first.gpu_memory_gib if first is not None else 40.0)
    larger = made.model_copy(
        update={"cluster": cluster.model_copy(update={"nodes": (*cluster.nodes, extra)})}
    )
    after = plan_round(larger, gap=0.0, limits=PoolLimits(exhaustive_below=10**9))
    assert before.solver.objective is not None
    assert after.solver.objective is not None
    # one quantum of each total, and the least gain for which a plan is changed
    slack = 2e-6 * abs(before.solver.objective) + 1e-6
    assert after.solver.objective <= before.solver.objective + slack


def test_matching_starts_a_pair_and_its_bound_holds_for_pairs() -> None:
    jobs = [job(f"j{i}", 1, hours=1 + i, sharing=Sharing.ALL) for i in range(6)]
    rows = (share_rows(Mode.GPU_SHARE, 2, 0.9),)
    made = snapshot([node("n0", 4)], jobs, profiles={"colocation": rows})
    plan = solve(made, backend="matching")
    best = solve(made, gap=0.0).solver
    assert check(made, plan) == []
    assert any(len(group.jobs) == 2 for group in plan.groups)
    assert plan.solver.bound is not None
    assert best.objective is not None
    assert plan.solver.bound <= best.objective


def test_names_of_all_exact_backends_are_registered() -> None:
    assert set(EXACT) <= set(registry.names())


def test_heuristic_pruning_only_ever_costs_value_and_is_counted() -> None:
    made = random_snapshot(3, jobs=14, exact_jobs=True, nodes=3)
    full = plan_round(made, gap=0.0, limits=PoolLimits(exhaustive_below=10**9))
    tight = plan_round(
        made, gap=0.0, limits=replace(PoolLimits(), exhaustive_below=0, pairs_per_job=1, grown_per_job=1)
    )
    assert full.solver.candidates.exhaustive
    assert full.solver.gap_scope == "global"
    assert full.solver.candidates.heuristically_pruned == 0
    assert full.solver.objective is not None
    assert tight.solver.objective is not None
    assert tight.solver.objective >= full.solver.objective * (1 - 1e-6)
    if tight.solver.candidates.heuristically_pruned:
        assert not tight.solver.candidates.exhaustive
        assert tight.solver.gap_scope == "pool"
