"""Figures and tables as text."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from small_documents import change, job_row, plan_data, plan_of, snapshot_data, snapshot_of

from ymir_opt.cli.formats import count_of, duration, figure, gpu_ranges, percent, placement_text
from ymir_opt.cli.tables import MAX_ROWS, plan_tables, summary_line, violations_table
from ymir_opt.domain.plan import Plan


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (3569, "59 min"),
        (3570, "1 h 00 min"),
        (3599.9, "1 h 00 min"),
        (47.99 * 3600, "47 h 59 min"),
        (48 * 3600, "2 d 00 h"),
        (1e7, "115 d 17 h"),
        (-42.0, "-42 s"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_figures() -> None:
    assert [figure(None), figure(0.0), figure(1234567.8), figure(1 / 3, 3)] == [
        "none",
        "0",
        "1.23457e+06",
        "0.333",
    ]
    assert [percent(None), percent(0.0), percent(0.00012345), percent(1.0)] == [
        "none",
        "0 %",
        "0.0123 %",
        "100 %",
    ]
    assert [count_of(0, "job"), count_of(1, "job"), count_of(2, "job")] == ["0 jobs", "1 job", "2 jobs"]


def test_places() -> None:
    assert gpu_ranges(()) == ""
    assert gpu_ranges((3, 0, 1, 2, 6)) == "0-3,6"
    assert placement_text({"n0": (0, 1), "n1": (5,)}) == "n0:0-1 n1:5"


@given(st.sets(st.integers(0, 40)))
def test_ranges_lose_nothing(gpus: set[int]) -> None:
    parts = [part.split("-") for part in gpu_ranges(gpus).split(",") if part]
    found = [gpu for part in parts for gpu in range(int(part[0]), int(part[-1]) + 1)]
    assert found == sorted(gpus)
    # no two ranges touch
    assert all(int(a[-1]) + 1 < int(b[0]) for a, b in pairwise(parts))


def shown(plan: Plan, width: int = 160) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
    for part in plan_tables(plan, 1000.0):
        console.print(part)
    return stream.getvalue()


def test_a_plan_with_every_kind_of_row() -> None:
    snapshot = snapshot_of(snapshot_data([job_row(name) for name in ("a", "b", "c", "waits", "new")]))
    data = plan_data(snapshot)
    data["groups"] = [
        {
            "id": "g1",
            "mode": "joint",
            "jobs": ["a", "b"],
            "gpu_type": "A100",
            "gpus": 2,
            "placement": {"n0": [0, 1]},
            "predicted": {"a": {"finish_at_s": 1060.0}, "b": {"finish_at_s": 4600.0}},
        },
        {
            "id": "g2",
            "mode": "solo",
            "jobs": ["c"],
            "gpu_type": "A100",
            "gpus": 1,
            "placement": {"n1": [2]},
            "starts_from": {"c": {"adapter": "old-c"}},
        },
    ]
    kinds = {"a": "merge", "b": "merge", "c": "start", "waits": "wait", "new": "profile"}
    for action in data["actions"]:
        action["action"] = kinds[action["job"]]
    data["actions"][4]["to"] = {"gpu_type": "A100", "gpus": 1, "placement": {"n1": [3]}}
    data["metrics"] = {"gpus_used": 4, "gpus_total": 8}
    data["solver"] |= {"objective": 2.0, "bound": 1.0, "gap": 0.5, "value_gap": 0.0123}
    text = shown(plan_of(data))
    for piece in (
        "2 groups on 4 of 8 GPUs", "joint", "n0:0-1", "60 s", "1 h 00 min", "merge", "adapter old-c",
        "profile", "n1:3", "1 job without GPUs", "waits", "InsufficientGPUs", "value gap 1.23 % (pool)",
        "feasible by none",
    ):  # fmt: skip
        assert piece in text
    assert text.count("new") == 1


def test_a_plan_without_jobs() -> None:
    text = shown(plan_of(plan_data(snapshot_of(snapshot_data([])))))
    assert "0 groups on 0 of 0 GPUs" in text
    assert "without GPUs" not in text


def test_long_tables_say_what_they_leave_out() -> None:
    count = MAX_ROWS + 17
    plan = plan_of(plan_data(snapshot_of(snapshot_data([job_row(f"j{i}") for i in range(count)]))))
    text = shown(plan)
    assert f"{count} jobs without GPUs" in text
    assert "... and 17 more rows" in text
    assert f"j{MAX_ROWS - 1} " in text
    assert f"j{MAX_ROWS} " not in text


def test_narrow_terminals_lose_no_id() -> None:
    name = "a-rather-long-job-name-with-a-number-0123456789"
    text = shown(plan_of(plan_data(snapshot_of(snapshot_data([job_row(name)])))), width=60)
    assert "…" not in text
    assert name[:8] in text


def test_no_bound_is_said_to_be_none() -> None:
    data = plan_data(snapshot_of(snapshot_data()))
    assert "bound none  value gap none" in summary_line(plan_of(data))
    zero = change(data, "solver.objective", 0.0)
    assert "objective 0 " in summary_line(plan_of(zero))


def test_violations() -> None:
    stream = io.StringIO()
    Console(file=stream, width=100).print(violations_table([(2, "groups[0]", "GPU 1 of [n0] is used twice")]))
    assert "1 violation" in stream.getvalue()
    assert "GPU 1 of [n0] is used twice" in stream.getvalue()


def test_tables_follow_the_plan_in_the_file(plan_file: Path) -> None:
    plan = plan_of(json.loads(plan_file.read_text()))
    assert "keep" in shown(plan)
