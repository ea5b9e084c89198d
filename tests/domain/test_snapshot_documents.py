"""Snapshots as JSON: what is read is what was written, defaults, hashes, immutability."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small_documents import change, job_row, snapshot_data, snapshot_of
from strategies import snapshots

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import (
    canonical_json,
    dump_json,
    parse_snapshot,
    rounded,
    sha256,
    snapshot_sha256,
)
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import JobState, NodeState, Parallelism, Reclaim, Sharing, Snapshot


def shuffled(value: Any, rng: random.Random) -> Any:
    """Return the same JSON value with the keys of every object in another order."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(item, rng) for item in value]
    return value


@given(snapshots())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back(snapshot: Snapshot) -> None:
    text = dump_json(snapshot)
    again = parse_snapshot(text)
    assert again == snapshot
    assert dump_json(again) == text
    assert parse_snapshot(text.encode()) == snapshot


@given(snapshots(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_hash_depends_on_the_content_only(snapshot: Snapshot, rng: random.Random) -> None:
    expected = snapshot_sha256(snapshot)
    data = shuffled(json.loads(dump_json(snapshot)), rng)
    assert snapshot_sha256(snapshot_of(data)) == expected
    brief = dump_json(snapshot, exclude_defaults=True)
    assert len(brief) < len(dump_json(snapshot))
    assert snapshot_sha256(parse_snapshot(brief)) == expected
    spaced = json.dumps(data, indent=3).replace("\n", "\r\n")
    assert snapshot_sha256(parse_snapshot(spaced)) == expected


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("taken_at_s", 1001.0),
        ("round_s", 60.0),
        ("cluster.nodes.0.gpus", 8),
        ("cluster.nodes.0.state", "draining"),
        ("cluster.nodes.1.labels", {"zone": "a"}),
        ("jobs.0.priority", 1),
        ("jobs.0.sharing", "none"),
        ("jobs.0.labels", {"owner": "x"}),
        ("jobs.1.remaining_samples", 6000.001),
        ("profiles.throughput.0.samples_per_s", 99.0),
        ("profiles.throughput.0.source", "predicted"),
        ("queues", [{"name": "q"}]),
    ],
)
def test_the_hash_changes_with_every_value(path: str, value: Any) -> None:
    data = snapshot_data()
    assert snapshot_sha256(snapshot_of(change(data, path, value))) != snapshot_sha256(snapshot_of(data))


def test_the_hash_depends_on_the_order_of_lists() -> None:
    # ties go to the earlier entry in some places, so the order of jobs is content
    data = snapshot_data()
    assert snapshot_sha256(snapshot_of(data)) != snapshot_sha256(
        snapshot_of(data | {"jobs": data["jobs"][::-1]})
    )


