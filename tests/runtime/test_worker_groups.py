"""Groups of jobs on one model: who trains what, and that company changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from worker_kit import add_job, apart, assignment, curve, events, result, run, saved, trained_alone, worker


def three(folder: Path) -> list[str]:
    return [
        add_job(folder, "a", seed=1),
        add_job(folder, "b", seed=2, global_batch_size=3, classes=3, lr_scheduler_type="linear"),
        add_job(folder, "c", seed=3, global_batch_size=5, peft={"r": 2, "target_modules": ["query"]}),
    ]


def test_members_that_join_and_leave_train_as_alone(tmp_path: Path) -> None:
    together, apart_ = tmp_path / "together", tmp_path / "apart"
    a, b, c = three(together)
    three(apart_)
    alone = {key: trained_alone(apart_, key) for key in (a, b, c)}
    one = worker(together)
    one.assign(assignment(1, "colocate", [a, b]))
    run(one, 5)
    one.assign(assignment(2, "colocate", [a, b, c]))
    run(one, 4)
    one.assign(assignment(3, "colocate", [b, c]))
    run(one, 3)
    one.assign(assignment(4, "colocate", [c, a, b]))
    run(one)
    for key in (a, b, c):
        assert apart(saved(together, key), alone[key]) <= 1e-5
        assert [e["samples"] for e in curve(together, key)] == [e["samples"] for e in curve(apart_, key)]
        assert result(together, key)["state"] == "completed"
    assert [e["samples"] for e in events(one, "left")] == [36]
    assert len(events(one, "ready")) == 1
    # b and c were not loaded again when a came and went
    assert sorted(e["job"] for e in events(one, "started")) == sorted([a, b, c, a])


def test_the_first_at_its_target_leaves_and_the_rest_go_on(tmp_path: Path) -> None:
    easy = add_job(tmp_path, "easy", target=0.8, num_train_epochs=30.0)
    other = add_job(tmp_path, "other", num_train_epochs=4.0)
    one = worker(tmp_path)
    one.assign(assignment(1, "colocate", [easy, other]))
    run(one)
    (first, second) = events(one, "finished")
    assert (first["job"], first["outcome"]) == (easy, "reached")
    assert (second["job"], second["outcome"]) == (other, "exhausted")
    assert first["samples"] < second["samples"]
    assert result(tmp_path, easy)["metric"] >= 0.8


def test_a_sequence_hands_the_weights_over(tmp_path: Path) -> None:
    a, b = add_job(tmp_path, "a"), add_job(tmp_path, "b")
    one = worker(tmp_path)
    one.assign(assignment(1, "sequence", [a, b]))
    run(one, 3)
    assert one.status()["members"][b] == {"state": "waiting"}
    run(one)
    assert [e["job"] for e in events(one, "finished")] == [a, b]
    begun = next(e for e in one.events.events if e["event"] == "started" and e["job"] == b)
    ended = next(e for e in one.events.events if e["event"] == "finished" and e["job"] == a)
    assert begun["seq"] > ended["seq"]
    fresh = tmp_path / "fresh"
    add_job(fresh, "b")
    assert apart(trained_alone(fresh, b), saved(tmp_path, b)) > 1e-3


def test_a_sequence_without_benefit_starts_fresh(tmp_path: Path) -> None:
    a, b = add_job(tmp_path, "a"), add_job(tmp_path, "b")
    one = worker(tmp_path)
    probe = {"evaluations": 2, "expected": {b: {"work_ratio": 1.2}}}
    one.assign(assignment(1, "sequence", [a, b], probe=probe))
    run(one)
    fresh = tmp_path / "fresh"
    add_job(fresh, "b")
    assert apart(trained_alone(fresh, b), saved(tmp_path, b)) == 0


def test_joint_members_share_factors_and_leave_with_them(tmp_path: Path) -> None:
    easy = add_job(tmp_path, "easy", target=0.8, num_train_epochs=40.0)
    hard = add_job(tmp_path, "hard", num_train_epochs=6.0, classes=3)
    one = worker(tmp_path)
    one.assign(assignment(1, "joint", [easy, hard]))
    run(one, 4)
    shared = one.crew.runtime.adapters["joint:g1"]
    assert set(shared.heads) == {easy, hard}
    while not events(one, "finished"):
        assert one.tick()
    (first,) = events(one, "finished")
    assert (first["job"], first["outcome"]) == (easy, "reached")
    left = saved(tmp_path, easy)
    assert f"head.{easy}.weight" in left
    assert f"head.{hard}.weight" not in left
    now = {k: w.detach() for k, w in shared.named_parameters()}
    assert all(float((left[k] - now[k]).abs().max()) == 0 for k in left)
    run(one)
    assert result(tmp_path, hard)["state"] == "completed"
    assert [e["job"] for e in events(one, "finished")] == [easy, hard]


def test_joint_members_with_other_ranks_train_beside_each_other(tmp_path: Path) -> None:
    a, b = add_job(tmp_path, "a"), add_job(tmp_path, "b", peft={"r": 2})
    one = worker(tmp_path)
    one.assign(assignment(1, "joint", [a, b]))
    run(one)
    (split,) = events(one, "split")
    assert "r differs" in split["reason"]
    apart_ = tmp_path / "apart"
    add_job(apart_, "a")
    assert apart(trained_alone(apart_, a), saved(tmp_path, a)) <= 1e-5


def test_leaving_a_joint_group_keeps_the_progress(tmp_path: Path) -> None:
    a, b = add_job(tmp_path, "a"), add_job(tmp_path, "b")
    one = worker(tmp_path)
    one.assign(assignment(1, "joint", [a, b]))
    run(one, 8)
    shared = {k: w.detach().clone() for k, w in one.crew.runtime.adapters["joint:g1"].named_parameters()}
    samples = {k: m["samples"] for k, m in one.status()["members"].items()}
    assert sum(samples.values()) == 32
    one.assign(assignment(2, "colocate", [a, b], id="g2"))
    assert {k: m["samples"] for k, m in one.status()["members"].items()} == samples
    for key in (a, b):
        own = {k: w.detach() for k, w in one.crew.runtime.adapters[key].named_parameters()}
        assert all(float((own[k] - shared[k]).abs().max()) == 0 for k in own)
    run(one)
    assert {result(tmp_path, k)["state"] for k in (a, b)} == {"completed"}


def test_starting_from_a_finished_job(tmp_path: Path) -> None:
    a, b = add_job(tmp_path, "a"), add_job(tmp_path, "b")
    source = trained_alone(tmp_path, a)
    one = worker(tmp_path)
    again = assignment(1, "solo", [b], starts_from={b: f"jobs/{a}/checkpoint"})
    one.assign(again)
    own = one.crew.runtime.adapters[b]
    assert all(float((own.a[k] - source[f"{k}.lora_a"]).abs().max()) == 0 for k in own.a)
    run(one, 4)
    # the same wish once more does not start it again
    one.assign({**again, "version": 2})
    assert one.status()["members"][b]["samples"] == 16
    one.stop()
    other = worker(tmp_path)
    other.assign({**again, "version": 1})
    assert other.status()["members"][b]["samples"] == 16
    run(other)
    assert result(tmp_path, b)["state"] == "completed"


def test_a_running_job_starts_anew_from_other_weights_where_the_plan_wants_it(tmp_path: Path) -> None:
    a, b, c = (add_job(tmp_path, name) for name in "abc")
    source = trained_alone(tmp_path, a)
    one = worker(tmp_path)
    one.assign(assignment(1, "colocate", [b, c]))
    run(one, 5)
    wish = {"id": "g2", "starts_from": {b: str(tmp_path / "jobs" / a / "checkpoint")}}
    one.assign(assignment(2, "colocate", [b, c], **wish))
    assert {k: m["samples"] for k, m in one.status()["members"].items()} == {b: 0, c: 20}
    own = one.crew.runtime.adapters[b]
    assert all(float((own.a[k] - source[f"{k}.lora_a"]).abs().max()) == 0 for k in own.a)
    assert curve(tmp_path, b) == []
    run(one, 3)
    one.assign(assignment(3, "colocate", [b, c], **wish))
    assert one.status()["members"][b]["samples"] == 12
    one.stop()


def test_an_older_assignment_changes_nothing(tmp_path: Path) -> None:
    a, b = add_job(tmp_path, "a"), add_job(tmp_path, "b")
    one = worker(tmp_path)
    one.assign(assignment(3, "solo", [a]))
    one.assign(assignment(2, "solo", [b]))
    assert list(one.status()["members"]) == [a]


def test_patience_ends_a_job_without_improvement(tmp_path: Path) -> None:
    a = add_job(tmp_path, "a", noise=1.0, num_train_epochs=50.0, early_stopping_patience=2, target=0.99)
    one = worker(tmp_path)
    one.assign(assignment(1, "solo", [a]))
    run(one)
    found = result(tmp_path, a)
    assert "no improvement in 2 evaluations" in found["reason"]
    metrics = [e["metric"] for e in curve(tmp_path, a)]
    assert max(metrics[:-2]) >= max(metrics[-2:])


def test_data_of_the_next_jobs_is_prepared_ahead(tmp_path: Path) -> None:
    a, b = add_job(tmp_path, "a", num_train_epochs=20.0), add_job(tmp_path, "b")
    one = worker(tmp_path)
    one.assign(assignment(1, "solo", [a], prepare=[b]))
    for _ in range(1000):
        one.tick()
        if events(one, "prepared"):
            break
    assert [e["job"] for e in events(one, "prepared")] == [b]
    (tmp_path / "jobs" / b / "rows.csv").unlink()
    one.assign(assignment(2, "colocate", [a, b]))
    assert one.status()["members"][b]["state"] == "training"
    one.stop()
