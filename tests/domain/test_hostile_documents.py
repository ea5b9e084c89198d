"""Empty, huge, cut-off and hostile documents: a clear answer each time, and quickly."""

from __future__ import annotations

import json

import pytest
from small_documents import change, job_row, node_row, snapshot_data, snapshot_of

from ymir_opt.domain.documents import dump_json, parse_job, parse_plan, parse_snapshot
from ymir_opt.domain.errors import InputError


def line_of(text: str | bytes) -> str:
    with pytest.raises(InputError) as caught:
        parse_snapshot(text, "cluster.json")
    line = caught.value.one_line()
    assert line.isprintable()
    assert len(line) < 400
    return line


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "{",
        "[",
        '{"taken_at_s": 1',
        '{"taken_at_s": 1,}',
        "taken_at_s: 1",
        "\x00",
        "<html>",
        "{}{}",
    ],
)
def test_not_json(text: str) -> None:
    assert line_of(text).startswith("cluster.json: is not valid JSON")


@pytest.mark.parametrize("text", ["null", "[]", "3", '"snapshot"', "true", "{}"])
def test_json_of_another_kind(text: str) -> None:
    assert line_of(text).startswith("cluster.json: ")


def test_a_document_cut_off_anywhere() -> None:
    text = dump_json(snapshot_of(snapshot_data())).rstrip()
    step = max(1, len(text) // 150)
    for length in range(0, len(text), step):
        assert "is not valid JSON" in line_of(text[:length])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xfe{\x00}\x00", "is not UTF-8"),
        (b'{"taken_at_s": 1, "jobs": [{"id": "\xe9"}]}', "is not UTF-8"),
        (b"\x1f\x8b\x08\x00", "is not UTF-8"),
        (b'{"taken_at_s": 1, "labels": {"a": "\\ud800"}}', "is not valid JSON"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, said: str) -> None:
    assert said in line_of(data)


def test_a_byte_order_mark_is_harmless() -> None:
    text = dump_json(snapshot_of(snapshot_data()))
    assert parse_snapshot(b"\xef\xbb\xbf" + text.encode()) == parse_snapshot(text)


def test_nesting_without_end() -> None:
    deep = "[" * 100_000
    assert line_of('{"taken_at_s": 1, "labels": {"a": ' + deep)
    assert line_of('{"taken_at_s": 1, "labels": {"a": ' + deep + "]" * 100_000 + "}}")
    assert line_of('{"a":' * 50_000 + "1" + "}" * 50_000)


@pytest.mark.parametrize(
    "text",
    [
        '{"taken_at_s": 1, "taken_at_s": 2}',
        '{"taken_at_s": 1, "jobs": [{"id": "a", "submitted_at_s": 0, "remaining_s": 1, "remaining_s": 9}]}',
        '{"taken_at_s": 1, "labels": {"x": {"y": 1, "y": 1}}}',
    ],
)
def test_a_key_named_twice(text: str) -> None:
    assert "twice" in line_of(text)


def test_megabytes_of_unknown_fields() -> None:
    text = json.dumps(snapshot_data() | {f"field{i:07d}": "x" * 60 for i in range(140_000)})
    assert len(text) > 10_000_000
    assert "unknown field 'field0000000'" in line_of(text)
    nested = json.dumps(snapshot_data([job_row("a") | {f"field{i:07d}": "x" * 60 for i in range(140_000)}]))
    assert "unknown field 'field0000000'" in line_of(nested)


def test_one_long_name() -> None:
    assert "unknown field 'aaaa" in line_of(json.dumps(snapshot_data() | {"a" * 5_000_000: 1}))


def test_nothing_to_plan() -> None:
    for data in (
        {"taken_at_s": 0},
        {"taken_at_s": 0, "cluster": {}},
        snapshot_data([]),
        snapshot_data(cluster={"nodes": []}),
        snapshot_data(cluster={"nodes": [node_row(gpus=0)]}),
        snapshot_data([job_row("a")], profiles={}),
    ):
        assert parse_snapshot(dump_json(snapshot_of(data))) == snapshot_of(data)


def test_the_largest_figures() -> None:
    data = change(snapshot_data(), "jobs.0.remaining_samples", 1e18)
    data = change(data, "jobs.0.submitted_at_s", -1e18)
    data = change(data, "taken_at_s", 1e18)
    snapshot = snapshot_of(data)
    assert parse_snapshot(dump_json(snapshot)) == snapshot
    assert snapshot.jobs[0].remaining_samples == 1e18


@pytest.mark.parametrize("parse", [parse_plan, parse_job, parse_snapshot])
def test_the_documents_are_not_taken_for_one_another(parse) -> None:  # type: ignore[no-untyped-def]
    texts = {
        parse_snapshot: dump_json(snapshot_of(snapshot_data())),
        parse_job: json.dumps(job_row("a")),
        parse_plan: json.dumps(
            {
                "snapshot_sha256": "0",
                "planner": {"version": "0", "policy": "p"},
                "solver": {"backend": "b", "status": "feasible"},
            }
        ),
    }
    for other, text in texts.items():
        if other is parse:
            parse(text)
        else:
            with pytest.raises(InputError):
                parse(text)
