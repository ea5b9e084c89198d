"""Measuring for real on tiny rounds: resuming, budgets of CPU time, failures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import solver_peers
from run_rows import read_rows


def measured(output: Path, *options: str) -> None:
    command = [sys.executable, str(solver_peers.__file__), "-o", str(output), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_interrupted_measurement_goes_on_where_it_stopped(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    asked = ("--sizes", "12x8", "--seeds", "1", "--methods", "auto,cbc,pop-4")
    measured(output, *asked)
    rows = read_rows(output)
    assert [row["method"] for row in rows] == ["auto", "cbc", "pop-4"]
    ours, cbc, pop = rows
    assert ours["ended"] == "optimality"
    assert ours["profile"][0][1] == ours["carried"] >= ours["objective"] >= ours["bound"] - 1e-9
    assert cbc["objective"] == pytest.approx(ours["objective"], rel=2e-4)
    assert cbc["columns"] == ours["columns"]
    assert cbc["budget_cpu_s"] == pytest.approx(10 * ours["planning_cpu_s"])
    assert 0 < ours["pool_cpu_s"] < ours["planning_cpu_s"] < ours["process_cpu_s"]
    # one node cannot be dealt to four parts: the row says so
    assert (pop["ended"], pop["objective"]) == ("failed", None)
    assert "nodes are fewer" in pop["failed"]

    # a kill cut the last line short, and the second row is of other sources
    kept, other, last = output.read_text().splitlines()
    stale = json.dumps(json.loads(other) | {"code": "0+other"})
    output.write_text("\n".join((kept, stale, last[:40])))
    measured(output, *asked)
    lines = output.read_text().splitlines()
    assert lines[:3] == [kept, stale, last[:40]]
    assert [json.loads(line)["method"] for line in lines[3:]] == ["cbc", "pop-4"]

    measured(output, *asked)
    assert output.read_text().splitlines() == lines


def test_a_run_ends_with_its_cpu_time_and_keeps_what_it_had(tmp_path: Path) -> None:
    source = tmp_path / "snapshot.json"
    assert solver_peers.write_instance("300x240/0", source)
    row = solver_peers.run("cpsat", source, tmp_path, 1.5)
    assert row["ended"] == "CPU budget"
    assert row["failed"] is None
    assert row["objective"] == row["carried"] < row["queue_all"]
    assert row["pool_cpu_s"] < row["profile"][0][0] <= 1.5
    assert row["planning_cpu_s"] is None
