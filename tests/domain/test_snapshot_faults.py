"""A faulty snapshot is refused with one line: the place, the value, the remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_documents import change, job_row, snapshot_data, snapshot_of

from ymir_opt.domain.errors import InputError

RUNNING = {"state": "running", "allocation": {"n0": [0]}, "last_start_s": 900.0}


def fault_of(data: dict[str, Any]) -> InputError:
    with pytest.raises(InputError) as caught:
        snapshot_of(data)
    error = caught.value
    line = error.one_line()
    assert line.isprintable()
    assert len(line) < 400
    assert all((error.place, error.problem, error.remedy))
    assert "pydantic" not in line
    return error


# path of the change, new value, place of the fault, what the problem names, what the remedy names
FAULTS: list[tuple[str, Any, str, str, str]] = [
    ("jobs.1.max_gpus", 0, "jobs[1].max_gpus", "0 is less than min_gpus 1", "raise max_gpus"),
    ("jobs.0.min_gpus", 8, "jobs[0].max_gpus", "4 is less than min_gpus 8", "lower min_gpus"),
    ("jobs.0.requested_gpus", 9, "jobs[0].requested_gpus", "9 is more than max_gpus 4", "lower requested"),
    ("jobs.0.min_gpus", 0, "jobs[0].min_gpus", "0", "correct"),
    ("jobs.0.gpu_counts", [], "jobs[0].gpu_counts", "empty", "at least one"),
    ("jobs.0.gpu_types", [], "jobs[0].gpu_types", "empty", "at least one"),
    ("jobs.1.id", "a", "jobs[1].id", "'a' is used twice", "its own id"),
    ("jobs.0.queue", "defualt", "jobs[0].queue", "'defualt'", "did you mean 'default'?"),
    ("jobs.0.weight", 0, "jobs[0].weight", "0", "correct"),
    ("jobs.0.priority", 1.5, "jobs[0].priority", "1.5", "correct"),
    ("jobs.0.priority", "high", "jobs[0].priority", "'high'", "correct"),
    ("jobs.0.movable", "yes", "jobs[0].movable", "'yes'", "correct"),
    ("jobs.0.sharing", "everyone", "jobs[0].sharing", "'tenant'", "correct"),
    ("jobs.0.state", "done", "jobs[0].state", "'done'", "correct"),
    ("jobs.0.remaining_samples", -1, "jobs[0].remaining_samples", "-1", "correct"),
    ("jobs.0.remaining_samples", 1e19, "jobs[0].remaining_samples", "1e+19", "correct"),
    ("jobs.0.remaining_samples", ..., "jobs[0].remaining_samples", "max_samples", "how much work"),
    ("jobs.0.remaining_s", 5, "jobs[0].remaining_s", "together with remaining_samples", "rigid"),
    ("jobs.0.remaining_samples_low", 7000, "jobs[0].remaining_samples_low", "7000", "low <="),
    ("jobs.0.remaining_samples_high", 5000, "jobs[0].remaining_samples_high", "5000", "<= high"),
    ("jobs.0.last_checkpoint_samples", 1, "jobs[0].last_checkpoint_samples", "1.0 is more", "ahead"),
    ("jobs.0.foundation_model", ..., "jobs[0].foundation_model", "missing", "remaining_s"),
    ("jobs.0.batch_size", ..., "jobs[0].batch_size", "missing", "global batch size"),
    ("jobs.0.batch_size", 0, "jobs[0].batch_size", "0", "correct"),
    ("jobs.0.workers", {"count": 2, "gpus_each": 4}, "jobs[0].max_gpus", "exactly 8", "both agree"),
    ("jobs.0.workers", {"count": 2}, "jobs[0].workers", "'gpus_each' is missing", "add the field"),
    ("jobs.0.submitted_at_s", ..., "jobs[0]", "'submitted_at_s' is missing", "add the field"),
    ("jobs.0.allocation", {"n0": [0]}, "jobs[0].allocation", "pending", "running"),
    ("jobs.0.state", "running", "jobs[0].allocation", "missing", "GPUs it holds"),
    ("jobs.0.max_gpu", 4, "jobs[0]", "unknown field 'max_gpu'", "did you mean 'max_gpus'?"),
    ("cluster.nodes.0.gpu_typ", "A100", "cluster.nodes[0]", "'gpu_typ'", "'gpu_type'"),
    ("cluster.node", [], "cluster", "unknown field 'node'", "'nodes'"),
    ("job", [], "snapshot", "unknown field 'job'", "'jobs'"),
    ("schema_", "ymir.snapshot/1", "snapshot", "unknown field 'schema_'", "'schema'"),
    ("taken_at_s", ..., "snapshot", "'taken_at_s' is missing", "add the field"),
    ("taken_at_s", "now", "taken_at_s", "'now'", "correct"),
    ("round_s", 0, "round_s", "0", "correct"),
    ("jobs", {}, "jobs", "", "correct"),
    ("jobs", None, "jobs", "None", "correct"),
    ("jobs.0", 7, "jobs[0]", "7", "correct"),
    ("cluster.nodes.1.id", "n0", "cluster.nodes[1].id", "'n0' is used twice", "its own id"),
    ("cluster.nodes.1.gpus", -1, "cluster.nodes[1].gpus", "-1", "correct"),
    ("cluster.nodes.1.gpus", 10**7, "cluster.nodes[1].gpus", "10000000", "correct"),
    ("cluster.nodes.0.unavailable_gpus", [4], "cluster.nodes[0].unavailable_gpus", "GPU 4", "from 0"),
    ("cluster.nodes.0.external_used_gib", [1.0], "cluster.nodes[0].external_used_gib", "1 values", "each"),
    ("cluster.nodes.0.resident_fm", ["bert"], "cluster.nodes[0].resident_fm", "for 4 GPUs", "each"),
    ("cluster.nodes.0.state", "drained", "cluster.nodes[0].state", "'drained'", "correct"),
    ("queues", [{"name": "q"}, {"name": "q"}], "queues[1].name", "'q' is used twice", "its own name"),
    (
        "queues",
        [{"name": "q", "quotas": [{"gpu_type": "T4", "nominal_gpus": 1}] * 2}],
        "queues[0].quotas[1].gpu_type",
        "'T4' is used twice",
        "its own gpu_type",
    ),
    ("queues", [{"name": "q", "quotas": [{"gpu_type": "T4"}]}], "queues[0].quotas[0]", "nominal", "add"),
    ("queues", [{"name": "q", "reclaim_within_cohort": "any"}], "queues[0].reclaim_within_cohort", "", ""),
    ("adapters", [{"id": "x", "foundation_model": "bert", "task": "t"}] * 2, "adapters[1].id", "twice", ""),
    ("rejected_merges", [{"jobs": ["a", "a"], "mode": "joint"}], "rejected_merges[0].jobs", "twice", ""),
    ("rejected_merges", [{"jobs": [], "mode": "joint"}], "rejected_merges[0].jobs", "", ""),
    (
        "profiles.switch_s.0.warm_s",
        61.0,
        "profiles.switch_s[0].warm_s",
        "61.0 is more than cold_s 60.0",
        "slower",
    ),
    ("profiles.throughput.0.gpus", 0, "profiles.throughput[0].gpus", "0", "correct"),
    ("profiles.throughput.0.samples_per_s", -3, "profiles.throughput[0].samples_per_s", "-3", "correct"),
    ("profiles.throughput.0.source", "guessed", "profiles.throughput[0].source", "'guessed'", "correct"),
    (
        "profiles.colocation",
        [
            {
                "mode": "colocate",
                "gpu_type": "A100",
                "gpus": 1,
                "members": [{"foundation_model": "bert", "batch_size": 32}] * 2,
                "speed_ratio": [0.5],
            }
        ],
        "profiles.colocation[0].speed_ratio",
        "1 values for 2 members",
        "each member",
    ),
    (
        "profiles.transfer",
        [{"mode": "warm_start", "foundation_model": "bert", "source": ["x"], "target": "y", "work_ratio": 1}],
        "profiles.transfer[0].source",
        "a list",
        "one task",
    ),
    (
        "profiles.transfer",
        [
            {
                "mode": "joint",
                "foundation_model": "bert",
                "source": "x",
                "target": "y",
                "work_ratio": 0.5,
                "low": 0.6,
            }
        ],
        "profiles.transfer[0].low",
        "0.6",
        "low <=",
    ),
]


@pytest.mark.parametrize(("path", "value", "place", "problem", "remedy"), FAULTS)
def test_one_fault(path: str, value: Any, place: str, problem: str, remedy: str) -> None:
    error = fault_of(change(snapshot_data(), path, value))
    if place:
        assert error.place == place
    assert problem in error.problem
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("changes", "place", "problem"),
    [
        ({"allocation": {"n9": [0]}}, "jobs[0].allocation", "'n9' is not a node"),
        ({"allocation": {"n0": [4]}}, "jobs[0].allocation", "GPU 4 does not exist"),
        ({"allocation": {"n0": [1, 1]}}, "jobs[0].allocation", "named twice"),
        ({"allocation": {"n0": []}}, "jobs[0].allocation", "no GPU"),
        ({"allocation": {}}, "jobs[0].allocation", "missing"),
        ({"allocation": {"n0": [0], "t": [0]}}, "jobs[0].allocation", "spans the GPU types A100, T4"),
    ],
)
def test_a_faulty_allocation(changes: dict[str, Any], place: str, problem: str) -> None:
    data = snapshot_data([job_row("a", **RUNNING | changes)])
    data["cluster"]["nodes"].append({"id": "t", "gpu_type": "T4", "gpus": 1, "gpu_memory_gib": 15})
    error = fault_of(data)
    assert error.place == place
    assert problem in error.problem


@pytest.mark.parametrize(
    ("group", "place", "problem"),
    [
        ({"jobs": ["a", "z"]}, "groups[0].jobs", "'z' is not a job"),
        ({"jobs": ["a", "c"]}, "groups[0].jobs", "'c' is not running"),
        ({"jobs": ["a", "d"]}, "groups[0].jobs", "hold different GPUs"),
        ({"mode": "solo"}, "groups[0].mode", "solo with 2 jobs"),
        ({"mode": "sequence"}, "groups[0].jobs", "'b' runs, but waits in a sequence"),
        ({"jobs": ["a", "b", "a"]}, "groups[0].jobs", "'a' is also in group"),
        ({"starts_from": {"d": {"job": "a"}}}, "groups[0].starts_from", "'d' is not in the group"),
        ({"starts_from": {"a": {}}}, "groups[0].starts_from.a", "neither"),
        ({"starts_from": {"a": {"job": "b", "adapter": "x"}}}, "groups[0].starts_from.a", "both"),
        ({"mode": "together"}, "groups[0].mode", "'together'"),
    ],
)
def test_a_faulty_running_group(group: dict[str, Any], place: str, problem: str) -> None:
    jobs = [
        job_row("a", **RUNNING),
        job_row("b", **RUNNING),
        job_row("c"),
        job_row("d", **RUNNING | {"allocation": {"n1": [0]}}),
    ]
    whole = {"id": "g", "mode": "colocate", "jobs": ["a", "b"]}
    snapshot_of(snapshot_data(jobs, groups=[whole]))
    error = fault_of(snapshot_data(jobs, groups=[whole | group]))
    assert error.place == place
    assert problem in error.problem


def test_jobs_that_share_gpus_must_say_so() -> None:
    jobs = [job_row("a", **RUNNING), job_row("b", **RUNNING)]
    error = fault_of(snapshot_data(jobs))
    assert error.place == "jobs[1].allocation"
    assert "GPU 0 of node 'n0' is also held by 'job a'" in error.problem
    assert "groups[]" in error.remedy


def test_a_job_is_in_one_group() -> None:
    jobs = [job_row("a", **RUNNING), job_row("b", **RUNNING)]
    group = {"mode": "colocate", "jobs": ["a", "b"]}
    error = fault_of(snapshot_data(jobs, groups=[{"id": "g", **group}, {"id": "h", **group}]))
    assert "'a' is also in group 'g'" in error.problem


@pytest.mark.parametrize(
    "name",
    [
        "",
        " a",
        "a ",
        "a\nb",
        "a\tb",
        "\x1b[31m",
        "</script>",
        "a<b",
        "../x",
        "x/../y",
        "..",
        "a\\..\\b",
        "\u2028",
        "x" * 257,
    ],
)
@pytest.mark.parametrize(
    "where", ["jobs.0.id", "jobs.0.tenant", "cluster.nodes.0.id", "cluster.nodes.0.gpu_type"]
)
def test_ids_that_would_break_a_page_a_path_or_a_line(name: str, where: str) -> None:
    error = fault_of(change(snapshot_data(), where, name))
    first, index, field = where.replace("cluster.", "cluster#").split(".")
    assert error.place == f"{first.replace('#', '.')}[{index}].{field}"


def test_keys_are_ids_too() -> None:
    data = snapshot_data([job_row("a", **RUNNING | {"allocation": {"../n0": [0]}})])
    assert fault_of(data).place.startswith("jobs[0].allocation")


def test_the_nearest_of_the_names_of_that_place_is_offered() -> None:
    # the same misspelt name means different fields in different places
    at_job = fault_of(change(snapshot_data(), "jobs.0.gpu_type", ["A100"]))
    at_node = fault_of(change(snapshot_data(), "cluster.nodes.0.gpu_types", "A100"))
    assert "'gpu_types'" in at_job.remedy
    assert "'gpu_type'" in at_node.remedy
    inside = fault_of(change(snapshot_data(), "profiles.throughput.0.sample_per_s", 1))
    assert inside.place == "profiles.throughput[0]"
    assert "'samples_per_s'" in inside.remedy


def test_a_name_like_no_other_lists_what_is_known() -> None:
    error = fault_of(change(snapshot_data(), "cluster.zzz", 1))
    assert error.remedy == "known: nodes"


def test_long_values_are_cut() -> None:
    error = fault_of(change(snapshot_data(), "jobs.0.state", "x" * 100_000))
    assert len(error.one_line()) < 300


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
@pytest.mark.parametrize(
    "where",
    ["taken_at_s", "jobs.0.remaining_samples", "jobs.0.weight", "profiles.throughput.0.samples_per_s"],
)
def test_not_a_number_and_infinity(value: str, where: str) -> None:
    from ymir_opt.domain.documents import parse_snapshot

    text = json.dumps(change(snapshot_data(), where, "@")).replace('"@"', value)
    with pytest.raises(InputError) as caught:
        parse_snapshot(text)
    line = caught.value.one_line()
    assert where.rsplit(".", maxsplit=1)[-1] in line
    assert "number" in line


@pytest.mark.parametrize("where", ["jobs.0.priority", "jobs.0.batch_size", "cluster.nodes.0.gpus"])
@pytest.mark.parametrize("value", ["NaN", "1e400", "1" + "0" * 400, "1.5", "1e3", "true", '"1"'])
def test_a_count_is_a_whole_number(where: str, value: str) -> None:
    from ymir_opt.domain.documents import parse_snapshot

    text = json.dumps(change(snapshot_data(), where, "@")).replace('"@"', value)
    with pytest.raises(InputError) as caught:
        parse_snapshot(text)
    assert where.rsplit(".", maxsplit=1)[-1] in caught.value.place
