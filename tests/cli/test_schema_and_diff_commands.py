"""``ymir-plan schema`` and ``ymir-plan diff``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import ymir_plan
from small_documents import change

from ymir_opt.domain.documents import schema


@pytest.mark.parametrize("name", ["snapshot", "plan", "job"])
def test_schema(name: str) -> None:
    answer = ymir_plan("schema", name)
    assert (answer.code, answer.err) == (0, "")
    assert answer.json == schema(name)
    assert ymir_plan("schema", name, terminal=True).out == answer.out


def test_the_schema_fits_what_solve_reads_and_writes(snapshot_file: Path, plan_file: Path) -> None:
    jsonschema.validate(json.loads(snapshot_file.read_text()), ymir_plan("schema", "snapshot").json)
    jsonschema.validate(json.loads(plan_file.read_text()), ymir_plan("schema", "plan").json)


def started(plan: dict[str, Any], **solver: Any) -> dict[str, Any]:
    """Return the plan with job b started beside the kept job a."""
    group = {
        "id": "g-b",
        "mode": "solo",
        "jobs": ["b"],
        "gpu_type": "A100",
        "gpus": 2,
        "placement": {"n1": [0, 3]},
    }
    made = change(plan, "groups.1", group)
    return change(made, "solver", plan["solver"] | solver)


def test_equal_plans_do_not_differ(plan_file: Path) -> None:
    answer = ymir_plan("diff", plan_file, plan_file)
    assert answer.code == 0
    assert answer.json == {
        "same_snapshot": True,
        "objective": [None, None],
        "value_gap": [None, None],
        "jobs": [],
    }
    assert "0 differences" in answer.err


def test_what_differs(plan_file: Path) -> None:
    plan = json.loads(plan_file.read_text())
    later = started(plan, objective=4.0, bound=4.0, gap=0.0, value_gap=0.0)
    answer = ymir_plan("diff", plan_file, "-", stdin=json.dumps(later))
    rows = answer.json["jobs"]
    assert [row["job"] for row in rows] == ["b"]
    assert rows[0]["before"]["gpus"] == 0
    assert rows[0]["after"] == {
        "mode": "solo",
        "with": [],
        "gpu_type": "A100",
        "gpus": 2,
        "placement": {"n1": [0, 3]},
    }
    assert answer.json["objective"] == [None, 4.0]
    assert "solo 2 x A100 on n1:0,3" in answer.err
    assert "no GPUs" in answer.err
    back = ymir_plan("diff", "-", plan_file, stdin=json.dumps(later)).json["jobs"]
    assert (back[0]["before"], back[0]["after"]) == (rows[0]["after"], rows[0]["before"])


def test_plans_of_different_snapshots(plan_file: Path) -> None:
    plan = json.loads(plan_file.read_text())
    other = change(plan, "snapshot_sha256", "0" * 64)
    other = change(change(other, "actions", plan["actions"][:1]), "explanations", {})
    answer = ymir_plan("diff", plan_file, "-", stdin=json.dumps(other))
    assert answer.json["same_snapshot"] is False
    assert answer.json["jobs"] == [
        {
            "job": "b",
            "before": {"mode": None, "with": [], "gpu_type": None, "gpus": 0, "placement": {}},
            "after": None,
        }
    ]
    assert "not in the plan" in answer.err
    assert "different snapshots" in answer.err


def test_diff_on_a_terminal(plan_file: Path) -> None:
    later = json.dumps(started(json.loads(plan_file.read_text())))
    answer = ymir_plan("diff", plan_file, "-", stdin=later, terminal=True)
    assert answer.err == ""
    assert "1 difference" in answer.out
    assert ymir_plan("diff", plan_file, "-", "--json", stdin=later, terminal=True).json["jobs"]
