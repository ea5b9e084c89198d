"""``ymir-plan explain``: pages, JSON when piped, exact losses on request, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import ymir_plan
from small_documents import change

from ymir_opt.domain.documents import dump_json, parse_plan, parse_snapshot


@pytest.fixture(scope="module")
def small(examples: Path) -> Path:
    return examples / "small.json"


@pytest.fixture(scope="module")
def plan_file(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "plan.json"
    path.write_text(ymir_plan("solve", small, "--json").out)
    return path


def test_the_overview_has_a_line_for_every_job(plan_file: Path) -> None:
    answer = ymir_plan("explain", plan_file, terminal=True)
    assert answer.code == 0
    assert answer.err == ""
    plan = parse_plan(plan_file.read_bytes())
    for name, told in plan.explanations.items():
        assert name in answer.out
        assert told.reason.value in answer.out
    assert "24 jobs: 4 keep" in answer.out
    assert "a GPU-second is worth, in units of the objective: A100 0.0007" in answer.out
    assert "objective by term: progress" in answer.out


def test_piped_it_is_json_and_the_tables_go_to_standard_error(plan_file: Path) -> None:
    answer = ymir_plan("explain", plan_file)
    assert len(answer.json["jobs"]) == 24
    assert answer.json["price_per_gpu_s"]["A100"] > 0
    assert "next best" in answer.err
    quiet = ymir_plan("explain", plan_file, "sst2", "--json")
    assert quiet.err == ""
    assert quiet.json["group"]["jobs"] == ["sst2", "yelp"]
    assert quiet.json["explanation"]["alternatives"][0]["objective_delta"]["kind"] == "lower_bound"


def test_a_jobs_page_names_its_group_its_alternatives_and_what_is_ruled_out(plan_file: Path) -> None:
    page = ymir_plan("explain", plan_file, "sst2", terminal=True).out
    for words in (
        "starts on 2 V100 in joint with yelp",
        "joint: sst2, yelp",
        "2 x V100, v100-1:0-1",
        "2 evaluations, else split",
        "1 x A100 alone",
        ">= 0.0",
        "InsufficientGPUs",
        "joint with cola",
        "NegativeTransfer",
    ):
        assert words in page, words


def test_exact_losses_are_marked_and_never_below_the_bounds(plan_file: Path, small: Path) -> None:
    bounds = ymir_plan("explain", plan_file, "archive", "--json").json["explanation"]["alternatives"]
    exact = ymir_plan("explain", plan_file, "archive", "--exact", small, "--json").json
    found = {a["option"]: a for a in exact["explanation"]["alternatives"]}
    priced = [a for a in bounds if a["objective_delta"] is not None]
    assert len(priced) == 3
    for one in priced:
        two = found[one["option"]]["objective_delta"]
        assert two["kind"] == "exact"
        assert two["value"] >= one["objective_delta"]["value"] - 1e-9
    assert "mnli would get no GPUs" in found["2 x A100 alone"]["why_not"]
    page = ymir_plan("explain", plan_file, "sharded", "--exact", small, terminal=True).out
    assert "no plan contains it" in " ".join(page.split())


def test_the_plan_may_come_from_standard_input(plan_file: Path) -> None:
    assert ymir_plan("explain", "-", "rte", stdin=plan_file.read_bytes()).json["job"] == "rte"


def test_a_plan_without_explanations_or_objective_is_explained_as_far_as_it_goes(small: Path) -> None:
    made = ymir_plan("solve", small, "--policy", "srtf", "--json").out
    answer = ymir_plan("explain", "-", "sst2", stdin=made, terminal=True)
    assert answer.code == 0
    assert "policy srtf has no objective, so it tells no alternatives" in answer.out
    refused = ymir_plan("explain", "-", "sst2", "--exact", small, stdin=made)
    assert refused.code == 2
    assert "srtf" in refused.one_line()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sts2"], "'sts2' is not in the plan; did you mean 'sst2'?"),
        (["sst2", "--exact", "/no/such/file"], "no such file"),
        (["sst2", "extra"], "extra"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    plan_file: Path, arguments: list[str], words: str
) -> None:
    answer = ymir_plan("explain", plan_file, *arguments)
    assert answer.code == 2
    assert words in answer.one_line()


def test_exact_refuses_another_snapshot_and_a_plan_that_costs_something_else(
    plan_file: Path, small: Path, tmp_path: Path
) -> None:
    later = parse_snapshot(small.read_bytes()).model_copy(update={"taken_at_s": 36_010.0})
    other = tmp_path / "other.json"
    other.write_text(dump_json(later, exclude_defaults=True))
    answer = ymir_plan("explain", plan_file, "sst2", "--exact", other)
    assert answer.code == 2
    assert "snapshot_sha256" in answer.one_line()
    data: Any = json.loads(plan_file.read_text())
    data["solver"]["objective"] += 1.0
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(data))
    answer = ymir_plan("explain", forged, "sst2", "--exact", small)
    assert answer.code == 2
    assert "here the plan costs" in answer.one_line()


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("groups.0.placement", {"no-node": [0]}, "actions[14]: breaks invariant 1"),
        ("groups.0.jobs", ["no-job"], "groups[0].jobs: breaks invariant 1"),
        ("groups.0.mode", "joint", "groups[0].jobs: breaks invariant 1"),
    ],
)
def test_exact_refuses_a_plan_that_breaks_an_invariant(
    path: str, value: Any, place: str, plan_file: Path, small: Path
) -> None:
    spoiled = json.dumps(change(json.loads(plan_file.read_text()), path, value))
    answer = ymir_plan("explain", "-", "sst2", "--exact", small, stdin=spoiled)
    assert answer.code == 2
    assert place in answer.one_line()


def test_standard_input_is_not_read_twice(plan_file: Path) -> None:
    assert "standard input is named twice" in ymir_plan("explain", "-", "--exact", "-").one_line()


def test_ids_are_shown_as_text_never_as_markup(plan_file: Path, tmp_path: Path) -> None:
    data: Any = json.loads(plan_file.read_text().replace("homework-2", "[red]x[/red]"))
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(data))
    assert "[red]x[/red]" in ymir_plan("explain", path, terminal=True).out
    assert "[red]x[/red]" in ymir_plan("explain", path, "[red]x[/red]", terminal=True).out
