"""The policy's own reasons are kept with the stretches that they caused, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from sim_kit import Scripted, counts, elastic, linear_workload, rigid, rigid_workload

from ymir_opt.domain.plan import ActionKind
from ymir_opt.policies.base import Cadence, load_policy
from ymir_opt.policies.view import Decision
from ymir_opt.simulator.archive import read_result, write_result
from ymir_opt.simulator.cluster import parse_cluster
from ymir_opt.simulator.engine import Engine, simulate
from ymir_opt.simulator.results import Recorder


class Heard:
    """Our planner; remembers what its plans said of the jobs that they start, move or stop."""

    uses_adapters = False
    cadence = Cadence.events(10.0)

    def __init__(self):
        self.inner = load_policy("ymir-no-merge")
        self.said = {}

    def plan(self, snapshot, previous=None):
        plan = self.inner.plan(snapshot, previous)
        for action in plan.actions:
            if action.action not in (ActionKind.KEEP, ActionKind.WAIT):
                told = plan.explanations[action.job]
                text = f"{action.job}: {told.message} ({told.reason.value})"
                self.said[action.job, snapshot.taken_at_s] = text
        return plan


def growing():
    jobs = [
        elastic("short", 0.0, 400.0, most=2, min_gpus=2, requested_gpus=2, task="s"),
        elastic("long", 0.0, 4000.0, most=4, min_gpus=2, requested_gpus=2, task="l"),
    ]
    return linear_workload(jobs, cold=30.0, warm=30.0)


def test_a_stretch_carries_what_the_plan_said_when_it_began_and_when_a_plan_ended_it():
    policy = Heard()
    result = simulate(growing(), parse_cluster("1x4:V100"), policy, segments=True)
    assert len(result.segments) == 3
    for segment in result.segments:
        assert segment.why == policy.said[segment.jobs[0], segment.start_s]
        stopped = segment.ended_by == "preempted"
        assert segment.ended_why == (policy.said[segment.jobs[0], segment.end_s] if stopped else "")
    grown = next(segment for segment in result.segments if segment.ended_by == "preempted")
    assert "changes to 4 V100" in grown.ended_why


def test_reasons_survive_checkpoints_and_files(tmp_path: Path):
    def engine():
        recorder = Recorder(segments=True)
        return Engine(growing(), parse_cluster("1x4:V100"), load_policy("ymir-no-merge"), recorder=recorder)

    whole = engine().run()
    first = engine()
    first.run(stop_after_rounds=1)
    first.save(tmp_path / "c.json")
    second = engine()
    second.restore(tmp_path / "c.json")
    assert second.run().segments == whole.segments
    assert all(segment.why for segment in whole.segments)
    write_result(tmp_path / "r.json", whole)
    assert read_result(tmp_path / "r.json")[0].segments == whole.segments


def test_a_group_has_a_line_a_member_and_its_rest_does_not_repeat_them():
    jobs = [elastic(name, 0.0, work, most=1, task=name) for name, work in (("a", 100.0), ("b", 300.0))]
    workload = linear_workload(jobs, cold=10.0, warm=10.0)

    def decide(view):
        from ymir_opt.policies.view import GroupDecision

        group = GroupDecision("gpu_share", tuple(range(len(view))), 1)
        return Decision(counts(view), groups=(group,), why=lambda row: f"{view.id(row)} shares")

    policy = Scripted(decide, Cadence.rounds(10_000.0))
    result = simulate(workload, parse_cluster("1x1:V100"), policy, segments=True)
    assert [(s.jobs, s.why) for s in result.segments] == [(("a", "b"), "a shares\nb shares"), (("b",), "")]


def test_nobody_is_asked_for_reasons_that_no_record_keeps():
    asked = []

    def decide(view):
        return Decision(counts(view, a=1), why=lambda row: asked.append(row) or "because")

    def run(*, segments):
        policy = Scripted(decide, Cadence.events(0.0))
        workload = rigid_workload([rigid("a", 0.0, 10.0, 1), rigid("b", 0.0, 10.0, 1)])
        engine = Engine(workload, parse_cluster("1x1:V100"), policy, recorder=Recorder(segments=segments))
        engine.run(stop_after_rounds=1)

    run(segments=False)
    assert asked == []
    run(segments=True)
    assert asked == [0], "only the job that changes"
