"""A pool of counting workers: adoption, stale plans, handing over, back-off, quarantine, cancelling."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from executor_kit import (
    daemon,
    nodes,
    open_pool,
    profiles,
    proven,
    results,
    submitted,
    trace,
    until,
    workers_of,
    write_request,
)

from ymir_opt.api import solve
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.outcome import outcome
from ymir_opt.domain.plan import ActionKind
from ymir_opt.domain.request import key_of
from ymir_opt.domain.snapshot import JobState, NodeState, Profiles, Snapshot
from ymir_opt.executors.base import Options, StalePlanError
from ymir_opt.executors.desired import groups_of
from ymir_opt.executors.failures import backoff_s
from ymir_opt.executors.pool import WorkerPool
from ymir_opt.executors.records import GroupRecord
from ymir_opt.service.intake import Intake, submit
from ymir_opt.service.listing import list_jobs
from ymir_opt.service.observe import observe

SAMPLES = 400


def seen(pool: WorkerPool) -> Snapshot:
    Intake(pool, pool.folder, lambda: 0.0).take()
    snapshot = observe(pool, profiles(), 1000.0, 60.0)
    pool.observed(snapshot)
    return snapshot


def want(pool: WorkerPool, mode: str, *names: str, gpu: int = 0, node: str = "n0", **more: Any) -> None:
    """Want one group, besides those wanted already."""
    keys = [key_of(name) for name in names]
    group = GroupRecord(
        id=f"g-{mode}-{'-'.join(names)}", mode=mode, jobs=keys, node=node, gpu=gpu, started_at_s=0.0, **more
    )
    others = [g for g in pool.state.groups.values() if not set(g.jobs) & set(keys)]
    pool.state.set_groups([*others, group])


def test_jobs_run_to_their_end_and_workers_stay_warm(root: Path) -> None:
    folder = submitted(root, "a", "b", "c", "d", "e")
    with open_pool(folder) as pool:
        service = daemon(pool)
        until(lambda: len(results(folder)) == 5, service.step)
        # five jobs on two devices took two processes
        assert len(pool.state.workers) == 2
        until(lambda: not service.step(), lambda: None)
        pool.stop()
    assert set(results(folder).values()) == {"completed"}
    assert proven(folder, SAMPLES) == 0
    assert not workers_of(folder)


def test_a_new_executor_adopts_the_workers_that_run(root: Path) -> None:
    folder = submitted(root, "a", "b", samples=1200)
    with open_pool(folder) as pool:
        service = daemon(pool)
        until(lambda: len(trace(folder)) == 2, service.step)
        before = workers_of(folder)
    assert len(before) == 2
    with open_pool(folder) as pool:
        assert {event["worker"] for event in pool.state.news if event["event"] == "adopted"} == set(before)
        service = daemon(pool)
        until(lambda: len(results(folder)) == 2, service.step)
        assert set(pool.state.workers) == set(before)
        pool.stop()
    assert proven(folder, 1200) == 0


def test_a_worker_that_the_journal_does_not_know_is_ended(root: Path) -> None:
    folder = submitted(root, "a", samples=100_000)
    with open_pool(folder) as pool:
        service = daemon(pool)
        until(lambda: bool(trace(folder)), service.step)
        (action,) = workers_of(folder)
        # a disk that lost the journal
        del pool.state.workers[action]
        pool.journal.remove("worker", action)
    with open_pool(folder) as pool:
        assert any(event["event"] == "disowned" for event in pool.state.news)
        service = daemon(pool)
        until(lambda: len({step["pid"] for step in trace(folder)["a"]}) == 2, service.step)
        assert action not in workers_of(folder)
        steps = trace(folder)["a"]
        pool.stop()
    # it went on from what the ended one kept
    again = next(step for step in steps if step["pid"] != steps[0]["pid"])
    assert again["samples"] > 4


def test_the_intent_is_in_the_journal_before_the_process_exists(root: Path, monkeypatch: Any) -> None:
    folder = submitted(root, "a")
    with open_pool(folder) as pool:

        def crash(_launch: object) -> Any:
            raise SystemExit("killed between the intent and the process")

        monkeypatch.setattr(pool.backend, "start", crash)
        service = daemon(pool)
        with pytest.raises(SystemExit):
            until(lambda: False, service.step)
        (action,) = pool.journal.all("worker")
    with open_pool(folder) as pool:
        # a process that might still appear finds its end in its folder, and the job is not lost
        assignment = json.loads((folder.worker(action) / "assignment.json").read_text())
        assert assignment["stop"] is True
        until(lambda: bool(results(folder)), daemon(pool).step)
        assert action not in pool.journal.all("worker") or not pool.state.workers[action].live
        pool.stop()
    assert proven(folder, SAMPLES) == 0


def test_a_stale_plan_is_refused(root: Path) -> None:
    folder = submitted(root, "a", "b", samples=100_000)
    with open_pool(folder) as pool:
        snapshot = seen(pool)
        plan = solve(snapshot, policy="fifo")
        submit(folder, write_request(root / "requests", "c"))
        later = seen(pool)
        with pytest.raises(StalePlanError, match="another snapshot is the present one; plan again"):
            pool.apply(plan, snapshot)
        with pytest.raises(InputError, match="made for snapshot"):
            pool.apply(plan, later)
        plan = solve(later, policy="fifo")
        differences = pool.apply(plan, later)
        assert sorted(line.split(" runs ")[1] for line in differences) == [
            "nowhere, planned on n0:0",
            "nowhere, planned on n1:0",
        ]
        # the plan's own outcome is the present state: a plan for that may follow
        after = outcome(later, plan)
        pool.apply(solve(after, policy="fifo"), after)
        pool.end(next(job for job in pool.state.jobs.values() if job.id == "c"), "cancelled", "test")
        with pytest.raises(StalePlanError, match="something happened since"):
            pool.apply(solve(after, policy="fifo"), after)


def test_a_plan_for_two_devices_or_unknown_jobs_is_refused(root: Path) -> None:
    folder = submitted(root, "a")
    with open_pool(folder, nodes=nodes(1, gpus=2)) as pool:
        snapshot = seen(pool)
        plan = solve(snapshot, policy="fifo")
        (group,) = plan.groups
        wide = plan.model_copy(update={"groups": (group.model_copy(update={"placement": {"n0": (0, 1)}}),)})
        with pytest.raises(
            InputError, match=r"groups\[0\].placement: 2 GPUs, but a job is trained on one device"
        ):
            pool.apply(wide, snapshot)
        del pool.state.jobs[key_of("a")]
        with pytest.raises(InputError, match=r"'a' was not submitted"):
            pool.apply(plan, snapshot)


def test_a_job_moves_only_when_its_worker_has_let_go(root: Path) -> None:
    folder = submitted(root, "a", "b", samples=2000)
    with open_pool(folder) as pool:
        seen(pool)
        want(pool, "solo", "a")
        want(pool, "solo", "b", node="n1")
        until(lambda: len(trace(folder)) == 2, pool.tick)
        for _ in range(3):
            # each takes the other's place, at once
            for first, second in (("n1", "n0"), ("n0", "n1")):
                want(pool, "solo", "a", node=first)
                want(pool, "solo", "b", node=second)
                where = {key_of("a"): (first, 0), key_of("b"): (second, 0)}
                until(lambda where=where: _trained_at(pool) == where, pool.tick)
        want(pool, "colocate", "a", "b")
        until(lambda: len(results(folder)) == 2, pool.tick)
        pool.stop()
    assert proven(folder, 2000) >= 12


def _trained_at(pool: WorkerPool) -> dict[str, tuple[str, int]]:
    return {
        key: (worker.node, worker.gpu)
        for worker in pool.state.live
        for key, member in _members(pool, worker.id).items()
        if member["state"] == "training"
    }


def _members(pool: WorkerPool, action: str) -> dict[str, Any]:
    try:
        status = json.loads((pool.folder.worker(action) / "status.json").read_text())
    except OSError:
        return {}
    return dict(status["members"])


def test_members_of_a_shared_gpu_have_processes_of_their_own(root: Path) -> None:
    folder = submitted(root, "a", "b", samples=1000)
    with open_pool(folder) as pool:
        seen(pool)
        want(pool, "gpu_share", "a", "b")
        until(lambda: len(trace(folder)) == 2, pool.tick)
        assert len(workers_of(folder)) == 2
        assert {(w.node, w.gpu, w.lane) for w in pool.state.live} == {("n0", 0, 0), ("n0", 0, 1)}
        until(lambda: len(results(folder)) == 2, pool.tick)
        # the second process has no use any more
        until(lambda: len(workers_of(folder)) == 1, pool.tick)
        pool.stop()
    assert proven(folder, 1000) == 0


def test_another_foundation_model_takes_another_process(root: Path) -> None:
    folder = submitted(root, "a")
    submit(folder, write_request(root / "requests", "b", model={"name_or_path": "minilm", "layers": 2}))
    with open_pool(folder) as pool:
        seen(pool)
        want(pool, "solo", "a")
        until(lambda: "a" in results(folder), pool.tick)
        first = set(workers_of(folder))
        want(pool, "solo", "b")
        until(lambda: "b" in results(folder), pool.tick)
        assert not first & set(workers_of(folder))
        assert pool.nodes()[0].resident_fm == ("all-MiniLM-L6-v2-first2",)
        pool.stop()


def test_a_sequence_hands_on_and_a_start_from_other_weights_happens_once(root: Path) -> None:
    folder = submitted(root, "a", "b")
    with open_pool(folder) as pool:
        seen(pool)
        want(pool, "solo", "a")
        until(lambda: "a" in results(folder), pool.tick)
        source = {key_of("b"): ["adapter", key_of("a")]}
        want(pool, "solo", "b", starts_from=dict(source), sources=source)
        until(lambda: bool(trace(folder).get("b")), pool.tick)
        (worker,) = pool.state.live
        given = worker.assignment["group"]["starts_from"]
        assert given == {key_of("b"): str(folder.job(key_of("a")) / "checkpoint")}
        until(lambda: pool.state.jobs[key_of("b")].checkpoint_samples > 0, pool.tick)
        os.kill(next(iter(workers_of(folder).values())), signal.SIGKILL)
        until(lambda: "b" in results(folder), pool.tick)
        # after its own first checkpoint the source is history
        assert next(iter(pool.state.live)).assignment["group"]["starts_from"] == {}
        pool.stop()
    assert proven(folder, SAMPLES) <= 1


def test_a_start_that_fails_backs_off_and_is_quarantined(root: Path) -> None:
    folder = submitted(root, "broken-1", "a", "b", "c")
    with open_pool(folder) as pool:
        service = daemon(pool)
        until(lambda: len(results(folder)) == 3 and pool.state.jobs[key_of("broken-1")].over, service.step)
        events = [event["event"] for event in pool.events() if event.get("job") == "broken-1"]
        assert events.count("failed_start") == 3
        pool.stop()
    (line,) = [line for line in list_jobs(folder) if line.id == "broken-1"]
    assert line.state == "quarantined"
    assert line.reason == ("quarantined after 3 failed starts: ended with code 3: broken-1 cannot be started")
    # the others were not starved, and finished in the meantime
    assert set(results(folder)) == {"a", "b", "c"}
    assert proven(folder, SAMPLES) == 0


def test_a_merge_that_cannot_start_is_undone_so_that_the_guilty_one_shows(root: Path) -> None:
    folder = submitted(root, "broken-1", "a")
    with open_pool(folder) as pool:
        seen(pool)
        want(pool, "colocate", "broken-1", "a")
        until(lambda: not pool.state.groups, pool.tick)
        (rejected,) = seen(pool).rejected_merges
        assert (rejected.jobs, rejected.mode) == (("a", "broken-1"), "colocate")
        service = daemon(pool)
        until(lambda: results(folder) == {"a": "completed"}, service.step)
        until(lambda: pool.state.jobs[key_of("broken-1")].over, service.step)
        pool.stop()


def say(pool: WorkerPool, event: str, **facts: Any) -> None:
    """Let the one worker say something that counting workers never say."""
    (worker,) = pool.state.live
    line = {"seq": 10**6, "at_s": 1.0, "event": event, **facts}
    with (pool.folder.worker(worker.id) / "events.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def test_a_merge_that_was_undone_is_remembered(root: Path) -> None:
    folder = submitted(root, "a", "b", samples=10**6)
    with open_pool(folder, nodes=nodes(1)) as pool:
        seen(pool)
        want(pool, "joint", "a", "b", evaluations=2, probe="running")
        until(lambda: len(trace(folder)) == 2, pool.tick)
        (group,) = seen(pool).groups
        assert (group.probe.state, group.mode) == ("running", "joint")  # type: ignore[union-attr]
        (worker,) = pool.state.live
        assert worker.assignment["group"]["probe"]["evaluations"] == 2
        keys = [key_of("a"), key_of("b")]
        say(pool, "split", job=keys[0], group=group.id, jobs=keys, cost_s=3.5, rule="samples")
        news = pool.tick()
        (split,) = [event for event in news if event["event"] == "split"]
        assert (split["jobs"], split["mode"], split["cost_s"]) == (["a", "b"], "colocate", 3.5)
        snapshot = seen(pool)
        assert [(r.jobs, r.mode) for r in snapshot.rejected_merges] == [(("a", "b"), "joint")]
        # the members go on beside each other
        assert [(g.mode, g.probe) for g in snapshot.groups] == [("colocate", None)]
        until(lambda: worker.assignment["group"]["mode"] == "colocate", pool.tick)


def test_a_start_from_other_weights_that_did_not_help_is_not_tried_again(root: Path) -> None:
    folder = submitted(root, "a", samples=10**6)
    with open_pool(folder, nodes=nodes(1)) as pool:
        seen(pool)
        want(pool, "solo", "a", evaluations=2, probe="running")
        until(lambda: bool(trace(folder)), pool.tick)
        assert seen(pool).jobs[0].sharing == "tenant"
        (group,) = pool.state.groups.values()
        say(pool, "split", job=key_of("a"), group=group.id, jobs=[key_of("a")], cost_s=1.0)
        pool.tick()
        snapshot = seen(pool)
        assert snapshot.jobs[0].sharing == "backbone"
        assert snapshot.rejected_merges == ()


def test_what_a_follower_is_expected_to_need(root: Path) -> None:
    folder = submitted(root, "a", "b")
    fm = "all-MiniLM-L6-v2"
    row = {"mode": "warm_start", "foundation_model": fm, "source": "a", "target": "b", "work_ratio": 0.1}
    with open_pool(folder, nodes=nodes(1)) as pool:
        snapshot = seen(pool)
        jobs = tuple(job.model_copy(update={"task": job.id}) for job in snapshot.jobs)
        rows = Profiles.model_validate_json(json.dumps({"transfer": [row]})).transfer
        known = snapshot.profiles.model_copy(update={"transfer": rows})
        slow = tuple(r.model_copy(update={"samples_per_s": 1.0}) for r in known.throughput)
        known = known.model_copy(update={"throughput": slow})
        snapshot = snapshot.model_copy(update={"jobs": jobs, "profiles": known})
        plan = solve(snapshot)
        assert [group.mode for group in plan.groups] == ["sequence"]
        (group,), _ = groups_of(plan, snapshot, pool.state.keys(), 0.0)
        assert group.predicted[key_of("a")]["work"] == 320
        assert group.predicted[key_of("b")]["work"] == pytest.approx(32)
        pool.observed(snapshot)
        pool.apply(plan, snapshot)
        # while it waits it has all its work before it
        assert {job.id: job.remaining_samples for job in seen(pool).jobs} == {"a": 320, "b": 320}


def test_waiting_doubles_up_to_a_limit() -> None:
    settings = Options(backoff_s=10, backoff_most_s=100)
    assert [backoff_s(n, settings) for n in range(7)] == [0, 10, 20, 40, 80, 100, 100]
    assert backoff_s(10_000, settings) == 100


def test_one_bad_member_fails_alone(root: Path) -> None:
    folder = submitted(root, "nan-1", "a", "b")
    with open_pool(folder) as pool:
        seen(pool)
        want(pool, "colocate", "a", "nan-1", "b")
        until(lambda: len(results(folder)) == 3, pool.tick)
        pool.stop()
    assert results(folder) == {"nan-1": "failed", "a": "completed", "b": "completed"}
    assert proven(folder, SAMPLES) == 0
    assert {line.id: line.reason for line in list_jobs(folder)}["nan-1"] == "the loss is not finite"


def test_cancelling_frees_the_device(root: Path) -> None:
    folder = submitted(root, "long", samples=10**6)
    with open_pool(folder, nodes=nodes(1)) as pool:
        service = daemon(pool)
        until(lambda: bool(trace(folder)), service.step)
        submit(folder, write_request(root / "requests", "next"))
        pool.cancel("long")
        until(lambda: len(results(folder)) == 2, service.step)
        with pytest.raises(NotFoundError, match="did you mean 'long'"):
            pool.cancel("lnog")
        assert len(workers_of(folder)) == 1
        pool.stop()
    assert results(folder) == {"long": "cancelled", "next": "completed"}


def test_a_planner_that_fails_ends_nothing(root: Path, monkeypatch: Any) -> None:
    folder = submitted(root, "a", "b", "c")
    with open_pool(folder, nodes=nodes(1)) as pool:
        service = daemon(pool, round_s=0.1)
        until(lambda: bool(trace(folder)), service.step)

        def fails(_snapshot: Snapshot) -> Any:
            raise ZeroDivisionError("no such luck")

        with monkeypatch.context() as patch:
            patch.setattr(service, "solve", fails)
            until(lambda: "a" in results(folder), service.step)
            reasons = {event["reason"] for event in pool.events() if event["event"] == "no_plan"}
            assert reasons == {"internal error: ZeroDivisionError: no such luck"}
        until(lambda: len(results(folder)) == 3, service.step)
        pool.stop()


def test_a_new_job_does_not_wait_for_the_next_round(root: Path) -> None:
    folder = submitted(root, "a", samples=10**6)
    with open_pool(folder) as pool:
        service = daemon(pool, round_s=10**6)
        until(lambda: bool(trace(folder)), service.step)
        submit(folder, write_request(root / "requests", "b"))
        until(lambda: "b" in results(folder), service.step)


def test_a_time_limit_ends_a_job(root: Path) -> None:
    folder = submitted(root, "long", samples=10**6, resources={"time_limit_s": 0.5})
    with open_pool(folder, nodes=nodes(1)) as pool:
        service = daemon(pool)
        until(lambda: results(folder) == {"long": "failed"}, service.step)
        until(lambda: pool.state.jobs[key_of("long")].phase == "failed", service.step)
        pool.stop()
    (line,) = list_jobs(folder)
    assert line.reason == "ran for its time limit of 0.5 s"


def test_stopping_keeps_every_step(root: Path) -> None:
    folder = submitted(root, "a", "b", samples=1200)
    for _ in range(3):
        with open_pool(folder) as pool:
            service = daemon(pool)
            before = sum(len(steps) for steps in trace(folder).values())
            until(lambda before=before: sum(map(len, trace(folder).values())) > before + 20, service.step)
            pool.stop()
            assert not workers_of(folder)
    with open_pool(folder) as pool:
        until(lambda: len(results(folder)) == 2, daemon(pool).step)
        pool.stop()
    # asked to stop, a worker checkpoints: nothing at all is repeated
    for steps in trace(folder).values():
        assert [step["samples"] for step in steps] == list(range(4, 1204, 4))


def test_what_the_snapshot_of_now_says(root: Path) -> None:
    folder = submitted(root, "a", "b", "c", samples=1000)
    with open_pool(folder, nodes=nodes(1, gpus=2)) as pool:
        service = daemon(pool)
        until(lambda: len(trace(folder)) == 2, service.step)
        until(lambda: pool.state.jobs[key_of("a")].checkpoint_samples > 0, service.step)
        snapshot = service.snapshot()
        jobs = {job.id: job for job in snapshot.jobs}
        assert [job.state for job in snapshot.jobs] == [JobState.RUNNING, JobState.RUNNING, JobState.PENDING]
        # 80 of 100 rows train, for 10 epochs
        assert jobs["c"].remaining_samples == 800
        assert 0 < jobs["a"].done_samples < 1000
        assert jobs["a"].remaining_samples == pytest.approx(800 - jobs["a"].done_samples)
        assert {next(iter(job.allocation.items())) for job in snapshot.jobs if job.allocation} == {
            ("n0", (0,)),
            ("n0", (1,)),
        }
        assert snapshot.cluster.nodes[0].resident_fm == ("all-MiniLM-L6-v2",) * 2
        plan = service.solve(snapshot)
        kinds = {action.job: action.action for action in plan.actions}
        assert kinds == {"a": ActionKind.KEEP, "b": ActionKind.KEEP, "c": ActionKind.WAIT}
        pool.stop()


def test_a_node_that_left_holds_nothing(root: Path, monkeypatch: Any) -> None:
    folder = submitted(root, "a", "b", samples=1000)
    with open_pool(folder) as pool:
        service = daemon(pool)
        until(lambda: len(trace(folder)) == 2, service.step)
        lost = pool.state.groups[pool.state.jobs[key_of("a")].group or ""].node
        pid = next(w.handle["pid"] for w in pool.state.live if w.node == lost)
        left = tuple(
            node.model_copy(update={"state": NodeState.DOWN}) if node.id == lost else node
            for node in pool.backend.nodes()
        )
        monkeypatch.setattr(pool.backend, "nodes", lambda: left)
        os.kill(pid, signal.SIGKILL)
        until(lambda: len(results(folder)) == 2, service.step)
        # a node's end is no failed start
        assert not any(event["event"] == "failed_start" for event in pool.events())
        pool.stop()
    assert proven(folder, 1000) >= 1
