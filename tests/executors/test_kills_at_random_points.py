"""kill -9 of workers, of the executor and of the daemon: nothing is lost, nothing runs twice at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from executor_kit import nodes, open_pool, profiles, proven, results, submitted, trace, workers_of

from ymir_opt.api import solve
from ymir_opt.domain.documents import dump_json
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.service.intake import Intake
from ymir_opt.service.observe import observe

HERE = Path(__file__).resolve().parent


def started(how: str, root: Path) -> subprocess.Popen[bytes]:
    errors = (root / "stderr.txt").open("ab")
    with errors:
        return subprocess.Popen(
            [sys.executable, str(HERE / "fake_daemon.py"), how, str(root)],
            stdout=errors,
            stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": "1", "YMIR_FAKE_STEP_S": "0.01"},
        )


def kill_at_random(how: str, root: Path, folder: JobsFolder, jobs: int, points: int, seed: int) -> int:
    """Kill at so many random moments, then let it end; return how many workers and executors were killed."""
    rng = random.Random(seed)
    child = started(how, root)
    killed = 0
    try:
        for _ in range(points):
            time.sleep(rng.uniform(0.05, 2.0))
            victim = rng.choice(("worker", "worker", how, "both"))
            if victim != "worker":
                child.kill()
                child.wait()
                killed += 1
            if victim in ("worker", "both"):
                running = sorted(workers_of(folder).values())
                if running:
                    with suppress(ProcessLookupError):
                        os.kill(rng.choice(running), signal.SIGKILL)
                        killed += 1
            if victim != "worker":
                child = started(how, root)
        assert child.wait(timeout=240) == 0, (root / "stderr.txt").read_text()[-2000:]
    finally:
        child.kill()
        child.wait()
    assert len(results(folder)) == jobs
    assert set(results(folder).values()) == {"completed"}
    assert not workers_of(folder)
    return killed


def daemon_is_killed(root: Path, points: int, seed: int, samples: int) -> None:
    names = [f"job {i}" for i in range(6)]
    folder = submitted(root, *names, samples=samples)
    assert kill_at_random("daemon", root, folder, len(names), points, seed) >= points // 2
    assert len(trace(folder)) == len(names)
    proven(folder, samples)


def run_is_killed(root: Path, points: int, seed: int, samples: int) -> None:
    """Kill the run of one plan, which the same command takes up again."""
    names = [f"job {i}" for i in range(3)]
    folder = submitted(root, *names, samples=samples)
    with open_pool(folder, nodes=nodes(3)) as pool:
        Intake(pool, folder, time.time).take()
        snapshot = observe(pool, profiles(), time.time(), 60.0)
    plan = solve(snapshot, policy="fifo")
    assert len(plan.groups) == 3
    (root / "snapshot.json").write_text(dump_json(snapshot))
    (root / "plan.json").write_text(dump_json(plan))
    assert kill_at_random("run", root, folder, len(names), points, seed) >= points // 2
    proven(folder, samples)


@pytest.mark.parametrize("seed", [1])
def test_three_kills_of_workers_and_daemon(root: Path, seed: int) -> None:
    daemon_is_killed(root, 3, seed, 600)


def test_three_kills_of_workers_and_executor(root: Path) -> None:
    run_is_killed(root, 3, 2, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_twenty_kills_of_workers_and_daemon(root: Path, seed: int) -> None:
    daemon_is_killed(root, 20, seed, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [21, 22])
def test_twenty_kills_of_workers_and_executor(root: Path, seed: int) -> None:
    run_is_killed(root, 20, seed, 8000)
