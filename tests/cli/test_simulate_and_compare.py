"""``simulate`` and ``compare``: figures, what-if, resuming, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import ymir_plan

TRACE = {
    "schema": "ymir.trace/1",
    "jobs": [
        {"id": f"j{i}", "submitted_at_s": 40.0 * i, "gpus": 1 + i % 4, "run_s": 100.0 + 60 * (i % 5)}
        for i in range(20)
    ],
}
FIELDS = {
    "trace", "policy", "seed", "jobs", "gpus", "mean_jct_s", "p50_jct_s", "p95_jct_s", "p99_jct_s",
    "makespan_s", "mean_rho", "max_rho", "jain", "preemptions", "gpu_hours_used", "gpu_hours_switching",
    "merges_kept", "merges_rolled_back", "lower_bound_jct_s", "plan_wall_p99_s", "max_value_gap",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(TRACE))
    return str(path)


def rows_of(*arguments: str) -> list[dict[str, object]]:
    answer = ymir_plan(*arguments, "--json")
    assert answer.code == 0, answer.err
    return answer.json


def compare(trace: str, policies: str, *more: str) -> list[dict[str, object]]:
    return rows_of("compare", trace, "--cluster", "2x4:V100", "--policies", policies, "--jobs", "1", *more)


def test_compare_prints_one_row_for_each_trace_policy_and_seed(trace: str):
    rows = compare(trace, "fifo,srtf:fixed", "--seeds", "2")
    assert [(row["policy"], row["seed"]) for row in rows] == [
        ("fifo", 0), ("srtf:fixed", 0), ("fifo", 1), ("srtf:fixed", 1)
    ]  # fmt: skip
    for row in rows:
        assert set(row) >= FIELDS
        assert row["trace"] == trace
        assert row["gpus"] == 8
        assert row["lower_bound_jct_s"] <= row["mean_jct_s"] + 1e-6
    assert [row["jobs"] for row in rows[:2]] == [20, 20]
    assert rows[0]["mean_jct_s"] != rows[2]["mean_jct_s"], "resampled"


def test_what_if_load_nodes_and_failures_change_the_answer_in_the_expected_direction(trace: str):
    mean = {
        name: compare(trace, "fifo", *more, "--quick-bound")[0]["mean_jct_s"]
        for name, more in {
            "plain": (),
            "denser": ("--scale-load", "3"),
            "wider": ("--add-nodes", "4x4:V100"),
            "lost": ("--drop-node", "n1@100"),
        }.items()
    }
    assert mean["denser"] > mean["plain"]
    assert mean["lost"] > mean["plain"]
    assert mean["wider"] <= mean["plain"]


def test_results_are_kept_and_a_second_call_goes_on_from_them(trace: str, tmp_path: Path):
    folder = tmp_path / "kept"
    first = compare(trace, "fifo", "-o", str(folder))
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(files) == 2, "one run and one bound"
    both = compare(trace, "fifo,srtf", "-o", str(folder))
    assert both[0] == first[0], "plan times included: it was not run again"
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert not list(folder.glob("*.checkpoint.json"))


def test_parallel_processes_give_the_same_rows(trace: str):
    def figures(rows):
        return [{k: v for k, v in row.items() if k != "plan_wall_p99_s"} for row in rows]

    one = compare(trace, "fifo,tiresias,gavel")
    two = rows_of(
        "compare", trace, "--cluster", "2x4:V100", "--policies", "fifo,tiresias,gavel", "--jobs", "2"
    )
    assert figures(one) == figures(two)


def test_simulate_prints_one_object_and_takes_another_cadence(trace: str, tmp_path: Path):
    base = ("simulate", trace, "--cluster", "2x4:V100", "--policy", "srtf")
    own = ymir_plan(*base, "--json").json
    often = ymir_plan(*base, "--events", "--min-spacing", "0", "--json").json
    rarely = ymir_plan(*base, "--round", "900", "--json").json
    assert often["mean_jct_s"] < own["mean_jct_s"] < rarely["mean_jct_s"]
    answer = ymir_plan(*base, "-o", str(tmp_path / "out"), "--json")
    assert answer.json["mean_jct_s"] == own["mean_jct_s"]
    kept = json.loads(next((tmp_path / "out").glob("*[0-9a-f].json")).read_text())
    assert kept["schema"] == "ymir.simulation-result/1"
    assert len(kept["records"]["jobs"]) == 20
    assert kept["records"]["segments"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--policies", "nobody"), "policy 'nobody': is not installed; known: fifo"),
        (("--policies", ","), "--policies: names no policy"),
        (("--policies", "fifo,fifo"), "--policies: 'fifo' is named twice"),
        (("--policies", "titan:x"), "policy titan:x: has no variant 'x'"),
        (("--policies", "fifo", "--seeds", "0"), "--seeds: 0 is out of range"),
        (("--policies", "fifo", "--jobs", "0"), "--jobs: 0 is less than 1"),
        (("--policies", "fifo", "--scale-load", "0"), "--scale-load: 0.0 is not above 0"),
        (("--policies", "fifo", "--drop-node", "n1"), "--drop-node: 'n1' is not ID@SECONDS"),
        (("--policies", "fifo", "--drop-node", "zz@5"), "names no node of the cluster"),
        (("--policies", "fifo", "--add-nodes", "4"), "is not NODESxGPUS:TYPE"),
        (("--policies", "fifo", "--against", "me"), "--against: 'me' is unknown"),
        (("--policies", "fifo", "--engine", "moon"), "--engine: 'moon' is unknown"),
    ],
)
def test_bad_options_of_compare_are_one_line_and_code_2(trace: str, arguments: tuple[str, ...], line: str):
    answer = ymir_plan("compare", trace, "--cluster", "2x4:V100", *arguments)
    assert answer.code == 2
    assert line in answer.one_line()


def test_bad_traces_name_the_file_and_the_place(tmp_path: Path):
    base = ("--cluster", "2x4:V100", "--policies", "fifo")
    answer = ymir_plan("compare", str(tmp_path / "absent"), *base)
    assert (answer.code, "cannot be read" in answer.one_line()) == (2, True)
    empty = tmp_path / "empty"
    empty.touch()
    assert "is empty" in ymir_plan("compare", str(empty), *base).one_line()
    odd = tmp_path / "odd"
    odd.write_text("what is this")
    assert "is of no known trace format" in ymir_plan("compare", str(odd), *base).one_line()
    header = "name,submission_time,application,num_gpus,target_batch_size,target_lr,target_gradient_steps"
    header += ",target_metric"
    wrong = tmp_path / "workload-0.csv"
    wrong.write_text(f"{header}\na,zero,vit@mnist,1,48,4e-4,1,0.9\n")
    line = ymir_plan("compare", str(wrong), *base).one_line()
    assert "--profiles: is missing" in line
    (tmp_path / "lut" / "V100").mkdir(parents=True)
    line = ymir_plan("compare", str(wrong), *base, "--profiles", str(tmp_path)).one_line()
    assert f"{wrong}: line 2, column submission_time: 'zero' is not a number" in line


@pytest.mark.data
def test_the_command_of_the_documentation_on_a_real_trace(data_dir: Path):
    trace = data_dir / "titan" / "workloads" / "FM-1-roberta-large" / "workload-0.csv"
    rows = rows_of(
        "compare", str(trace), "--profiles", str(data_dir / "titan"), "--cluster", "8x4:V100",
        "--policies", "srtf,optimus", "--jobs", "1", "--quick-bound",
    )  # fmt: skip
    means = {row["policy"]: row["mean_jct_s"] / 3600 for row in rows}
    assert means == pytest.approx({"srtf": 0.492, "optimus": 0.343}, rel=0.003)
