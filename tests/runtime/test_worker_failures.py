"""What goes wrong in one job stays in that job, with a reason that a user can act on."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from worker_kit import add_job, apart, assignment, events, result, run, saved, trained_alone, worker

from ymir_opt.runtime.adapters import AdapterSpec
from ymir_opt.runtime.checkpoint import save_adapter
from ymir_opt.runtime.session import Runtime
from ymir_opt.runtime.worker import Worker


def companion(folder: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """Submit a job and return its key with the weights that it has after training alone."""
    other = folder.with_name(folder.name + "-alone")
    add_job(other, "good")
    key = add_job(folder, "good")
    return key, trained_alone(other, key)


def test_a_member_without_finite_gradients_fails_alone(tmp_path: Path) -> None:
    good, alone = companion(tmp_path / "jobs")
    bad = add_job(tmp_path / "jobs", "bad")
    one = worker(tmp_path / "jobs")
    one.assign(assignment(1, "colocate", [bad, good]))
    run(one, 3)
    kept = one.crew.runtime.adapters[bad]
    with torch.no_grad():
        kept.heads[bad].bias.fill_(math.nan)
    run(one)
    assert "no finite gradient in 3 batches in a row" in result(tmp_path / "jobs", bad)["reason"]
    assert result(tmp_path / "jobs", bad)["state"] == "failed"
    assert [e["job"] for e in events(one, "failed")] == [bad]
    assert apart(saved(tmp_path / "jobs", good), alone) <= 1e-5


def test_a_single_bad_batch_is_left_out(tmp_path: Path) -> None:
    good, alone = companion(tmp_path / "jobs")
    bad = add_job(tmp_path / "jobs", "bad")
    one = worker(tmp_path / "jobs")
    one.assign(assignment(1, "colocate", [bad, good]))
    run(one, 2)
    bias = one.crew.runtime.adapters[bad].heads[bad].bias
    before = bias.detach().clone()
    with torch.no_grad():
        bias.fill_(math.nan)
    run(one, 1)
    with torch.no_grad():
        bias.copy_(before)
    run(one)
    assert result(tmp_path / "jobs", bad)["state"] == "completed"
    assert apart(saved(tmp_path / "jobs", good), alone) <= 1e-5


def limit_rows(monkeypatch: pytest.MonkeyPatch, most: int, only: str | None = None) -> list[int]:
    """Let a pass with more rows run out of memory; return the sizes that were tried."""
    tried: list[int] = []
    true = Runtime.accumulate

    def accumulate(self: Runtime, rows: list) -> list:
        counted = [part for part in rows if only is None or part.adapter == only]
        size = sum(len(part.labels) for part in counted)
        tried.append(size)
        if size > most:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return true(self, rows)

    monkeypatch.setattr(Runtime, "accumulate", accumulate)
    return tried


def test_out_of_memory_halves_the_rows_of_a_pass_not_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    plain = {"peft": {"lora_dropout": 0.0}, "global_batch_size": 6}
    for folder in (whole, parts):
        key = add_job(folder, "large", **plain)
    alone = trained_alone(whole, key)
    limit_rows(monkeypatch, 2)
    one = worker(parts)
    one.assign(assignment(1, "solo", [key]))
    run(one)
    assert result(parts, key)["state"] == "completed"
    # 6 -> 3 -> 2 rows a pass: accumulated gradients are those of the whole batch
    assert apart(saved(parts, key), alone) <= 1e-5
    assert [e["job"] for e in events(one, "out_of_memory")] == [key, key]


def test_members_that_only_fit_one_by_one_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, alone = companion(tmp_path / "jobs")
    other = add_job(tmp_path / "jobs", "other")
    tried = limit_rows(monkeypatch, 4)
    one = worker(tmp_path / "jobs")
    one.assign(assignment(1, "colocate", [good, other]))
    run(one)
    assert {result(tmp_path / "jobs", key)["state"] for key in (good, other)} == {"completed"}
    assert apart(saved(tmp_path / "jobs", good), alone) <= 1e-5
    assert tried.count(8) == 1


def test_a_member_that_never_fits_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, alone = companion(tmp_path / "jobs")
    large = add_job(tmp_path / "jobs", "large")
    limit_rows(monkeypatch, 0, only=large)
    one = worker(tmp_path / "jobs")
    one.assign(assignment(1, "colocate", [good, large]))
    run(one)
    assert "out of memory with one row a pass" in result(tmp_path / "jobs", large)["reason"]
    assert apart(saved(tmp_path / "jobs", good), alone) <= 1e-5


def test_an_error_in_one_members_rows_fails_it_alone(tmp_path: Path) -> None:
    good, alone = companion(tmp_path / "jobs")
    bad = add_job(tmp_path / "jobs", "bad")
    one = worker(tmp_path / "jobs")
    one.assign(assignment(1, "colocate", [bad, good]))
    one.crew.members[bad].data.train.labels.fill_(77)
    run(one)
    assert "failed (Target 77 is out of bounds" in result(tmp_path / "jobs", bad)["reason"]
    assert apart(saved(tmp_path / "jobs", good), alone) <= 1e-5


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"path": "/nowhere/rows.csv"}, "data.path /nowhere/rows.csv: no such file or folder"),
        ({"column": "sentence"}, "has no column 'sentence'; known: label, text"),
        ({"rows": 1}, "classes or more"),
        ({"peft": {"target_modules": ["query", "c_attn"]}}, "c_attn: no linear layer has that name; known: "),
        ({"peft": {"peft_type": "IA3"}}, "IA3 is not trained by the worker; use LORA"),
        (
            {"model": {"name_or_path": "random:bert", "layers": 2}},
            "its foundation model is random:bert-first2",
        ),
        ({"target": 0.5, "target_more": {"metric": "eval_acuracy"}}, "did you mean 'eval_accuracy'?"),
        ({"missing": "request.json"}, "request.json: no such file"),
    ],
    ids=["data", "column", "classes", "modules", "peft", "model", "metric", "request"],
)
def test_bad_requests_fail_alone(fault: dict, reason: str, tmp_path: Path) -> None:
    good = add_job(tmp_path, "good")
    more = {k: v for k, v in fault.items() if k not in ("column", "missing")}
    bad = add_job(tmp_path, "bad", **more)
    path = tmp_path / "jobs" / bad / "request.json"
    if "column" in fault:
        request = json.loads(path.read_text())
        request["data"]["text_column"] = fault["column"]
        path.write_text(json.dumps(request))
    if "missing" in fault:
        path.unlink()
    one = worker(tmp_path)
    one.assign(assignment(1, "colocate", [bad, good]))
    assert list(one.crew.members) == [good]
    found = result(tmp_path, bad)
    assert found["state"] == "failed"
    assert reason in found["reason"]
    assert "\n" not in found["reason"]
    assert reason in events(one, "failed")[0]["reason"]
    one.stop()


def test_weights_that_are_not_safetensors_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps(
            {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 1, "num_hidden_layers": 1}
        )
    )
    (model / "pytorch_model.bin").write_bytes(b"not loaded")
    source = {"name_or_path": str(model)}
    key = add_job(tmp_path, "bin", model=source)
    one = Worker(None, tmp_path)
    one.assign(assignment(1, "solo", [key], foundation_model=source))
    found = result(tmp_path, key)
    assert "safetensors" in found["reason"]
    assert found["state"] == "failed"
    assert not one.status()["ready"]


def test_an_adapter_of_another_model_or_shape_is_refused(tmp_path: Path) -> None:
    source = add_job(tmp_path, "source", peft={"r": 2})
    trained_alone(tmp_path, source)
    foreign = tmp_path / "foreign"
    runtime = worker(tmp_path)
    runtime.assign(assignment(1, None, []))
    adapter = runtime.crew.runtime.add("x", AdapterSpec())
    save_adapter(adapter, foreign, foundation_model="another")
    a, b, c = (add_job(tmp_path, name) for name in "abc")
    froms = {a: str(foreign), b: f"jobs/{source}/checkpoint", c: "nowhere"}
    one = worker(tmp_path)
    one.assign(assignment(1, "colocate", [a, b, c], starts_from=froms))
    assert "is an adapter of another, not of random:bert-first1" in result(tmp_path, a)["reason"]
    assert "another shape" in result(tmp_path, b)["reason"]
    assert "holds no adapter" in result(tmp_path, c)["reason"]


@pytest.mark.parametrize("key", ["../../x", "a/b", "", ".hidden", "x;rm -rf"])
def test_no_key_leads_out_of_the_jobs_folder(key: str, tmp_path: Path) -> None:
    one = worker(tmp_path)
    one.assign(assignment(1, "solo", [key]))
    (event,) = events(one, "failed")
    assert "is not a job's key" in event["reason"]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_fails_the_job_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = add_job(tmp_path, "a")
    one = worker(tmp_path)
    one.assign(assignment(1, "solo", [key]))
    run(one, 7)
    before = saved(tmp_path, key)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        run(one)
    (event,) = events(one, "failed")
    assert "checkpoint" in event["reason"]
    assert "No space left on device" in (tmp_path / "jobs" / key / "log.txt").read_text()
    assert apart(saved(tmp_path, key), before) == 0


def test_a_job_is_trained_by_one_worker_at_a_time(tmp_path: Path) -> None:
    key = add_job(tmp_path, "a")
    first, second = worker(tmp_path), worker(tmp_path)
    first.assign(assignment(1, "solo", [key]))
    second.assign(assignment(1, "solo", [key]))
    assert second.status()["members"][key]["state"] == "locked"
    assert not second.tick()
    run(first, 3)
    first.stop()
    second.crew.next_try = 0.0
    run(second)
    assert events(second, "started")[0]["samples"] == 12
    assert result(tmp_path, key)["state"] == "completed"
    third = worker(tmp_path)
    third.assign(assignment(1, "solo", [key]))
    assert not third.tick()
    # what a crash may have kept from being told is told again
    assert events(third, "finished")[0]["job"] == key
    assert events(third, "started") == []


def test_changed_data_is_not_gone_on_with(tmp_path: Path) -> None:
    key = add_job(tmp_path, "a")
    one = worker(tmp_path)
    one.assign(assignment(1, "solo", [key]))
    run(one, 8)
    one.stop()
    with open(tmp_path / "jobs" / key / "rows.csv", "a") as stream:
        stream.write("another row,class 1\n")
    other = worker(tmp_path)
    other.assign(assignment(1, "solo", [key]))
    assert "its data changed since its checkpoint" in result(tmp_path, key)["reason"]
