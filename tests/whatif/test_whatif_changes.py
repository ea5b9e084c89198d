"""Changes of a snapshot: what they make, and one line where they cannot be made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from scenario_kit import NOW, job, node, running, snapshot
from strategies import snapshots

from ymir_opt import outcome, solve
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.snapshot import NodeState, Snapshot
from ymir_opt.domain.validate import validate
from ymir_opt.whatif.ahead import advance, look_ahead
from ymir_opt.whatif.changes import add_job, add_nodes, drop_node, jobs_from, set_field


@pytest.fixture
def made() -> Snapshot:
    nodes = [
        node("n0", 4, labels={"zone": "a", "disk": "ssd"}, cpus=32.0, host_memory_gib=128.0),
        node("n1", 8, labels={"zone": "b", "disk": "ssd"}, cpus=64.0, host_memory_gib=256.0),
    ]
    return snapshot(nodes, [running(job("r.1", 2, max_gpus=4), {"n0": (0, 1)}), job("p", 1)])


# -- nodes ------------------------------------------------------------------------------------------


def test_a_new_node_is_like_those_of_its_type(made: Snapshot) -> None:
    changed = add_nodes(made, "1x4:A100,1x2:A100")
    first, second = changed.cluster.nodes[2:]
    assert (first.id, first.gpus, first.gpu_memory_gib) == ("new0", 4, 40.0)
    assert (first.cpus, first.host_memory_gib, dict(first.labels)) == (32.0, 128.0, {"disk": "ssd"})
    assert (second.id, second.cpus, second.host_memory_gib) == ("new1", 16.0, 64.0)
    again = add_nodes(changed, "1x4:A100")
    assert again.cluster.nodes[-1].id == "new2"
    assert made.cluster.nodes == changed.cluster.nodes[:2]


def test_a_new_gpu_type_needs_a_known_or_a_given_memory(made: Snapshot) -> None:
    assert add_nodes(made, "1x8:H100").cluster.nodes[-1].gpu_memory_gib == 80.0
    assert add_nodes(made, "1x8:X1", {"X1": 12.0}).cluster.nodes[-1].gpu_memory_gib == 12.0
    with pytest.raises(NotFoundError, match="unknown memory"):
        add_nodes(made, "1x8:X1")


@pytest.mark.parametrize(
    "spec", ["", "2", "2x8", "x8:A100", "0x8:A100", "2x8:A 100", "9999999x8:A100", "2x8:A100,"]
)
def test_a_specification_of_another_form_is_refused(made: Snapshot, spec: str) -> None:
    with pytest.raises(InputError) as found:
        add_nodes(made, spec)
    assert found.value.place == "--add-nodes"
    assert "--cluster" not in found.value.one_line()


def test_a_dropped_node_is_down_once(made: Snapshot) -> None:
    changed = drop_node(made, "n1")
    assert [n.state for n in changed.cluster.nodes] == [NodeState.READY, NodeState.DOWN]
    with pytest.raises(NotFoundError, match="did you mean 'n1'"):
        drop_node(made, "n11")
    with pytest.raises(InputError, match="down already"):
        drop_node(changed, "n1")


# -- jobs -------------------------------------------------------------------------------------------

JOB: dict[str, Any] = {
    "id": "new",
    "foundation_model": "fm",
    "task": "t",
    "peft_type": "LORA",
    "batch_size": 32,
    "remaining_samples": 1000,
}


def test_a_job_arrives_now_unless_it_says_otherwise(made: Snapshot) -> None:
    (one,) = jobs_from(json.dumps(JOB), "job.json", NOW)
    assert one.submitted_at_s == NOW
    two = jobs_from(json.dumps([JOB, {**JOB, "id": "other", "submitted_at_s": 5.0}]), "jobs.json", NOW)
    assert [j.submitted_at_s for j in two] == [NOW, 5.0]
    changed = add_job(made, one)
    assert [j.id for j in changed.jobs] == ["r.1", "p", "new"]
    with pytest.raises(InputError, match="exists already"):
        add_job(changed, one)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds no job"),
        ("3", "job.json"),
        (json.dumps({**JOB, "max_gpu": 2}), "max_gpus"),
        (json.dumps([JOB, {**JOB, "batch_size": -1}]), "job.json[1]: batch_size"),
        (json.dumps({k: v for k, v in JOB.items() if k != "id"}), "id"),
    ],
)
def test_a_job_that_is_none_is_refused(document: str, words: str) -> None:
    with pytest.raises(InputError) as found:
        jobs_from(document, "job.json", NOW)
    assert words in found.value.one_line()


def test_a_job_that_does_not_fit_the_snapshot_is_named(made: Snapshot) -> None:
    (one,) = jobs_from(json.dumps({**JOB, "queue": "nowhere"}), "job.json", NOW)
    with pytest.raises(InputError, match=r"--add-job new: queue: 'nowhere' is not a queue"):
        add_job(made, one)


# -- fields -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("p.priority=3", "priority", 3),
        ("p.max_gpus=4", "max_gpus", 4),
        ("p.sharing=all", "sharing", "all"),
        ('p.gpu_types=["A100"]', "gpu_types", ("A100",)),
        ("p.batch_size=64", "batch_size", 64),
        ("r.1.weight=2.5", "weight", 2.5),
        ("r.1.movable=false", "movable", False),
        ("p.task=null", "task", None),
        ("p.config=a=b", "config", "a=b"),
        ("p.node_selector.zone=a", "node_selector", {"zone": "a"}),
    ],
)
def test_a_field_takes_json_or_text(made: Snapshot, text: str, field: str, value: object) -> None:
    changed = set_field(made, text)
    name = "r.1" if text.startswith("r.1") else "p"
    found = {j.id: j for j in changed.jobs}[name]
    assert getattr(found, field) == value
    others = [j for j in changed.jobs if j.id != name]
    assert others == [j for j in made.jobs if j.id != name]


def test_parts_of_a_field_follow_a_point(made: Snapshot) -> None:
    changed = set_field(set_field(made, "p.target.max_samples=500"), "p.target.metric=accuracy")
    target = changed.jobs[1].target
    assert target is not None
    assert (target.max_samples, target.metric) == (500.0, "accuracy")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("p.priority", "is not JOB.FIELD=VALUE"),
        ("priority=3", "is not JOB.FIELD=VALUE"),
        ("q.priority=3", "'q' is not a job"),
        ("r.2.priority=3", "did you mean 'r.1'?"),
        ("p.priorty=3", "did you mean 'priority'?"),
        ("p.priority.x=3", "has no parts"),
        ("p.target.max_sample=3", "did you mean 'max_samples'?"),
        ("p.id=x", "cannot be changed"),
        ("p.priority=high", "--set p.priority: "),
        ("p.max_gpus=0", "0 is less than min_gpus 1"),
        ("p.min_gpus=4", "--set p.min_gpus: max_gpus: 1 is less than min_gpus 4"),
        ("p.queue=nowhere", "'nowhere' is not a queue"),
        ("r.1.allocation=null", "missing for a running job"),
        ("p.remaining_samples=NaN", "--set p.remaining_samples"),
        ("p.remaining_samples=null", "remaining_samples"),
    ],
)
def test_a_field_that_cannot_be_set_is_one_line(made: Snapshot, text: str, words: str) -> None:
    with pytest.raises(InputError) as found:
        set_field(made, text)
    line = found.value.one_line()
    assert words in line
    assert line.isprintable()


# -- looking ahead ----------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots())
def test_time_goes_on_into_a_valid_snapshot_and_work_never_grows(made: Snapshot) -> None:
    plan = solve(made)
    after = outcome(made, plan)
    for seconds in (60.0, 600.0, 1e6):
        later = advance(after, plan, made.taken_at_s + seconds)
        validate(later)
        assert later.taken_at_s == made.taken_at_s + seconds
        before = {j.id: j for j in after.jobs}
        chained = {n for g in plan.groups if g.mode == "sequence" for n in g.jobs[1:]}
        for one in later.jobs:
            old = before[one.id]
            if one.id not in chained:
                assert (one.remaining_samples or 0.0) <= (old.remaining_samples or 0.0) + 1e-9
                assert (one.remaining_s or 0.0) <= (old.remaining_s or 0.0) + 1e-9
        done = set(before) - {j.id for j in later.jobs}
        for group in plan.groups:
            for name in group.jobs:
                finish = group.predicted[name].finish_at_s
                assert (name in done) == (finish is not None and finish <= later.taken_at_s)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots(jobs=4, nodes=2))
def test_a_look_ahead_only_adds_starts(made: Snapshot) -> None:
    plan = solve(made)

    def again(later: Snapshot, previous: Any) -> Any:
        return solve(later, previous=previous)

    near, far = (look_ahead(made, plan, again, rounds) for rounds in (0, 3))
    assert set(near) == set(far) == {j.id for j in made.jobs}
    for name, outlook in near.items():
        if outlook.start_s is not None:
            assert far[name].start_s == outlook.start_s
        elif far[name].start_s is not None:
            assert far[name].start_s > 0


def test_a_document_nested_too_deeply_is_refused_in_one_line() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    with pytest.raises(InputError, match="nested too deeply"):
        jobs_from(deep, "extra.json", 0.0)
