"""Rows of ``compare``, finish-time fairness, and figures over time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ymir_opt.simulator.bounds import JctBound
from ymir_opt.simulator.metrics import ROW_FIELDS, jain, metrics_row, rho
from ymir_opt.simulator.metrics_timeline import StepSeries, timeline
from ymir_opt.simulator.results import JobRecord, Segment, SimulationResult


def record(
    name: str, submitted: float, started: float, done: float, exclusive: float, **fields: float
) -> JobRecord:
    given = {"gpu_s": 7200.0, "switch_gpu_s": 360.0, "fastest_s": 50.0, **fields}
    return JobRecord(
        id=name,
        submitted_at_s=submitted,
        first_start_s=started,
        completed_at_s=done,
        requested_gpus=2,
        gpu_s=given["gpu_s"],
        switch_gpu_s=given["switch_gpu_s"],
        starts=1,
        preemptions=0,
        model="m",
        task="t",
        queue="default",
        exclusive_s=exclusive,
        fastest_s=given["fastest_s"],
    )


def result(**fields: object) -> SimulationResult:
    jobs = [
        record("a", 0.0, 0.0, 100.0, 100.0),
        record("b", 50.0, 100.0, 250.0, 50.0),
        record("c", 60.0, 250.0, 360.0, math.inf),
    ]
    given = {
        "trace": "t",
        "policy": "p",
        "seed": 3,
        "gpus": 4,
        "jobs": jobs,
        "jobs_finished": 3,
        "jct_sum_s": 600.0,
        "makespan_s": 360.0,
        "preemptions": 2,
        "merges_kept": 1,
        "merges_rolled_back": 5,
        "series": {
            "time_s": np.array([0.0, 100.0]),
            "plan_wall_s": np.array([0.1, 0.3]),
            "value_gap": np.array([np.nan, 0.02]),
        },
        **fields,
    }
    return SimulationResult(**given)  # type: ignore[arg-type]


def test_a_row_by_hand() -> None:
    row = metrics_row(result(), JctBound(30.0, 40.0, 45.0, 3), trace="file.csv")
    assert tuple(row) == ROW_FIELDS
    assert row == {
        "trace": "file.csv",
        "policy": "p",
        "seed": 3,
        "jobs": 3,
        "gpus": 4,
        "mean_jct_s": 200.0,
        "p50_jct_s": 200.0,
        "p95_jct_s": pytest.approx(290.0),
        "p99_jct_s": pytest.approx(298.0),
        "makespan_s": 360.0,
        # 100/100, 200/50, and 300 over the fastest count's 50, as the requested count cannot run
        "mean_rho": pytest.approx((1 + 4 + 6) / 3),
        "max_rho": 6.0,
        "jain": pytest.approx(121 / (3 * 53)),
        "preemptions": 2,
        "gpu_hours_used": 6.0,
        "gpu_hours_switching": pytest.approx(0.3),
        "merges_kept": 1,
        "merges_rolled_back": 5,
        "lower_bound_jct_s": 45.0,
        "plan_wall_p99_s": pytest.approx(0.298),
        "max_value_gap": 0.02,
        "unfinished": 0,
    }


def test_the_bound_is_left_out_where_the_mean_is_of_other_jobs() -> None:
    assert metrics_row(result(unfinished=("d",)), JctBound(1.0, 1.0, None, 4))["lower_bound_jct_s"] is None
    # a job that nothing could run is in neither
    assert metrics_row(result(unfinished=("d",)), JctBound(1.0, 2.0, None, 3))["lower_bound_jct_s"] == 2.0


def test_an_empty_run_has_no_figures_and_no_nan() -> None:
    row = metrics_row(SimulationResult("t", "p", 0, 4))
    assert row["jobs"] == 0
    assert not any(isinstance(value, float) and math.isnan(value) for value in row.values())
    for name in (
        "mean_jct_s",
        "p99_jct_s",
        "makespan_s",
        "mean_rho",
        "jain",
        "plan_wall_p99_s",
        "max_value_gap",
    ):
        assert row[name] is None


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=30), st.floats(0.01, 100.0))
def test_jains_index_is_scale_free_and_between_one_over_n_and_one(values: list[float], scale: float) -> None:
    index = jain(np.array(values))
    assert index is not None
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain(np.array(values) * scale) == pytest.approx(index)
    assert jain(np.full(5, values[0])) == pytest.approx(1.0)


def test_rho_of_no_jobs_is_empty() -> None:
    assert len(rho([])) == 0
    assert jain(rho([])) is None


def segments() -> list[Segment]:
    return [
        Segment(0, "solo", ("a",), (("n0", 0b11),), 0.0, 10.0, 100.0, "finished"),
        Segment(1, "joint", ("b", "c"), (("n0", 0b1), ("n1", 0b11)), 100.0, 130.0, 250.0, "member"),
        Segment(1, "joint", ("c",), (("n0", 0b1), ("n1", 0b11)), 250.0, 250.0, 360.0, "finished"),
    ]


def test_from_segments_use_and_queue_are_exact_between_rounds() -> None:
    series = {
        "time_s": np.array([0.0, 100.0]),
        "total_gpus": np.array([4.0, 4.0]),
        "used_gpus": np.array([2.0, 3.0]),
        "largest_gang": np.array([2.0, 1.0]),
    }
    over = timeline(result(segments=segments(), series=series))
    assert over.exact
    assert over.used_gpus.at(np.array([-1.0, 0.0, 99.0, 100.0, 300.0, 360.0])).tolist() == [0, 2, 2, 3, 3, 0]
    assert over.running_jobs.at(np.array([50.0, 200.0, 300.0, 400.0])).tolist() == [1, 2, 1, 0]
    # b waits from 50 to 100, c from 60 to 100
    assert over.waiting_jobs.integral(0.0, 400.0) == pytest.approx(50.0 + 40.0)
    assert over.utilisation(0.0, 360.0) == pytest.approx((200 + 3 * 260) / (4 * 360))
    # two free on one node; then one free
    assert over.fragmentation.value.tolist() == [0.0, 0.0]


def test_free_gpus_that_lie_apart_are_fragmentation() -> None:
    series = {
        "time_s": np.array([0.0, 10.0, 20.0]),
        "total_gpus": np.full(3, 8.0),
        "used_gpus": np.array([0.0, 6.0, 8.0]),
        "largest_gang": np.array([4.0, 1.0, 0.0]),
        "waiting_jobs": np.array([0.0, 1.0, 5.0]),
        "running_jobs": np.array([0.0, 3.0, 4.0]),
    }
    over = timeline(result(series=series))
    assert not over.exact
    assert over.fragmentation.value.tolist() == [0.0, 0.5, 0.0]
    assert over.waiting_jobs.integral(0.0, 30.0) == pytest.approx(10 + 50)


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.integers(-3, 3)), min_size=2, max_size=40),
    st.integers(1, 20),
)
def test_thinning_keeps_the_integral(changes: list[tuple[float, int]], most: int) -> None:
    times = np.array([t for t, _ in changes])
    steps = StepSeries.of_changes(times, np.array([float(c) for _, c in changes]))
    assert len(np.unique(times)) == len(steps.time_s)
    thin = steps.thinned(most)
    begin, end = float(times.min()), float(times.max())
    assert thin.integral(begin, end) == pytest.approx(steps.integral(begin, end), abs=1e-6 * (1 + end))
    assert len(thin.time_s) <= max(most + 1, 1) or len(thin.time_s) == len(steps.time_s)
