"""Snapshot policies in simulations: the documents they get, the plans they return, what stops bad ones."""

from __future__ import annotations

import numpy as np
import pytest
from sim_kit import elastic, linear_workload, rigid, rigid_workload
from test_determinism_and_resume import trace as mixed_trace

from ymir_opt.domain.documents import dump_json, parse_snapshot, snapshot_sha256
from ymir_opt.domain.errors import InvalidPlanError
from ymir_opt.domain.snapshot import JobState, Mode, Queue, Quota
from ymir_opt.policies.base import load_policy
from ymir_opt.simulator.cluster import NodeEvent, parse_cluster
from ymir_opt.simulator.engine import Engine, simulate
from ymir_opt.simulator.workload import RigidSpeeds, Workload


class Watched:
    """Our planner, with a look at what it gets and a hand on what it returns."""

    def __init__(self, look=None, change=None, name="ymir"):
        self.inner = load_policy(name)
        self.uses_adapters = self.inner.uses_adapters
        self.cadence = self.inner.cadence
        self.look, self.change = look, change

    def plan(self, snapshot, previous=None):
        if self.look is not None:
            self.look(snapshot)
        plan = self.inner.plan(snapshot, previous)
        return plan if self.change is None else self.change(plan)


def test_every_document_is_valid_and_survives_writing_and_reading():
    seen = {"groups": set(), "adapters": 0, "running": 0, "rejected": 0}

    def look(snapshot):
        again = parse_snapshot(dump_json(snapshot))
        assert snapshot_sha256(again) == snapshot_sha256(snapshot)
        seen["groups"] |= {group.mode for group in snapshot.groups}
        seen["adapters"] += len(snapshot.adapters)
        seen["rejected"] += len(snapshot.rejected_merges)
        seen["running"] += sum(job.state is JobState.RUNNING for job in snapshot.jobs)

    result = simulate(
        mixed_trace(9),
        parse_cluster("2x4:V100"),
        Watched(look),
        node_events=(NodeEvent(300.0, "down", "n1"), NodeEvent(500.0, "up", "n1")),
    )
    assert result.unfinished == ()
    assert seen["running"]
    assert seen["adapters"]
    assert seen["groups"] & {Mode.JOINT, Mode.GPU_SHARE, Mode.SEQUENCE}


def test_the_document_says_what_is_observed():
    shots = []
    jobs = [
        rigid("a", 5.0, 400.0, 2, queue="q", priority=3, deadline_s=900.0, weight=2.0),
        rigid("b", 100.0, 50.0, 1, sharing="none", min_runtime_s=20.0, movable=False),
    ]
    quotas = (Queue(name="q", quotas=(Quota(gpu_type="V100", nominal_gpus=2.0),)),)
    workload = Workload.of("w", jobs, RigidSpeeds(("V100",), 10.0), quotas=quotas)
    simulate(workload, parse_cluster("1x4:V100"), Watched(shots.append, name="ymir-no-merge"))
    second = next(shot for shot in shots if len(shot.jobs) == 2)
    a, b = second.jobs
    assert second.taken_at_s == 100.0
    assert (a.queue, a.priority, a.deadline_s, a.weight) == ("q", 3, 900.0, 2.0)
    assert (a.state, dict(a.allocation or {}), a.last_start_s) == (JobState.RUNNING, {"n0": (0, 1)}, 5.0)
    assert (a.remaining_s, a.running_s, a.attained_gpu_s) == (400.0 - 85.0, 85.0, 190.0)
    assert (b.state, b.allocation, b.sharing.value, b.movable, b.min_runtime_s) == (
        JobState.PENDING, None, "none", False, 20.0
    )  # fmt: skip
    assert second.queues[[queue.name for queue in second.queues].index("q")] == quotas[0]


def test_no_merge_is_offered_no_adapters():
    def look(snapshot):
        assert snapshot.adapters == ()

    simulate(mixed_trace(4), parse_cluster("2x4:V100"), Watched(look, name="ymir-no-merge"))


def break_gpus(plan):
    group = plan.groups[0]
    node = next(iter(group.placement))
    return plan.model_copy(update={"groups": (group.model_copy(update={"placement": {node: (0, 0)}}),)})


def drop_reason(plan):
    return plan.model_copy(update={"explanations": {}})


@pytest.mark.parametrize("change", [break_gpus, drop_reason])
def test_an_invalid_plan_is_stopped_with_the_policys_name(change):
    jobs = [rigid("a", 0.0, 100.0, 2), rigid("b", 0.0, 100.0, 4)]
    with pytest.raises(InvalidPlanError, match=r"policy theirs: breaks invariant \d"):
        simulate(
            rigid_workload(jobs), parse_cluster("1x4:V100"), Watched(change=change), policy_name="theirs"
        )


