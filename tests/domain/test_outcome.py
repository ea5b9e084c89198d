"""What the cluster looks like when a plan has been carried out, and no time has passed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from small_documents import change, job_row, plan_data, plan_of, snapshot_data, snapshot_of
from strategies import snapshots

from ymir_opt.domain.documents import dump_json, parse_snapshot
from ymir_opt.domain.errors import InputError, InvalidPlanError
from ymir_opt.domain.outcome import joint_ratio, outcome
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Job, JobState, Mode, Snapshot, StartSource


def runs(**fields: Any) -> dict[str, Any]:
    return {
        "state": "running",
        "allocation": {"n0": [0, 1]},
        "last_start_s": 900.0,
        "first_start_s": 500.0,
        "restarts": 1,
        "done_samples": 500.0,
    } | fields


def group_row(mode: str, jobs: list[str], placement: dict[str, list[int]], **fields: Any) -> dict[str, Any]:
    return {
        "id": "new",
        "mode": mode,
        "jobs": jobs,
        "foundation_model": "bert",
        "gpu_type": "A100",
        "gpus": sum(map(len, placement.values())),
        "placement": placement,
    } | fields


def planned(snapshot: Snapshot, groups: list[dict[str, Any]], actions: dict[str, str], **fields: Any) -> Plan:
    """Return a plan with these groups and actions; every other job waits or is kept."""
    data = plan_data(snapshot)
    named = {name for group in groups for name in group["jobs"]} | actions.keys()
    data["groups"] = [g for g in data["groups"] if not named & set(g["jobs"])] + groups
    for action in data["actions"]:
        action["action"] = actions.get(action["job"], action["action"])
    return plan_of(data | fields)


def job_of(snapshot: Snapshot, name: str) -> Job:
    return next(job for job in snapshot.jobs if job.id == name)


def transfer_row(mode: str, source: Any, target: str, ratio: float, **fields: Any) -> dict[str, Any]:
    return {
        "mode": mode,
        "foundation_model": "bert",
        "source": source,
        "target": target,
        "work_ratio": ratio,
    } | fields


def test_a_job_that_is_kept_stays_as_it_is() -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a", **runs()), job_row("b")]))
    after = outcome(snapshot, planned(snapshot, [], {}))
    assert after.jobs == snapshot.jobs
    assert [(g.mode, g.jobs, g.started_at_s) for g in after.groups] == [(Mode.SOLO, ("a",), 900.0)]
    assert (after.taken_at_s, after.cluster, after.profiles, after.queues) == (
        snapshot.taken_at_s,
        snapshot.cluster,
        snapshot.profiles,
        snapshot.queues,
    )


def test_a_start() -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a", done_samples=100.0)]))
    plan = planned(snapshot, [group_row("solo", ["a"], {"n0": [1, 3]})], {"a": "start"})
    job = outcome(snapshot, plan).jobs[0]
    assert job == snapshot.jobs[0].model_copy(
        update={
            "state": JobState.RUNNING,
            "allocation": {"n0": (1, 3)},
            "last_start_s": 1000.0,
            "first_start_s": 1000.0,
            "samples_at_last_start": 100.0,
        }
    )
    assert job.restarts == 0


def test_a_migration_is_a_restart_that_keeps_the_progress() -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a", **runs())]))
    plan = planned(snapshot, [group_row("solo", ["a"], {"n1": [0, 1]})], {"a": "migrate"})
    job = outcome(snapshot, plan).jobs[0]
    assert (job.first_start_s, job.last_start_s, job.restarts) == (500.0, 1000.0, 2)
    assert (job.done_samples, job.remaining_samples, job.samples_at_last_start) == (500.0, 6000.0, 500.0)
    assert job.allocation == {"n1": (0, 1)}


def test_a_preemption() -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a", **runs())]))
    data = plan_data(snapshot)
    data |= {"groups": [], "actions": [{"job": "a", "action": "preempt"}]}
    after = outcome(snapshot, plan_of(data))
    job = after.jobs[0]
    assert (job.state, job.allocation, job.last_start_s, job.preemptions) == (
        JobState.PENDING,
        None,
        None,
        1,
    )
    assert (job.done_samples, job.remaining_samples, job.first_start_s) == (500.0, 6000.0, 500.0)
    assert after.groups == ()


def test_a_profile_action_leaves_the_job_pending() -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a")]))
    data = plan_data(snapshot)
    data["actions"] = [
        {"job": "a", "action": "profile", "to": {"gpu_type": "A100", "gpus": 1, "placement": {"n0": [0]}}}
    ]
    after = outcome(snapshot, plan_of(data))
    assert after.jobs == snapshot.jobs
    assert after.groups == ()


def test_new_joint_members_have_their_ratio_applied_once() -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a"), job_row("b", remaining_samples=3000.0)]))
    group = group_row(
        "joint",
        ["a", "b"],
        {"n1": [0, 1]},
        predicted={
            "a": {"work_ratio": 0.5, "low": 2500.0, "high": 4000.0},
            "b": {"work_ratio": 1.2, "low": 3700.0, "high": 3650.0},
        },
        probe={"evaluations": 2, "rule": "r", "cost_s": 1.0},
    )
    plan = planned(snapshot, [group], {"a": "merge", "b": "merge"})
    after = outcome(snapshot, plan)
    a, b = after.jobs
    assert (a.remaining_samples, a.remaining_samples_low, a.remaining_samples_high) == (3000, 2500, 4000)
    # limits on the wrong side of the work are pulled to it
    assert (b.remaining_samples, b.remaining_samples_low, b.remaining_samples_high) == (3600, 3600, 3650)
    assert a.done_samples == b.done_samples == 0.0
    running = after.groups[0]
    assert (running.mode, running.jobs, running.started_at_s) == (Mode.JOINT, ("a", "b"), 1000.0)
    assert running.probe is not None
    assert (running.probe.state, running.probe.evaluations_left) == ("running", 2)
    # kept on, nothing is applied again
    data = plan_data(after)
    data["groups"] = [group_row("joint", ["a", "b"], {"n1": [0, 1]}, id="other")]
    again = outcome(after, plan_of(data))
    assert again.jobs == after.jobs
    assert again.groups == (running.model_copy(update={"id": "other"}),)


def test_a_start_from_other_weights_discards_the_jobs_own_progress() -> None:
    snapshot = snapshot_of(
        snapshot_data(
            [job_row("a", done_samples=2000.0, last_checkpoint_samples=1500.0)],
            adapters=[{"id": "x", "foundation_model": "bert", "task": "t"}],
        )
    )
    group = group_row(
        "solo", ["a"], {"n0": [0]}, starts_from={"a": {"adapter": "x"}}, predicted={"a": {"work_ratio": 0.25}}
    )
    after = outcome(snapshot, planned(snapshot, [group], {"a": "start"}))
    job = after.jobs[0]
    assert job.remaining_samples == 0.25 * (2000.0 + 6000.0)
    assert (job.done_samples, job.last_checkpoint_samples, job.samples_at_last_start) == (0.0, 0.0, 0.0)
    assert (job.remaining_samples_low, job.remaining_samples_high) == (None, None)
    assert after.groups[0].starts_from == {"a": StartSource(adapter="x")}


def test_a_sequence_member_waits_without_gpus() -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a"), job_row("b", done_samples=10.0)]))
    group = group_row("sequence", ["a", "b"], {"n0": [0]}, starts_from={"b": {"job": "a"}})
    after = outcome(snapshot, planned(snapshot, [group], {"a": "start", "b": "wait"}))
    assert job_of(after, "a").state is JobState.RUNNING
    assert job_of(after, "b") == job_of(snapshot, "b")
    assert after.groups[0].jobs == ("a", "b")
    assert after.groups[0].starts_from == {"b": StartSource(job="a")}


JOINT = [
    job_row(
        "a", **runs(remaining_samples=3000.0, remaining_samples_low=2400.0, remaining_samples_high=3600.0)
    ),
    job_row("b", **runs(remaining_samples=900.0)),
]
JOINT_GROUP = [{"id": "old", "mode": "joint", "jobs": ["a", "b"], "started_at_s": 900.0}]
JOINT_ROWS = [
    transfer_row("joint", "task-b", "task-a", 0.6),
    transfer_row("joint", ["task-a"], "task-b", 0.9),
]


def joint_snapshot(rows: list[dict[str, Any]]) -> Snapshot:
    data = snapshot_data(JOINT, groups=JOINT_GROUP)
    data["profiles"]["transfer"] = rows
    return snapshot_of(data)


def test_who_leaves_a_joint_group_has_the_work_of_one_alone() -> None:
    snapshot = joint_snapshot(JOINT_ROWS)
    group = group_row("solo", ["a"], {"n0": [0, 1]})
    after = outcome(snapshot, planned(snapshot, [group], {"a": "split", "b": "preempt"}))
    a, b = after.jobs
    assert a.remaining_samples == pytest.approx(3000 / 0.6, rel=1e-12)
    assert a.remaining_samples_low == pytest.approx(2400 / 0.6, rel=1e-12)
    assert a.remaining_samples_high == pytest.approx(3600 / 0.6, rel=1e-12)
    assert a.done_samples == 500.0
    assert b.remaining_samples == pytest.approx(900 / 0.9, rel=1e-12)
    assert (b.state, b.preemptions) == (JobState.PENDING, 1)


def test_leaving_a_joint_group_of_unknown_ratio_is_refused() -> None:
    snapshot = joint_snapshot([])
    plan = planned(snapshot, [group_row("solo", ["a"], {"n0": [0, 1]})], {"a": "split", "b": "preempt"})
    with pytest.raises(InputError, match=r"profiles\.transfer: no joint work ratio of 'a'"):
        outcome(snapshot, plan)
    halves = outcome(snapshot, plan, ratio_of=lambda _snapshot, _job, _others: 0.5)
    assert [job.remaining_samples for job in halves.jobs] == [6000.0, 1800.0]


def test_the_joint_ratio() -> None:
    data = snapshot_data([job_row(name) for name in "abcd"])
    data["profiles"]["transfer"] = [
        transfer_row("joint", "task-b", "task-a", 0.5),
        transfer_row("joint", "task-c", "task-a", 0.8, provenance="predicted"),
        transfer_row("joint", ["task-c"], "task-a", 0.72),
        transfer_row("joint", ["task-d", "task-b"], "task-a", 0.9),
        transfer_row("warm_start", "task-d", "task-a", 0.1),
        transfer_row("joint", "task-d", "task-a", 0.3) | {"foundation_model": "vit"},
    ]
    snapshot = snapshot_of(data)
    assert joint_ratio(snapshot, "a", ("b",)) == 0.5
    # a measured row before a predicted one, whatever their order
    assert joint_ratio(snapshot, "a", ("c",)) == 0.72
    # the row of exactly this set, in any order
    assert joint_ratio(snapshot, "a", ("b", "d")) == 0.9
    assert joint_ratio(snapshot, "a", ("c", "b")) == pytest.approx(math.sqrt(0.5 * 0.72), rel=1e-12)
    assert joint_ratio(snapshot, "a", ("d",)) is None
    assert joint_ratio(snapshot, "a", ("b", "c", "d")) is None
    assert joint_ratio(snapshot, "b", ("a",)) is None


def test_a_plan_for_another_snapshot() -> None:
    data = snapshot_data([job_row("a")])
    plan = planned(snapshot_of(data), [], {})
    with pytest.raises(InputError, match="snapshot_sha256: made for snapshot"):
        outcome(snapshot_of(change(data, "taken_at_s", 1001.0)), plan)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"actions": []}, "'a' has none"),
        ({"actions": [{"job": "a", "action": "wait"}] * 2}, "'a' has two actions"),
        ({"actions": [{"job": "z", "action": "wait"}]}, "'z' is not a job"),
        ({"groups": [group_row("solo", ["z"], {"n0": [0]})]}, "'z' is not a job"),
        (
            {"groups": [group_row("solo", ["a"], {"n0": [0]}), group_row("solo", ["a"], {"n0": [1]})]},
            "also in",
        ),
        ({"groups": [group_row("solo", ["a"], {"n9": [0]})]}, "'n9' is not a node"),
        ({"groups": [group_row("solo", ["a"], {"n0": [7]})]}, "GPU 7 does not exist"),
        ({"groups": [group_row("joint", ["a"], {"n0": [0]})]}, "no work_ratio"),
        (
            {
                "groups": [group_row("solo", ["a"], {"n0": [0]})],
                "actions": [{"job": "a", "action": "keep"}],
            },
            "is kept, but not on the GPUs",
        ),
    ],
)
def test_a_plan_that_contradicts_its_snapshot(fields: dict[str, Any], said: str) -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a")]))
    if "groups" in fields and "actions" not in fields:
        fields["actions"] = [{"job": "a", "action": "start"}]
    with pytest.raises(InvalidPlanError, match=said) as caught:
        outcome(snapshot, plan_of(plan_data(snapshot) | fields))
    assert caught.value.exit_code == 1
    assert caught.value.one_line().isprintable()


def test_two_groups_on_one_gpu_contradict_the_snapshot() -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a"), job_row("b")]))
    groups = [group_row("solo", ["a"], {"n0": [0]}), group_row("solo", ["b"], {"n0": [0]}, id="h")]
    plan = planned(snapshot, groups, {"a": "start", "b": "start"})
    with pytest.raises(InvalidPlanError, match="also held by"):
        outcome(snapshot, plan)


def test_a_running_job_does_not_vanish() -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a", **runs())]))
    data = plan_data(snapshot) | {"groups": [], "actions": [{"job": "a", "action": "wait"}]}
    with pytest.raises(InvalidPlanError, match="runs and is not placed"):
        outcome(snapshot, plan_of(data))


@given(snapshots(groups=False))
@settings(max_examples=30, deadline=None)
def test_keeping_everything_changes_no_job(snapshot: Snapshot) -> None:
    after = outcome(snapshot, plan_of(plan_data(snapshot)))
    assert after.jobs == snapshot.jobs
    assert parse_snapshot(dump_json(after)) == after
    assert outcome(after, plan_of(plan_data(after))) == after


@given(snapshots(groups=False))
@settings(max_examples=30, deadline=None)
def test_preempting_everything_keeps_the_progress(snapshot: Snapshot) -> None:
    data = plan_data(snapshot) | {"groups": []}
    for action in data["actions"]:
        action["action"] = "preempt" if action["action"] == "keep" else "wait"
    after = outcome(snapshot, plan_of(data))
    assert not after.groups
    for before, job in zip(snapshot.jobs, after.jobs, strict=True):
        assert job.state is JobState.PENDING
        assert job.preemptions == before.preemptions + (before.state is JobState.RUNNING)
        assert (job.done_samples, job.remaining_samples) == (before.done_samples, before.remaining_samples)
