"""Workers on a real Ray cluster of two emulated nodes: a node leaves, every job still finishes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from executor_kit import CHECKPOINT, FAKE, daemon, proven, results, submitted, trace, until, workers_of

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import NodeState
from ymir_opt.executors.base import Options
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.executors.journal import Journal
from ymir_opt.executors.pool import WorkerPool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.service,
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray on this machine"),
    # Ray's own
    pytest.mark.filterwarnings("ignore"),
]
STORE = 80 << 20
SAMPLES = 1200


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a head without GPUs; nodes are added by the test."""
    from ymir_opt.executors.ray import ENVIRONMENT

    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    ray.shutdown()
    made.shutdown()


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE)


def opened(folder: JobsFolder, **changes: Any) -> WorkerPool:
    from ymir_opt.executors.ray import make

    journal = Journal(folder.journal)
    journal.acquire()
    given: dict[str, Any] = {"worker": FAKE, "backoff_s": 0.05, "checkpoint_every_samples": CHECKPOINT}
    pool = make(folder, journal, Options(**{**given, **changes}))
    pool.recover()
    return pool


def closed(pool: WorkerPool) -> None:
    pool.close()
    pool.journal.release()
    pool.journal.close()


def test_a_node_leaves_and_every_job_finishes(root: Path, cluster: Any) -> None:
    import ray

    first = add_node(cluster)
    add_node(cluster)
    names = [f"job {i}" for i in range(5)]
    folder = submitted(root, *names, samples=SAMPLES)
    pool = opened(folder, address=cluster.address)
    assert [node.gpus for node in pool.nodes()] == [1, 1]
    service = daemon(pool)
    until(lambda: len(trace(folder)) == 2, service.step, 60)
    # the name of each actor is its action's id
    actors = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    assert actors == set(workers_of(folder)) == {worker.id for worker in pool.state.live}

    # the executor goes and comes back: what runs is found by its name
    closed(pool)
    assert len(workers_of(folder)) == 2
    pool = opened(folder, address=cluster.address)
    assert {event["worker"] for event in pool.state.news if event["event"] == "adopted"} == actors
    service = daemon(pool)
    before = len(results(folder))

    cluster.remove_node(first)
    until(lambda: any(node.state is NodeState.DOWN for node in pool.nodes()), service.step, 60)
    until(lambda: len(results(folder)) > before, service.step, 60)
    until(lambda: len(results(folder)) == len(names), service.step, 120)
    assert set(results(folder).values()) == {"completed"}
    assert [event for event in pool.events() if event["event"] == "failed_start"] == []
    pool.stop()
    closed(pool)
    assert not workers_of(folder)
    assert proven(folder, SAMPLES) >= 1


def test_emulated_nodes_and_a_cluster_that_does_not_answer(root: Path, capsys: Any) -> None:
    # in a process of its own: an instance of Ray that this process starts ends with it
    folder = submitted(root, "a", "b", "c", samples=400)
    code = (
        "import sys; from pathlib import Path; from ymir_opt.executors import ray as executor\n"
        f"executor.WORKER = {FAKE!r}\n"
        "from ymir_opt.cli.main import main; main()"
    )
    from executor_kit import profiles

    (root / "rows.json").write_text(profiles().model_dump_json(by_alias=True))
    words = [
        "daemon",
        "--executor",
        "ray",
        "--jobs-dir",
        str(folder.root),
        "--nodes",
        "2",
        "--policy",
        "fifo",
    ]
    words += ["--profiles", str(root / "rows.json"), "--min-spacing", "0", "--once-empty"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert results(folder) == dict.fromkeys("abc", "completed")
    assert proven(folder, 400) == 0
    with pytest.raises(InputError, match="no Ray cluster answers"):
        opened(JobsFolder(root / "jobs-dir"), address="127.0.0.1:1")
