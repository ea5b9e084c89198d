"""Plans as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_documents import change, job_row, plan_data, plan_of, snapshot_data, snapshot_of

from ymir_opt.domain.documents import dump_json, parse_plan
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.plan import (
    ACTION_PRECEDENCE,
    ActionKind,
    Decision,
    GapScope,
    Reason,
    SolverStatus,
    StoppedBy,
)

RUNNING = {"state": "running", "allocation": {"n0": [0]}, "last_start_s": 900.0}
BASE = plan_data(snapshot_of(snapshot_data([job_row("a", **RUNNING), job_row("b")])))
FULL = change(
    BASE
    | {
        "planner": {
            "version": "0.1",
            "policy": "ymir",
            "seed": 3,
            "objective": {"name": "o", "version": 1, "parameters": {"kappa": 1.15, "caps": [1, 2]}},
            "estimates": {"name": "table", "version": "1", "sha256": "ab"},
            "declares": [1, 2, 3, 4, 5, 6, 7, 8],
        },
        "solver": {
            "backend": "highs",
            "status": "optimal",
            "objective": 12.5,
            "bound": 12.5,
            "gap": 0.0,
            "value_gap": 0.0,
            "gap_scope": "global",
            "wall_s": 0.01,
            "stopped_by": "optimality",
            "objective_terms": {"queueing": 2.5, "completion": 10.0},
            "candidates": {"columns": 9, "generated": 12, "dominated": 3, "exhaustive": True},
        },
        "metrics": {"gpus_used": 1, "gpus_total": 8, "fairness": {"max_rho": 1.5, "jain": 0.9}},
    },
    "groups.0.predicted",
    {"a": {"samples_per_s": 100.0, "finish_at_s": 1060.0, "work_ratio": 1.0, "low": 1.0, "high": 2.0}},
)


@pytest.mark.parametrize("data", [BASE, FULL])
def test_what_is_written_is_read_back(data: dict[str, Any]) -> None:
    plan = plan_of(data)
    text = dump_json(plan)
    assert parse_plan(text) == plan
    assert dump_json(parse_plan(text)) == text


def test_the_fields_have_the_contracts_names() -> None:
    written = json.loads(dump_json(plan_of(FULL)))
    assert list(written)[:5] == ["schema", "snapshot_sha256", "planner", "solver", "groups"]
    assert {"job", "action", "from", "to", "prepare_ahead_s"} == set(written["actions"][0])
    assert {
        "backend", "status", "objective", "bound", "gap", "value_gap", "gap_scope", "wall_s", "stopped_by",
        "objective_terms", "candidates", "price_per_gpu_s",
    } == set(written["solver"])  # fmt: skip
    assert {
        "id", "mode", "jobs", "foundation_model", "gpu_type", "gpus", "placement", "starts_from", "probe",
        "predicted",
    } == set(written["groups"][0])  # fmt: skip


def test_what_a_policy_does_not_know_is_null() -> None:
    solver = json.loads(dump_json(plan_of(BASE)))["solver"]
    assert [solver[name] for name in ("objective", "bound", "gap", "value_gap")] == [None] * 4


def test_actions_stand_in_their_order_of_precedence() -> None:
    names = ["preempt", "split", "merge", "migrate", "resize", "start", "profile", "keep", "wait"]
    assert [kind.value for kind in ACTION_PRECEDENCE] == names
    assert {kind.value for kind in Decision} == {kind.value for kind in ActionKind}


def test_the_words_of_the_contract() -> None:
    assert {reason.value for reason in Reason} == {
        "Chosen", "ExceedsMaxQuota", "InsufficientGPUs", "TopologyPlacementFailed", "NoFeasibleGPUType",
        "MemoryExceedsGPU", "SharingDisabled", "NegativeTransfer", "UncertainTransfer", "RejectedMerge",
        "LowerPriority", "SwitchCostExceedsGain", "DeadlineUnreachable", "UnknownThroughput",
        "NodeUnavailable", "MinRuntimeProtected", "BackOff",
    }  # fmt: skip
    assert [status.value for status in SolverStatus] == ["optimal", "feasible"]
    assert [scope.value for scope in GapScope] == ["pool", "global"]
    assert StoppedBy("wall_clock") is StoppedBy.WALL_CLOCK


@pytest.mark.parametrize(
    ("path", "value", "place", "said"),
    [
        ("schema", "ymir.plan/2", "schema", "ymir.plan/1"),
        ("snapshot_sha256", ..., "plan", "'snapshot_sha256' is missing"),
        ("solver.status", "unknown", "solver.status", "'unknown'"),
        ("solver.objective", "cheap", "solver.objective", "'cheap'"),
        ("solver.gap_scop", "pool", "solver", "did you mean 'gap_scope'?"),
        ("groups.0.jobs", [], "groups[0].jobs", "at least 1"),
        ("groups.0.mode", "merged", "groups[0].mode", "'merged'"),
        ("groups.0.gpus", 1.0, "groups[0].gpus", "1.0"),
        ("groups.0.placement", {"n0": [-1]}, "groups[0].placement.n0[0]", "-1"),
        ("groups.0.placement", {"../n0": [0]}, "groups[0].placement", "'..'"),
        ("groups.0.id", "</script>", "groups[0].id", "< or >"),
        ("groups.0.probe", {"evaluations": 2, "rule": "r", "cost_s": 1, "on_fail": "keep"}, "", "split"),
        ("actions.0.action", "evict", "actions[0].action", "'evict'"),
        ("actions.0.job", "x\ny", "actions[0].job", "line break"),
        ("explanations.a.reason", "Because", "explanations.a.reason", "'Because'"),
        ("explanations.a.decision", "stay", "explanations.a.decision", "'stay'"),
        ("planner.declares", [1, "2"], "planner.declares[1]", "'2'"),
        ("metric", {}, "plan", "did you mean 'metrics'?"),
        ("actions.0.from_", None, "actions[0]", "did you mean 'from'?"),
    ],
)
def test_a_faulty_plan(path: str, value: Any, place: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        plan_of(change(FULL, path, value))
    line = caught.value.one_line()
    assert line.isprintable()
    assert caught.value.place.startswith(place)
    assert said in line


@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_figures_are_finite(value: str) -> None:
    text = json.dumps(FULL).replace('"objective": 12.5', f'"objective": {value}')
    assert value in text
    with pytest.raises(InputError, match="objective"):
        parse_plan(text)
