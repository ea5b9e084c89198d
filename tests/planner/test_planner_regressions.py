"""Snapshots that once broke the planner, as small as they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scenario_kit import NOW, acts, job, node, running, snapshot, throughput

from ymir_opt import check, outcome, solve
from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.plan import Plan, StoppedBy
from ymir_opt.domain.snapshot import Job, Mode, RunningGroup, Snapshot
from ymir_opt.domain.validate import validate
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.planner.metrics import jain


def proven(source: Snapshot, **options: Any) -> dict[str, str]:
    """Return each job's action in a plan that the planner found itself, not its fallback."""
    plan: Plan = solve(source, **options)
    assert not check(source, plan)
    assert "note" not in plan.labels
    found: dict[str, str] = acts(plan)
    return found


@pytest.mark.parametrize("fields", [{"weight": 1e-9}, {"remaining_samples": 1e18}])
def test_keeping_is_cheaper_than_stopping_even_where_the_worth_is_lost_in_the_rounding(
    fields: dict[str, Any],
) -> None:
    slow = running(job("slow", **fields), {"n0": (0,)})
    source = snapshot([node("n0", 4)], [slow, job("large", gpus=2, weight=1e6)])
    evaluator = Evaluator(Instance.of(source), Estimates(source))
    kept = int(evaluator.quanta(evaluator.keeps[0].cost)[0])
    assert kept == int(evaluator.quanta(evaluator.queued_cost)[0])
    assert kept < int(evaluator.queued_quanta[0])
    assert proven(source) == {"slow": "keep", "large": "start"}


@pytest.mark.parametrize("mode", [m for m in Mode if m is not Mode.SOLO])
def test_the_last_member_of_a_group_is_solo(mode: Mode) -> None:
    source = snapshot([node("n0", 4)], [running(job("a"), {"n0": (0,)})])
    left = RunningGroup(id="g", mode=mode, jobs=("a",), started_at_s=NOW - 60.0)
    with pytest.raises(InputError, match=f"{mode.value} with 1 job; .* solo"):
        validate(source.model_copy(update={"groups": (left,)}))


def test_fairness_of_jobs_that_take_next_to_no_time() -> None:
    assert jain(np.array([1e300, 1e300, 0.0])) == pytest.approx(2 / 3)
    assert jain(np.zeros(3)) == 1.0
    assert jain(np.array([])) is None


def unmeasured(name: str, **fields: Any) -> Job:
    return job(name, foundation_model="unmeasured", **fields)


@pytest.mark.parametrize("limits", [{"cpus": 4.0}, {"host_memory_gib": 4.0}])
def test_measuring_takes_cpus_and_host_memory(limits: dict[str, float]) -> None:
    needs = {"cpus": "cpus_per_gpu", "host_memory_gib": "host_memory_gib"}
    asked = {needs[name]: 3.0 for name in limits}
    nodes = [node("n0", 4, **limits)]
    both = snapshot(nodes, [unmeasured("a", **asked), unmeasured("b", **asked)])
    assert proven(both) == {"a": "profile", "b": "wait"}
    beside = snapshot(nodes, [unmeasured("a", **asked), job("b", **asked), job("c")])
    assert proven(beside) == {"a": "profile", "b": "wait", "c": "start"}


def test_gpus_that_a_plan_frees_are_not_measured_on_before_the_next_round() -> None:
    slow = running(job("slow", gpus=4, weight=1e-6), {"n0": (0, 1, 2, 3)})
    source = snapshot([node("n0", 4)], [slow, job("urgent", gpus=2, priority=1), unmeasured("new")])
    plan = solve(source)
    assert acts(plan) == {"slow": "preempt", "urgent": "start", "new": "wait"}
    assert "takes 1 GPU of one node, and none has them free" in plan.explanations["new"].message
    again = solve(outcome(source, plan), previous=plan)
    assert acts(again) == {"slow": "wait", "urgent": "keep", "new": "wait"}
    assert acts(solve(outcome(source, plan)))["new"] == "profile"


def test_a_job_is_not_measured_again_where_it_may_no_longer_run() -> None:
    nodes = [node("n0", 1, labels={"zone": "a"}), node("n1", 2, labels={"zone": "b"})]
    plan = solve(snapshot(nodes, [unmeasured("a")]))
    (before,) = (dict(action.to.placement) for action in plan.actions if action.to is not None)
    assert before == {"n0": (0,)}
    moved = snapshot(nodes, [unmeasured("a", node_selector={"zone": "b"})])
    assert proven(moved, previous=plan) == {"a": "profile"}


def test_speeds_next_to_nothing_count_as_none() -> None:
    crawl = tuple(row.model_copy(update={"samples_per_s": 1e-300}) for row in throughput())
    source = snapshot([node("n0", 4)], [job("a", remaining_samples=1e18)], profiles={"throughput": crawl})
    assert proven(source) == {"a": "profile"}


def test_a_guard_that_strikes_early_leaves_the_greedy_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = synthetic_snapshot(40, 16)
    greedy = solve(source, backend="greedy", time_limit_s=1e-9)
    assert greedy.solver.stopped_by is StoppedBy.WALL_CLOCK

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the time is over")

    monkeypatch.setattr("ymir_opt.solvers.lp.relax", never)
    monkeypatch.setattr("ymir_opt.solvers.guarded.solve_guarded", never)
    plan = solve(source, time_limit_s=1e-9)
    assert plan.solver.stopped_by is StoppedBy.WALL_CLOCK
    assert plan.solver.objective == greedy.solver.objective
    assert not check(source, plan)
