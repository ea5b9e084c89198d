"""The published JSON Schemas say what the code does."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small_documents import change, job_row, plan_data, snapshot_data, snapshot_of
from strategies import snapshots

from ymir_opt.domain.documents import dump_json, parse_job, parse_plan, parse_snapshot, schema
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.plan import ActionKind, Reason
from ymir_opt.domain.snapshot import Snapshot

SNAPSHOT = jsonschema.Draft202012Validator(schema("snapshot"))
PLAN = jsonschema.Draft202012Validator(schema("plan"))


@pytest.mark.parametrize("name", ["snapshot", "plan", "job", "request"])
def test_the_schemas_are_schemas(name: str) -> None:
    made = schema(name)
    assert made["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(made)
    json.dumps(made, allow_nan=False)


def test_an_unknown_schema() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'snapshot'"):
        schema("snapshots")


@given(snapshots())
@settings(max_examples=30, deadline=None)
def test_every_snapshot_obeys_its_schema(snapshot: Snapshot) -> None:
    SNAPSHOT.validate(json.loads(dump_json(snapshot)))
    SNAPSHOT.validate(json.loads(dump_json(snapshot, exclude_defaults=True)))


def paths(value: Any, at: str = "") -> list[str]:
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if "." not in str(key):
            found += paths(item, f"{at}.{key}" if at else str(key))
    return found


FULL = snapshot_data(
    [
        job_row("a", workers=None, target={"metric": "acc", "value": 0.9}, labels={"x": 1}),
        job_row("b", state="running", allocation={"n0": [0, 1]}),
    ],
    queues=[{"name": "q", "quotas": [{"gpu_type": "*", "nominal_gpus": 3}]}],
    groups=[{"id": "g", "mode": "solo", "jobs": ["b"], "probe": {"state": "running"}}],
    adapters=[{"id": "x", "foundation_model": "bert", "task": "t"}],
)
VALUES = st.sampled_from([None, True, -1, 0, 2, 0.5, "", "x", " x", [], ["a"], [1], {}, {"id": "y"}])


def has_the_shape(data: dict[str, Any]) -> bool:
    """Say whether the parser accepts the shape; characters of ids and sums are no matter of shape."""
    try:
        Snapshot.model_validate_json(json.dumps(data))
    except ValidationError as error:
        return all(fault["type"] == "value_error" or _follows(fault) for fault in error.errors())
    return True


def _follows(fault: Any) -> bool:
    """Say whether a list is too short only because some of its items were refused."""
    return fault["type"] == "too_short" and len(fault["input"]) >= fault["ctx"]["min_length"]


@given(st.sampled_from(paths(FULL)), VALUES)
@example("groups.0.jobs.0", " x")
@settings(max_examples=250, deadline=None)
def test_the_schema_and_the_parser_agree(path: str, value: Any) -> None:
    changed = change(FULL, path, value)
    assert SNAPSHOT.is_valid(changed) == has_the_shape(changed)


@given(st.sampled_from(paths(FULL)))
@settings(max_examples=150, deadline=None)
def test_the_schema_and_the_parser_agree_on_what_must_be_there(path: str) -> None:
    changed = change(FULL, path, ...)
    assert SNAPSHOT.is_valid(changed) == has_the_shape(changed)


def test_unknown_fields_are_refused_by_both() -> None:
    for path in paths(FULL):
        parent = json.loads(json.dumps(FULL))
        for part in path.split("."):
            parent = parent[int(part) if part.isdecimal() else part]
        if isinstance(parent, dict) and not path.endswith(("labels", "node_selector", "allocation")):
            changed = change(FULL, f"{path}.surprise", 1)
            assert not SNAPSHOT.is_valid(changed), path
            with pytest.raises(InputError, match="unknown field 'surprise'"):
                parse_snapshot(json.dumps(changed))


def test_the_plan_schema() -> None:
    data = plan_data(snapshot_of(FULL))
    PLAN.validate(data)
    PLAN.validate(json.loads(dump_json(parse_plan(json.dumps(data)))))
    assert not PLAN.is_valid(change(data, "actions.0.action", "stop"))
    assert not PLAN.is_valid(change(data, "snapshot_sha256", ...))
    text = json.dumps(schema("plan"))
    for word in [*ActionKind, *Reason]:
        assert f'"{word.value}"' in text


def test_the_job_schema_is_that_of_a_snapshots_job() -> None:
    row = job_row("a")
    jsonschema.validate(row, schema("job"))
    assert parse_job(json.dumps(row)) == snapshot_of(snapshot_data([row])).jobs[0]
