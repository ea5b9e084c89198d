"""The real process: killed, told to stop, told something new, in the way of another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from worker_kit import add_job, apart, assignment, curve, result, saved, state, trained_alone

from ymir_opt.domain.documents import write_atomic
from ymir_opt.runtime.events import read_lines

pytestmark = pytest.mark.slow
WAIT_S = 240


def wish(folder: Path, content: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "assignment.json", json.dumps(content))


@contextmanager
def process(jobs_dir: Path, name: str = "w1") -> Iterator[subprocess.Popen[bytes]]:
    folder = jobs_dir / "workers" / name
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ymir_opt.runtime.process", "--worker", str(folder)]
    with open(folder / "stderr.txt", "ab") as stderr:
        child = subprocess.Popen(
            [*command, "--jobs-dir", str(jobs_dir), "--action", name],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def until(child: subprocess.Popen[bytes], true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "waited too long"
        assert child.poll() is None, "the process ended"
        time.sleep(0.005)


def told(jobs_dir: Path, event: str, name: str = "w1") -> list[dict[str, Any]]:
    return [e for e in read_lines(jobs_dir / "workers" / name / "events.jsonl") if e["event"] == event]


def test_killed_processes_lose_less_than_a_checkpoint_interval(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        key = add_job(folder, "a", num_train_epochs=20.0)
    alone = trained_alone(whole, key)
    wish(parts / "workers" / "w1", assignment(1, "solo", [key]))
    for _ in range(2):
        with process(parts) as child:
            seen = len(told(parts, "checkpointed"))
            until(child, lambda seen=seen: len(told(parts, "checkpointed")) >= seen + 4)
            child.send_signal(signal.SIGKILL)
            child.wait()
    with process(parts) as child:
        until(child, lambda: result(parts, key) is not None)
        until(child, lambda: len(told(parts, "finished")) == 1)
        wish(parts / "workers" / "w1", assignment(2, None, [], stop=True))
        assert child.wait(WAIT_S) == 0
    assert apart(saved(parts, key), alone) == 0
    assert [e["samples"] for e in curve(parts, key)] == [e["samples"] for e in curve(whole, key)]
    starts = [e["samples"] for e in told(parts, "started")]
    assert starts[0] == 0
    lines = read_lines(parts / "workers" / "w1" / "events.jsonl")
    assert [e["seq"] for e in lines] == list(range(1, len(lines) + 1))
    for start in starts[1:]:
        at = next(i for i, e in enumerate(lines) if e["event"] == "started" and e["samples"] == start)
        reached = max(e["samples"] for e in lines[:at] if e["event"] in ("evaluated", "checkpointed"))
        assert 0 <= reached - start < 24
    assert len(told(parts, "stopped")) == 1


def test_sigterm_checkpoints_and_a_second_worker_waits_for_the_lock(tmp_path: Path) -> None:
    key = add_job(tmp_path, "a", num_train_epochs=2000.0, eval_every_samples=100000)
    for name in ("w1", "w2"):
        wish(tmp_path / "workers" / name, assignment(1, "solo", [key], checkpoint_every_samples=10**9))
    with process(tmp_path) as first:
        until(first, lambda: len(told(tmp_path, "started")) == 1)
        status = tmp_path / "workers" / "w1" / "status.json"
        with process(tmp_path, "w2") as second:

            def of(name: str) -> dict[str, Any]:
                path = tmp_path / "workers" / name / "status.json"
                return json.loads(path.read_text()) if path.exists() else {"members": {}}

            until(second, lambda: of("w2")["members"].get(key, {}).get("state") == "locked")
            assert told(tmp_path, "started", "w2") == []
            first.send_signal(signal.SIGTERM)
            assert first.wait(WAIT_S) == 0
            done = told(tmp_path, "checkpointed")[-1]["samples"]
            assert done > 0
            assert json.loads(status.read_text())["ready"] is False
            until(second, lambda: len(told(tmp_path, "started", "w2")) == 1)
            assert told(tmp_path, "started", "w2")[0]["samples"] == done
            # a broken wish is told and changes nothing
            (tmp_path / "workers" / "w2" / "assignment.json").write_text("{")
            until(second, lambda: len(told(tmp_path, "failed", "w2")) == 1)
            assert "cannot be read" in told(tmp_path, "failed", "w2")[0]["reason"]
            assert of("w2")["members"][key]["state"] == "training"
            wish(tmp_path / "workers" / "w2", assignment(2, None, []))
            until(second, lambda: len(told(tmp_path, "left", "w2")) == 1)
            second.send_signal(signal.SIGTERM)
            assert second.wait(WAIT_S) == 0
    assert state(tmp_path, key)["samples"] == told(tmp_path, "left", "w2")[0]["samples"] > done
    assert (tmp_path / "workers" / "w1" / "stderr.txt").read_text() == ""
