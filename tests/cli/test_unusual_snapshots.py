"""Empty, tiny, huge and odd snapshots through the whole command: a plan that checks, or one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command_line import ymir_plan
from small_documents import change, job_row, node_row, snapshot_data

RIGID = {"id": "r", "submitted_at_s": 0.0, "remaining_s": 60.0}

ODD: dict[str, dict[str, Any]] = {
    "nothing": {"taken_at_s": 0},
    "no jobs": snapshot_data([]),
    "no nodes": snapshot_data(cluster={"nodes": []}),
    "a node without GPUs": snapshot_data(cluster={"nodes": [node_row(gpus=0)]}),
    "a node without memory": snapshot_data(cluster={"nodes": [node_row(gpu_memory_gib=0)]}),
    "all nodes down": snapshot_data(
        cluster={"nodes": [node_row(state="down"), node_row("n1", state="draining")]}
    ),
    "one job": snapshot_data([job_row("a")]),
    "one rigid job": snapshot_data([RIGID]),
    "no profiles": snapshot_data(profiles={}),
    "nothing left": snapshot_data([job_row("a", remaining_samples=0), RIGID | {"remaining_s": 0}]),
    "1e18 samples": snapshot_data([job_row("a", remaining_samples=1e18), job_row("b")]),
    "1e18 seconds": snapshot_data([RIGID | {"remaining_s": 1e18}, job_row("b")]),
    "submitted in the future": snapshot_data([job_row("a", submitted_at_s=1e9)]),
    "submitted an age ago": snapshot_data([job_row("a", submitted_at_s=-1e18)]),
    "a deadline long gone": snapshot_data([job_row("a", deadline_s=-1e18)]),
    "speed nought": change(snapshot_data(), "profiles.throughput.0.samples_per_s", 0),
    "no speed at all": snapshot_data(
        profiles={
            "throughput": [
                {"foundation_model": "bert", "peft_type": "LORA", "gpu_type": "A100", "gpus": 1,
                 "batch_size": 32, "samples_per_s": 0}
            ]
        }
    ),
    "a switch of 1e18 s": change(snapshot_data(), "profiles.switch_s.0.cold_s", 1e18),
    "priorities at the limits": snapshot_data(
        [job_row("a", priority=2**31), job_row("b", priority=-(2**31))]
    ),
    "weights at the limits": snapshot_data([job_row("a", weight=1e9), job_row("b", weight=1e-9)]),
    "more GPUs than there are": snapshot_data([job_row("a", min_gpus=1_000_000, max_gpus=1_000_000)]),
    "twelve priorities": snapshot_data([job_row(f"j{i}", priority=i) for i in range(12)]),
    "names of all sorts": snapshot_data(
        [job_row(n) for n in ("ビルド", "🙂", "a b", "[red]", "{0}", "%s", "a/b", "-", "--help", "null")]
    ),
    "a label with everything": snapshot_data(
        [job_row("a", labels={"</script>": ["\n", None, {"x": 1e308}]})]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_a_plan_that_checks(kind: str) -> None:
    source = json.dumps(ODD[kind])
    made = ymir_plan("solve", "-", "-o", "-", stdin=source)
    assert (made.code, "Traceback" in made.err) == (0, False), made.err
    plan = made.json
    jobs = [job["id"] for job in ODD[kind].get("jobs", [])]
    assert sorted(action["job"] for action in plan["actions"]) == sorted(jobs)
    assert set(plan["explanations"]) == set(jobs)
    assert "NaN" not in made.out
    assert "Infinity" not in made.out
    assert plan["solver"]["stopped_by"] != "wall_clock"


@pytest.mark.parametrize("kind", ODD)
def test_the_plan_of_an_odd_snapshot_is_proven(kind: str, tmp_path: Any) -> None:
    source = tmp_path / "snapshot.json"
    source.write_text(json.dumps(ODD[kind]))
    made = ymir_plan("solve", source, "-o", "-")
    answer = ymir_plan("check", source, "-", "--replan", stdin=made.out)
    assert answer.code == 0, answer.out + answer.err


def test_ids_survive_the_whole_way() -> None:
    source = json.dumps(ODD["names of all sorts"])
    made = ymir_plan("solve", "-", "-o", "-", stdin=source)
    for job in ODD["names of all sorts"]["jobs"]:
        assert job["id"] in made.json["explanations"]
        assert job["id"] in made.err


def test_input_of_another_order_gives_a_plan_of_the_same_worth() -> None:
    jobs = [job_row(f"j{i}", remaining_samples=1000.0 * (i + 1)) for i in range(6)]
    one = ymir_plan("solve", "-", "--json", stdin=json.dumps(snapshot_data(jobs))).json
    other = ymir_plan("solve", "-", "--json", stdin=json.dumps(snapshot_data(jobs[::-1]))).json
    assert one["solver"]["objective"] == pytest.approx(other["solver"]["objective"], rel=1e-9)
    mode = {g["jobs"][0]: (g["mode"], g["gpus"]) for g in one["groups"]}
    assert mode == {g["jobs"][0]: (g["mode"], g["gpus"]) for g in other["groups"]}
