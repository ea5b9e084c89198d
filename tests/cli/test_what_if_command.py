"""``ymir-plan what-if``: side by side, JSON, several policies, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, ymir_plan

URGENT = {
    "id": "urgent",
    "queue": "language",
    "foundation_model": "roberta-base",
    "task": "sst2",
    "peft_type": "LORA",
    "batch_size": 32,
    "remaining_samples": 20000,
    "max_gpus": 2,
    "priority": 3,
}


@pytest.fixture(scope="module")
def small(examples: Path) -> Path:
    return examples / "small.json"


def what_if(small: Path, *arguments: str | Path, **options: Any) -> Answer:
    return ymir_plan("what-if", small, "--ahead", "0", *arguments, **options)


def test_two_more_nodes_side_by_side(small: Path) -> None:
    answer = what_if(small, "--add-nodes", "2x4:A100", terminal=True)
    assert answer.code == 0
    assert answer.err == ""
    text = " ".join(answer.out.split())
    for words in ("as it is", "2x4:A100 more", "17 of 19", "objective", "progress", "queued", "value gap"):
        assert words in text, words
    assert "as it is -> 2x4:A100 more:" in text
    assert "new0" in text


def test_piped_it_is_json_with_every_change_and_its_reason(small: Path) -> None:
    answer = what_if(small, "--add-nodes", "2x4:A100", "--drop-node", "v100-0")
    found = answer.json
    assert found["changes"] == ["2x4:A100 more", "without v100-0"]
    assert [s["name"] for s in found["scenarios"]] == ["as it is", "2x4:A100 more, without v100-0"]
    assert [s["gpus_total"] for s in found["scenarios"]] == [19, 23]
    assert all(s["objective_comparable"] for s in found["scenarios"])
    (difference,) = found["differences"]
    assert difference["jobs"]
    for row in difference["jobs"]:
        assert row["change"]
        assert row["before"]["place"]
        assert row["after"]["message"]
        if row["after"]["runs"] and row["change"] in ("starts", "elsewhere"):
            assert row["why"]
    assert "side by side" in answer.err


def test_a_job_from_a_file_or_standard_input(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(URGENT))
    found = what_if(small, "--add-job", path).json
    piped = what_if(small, "--add-job", "-", stdin=json.dumps(URGENT)).json
    assert found == piped
    added = [row for row in found["differences"][0]["jobs"] if row["change"] == "added"]
    assert [row["job"] for row in added] == ["urgent"]
    assert added[0]["after"]["start_round"] == 1
    assert [s["objective_comparable"] for s in found["scenarios"]] == [True, False]


def test_policies_and_merging(small: Path) -> None:
    found = what_if(small, "--policy", "ymir", "--policy", "srtf", "--policy", "fifo").json
    assert [s["name"] for s in found["scenarios"]] == ["ymir", "srtf", "fifo"]
    assert [d["to"] for d in found["differences"]] == ["srtf", "fifo"]
    assert found["scenarios"][1]["objective"] is None
    alone = what_if(small, "--policy", "srtf").json
    assert [s["policy"] for s in alone["scenarios"]] == ["ymir", "srtf"]
    split = what_if(small, "--forbid-merge").json
    assert [s["policy"] for s in split["scenarios"]] == ["ymir", "ymir-no-merge"]
    assert [s["name"] for s in split["scenarios"]] == ["as it is", "no merging"]
    one, two = (s["objective"] for s in split["scenarios"])
    assert two > one


def test_changes_are_planned_by_the_policy_that_is_named(small: Path) -> None:
    found = what_if(small, "--drop-node", "v100-0", "--policy", "srtf").json
    assert [s["policy"] for s in found["scenarios"]] == ["srtf", "srtf"]
    several = what_if(small, "--set", "sst2.max_gpus=4", "--policy", "ymir", "--policy", "srtf").json
    assert [s["name"] for s in several["scenarios"]] == [
        "as it is",
        "sst2.max_gpus=4, ymir",
        "sst2.max_gpus=4, srtf",
    ]


def test_a_gpu_type_without_speeds_is_said(small: Path) -> None:
    found = what_if(small, "--add-nodes", "1x8:H100").json
    assert found["notes"] == [
        "no throughput is known on H100: only jobs of a known run time (remaining_s) can use it"
    ]
    assert what_if(small, "--add-nodes", "1x4:V100").json["notes"] == []


def test_looking_ahead_tells_the_round(small: Path) -> None:
    found = ymir_plan("what-if", small, "--drop-node", "a100-0", "--ahead", "6").json
    rows = {row["job"]: row for row in found["differences"][0]["jobs"]}
    assert rows["imdb"]["change"] == "preempted"
    assert rows["imdb"]["after"]["start_round"] > 1
    assert rows["imdb"]["after"]["start_s"] > 0
    assert rows["imdb"]["why"] == "GPUs that it held left with a100-0"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing is asked"),
        (["--drop-node", "a100-9"], "'a100-9' is not a node; did you mean"),
        (["--add-nodes", "2:A100"], "--add-nodes: '2:A100' is not NODESxGPUS:TYPE"),
        (["--add-nodes", "2x8:X9"], "add --gpu-memory X9=GIB"),
        (["--set", "sst.max_gpus=3"], "'sst' is not a job; did you mean 'sst2'?"),
        (["--set", "sst2.max_gpu=3"], "no field 'max_gpu'; did you mean 'max_gpus'?"),
        (["--set", "sst2.max_gpus=0"], "--set sst2.max_gpus: 0 is less than min_gpus 1"),
        (["--add-job", "/no/such/file"], "no such file"),
        (["--add-job", "-"], "is not valid JSON"),
        (["--policy", "nope"], "is not installed"),
        (["--policy", "ymir", "--policy", "ymir"], "is named twice"),
        (["--forbid-merge", "--policy", "fifo"], "has no such choice"),
        (["--drop-node", "a100-0", "--ahead", "-1"], "--ahead"),
        (["--gpu-memory", "X9", "--add-nodes", "1x1:X9"], "is not TYPE=GIB"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(small: Path, arguments: list[str], words: str) -> None:
    answer = ymir_plan("what-if", small, *arguments)
    assert answer.code == 2
    assert words in answer.one_line()


def test_standard_input_is_named_once(small: Path) -> None:
    answer = ymir_plan("what-if", "-", "--add-job", "-", stdin=small.read_bytes())
    assert "standard input is named twice" in answer.one_line()
