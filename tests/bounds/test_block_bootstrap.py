"""Resampled traces: same clock, same jobs, same bursts, other order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ymir_opt.domain.errors import InputError
from ymir_opt.simulator.bootstrap import bootstrap, interval
from ymir_opt.simulator.workload import RigidSpeeds, TraceJob, Workload, synthetic_rigid


def trace(times: list[float], **fields: float) -> Workload:
    return Workload.of(
        "t",
        [TraceJob(f"j{n}", at, 10.0 + n, deadline_s=at + 100.0, **fields) for n, at in enumerate(times)],
        RigidSpeeds(("V100",)),
    )


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=40),
    st.integers(1, 1000),
    st.floats(-1e6, 1e6),
    st.none() | st.floats(2e4, 1e6),
)
def test_blocks_keep_the_clock_and_the_jobs(
    times: list[float], seed: int, offset: float, block: float | None
) -> None:
    original = trace(sorted(time + offset for time in times))
    known = {job.id: job for job in original.jobs()}
    got = bootstrap(original, seed, block)
    jobs = list(got.jobs())
    assert got.length == len(jobs)
    assert [j.id for j in got.jobs()] == [j.id for j in jobs]
    assert len({job.id for job in jobs}) == len(jobs)
    begin = min(job.submitted_at_s for job in known.values())
    end = max(job.submitted_at_s for job in known.values())
    gap = (end - begin) / max(1, len(known) - 1) or 1.0
    submitted = [job.submitted_at_s for job in jobs]
    assert submitted == sorted(submitted)
    for job in jobs:
        source = known[job.id.partition("~")[0]]
        assert job.work == source.work
        assert begin - 1e-3 <= job.submitted_at_s <= end + gap + 1e-3
        assert job.deadline_s - job.submitted_at_s == pytest.approx(100.0, abs=1e-3)


def test_seed_zero_is_the_original_and_seeds_repeat() -> None:
    original = trace([0.0, 5.0, 9.0, 30.0])
    assert bootstrap(original, 0) is original
    one, again, other = (list(bootstrap(original, seed).jobs()) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_bursts_stay_together() -> None:
    """Ten bursts of ten jobs a second apart: in a resampled trace almost every gap is still a second."""
    original = trace([1000.0 * burst + k for burst in range(10) for k in range(10)])
    gaps = np.concatenate(
        [
            np.diff([job.submitted_at_s for job in bootstrap(original, seed, 1000.0).jobs()])
            for seed in range(1, 21)
        ]
    )
    assert np.mean(np.isclose(gaps, 1.0)) > 0.75


def test_on_average_the_load_is_that_of_the_original() -> None:
    original = synthetic_rigid(400, gpus=16, seed=4, held=True)
    work = [sum(job.work for job in bootstrap(original, seed).jobs()) for seed in range(1, 200)]
    assert np.mean(work) == pytest.approx(sum(job.work for job in original.jobs()), rel=0.05)


def test_bad_seeds_and_blocks_are_refused() -> None:
    with pytest.raises(InputError, match="seeds"):
        bootstrap(trace([0.0]), -1)
    for block in (0.0, -3.0, float("nan")):
        with pytest.raises(InputError, match="length"):
            bootstrap(trace([0.0]), 1, block)
    with pytest.raises(InputError, match="blocks"):
        bootstrap(trace([0.0, 1e9]), 1, 1.0)
    empty = trace([])
    assert list(bootstrap(empty, 3).jobs()) == []


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """The statistic is the mean of 50 normals; its bootstrap spread is known."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        sample = rng.normal(3.0, 1.0, 50)
        replicates = [rng.choice(sample, 50).mean() for _ in range(12)]
        found = interval(np.array([sample.mean(), *replicates]), 0.9)
        assert found is not None
        hits += found[0] <= 3.0 <= found[1]
    assert 0.84 <= hits / 400 <= 0.95
    assert interval(np.array([1.0, 2.0, 3.0, 4.0])) is None
    assert interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) is not None
