"""Baselines on single snapshots: always valid, and what the policy says where nothing forbids it."""

from __future__ import annotations

import random

import pytest
from scenario_kit import job, node, queue, running, runs, snapshot
from strategies import Recipe, Seeded, build_snapshot

from ymir_opt.domain.plan import Reason
from ymir_opt.policies.base import load_policy
from ymir_opt.policies.plan_by import plan_by
from ymir_opt.verify import check

BASELINES = (
    "fifo",
    "fifo:backfill",
    "gavel",
    "optimus",
    "pollux",
    "sia",
    "srtf",
    "srtf:fixed",
    "themis",
    "tiresias",
    "titan",
)


def by(name, made):
    plan = plan_by(load_policy(name), made)
    assert check(made, plan) == []
    assert plan.planner.policy == name
    assert (plan.solver.objective, plan.solver.bound, plan.solver.value_gap) == (None, None, None)
    return plan


@pytest.mark.parametrize("seed", range(12))
def test_every_plan_is_valid_on_random_snapshots(seed: int):
    made = build_snapshot(Seeded(random.Random(seed)), Recipe(jobs=9, nodes=4))
    for name in BASELINES:
        by(name, made)


def test_fifo_starts_in_order_and_is_held_back_by_its_head():
    jobs = [
        job("first", 2, submitted_at_s=10.0),
        job("wide", 4, submitted_at_s=20.0),
        job("small", 1, submitted_at_s=30.0),
    ]
    made = snapshot([node("n0", 4)], jobs)
    assert runs(by("fifo", made)) == {"first"}
    assert runs(by("fifo:backfill", made)) == {"first", "small"}
    told = by("fifo", made).explanations["wide"]
    assert told.reason is Reason.INSUFFICIENT_GPUS
    assert told.message == "fifo gives the GPUs to other jobs"


def test_srtf_preempts_only_where_it_may():
    long = running(job("long", 4, hours=50.0), {"n0": (0, 1, 2, 3)})
    short = job("short", 4, hours=0.1)
    made = snapshot([node("n0", 4)], [long, short])
    assert runs(by("srtf", made)) == {"long"}
    assert runs(by("srtf:fixed", made)) == {"short"}
    pinned = snapshot([node("n0", 4)], [long.model_copy(update={"movable": False}), short])
    assert runs(by("srtf:fixed", pinned)) == {"long"}


def test_quotas_and_selectors_that_the_policy_does_not_know_bind_all_the_same():
    jobs = [
        job("over", 4, queue="small", submitted_at_s=10.0),
        job("picky", 2, node_selector={"disk": "ssd"}, submitted_at_s=20.0),
        job("plain", 2, submitted_at_s=30.0),
    ]
    nodes = [node("n0", 4), node("n1", 4, labels={"disk": "ssd"})]
    made = snapshot(nodes, jobs, queues=(queue("small", 2),))
    plan = by("fifo:backfill", made)
    assert runs(plan) == {"picky", "plain"}
    assert next(group for group in plan.groups if group.jobs == ("picky",)).placement == {"n1": (0, 1)}
    assert plan.explanations["over"].reason is Reason.EXCEEDS_MAX_QUOTA


def test_our_own_planner_is_asked_directly():
    made = snapshot([node("n0", 4)], [job("a", 2)])
    plan = plan_by(load_policy("ymir-no-merge"), made)
    assert plan.planner.policy == "ymir-no-merge"
    assert plan.solver.objective is not None
