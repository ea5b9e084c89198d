"""``ymir-plan bench`` and its synthetic snapshots."""

from __future__ import annotations

import json

import pytest
from command_line import ymir_plan

from ymir_opt.cli.commands.bench import parse_sizes
from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import snapshot_sha256
from ymir_opt.domain.snapshot import JobState

FIELDS = {
    "size", "jobs", "gpus", "backend", "wall_s", "process_wall_s", "cpu_s", "objective", "bound", "gap",
    "value_gap", "gap_scope", "peak_rss_mib",
}  # fmt: skip


def test_one_line_a_size() -> None:
    answer = ymir_plan("bench", "--sizes", "3x4,5x8", "--json")
    assert (answer.code, answer.err) == (0, "")
    rows = [json.loads(line) for line in answer.out.splitlines()]
    assert [(row["size"], row["jobs"], row["gpus"]) for row in rows] == [("3x4", 3, 4), ("5x8", 5, 8)]
    for row in rows:
        assert set(row) == FIELDS
        assert 0 < row["wall_s"] < row["process_wall_s"]
        assert row["cpu_s"] > 0
        assert row["peak_rss_mib"] > 10
        assert row["bound"] <= row["objective"]
        assert row["value_gap"] <= 1e-4


def test_on_a_terminal() -> None:
    answer = ymir_plan("bench", "--sizes", "2x2", "--backend", "greedy", terminal=True)
    assert answer.code == 0
    assert answer.out.startswith("         2x2  greedy ")
    assert "gap none  objective" in answer.out


def test_what_the_planner_refuses() -> None:
    answer = ymir_plan("bench", "--sizes", "2x2", "--backend", "gredy", "--json")
    assert answer.code == 2
    assert "'gredy'" in answer.one_line()


def test_sizes() -> None:
    assert parse_sizes("100x32, 1x1") == [(100, 32), (1, 1)]


@pytest.mark.parametrize(("jobs", "gpus"), [(1, 1), (40, 12), (200, 64), (1000, 240)])
def test_synthetic_snapshots(jobs: int, gpus: int) -> None:
    snapshot = synthetic_snapshot(jobs, gpus)
    assert len(snapshot.jobs) == jobs
    assert sum(node.gpus for node in snapshot.cluster.nodes) == gpus
    assert len({node.gpu_type for node in snapshot.cluster.nodes}) == (2 if gpus >= 64 else 1)
    assert snapshot_sha256(snapshot) == snapshot_sha256(synthetic_snapshot(jobs, gpus))
    if jobs > 1:
        assert snapshot_sha256(snapshot) != snapshot_sha256(synthetic_snapshot(jobs, gpus, seed=1))
    held = sum(
        len(gpus)
        for job in snapshot.jobs
        if job.state is JobState.RUNNING
        for gpus in (job.allocation or {}).values()
    )
    assert held <= gpus
    if jobs >= gpus >= 64:
        assert held >= gpus / 10
