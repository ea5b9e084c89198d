"""The daemon with real workers on a tiny random model: measured, merged, killed, taken up again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from executor_kit import nodes, open_pool, results, until, workers_of

from ymir_opt.domain.request import key_of
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.executors.local import WORKER
from ymir_opt.service.daemon import Daemon, Settings
from ymir_opt.service.intake import submit
from ymir_opt.service.listing import list_jobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="no torch in this environment"),
]
ROWS = 160
CHECKPOINT = 64
WORDS = (["good", "fine", "nice", "great", "warm"], ["bad", "poor", "awful", "sad", "cold"])


def request(root: Path, name: str, **changes: Any) -> Path:
    rng = random.Random(name)
    lines = ["text,label"]
    for i in range(ROWS):
        label = i % 2
        text = " ".join(rng.choice(["the", "film", "was", "a", *WORDS[label]]) for _ in range(8))
        lines.append(f"{text} {i},{'np'[label]}")
    root.mkdir(parents=True, exist_ok=True)
    (root / f"{name}.csv").write_text("\n".join(lines) + "\n")
    fields: dict[str, Any] = {
        "schema": "ymir.job/1",
        "name": name,
        "model": {"name_or_path": "random:bert", "layers": 2},
        "data": {"path": f"{name}.csv"},
        "peft": {"r": 4},
        "training": {
            "learning_rate": 2e-3,
            "global_batch_size": 4,
            "max_length": 16,
            "num_train_epochs": 12,
            "seed": 1,
            "eval_every_samples": 256,
        },
        **changes,
    }
    path = root / f"{name}.yaml"
    path.write_text(json.dumps(fields))
    return path


def curve(folder: JobsFolder, name: str) -> list[tuple[int, float]]:
    lines = (folder.job(key_of(name)) / "curve.jsonl").read_text().splitlines()
    return [(entry["samples"], entry["loss"]) for entry in map(json.loads, lines)]


def test_from_request_to_result_through_kills(root: Path) -> None:
    folder = JobsFolder(root / "jobs-dir")
    folder.make()
    names = ["a", "b", "c", "d"]
    for name in names:
        submit(folder, request(root / "r", name))
    submit(folder, request(root / "r", "wrong", peft={"target_modules": ["nothing_like_it"]}))
    changes: dict[str, Any] = {
        "worker": WORKER,
        "nodes": nodes(1),
        "grace_s": 60.0,
        "checkpoint_every_samples": CHECKPOINT,
    }
    settings = Settings(policy="ymir", spacing_s=0.5, round_s=20.0, poll_s=0.02)

    def trained(service: Daemon, samples: int) -> bool:
        jobs = service.pool.state.jobs.values()
        return sum(job.checkpoint_samples for job in jobs) >= samples

    with open_pool(folder, **changes) as pool:
        service = Daemon(pool, settings)
        until(lambda: trained(service, 4 * CHECKPOINT), service.step, 240)
        # measured once for all four, whose step is the same
        assert len(pool.journal.all("profiled")) <= 2
        assert {row.batch_size for row in service.profiles.throughput} == {4}
        (pid,) = workers_of(folder).values()
        os.kill(pid, signal.SIGKILL)
        until(lambda: bool(set(workers_of(folder).values()) - {pid}), service.step, 60)
        until(lambda: trained(service, 12 * CHECKPOINT), service.step, 240)
        before = workers_of(folder)
    # this daemon is gone without a word; the next one finds the worker at work
    with open_pool(folder, **changes) as pool:
        service = Daemon(pool, settings)
        assert set(before) == {worker.id for worker in pool.state.live}
        until(lambda: len(results(folder)) == 5, service.step, 240)
        pool.stop()
    assert not workers_of(folder)
    assert results(folder) == {**dict.fromkeys(names, "completed"), "wrong": "failed"}
    lines = {line.id: line for line in list_jobs(folder)}
    assert "nothing_like_it" in lines["wrong"].reason
    for name in names:
        assert lines[name].samples == 12 * ROWS * 4 / 5
        # no evaluation is missing or there twice
        assert [samples for samples, _ in curve(folder, name)] == [*range(256, 1536, 256), 1536]
        assert curve(folder, name)[-1][1] < curve(folder, name)[0][1]


def test_the_command_line_trains_the_examples_kind_of_jobs(root: Path) -> None:
    folder = JobsFolder(root / "jobs-dir")
    target = {"metric": "eval_accuracy", "value": 0.9}
    paths = [request(root / "r", name, target=target) for name in ("a", "b")]

    def command(*words: object) -> str:
        line = [sys.executable, "-m", "ymir_opt", *map(str, words), "--jobs-dir", str(folder.root)]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    command("jobs", "submit", *paths)
    command("daemon", "--cluster", "1x1:CPU", "--min-spacing", 0, "--once-empty")
    lines = {line["id"]: line for line in json.loads(command("jobs", "ps", "--json"))}
    assert {line["state"] for line in lines.values()} == {"completed"}
    assert min(line["metric"] for line in lines.values()) >= 0.9
    assert "reached eval_accuracy" in command("jobs", "logs", "a")
