"""Stopping, crashing, undoing: what comes after is what would have come anyway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from worker_kit import (
    add_job,
    apart,
    assignment,
    curve,
    events,
    result,
    run,
    saved,
    state,
    trained_alone,
    worker,
)

from ymir_opt.runtime.jobfolder import JobFolder
from ymir_opt.runtime.worker import Worker


def crash(one: Worker) -> None:
    """Leave a worker as a kill would: locks are freed, nothing is written."""
    for member in one.crew.members.values():
        member.folder.unlock()


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("ends", ["stop", "crash"])
def test_a_resumed_job_ends_with_the_same_bits(ends: str, schedule: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        key = add_job(folder, "a", lr_scheduler_type=schedule, global_batch_size=5)
    alone = trained_alone(whole, key)
    for ticks in (7, 3, 8, 1000):
        one = worker(parts, parts)
        one.assign(assignment(1, "solo", [key]))
        run(one, ticks)
        one.stop() if ends == "stop" else crash(one)
    assert apart(saved(parts, key), alone) == 0
    without_time = [
        [{k: v for k, v in e.items() if k != "at_s"} for e in curve(f, key)] for f in (whole, parts)
    ]
    assert without_time[0] == without_time[1]
    repeated = [e["samples"] for e in one.events.events if e["event"] == "started"]
    # a checkpoint every 24 samples: a crash costs less than that
    done = [0, 35, 50, 90] if ends == "stop" else [0, 25, 25, 50]
    assert repeated == done


@pytest.mark.parametrize("target", [None, 0.8])
def test_a_crash_before_the_result_is_written_trains_nothing_twice(
    target: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = add_job(tmp_path, "a", target=target, num_train_epochs=10.0)
    one = worker(tmp_path)
    one.assign(assignment(1, "solo", [key]))

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(JobFolder, "write_result", killed)
        with pytest.raises(Killed):
            run(one)
    before = saved(tmp_path, key)
    crash(one)
    other = worker(tmp_path)
    other.assign(assignment(1, "solo", [key]))
    run(other)
    assert apart(saved(tmp_path, key), before) == 0
    assert result(tmp_path, key)["samples"] == curve(tmp_path, key)[-1]["samples"]
    assert events(other, "evaluated") == []
    assert events(other, "finished")[0]["outcome"] == ("exhausted" if target is None else "reached")


def test_a_colocated_group_that_crashed_together_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        keys = [add_job(folder, name, seed=n) for n, name in enumerate("abc")]
    one = worker(whole)
    one.assign(assignment(1, "colocate", keys))
    run(one)
    for ticks in (9, 10, 1000):
        one = worker(parts)
        one.assign(assignment(1, "colocate", keys))
        run(one, ticks)
        crash(one)
    for key in keys:
        assert apart(saved(whole, key), saved(parts, key)) == 0


def test_a_joint_group_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        keys = [add_job(folder, name, seed=n, rows=40 + 20 * n) for n, name in enumerate("ab")]
    one = worker(whole)
    one.assign(assignment(1, "joint", keys))
    run(one)
    for ticks in (15, 7, 1000):
        one = worker(parts)
        one.assign(assignment(1, "joint", keys))
        run(one, ticks)
        crash(one)
    for key in keys:
        assert apart(saved(whole, key), saved(parts, key)) == 0
        assert result(parts, key)["state"] == "completed"


def probe(**expected: object) -> dict[str, object]:
    return {"evaluations": 2, "expected": expected}


def test_a_joint_merge_without_benefit_is_undone_to_the_exact_former_state(tmp_path: Path) -> None:
    merged, plain = tmp_path / "merged", tmp_path / "plain"
    for folder in (merged, plain):
        a, b = (add_job(folder, name, target=0.99, noise=0.7, num_train_epochs=4.0) for name in "ab")
        one = worker(folder)
        one.assign(assignment(1, "colocate", [a, b]))
        run(one, 6)
        one.stop()
    before = {key: saved(merged, key) for key in (a, b)}
    # alone they would do better than anything: the merge cannot keep up
    own = [[0, 1.0], [10_000, 1.0]]
    one = worker(merged)
    wish = probe(**{a: {"own_curve": own}, b: {"own_curve": own}})
    one.assign(assignment(1, "joint", [a, b], id="m", probe=wish))
    while not events(one, "split"):
        assert one.tick()
    (split,) = events(one, "split")
    assert split["group"] == "m"
    assert sorted(split["jobs"]) == sorted([a, b])
    assert split["predicted"] == 1.0
    assert split["realised"] < 1.0
    assert split["cost_s"] > 0
    for key in (a, b):
        # factors, heads and optimiser are those of before
        assert apart(saved(merged, key), before[key]) == 0
        assert state(merged, key)["samples"] == 24
        assert state(merged, key)["rejected"] == ["m"]
        assert not (merged / "jobs" / key / "before-merge").exists()
    # the same wish again, and after a crash, does not merge them again
    one.assign(assignment(2, "joint", [a, b], id="m", probe=wish))
    crash(one)
    one = worker(merged)
    one.assign(assignment(1, "joint", [a, b], id="m", probe=wish))
    run(one)
    assert events(one, "split") == []
    other = worker(plain)
    other.assign(assignment(1, "colocate", [a, b]))
    run(other)
    for key in (a, b):
        assert apart(saved(merged, key), saved(plain, key)) == 0
        assert curve_points(merged, key) == curve_points(plain, key)


def curve_points(folder: Path, key: str) -> list[tuple[int, float]]:
    return [(e["samples"], e["metric"]) for e in curve(folder, key)]


def test_a_start_that_does_not_help_is_undone(tmp_path: Path) -> None:
    a = add_job(tmp_path, "a")
    trained_alone(tmp_path, a)
    plain = tmp_path / "plain"
    for folder in (tmp_path, plain):
        b = add_job(folder, "b", target=0.999, noise=0.8, num_train_epochs=3.0)
    one = worker(tmp_path)
    wish = {
        "starts_from": {b: f"jobs/{a}/checkpoint"},
        "probe": probe(**{b: {"samples_to_target": 33, "samples_alone": 34}}),
    }
    one.assign(assignment(1, "solo", [b], **wish))
    run(one)
    (split,) = events(one, "split")
    assert split["rule"] == "samples"
    assert split["predicted"] == 33
    assert apart(saved(tmp_path, b), trained_alone(plain, b)) == 0


def test_a_merge_that_helps_is_kept(tmp_path: Path) -> None:
    a, b = (add_job(tmp_path, name, num_train_epochs=8.0) for name in "ab")
    worst = [[0, 0.0], [10_000, 0.0]]
    one = worker(tmp_path)
    wish = probe(**{a: {"own_curve": worst}, b: {"own_curve": worst}})
    one.assign(assignment(1, "joint", [a, b], probe=wish))
    assert (tmp_path / "jobs" / a / "before-merge").is_dir()
    while {m.get("probe") for m in one.status()["members"].values()} != {"passed"}:
        assert one.tick()
    assert not (tmp_path / "jobs" / a / "before-merge").exists()
    run(one)
    assert events(one, "split") == []
    assert {result(tmp_path, key)["state"] for key in (a, b)} == {"completed"}


def test_a_crash_during_a_probe_keeps_the_way_back(tmp_path: Path) -> None:
    a, b = (add_job(tmp_path, name, num_train_epochs=8.0, noise=0.7, target=0.99) for name in "ab")
    own = [[0, 1.0], [10_000, 1.0]]
    wish = probe(**{a: {"own_curve": own}, b: {"own_curve": own}})
    one = worker(tmp_path)
    one.assign(assignment(1, "joint", [a, b], probe=wish))
    run(one, 7)
    assert events(one, "split") == []
    crash(one)
    one = worker(tmp_path)
    one.assign(assignment(1, "joint", [a, b], probe=wish))
    while not events(one, "split"):
        assert one.tick()
    assert state(tmp_path, a)["samples"] == state(tmp_path, b)["samples"] == 0
    one.stop()


def test_a_profile_has_the_rows_of_a_snapshot(tmp_path: Path) -> None:
    from ymir_opt.domain.snapshot import Profiles

    key = add_job(tmp_path, "a")
    one = worker(tmp_path, tmp_path)
    wish = assignment(1, None, [], profile=[key])
    one.assign(wish)
    run(one)
    (event,) = events(one, "profiled")
    found = Profiles.model_validate_json(json.dumps(event["rows"]))
    (speed,) = found.throughput
    assert speed.batch_size == 4
    assert speed.config == "float32-len16-r4"
    assert [len(row.members) for row in found.colocation] == [2, 4]
    assert all(ratio > 0 for row in found.colocation for ratio in row.speed_ratio)
    assert found.backbone_gib[0].gib > 0
    assert found.switch_s[0].warm_s > 0
    assert one.crew.runtime.adapters == {}
    # once is enough, also for the next process
    other = worker(tmp_path, tmp_path)
    other.assign(wish)
    assert not other.tick()
