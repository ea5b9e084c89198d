"""Jobs folders with small requests, pools and daemons over the counting worker, and what its trace proves."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from ymir_opt.domain.request import key_of
from ymir_opt.domain.snapshot import Node, Profiles, SwitchRow, ThroughputRow
from ymir_opt.executors.base import Options
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.executors.journal import Journal
from ymir_opt.executors.local import LocalBackend
from ymir_opt.executors.pool import WorkerPool
from ymir_opt.executors.processes import find_by_argument
from ymir_opt.service.daemon import Daemon, Settings
from ymir_opt.service.intake import submit

FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))
CHECKPOINT = 40
BATCH = 4


def nodes(count: int, gpus: int = 1) -> tuple[Node, ...]:
    return tuple(Node(id=f"n{i}", gpu_type="CPU", gpus=gpus, gpu_memory_gib=4.0) for i in range(count))


def options(**changes: Any) -> Options:
    settings: dict[str, Any] = {
        "nodes": nodes(2),
        "worker": FAKE,
        "grace_s": 5.0,
        "backoff_s": 0.05,
        "quarantine_after": 3,
        "checkpoint_every_samples": CHECKPOINT,
    }
    return Options(**{**settings, **changes})


def profiles(batch: int = BATCH) -> Profiles:
    return Profiles(
        throughput=(
            ThroughputRow(
                foundation_model="all-MiniLM-L6-v2",
                peft_type="LORA",
                config="float32-len128-r8",
                gpu_type="CPU",
                gpus=1,
                batch_size=batch,
                samples_per_s=200.0,
                memory_gib=0.1,
            ),
        ),
        switch_s=(SwitchRow(foundation_model="all-MiniLM-L6-v2", gpu_type="CPU", cold_s=0.2, warm_s=0.01),),
    )


def write_data(folder: Path, rows: int = 100) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "data.csv"
    if not path.exists():
        lines = [f"text number {i},{'ab'[i % 2]}" for i in range(rows)]
        path.write_text("text,label\n" + "\n".join(lines) + "\n")
    return path


def write_request(folder: Path, name: str, samples: int = 400, **changes: Any) -> Path:
    fields: dict[str, Any] = {
        "schema": "ymir.job/1",
        "name": name,
        "model": {"name_or_path": "minilm"},
        "data": {"path": str(write_data(folder))},
        "training": {
            "learning_rate": 1e-3,
            "global_batch_size": BATCH,
            "num_train_epochs": samples / 100,
        },
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key_of(name)}.request.yaml"
    path.write_text(json.dumps(fields))
    return path


def submitted(root: Path, *names: str, samples: int = 400, **changes: Any) -> JobsFolder:
    folder = JobsFolder(root / "jobs-dir")
    folder.make()
    for name in names:
        submit(folder, write_request(root / "requests", name, samples, **changes))
    return folder


@contextmanager
def open_pool(folder: JobsFolder, **changes: Any) -> Iterator[WorkerPool]:
    """Open a pool as a new process would; what runs goes on when it is closed."""
    journal = Journal(folder.journal)
    journal.acquire()
    given = options(**changes)
    pool = WorkerPool(LocalBackend(folder, given), folder, journal, given)
    try:
        pool.recover()
        yield pool
    finally:
        pool.close()
        with suppress(Exception):
            journal.release()
        journal.close()


def daemon(pool: WorkerPool, **changes: Any) -> Daemon:
    settings = {"policy": "fifo", "spacing_s": 0.0, "round_s": 5.0, "poll_s": 0.01, **changes}
    return Daemon(pool, Settings(**settings), profiles())


def until(condition: Callable[[], bool], step: Callable[[], object], limit_s: float = 30.0) -> None:
    """Take steps until something holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "took too long"
        step()
        time.sleep(0.01)


def workers_of(folder: JobsFolder) -> dict[str, int]:
    """Return the process of each worker that runs now, by its action."""
    found = find_by_argument("--action", "--jobs-dir", str(folder.root))
    return {action: process.pid for action, process in found}


def end_workers(folder: JobsFolder) -> None:
    """End the workers of a test's own folder."""
    for pid in workers_of(folder).values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def results(folder: JobsFolder) -> dict[str, str]:
    """Return the state of each job that has ended, by its id."""
    found = {}
    for path in folder.jobs.glob("*/result.json"):
        request = json.loads((path.parent / "request.json").read_text())
        found[request["id"]] = json.loads(path.read_text())["state"]
    return found


def trace(folder: JobsFolder) -> dict[str, list[dict[str, Any]]]:
    """Return every training step of each job, in the order in which they began."""
    steps: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in (folder.root / "trace").glob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError):
                step = json.loads(line)
                steps[step["job"]].append({**step, "pid": path.stem})
    for found in steps.values():
        found.sort(key=lambda step: step["began"])
    return steps


def proven(folder: JobsFolder, samples: int, checkpoint: int = CHECKPOINT, batch: int = BATCH) -> int:
    """Assert that nothing was trained twice at once or lost; return how often a job began again.

    Between two processes of a job at most one checkpoint interval, and the step under way, is repeated.
    """
    restarts = 0
    for job, steps in trace(folder).items():
        for before, after in pairwise(steps):
            assert after["began"] >= before["ended"], f"{job} was trained twice at the same time"
            if before["pid"] == after["pid"] and after["samples"] == before["samples"] + batch:
                continue
            restarts += 1
            repeated = before["samples"] - (after["samples"] - batch)
            assert 0 <= repeated <= checkpoint, f"{job}: {repeated} samples repeated"
        assert steps[-1]["samples"] == samples
    return restarts
