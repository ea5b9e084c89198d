"""``ymir-plan check``: proves a plan, and says in which place it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import ymir_plan
from small_documents import change

from ymir_opt.cli.commands import check as check_module


@pytest.fixture
def made(snapshot_file: Path, tmp_path: Path) -> Path:
    """Return the file of a plan that the planner made."""
    path = tmp_path / "made.json"
    assert ymir_plan("solve", snapshot_file, "-o", path).code == 0
    return path


def test_a_good_plan(snapshot_file: Path, made: Path) -> None:
    answer = ymir_plan("check", snapshot_file, made)
    assert answer.code == 0
    assert answer.json == {"ok": True, "invariants": [1, 2, 3, 4, 5, 6, 7, 8], "violations": [], "notes": []}
    assert answer.err == "ok: invariants 1, 2, 3, 4, 5, 6, 7, 8 hold for 2 jobs\n"
    shown = ymir_plan("check", snapshot_file, made, terminal=True)
    assert (shown.out, shown.err) == (answer.err, "")
    assert ymir_plan("check", snapshot_file, made, "--json").err == ""


@pytest.mark.parametrize("which", ["snapshot", "plan"])
def test_standard_input(which: str, snapshot_file: Path, made: Path) -> None:
    if which == "snapshot":
        answer = ymir_plan("check", "-", made, stdin=snapshot_file.read_bytes())
    else:
        answer = ymir_plan("check", snapshot_file, "-", stdin=made.read_bytes())
    assert answer.code == 0


@pytest.mark.parametrize(
    ("path", "value", "invariant"),
    [
        ("groups", [], 1),
        ("groups.1.placement", {"n0": [0, 1, 2, 3]}, 2),
        ("groups.1.gpus", 3, 3),
        ("solver.objective", 123.0, 7),
        ("explanations.b.decision", "wait", 8),
    ],
)
def test_a_bad_plan(path: str, value: Any, invariant: int, snapshot_file: Path, made: Path) -> None:
    plan = json.loads(made.read_text())
    assert [group["jobs"] for group in plan["groups"]] == [["a"], ["b"]]
    answer = ymir_plan("check", snapshot_file, "-", stdin=json.dumps(change(plan, path, value)))
    assert answer.code == 1
    assert answer.json["ok"] is False
    assert invariant in {row["invariant"] for row in answer.json["violations"]}
    for row in answer.json["violations"]:
        assert row["place"]
        assert row["message"] in " ".join(answer.err.split()) or len(row["message"]) > 60
    assert "violation" in answer.err


def test_planning_again(snapshot_file: Path, made: Path) -> None:
    answer = ymir_plan("check", snapshot_file, made, "--replan")
    assert answer.code == 0
    assert answer.json["invariants"] == list(range(1, 11))
    assert answer.json["notes"] == []


def test_planning_again_finds_a_plan_that_is_not_the_planners(snapshot_file: Path, made: Path) -> None:
    plan = json.loads(made.read_text())
    other = change(plan, "metrics.predicted_mean_finish_at_s", 1.0)
    answer = ymir_plan("check", snapshot_file, "-", "--replan", stdin=json.dumps(other))
    assert answer.code == 1
    assert [(row["invariant"], row["place"]) for row in answer.json["violations"]] == [
        (9, "metrics.predicted_mean_finish_at_s")
    ]


@pytest.mark.parametrize(
    ("path", "value", "note"),
    [
        ("solver.stopped_by", "wall_clock", "invariant 9 not tested: the wall clock stopped the solve"),
        ("solver.candidates.exhaustive", False, "invariant 10 not tested: the pool was not exhaustive"),
    ],
)
def test_what_is_not_tested_is_said(
    path: str, value: Any, note: str, snapshot_file: Path, made: Path
) -> None:
    plan = change(json.loads(made.read_text()), path, value)
    if path.endswith("exhaustive"):
        plan = change(plan, "solver.gap_scope", "pool")
    answer = ymir_plan("check", snapshot_file, "-", "--replan", stdin=json.dumps(plan))
    assert note in answer.json["notes"]
    assert note in answer.err
    number = int(note.split()[1])
    assert number not in answer.json["invariants"]


def test_nothing_is_replanned_for_a_plan_that_is_wrong(
    snapshot_file: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ymir_opt.cli import replan

    def fail(*_arguments: object) -> None:
        raise AssertionError("must not be called")

    monkeypatch.setattr(replan, "replan_check", fail)
    plan = change(json.loads(made.read_text()), "groups", [])
    assert ymir_plan("check", snapshot_file, "-", "--replan", stdin=json.dumps(plan)).code == 1
    assert check_module.register.__doc__


@pytest.mark.parametrize(("path", "said"), [("solver.backend", "backend"), ("planner.policy", "policy")])
def test_a_plans_names_are_names_and_no_code(path: str, said: str, snapshot_file: Path, made: Path) -> None:
    # planning again must not call what a plan of somebody else names
    plan = change(json.loads(made.read_text()), path, "os:abort")
    answer = ymir_plan("check", snapshot_file, "-", "--replan", stdin=json.dumps(plan))
    assert answer.code == 2
    line = answer.one_line()
    assert said in line
    assert "'os" in line
