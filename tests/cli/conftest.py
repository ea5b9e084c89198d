"""Fixtures of the command-line tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import StubPlanner
from small_documents import job_row, plan_data, snapshot_data, snapshot_of


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> StubPlanner:
    """Put a planner that decides nothing in the real one's place."""
    stub = StubPlanner()
    monkeypatch.setitem(sys.modules, "ymir_opt.api", stub)
    return stub


@pytest.fixture
def snapshot_file(tmp_path: Path) -> Path:
    running = job_row("a", state="running", allocation={"n0": [0, 1]}, last_start_s=900.0)
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(snapshot_data([running, job_row("b")])))
    return path


@pytest.fixture
def plan_file(tmp_path: Path, snapshot_file: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_data(snapshot_of(json.loads(snapshot_file.read_text())))))
    return path