def test_a_plan_for_jobs_or_nodes_that_do_not_exist_is_stopped():
    def rename(plan):
        group = plan.groups[0].model_copy(update={"jobs": ("ghost",)})
        return plan.model_copy(update={"groups": (group,)})

    jobs = [elastic("a", 0.0, 100.0)]
    engine = Engine(linear_workload(jobs), parse_cluster("1x4:V100"), Watched(change=rename))
    assert engine.adapter is not None
    engine.adapter.check_every = 10**9
    with pytest.raises(InvalidPlanError, match="ghost"):
        engine.run()


def test_what_the_plan_places_is_what_runs():
    """Nodes, GPUs and counts of the simulation are the plan's, GPU by GPU."""
    plans = []

    def keep(plan):
        plans.append(plan)
        return plan

    jobs = [elastic(f"j{i}", 3.0 * i, 500.0 + 100 * i, most=4, task=f"t{i}") for i in range(6)]
    engine = Engine(
        linear_workload(jobs, power=0.7),
        parse_cluster("2x4:V100"),
        Watched(change=keep, name="ymir-no-merge"),
    )
    while engine.run(stop_after_rounds=1).unfinished:
        wanted = {
            group.jobs: {node: set(gpus) for node, gpus in group.placement.items()}
            for group in plans[-1].groups
        }
        world = engine.world
        names = world.store.columns.ids
        actual = {
            tuple(names[slot] for slot in run.slots): {
                world.cluster.ids[node]: {g for g in range(4) if mask >> g & 1} for node, mask in run.taken
            }
            for run in world.runs.values()
        }
        assert actual == wanted
        if engine.now == np.inf or not world.runs:
            break
    assert len(plans) > 6


def test_estimates_with_known_errors_come_with_intervals():
    from ymir_opt.simulator.estimates import EstimateError

    shots = []
    simulate(
        mixed_trace(4),
        parse_cluster("2x4:V100"),
        Watched(shots.append),
        error=EstimateError(work=0.3, transfer=0.2, seed=1),
    )
    one = next(shot for shot in shots if shot.profiles.transfer)
    for job in one.jobs:
        assert job.remaining_samples_low < job.remaining_samples < job.remaining_samples_high
        spread = np.log(job.remaining_samples_high / job.remaining_samples_low)
        assert spread == pytest.approx(2 * 1.28155 * 0.3, rel=1e-4)
    for row in one.profiles.transfer:
        assert np.log(row.high / row.low) == pytest.approx(2 * 1.28155 * 0.2, rel=1e-4)
        assert row.provenance.value == "predicted"


def test_a_slot_that_is_used_again_does_not_inherit_what_its_group_knew():
    """`x` starts from an adapter and leaves a group of three; its slot goes to a job outside the group."""
    from ymir_opt.policies.view import Decision, GroupDecision
    from ymir_opt.simulator.workload import TransferTruth

    ratio = np.array([[np.nan, 0.5], [0.5, np.nan]])
    truth = TransferTruth(("m", "m"), ("x", "y"), (8, 8), ratio, ratio, ratio, np.ones((2, 2)))
    jobs = [
        elastic("first", 0.0, 50.0, task="y", kind=1),
        elastic("x", 10.0, 100.0, task="x", kind=0),
        elastic("z", 10.0, 4000.0, task="y", kind=1),
        elastic("w", 10.0, 4000.0, task="y", kind=1),
        *(elastic(f"late{i}", 500.0 + i, 50.0, task="y", kind=1) for i in range(70)),
    ]
    seen = []

    def decide(view):
        ids = view.ids()
        seen.extend(row for group in view.groups for row in group.starts_from if row not in group.rows)
        gpus = np.minimum(view.gpus, 1)
        groups = ()
        rows = tuple(ids.index(name) for name in ("x", "z", "w") if name in ids)
        if 1 in view.adapters and len(rows) > 1:
            sources = {ids.index("x"): 1} if "x" in ids else {}
            groups = (GroupDecision("gpu_share", rows, 1, starts_from=sources),)
            gpus[list(rows)] = 0
            free = view.total_gpus - int(gpus.sum()) - 1
            others = [row for row in np.flatnonzero(gpus == 0) if row not in rows]
            gpus[others[: max(0, free)]] = 1
        elif "first" in ids:
            gpus[ids.index("first")] = 1
        else:
            free = view.total_gpus - int(gpus.sum())
            for row in np.flatnonzero(gpus == 0)[: max(0, free)]:
                gpus[row] = 1
        return Decision(gpus, groups=groups)

    from sim_kit import Scripted

    result = simulate(linear_workload(jobs, truth), parse_cluster("1x4:V100"), Scripted(decide))
    assert result.unfinished == ()
    assert not seen
