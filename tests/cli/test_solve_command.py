"""``ymir-plan solve``: what is asked of the planner, and where plan and tables go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import StubPlanner, ymir_plan

from ymir_opt.domain.documents import parse_plan
from ymir_opt.domain.plan import Plan

DEFAULTS: dict[str, Any] = {
    "policy": "ymir",
    "backend": "auto",
    "time_limit_s": None,
    "gap": None,
    "previous": None,
    "estimates": None,
    "measured_only": False,
    "prove_global": False,
    "seed": 0,
}


def asked(planner: StubPlanner) -> dict[str, Any]:
    assert len(planner.asked) == 1
    return {name: value for name, value in planner.asked[0].items() if name != "snapshot"}


def test_what_is_asked_by_default(snapshot_file: Path, planner: StubPlanner) -> None:
    assert ymir_plan("solve", snapshot_file).code == 0
    assert asked(planner) == DEFAULTS


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--policy", "srtf"], {"policy": "srtf"}),
        (["--backend", "cpsat"], {"backend": "cpsat"}),
        (["--time-limit", "2.5"], {"time_limit_s": 2.5}),
        (["--gap", "0"], {"gap": 0.0}),
        (["--gap", "0.01", "--seed", "7"], {"gap": 0.01, "seed": 7}),
        (["--measured-only", "--prove-global"], {"measured_only": True, "prove_global": True}),
    ],
)
def test_what_the_options_ask(
    options: list[str], expected: dict[str, Any], snapshot_file: Path, planner: StubPlanner
) -> None:
    assert ymir_plan("solve", snapshot_file, *options).code == 0
    assert asked(planner) == DEFAULTS | expected


def test_the_previous_plan(snapshot_file: Path, plan_file: Path, planner: StubPlanner) -> None:
    assert ymir_plan("solve", snapshot_file, "--previous", plan_file).code == 0
    previous = asked(planner)["previous"]
    assert isinstance(previous, Plan)
    assert previous == parse_plan(plan_file.read_text())


def test_snapshot_from_standard_input(snapshot_file: Path, planner: StubPlanner) -> None:
    from_file = ymir_plan("solve", snapshot_file)
    from_stdin = ymir_plan("solve", "-", stdin=snapshot_file.read_bytes())
    assert from_stdin == from_file
    assert planner.asked[0] == planner.asked[1]


def test_piped_output_is_the_plan_alone(snapshot_file: Path, planner: StubPlanner) -> None:
    for options in ([], ["-o", "-"]):
        answer = ymir_plan("solve", snapshot_file, *options)
        parse_plan(answer.out)
        assert answer.out.count("\n") == 1
        assert "1 group on" in answer.err
        assert "InsufficientGPUs" in answer.err
    assert "{" not in answer.err


def test_json_means_no_tables(snapshot_file: Path, planner: StubPlanner) -> None:
    for terminal in (False, True):
        answer = ymir_plan("solve", snapshot_file, "--json", terminal=terminal)
        parse_plan(answer.out)
        assert answer.err == ""


def test_a_terminal_shows_tables_and_no_json(
    snapshot_file: Path, planner: StubPlanner, tmp_path: Path
) -> None:
    answer = ymir_plan("solve", snapshot_file, terminal=True)
    assert answer.err == ""
    assert "1 group on" in answer.out
    assert "snapshot_sha256" not in answer.out
    answer = ymir_plan("solve", snapshot_file, "-o", "-", terminal=True)
    parse_plan(answer.out)
    assert "1 group on" in answer.err


def test_a_file_for_the_plan(snapshot_file: Path, planner: StubPlanner, tmp_path: Path) -> None:
    out = tmp_path / "new plan.json"
    answer = ymir_plan("solve", snapshot_file, "-o", out)
    assert answer.out == ""
    assert "1 group on" in answer.err
    both = ymir_plan("solve", snapshot_file, "-o", out, "--json")
    assert both.out == out.read_text()
    parse_plan(out.read_text())


def test_ids_are_shown_as_they_are(snapshot_file: Path, planner: StubPlanner) -> None:
    # neither markup nor emoji codes are interpreted
    text = snapshot_file.read_text().replace('"id": "b"', '"id": "[red]b[/red] :smile:"')
    answer = ymir_plan("solve", "-", stdin=text)
    assert "[red]b[/red] :smile:" in answer.err


def test_no_page_without_a_renderer(
    snapshot_file: Path, planner: StubPlanner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ymir_opt.report", None)
    answer = ymir_plan("solve", snapshot_file, "--report", tmp_path / "x.html")
    assert answer.code == 2
    assert answer.one_line().startswith("--report: ")
    assert planner.asked == []


def test_the_page(
    snapshot_file: Path, planner: StubPlanner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    from types import ModuleType

    report = ModuleType("ymir_opt.report")
    report.plan_page = lambda snapshot, plan: f"<p>{len(snapshot.jobs)} {plan.solver.backend}</p>"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ymir_opt.report", report)
    answer = ymir_plan("solve", snapshot_file, "--report", tmp_path / "x.html")
    assert answer.code == 0
    assert (tmp_path / "x.html").read_text() == "<p>2 none</p>"
    missing = ymir_plan("solve", snapshot_file, "--report", tmp_path / "no" / "x.html")
    assert missing.code == 2
    assert "does not exist" in missing.one_line()


def test_a_plan_is_written_whole_or_not_at_all(
    snapshot_file: Path, planner: StubPlanner, tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    out.write_text("old")
    planner.fails = RuntimeError("half way")
    assert ymir_plan("solve", snapshot_file, "-o", out).code == 1
    assert out.read_text() == "old"
    assert json.loads(snapshot_file.read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "snapshot.json"}