def test_the_hash_is_that_of_sorted_json_with_defaults() -> None:
    import hashlib

    snapshot = snapshot_of(snapshot_data())
    full = json.loads(dump_json(snapshot))
    text = json.dumps(full, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert snapshot_sha256(snapshot) == hashlib.sha256(text.encode()).hexdigest() == sha256(full)


def test_figures_that_agree_in_twelve_digits_are_the_same_figure() -> None:
    data = snapshot_data()
    third = snapshot_of(change(data, "jobs.0.remaining_samples", 100 / 3))
    nearly = snapshot_of(change(data, "jobs.0.remaining_samples", 33.33333333333334))
    other = snapshot_of(change(data, "jobs.0.remaining_samples", 33.333333333))
    assert snapshot_sha256(third) == snapshot_sha256(nearly) != snapshot_sha256(other)


def test_whole_numbers_are_figures_too() -> None:
    data = snapshot_data()
    assert snapshot_sha256(snapshot_of(change(data, "taken_at_s", 1000))) == snapshot_sha256(
        snapshot_of(data)
    )


def test_defaults() -> None:
    snapshot = parse_snapshot(
        '{"taken_at_s": 5,'
        ' "cluster": {"nodes": [{"id": "n", "gpu_type": "T4", "gpus": 1, "gpu_memory_gib": 15}]},'
        ' "jobs": [{"id": "a", "submitted_at_s": 1, "remaining_s": 10}], "queues": [{"name": "q"}]}'
    )
    assert snapshot.schema_ == "ymir.snapshot/1"
    assert snapshot.round_s == 120.0
    job, node, queue = snapshot.jobs[0], snapshot.cluster.nodes[0], snapshot.queues[0]
    assert (job.queue, job.priority, job.weight, job.config) == ("default", 0, 1.0, "")
    assert (job.sharing, job.parallelism, job.state) == (
        Sharing.TENANT,
        Parallelism.DATA,
        JobState.PENDING,
    )
    assert (job.movable, job.min_runtime_s, job.done_samples, job.failed_starts) == (True, 0.0, 0.0, 0)
    assert (node.state, node.unavailable_gpus, node.resident_fm) == (NodeState.READY, (), ())
    assert (queue.weight, queue.reclaim_within_cohort, queue.quotas) == (1.0, Reclaim.ANY, ())


def test_labels_are_kept_whatever_they_hold() -> None:
    labels = {"owner": "grace", "tags": ["a", 1, None, {"x": 2.5}], "</script>": "\n\u0000", "ü": "日本"}
    data = snapshot_data([job_row("a", labels=labels)], labels=labels)
    data = change(data, "cluster.nodes.0.labels", labels)
    snapshot = parse_snapshot(dump_json(snapshot_of(data)))
    kept = json.loads(dump_json(snapshot))
    assert kept["jobs"][0]["labels"] == kept["cluster"]["nodes"][0]["labels"] == kept["labels"] == labels


@pytest.mark.parametrize("name", ["job-1", "ビルド", "a b", "ns/name:tag", "é", "a..b", "x" * 256, "🙂"])
def test_ids_may_be_any_printable_text(name: str) -> None:
    snapshot = parse_snapshot(dump_json(snapshot_of(snapshot_data([job_row(name)]))))
    assert snapshot.jobs[0].id == name


def test_nothing_in_a_snapshot_can_be_changed() -> None:
    snapshot = snapshot_of(snapshot_data([job_row("a", labels={"x": {"y": [1]}}, node_selector={"z": "1"})]))
    job = snapshot.jobs[0]
    with pytest.raises(ValidationError):
        snapshot.taken_at_s = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        job.labels["x"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        job.labels["x"]["y"] = 1
    with pytest.raises(TypeError):
        job.node_selector.update(a="b")  # type: ignore[attr-defined]
    assert job.labels["x"]["y"] == (1,)
    assert hash(snapshot) == hash(snapshot_of(json.loads(dump_json(snapshot))))


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    ),
    st.randoms(use_true_random=False),
)
@settings(max_examples=50, deadline=None)
def test_canonical_json_is_one_text_a_value(value: Any, rng: random.Random) -> None:
    text = canonical_json(value)
    assert canonical_json(shuffled(value, rng)) == text
    assert json.loads(text) == rounded(value)
    assert canonical_json(rounded(value)) == text


def test_canonical_json_refuses_what_json_cannot_hold() -> None:
    with pytest.raises(ValueError):
        canonical_json({"x": float("nan")})


def test_a_wrong_schema_is_named() -> None:
    with pytest.raises(InputError, match="schema"):
        snapshot_of(snapshot_data() | {"schema": "ymir.snapshot/2"})


def test_hash_of_parts_is_that_of_the_whole() -> None:
    """Jobs are written once and remembered; what is hashed is still the document as one text."""
    first = synthetic_snapshot(30, 16)
    jobs = list(first.jobs)
    jobs[3] = jobs[3].model_copy(update={"priority": 7})
    changed = first.model_copy(update={"jobs": tuple(jobs[1:][::-1])})
    for snapshot in (first, changed, first, changed.model_copy(update={"taken_at_s": 5.0}), first):
        assert snapshot_sha256(snapshot) == sha256(json.loads(dump_json(snapshot)))
