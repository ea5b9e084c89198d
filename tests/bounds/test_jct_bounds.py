"""The bounds are bounds, and the slot-price bound is as good as its linear program."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from bound_oracles import best_by_search, segments, slot_lp
from hypothesis import given, settings
from hypothesis import strategies as st

from ymir_opt.simulator.bounds import (
    BoundInstance,
    SlotOptions,
    fastest_bound,
    lower_bound,
    shortest_first_bound,
)
from ymir_opt.simulator.bounds.simple import srpt_total_s
from ymir_opt.simulator.bounds.slots import SlotJobs, shapes

COUNTS = np.array([1, 2, 3, 4], dtype=np.int64)


def instance(rng: np.random.Generator, jobs: int, *gpus: int, span: float = 60.0) -> BoundInstance:
    """Return random jobs with speeds that rise concavely or not, some counts not allowed; GPUs by type."""
    submit = rng.uniform(100.0, 100.0 + span, jobs)
    time = np.stack([_times(rng, jobs) for _ in gpus], axis=1)
    time[~np.isfinite(time).any(axis=(1, 2)), 0, 0] = 30.0
    return BoundInstance.of(submit, COUNTS, time, tuple(float(number) for number in gpus))


def _times(rng: np.random.Generator, jobs: int) -> np.ndarray:
    work = rng.uniform(5.0, 80.0, jobs)
    exponent = rng.uniform(0.3, 1.0, jobs)
    time = rng.uniform(0.0, 5.0, jobs)[:, None] + work[:, None] / COUNTS[None, :] ** exponent[:, None]
    time *= rng.uniform(1.0, 1.3, time.shape)
    time[rng.random(time.shape) < 0.25] = np.inf
    time[rng.random(jobs) < 0.1] = np.inf
    return time


def jobs_of(
    found: BoundInstance, slot_s: float, slots: int, ratio: float, tolerance: float = 0.0
) -> SlotJobs:
    return SlotJobs(
        found.submit_s - found.submit_s.min(),
        shapes(found.time_s, found.counts, tolerance),
        found.fastest_s(),
        slot_s,
        slots,
        ratio,
    )


@pytest.mark.parametrize("seed", range(6))
def test_envelopes_are_the_least_concave_ones(seed: int) -> None:
    found = instance(np.random.default_rng(seed), 8, 4, 4)
    got = shapes(found.time_s, found.counts)
    for job in range(8):
        for kind in range(2):
            gpus, slope = got.gpus[got.of[job]][kind], got.slope[got.of[job]][kind] / got.area_s[job]
            expected = segments(found, job, kind)
            np.testing.assert_allclose(np.diff(gpus, prepend=0.0), [width for width, _ in expected])
            np.testing.assert_allclose(slope, [s for _, s in expected], rtol=1e-9)


def test_jobs_that_differ_by_a_factor_share_a_shape() -> None:
    time = np.array([[[8.0, 5.0]], [[16.0, 10.0]], [[8.0, 4.9]]])
    got = shapes(time, np.array([1, 2]))
    assert got.of.tolist() == [0, 0, 1] or got.of.tolist() == [1, 1, 0]
    rounded = shapes(time, np.array([1, 2]), tolerance=0.5)
    assert len(rounded.gpus) == 1


@pytest.mark.parametrize("gpus", [(4,), (4, 3)])
@pytest.mark.parametrize("seed", range(5))
def test_each_job_pays_its_least_cost_at_given_prices(seed: int, gpus: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    found = instance(rng, 3, *gpus)
    price = np.where(rng.random((len(gpus), 16)) < 0.3, 0.0, rng.exponential(0.4, (len(gpus), 16)))
    exact = slot_lp(found, 15.0, 16, price)
    jobs = jobs_of(found, 15.0, 16, 1.01)
    for _ in range(4):
        got = jobs.evaluate(price, 400)
    assert got.value_s.sum() <= exact * (1 + 1e-9)
    assert got.value_s.sum() >= exact * 0.998
    coarse = jobs_of(found, 15.0, 16, 1.3, tolerance=0.1).evaluate(price, 20)
    assert coarse.value_s.sum() <= exact * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_usage_is_a_supergradient(seed: int) -> None:
    """value(q) <= value(p) + usage(p) (q - p), for any prices q, up to the grid's coarseness."""
    rng = np.random.default_rng(seed)
    found = instance(rng, 5, 4, 2)
    jobs = jobs_of(found, 10.0, 30, 1.01)
    price = rng.exponential(0.3, (2, 30))
    jobs.extend(np.full(5, 30))
    at = jobs.evaluate(price, 400)
    for _ in range(20):
        other = np.maximum(0.0, price + rng.normal(0.0, 0.2, (2, 30)))
        there = jobs.evaluate(other, 400).value_s.sum()
        assert there <= at.value_s.sum() + (at.usage * (other - price)).sum() + 0.005 * abs(there)


@pytest.mark.parametrize("gpus", [(3,), (2, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_the_slot_price_bound_is_the_linear_programs_value(seed: int, gpus: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    found = instance(rng, 4, *gpus, span=40.0)
    patient = SlotOptions(
        slot_s=20.0,
        iterations=(0, 0, 700),
        tolerance=1e-6,
        patience=20,
        shrink=0.8,
        ratio=1.02,
        final_ratio=1.005,
    )
    bound = lower_bound(found, patient)
    assert bound.detail is not None
    exact = slot_lp(found, 20.0, bound.detail.price.shape[1]) / 4
    assert bound.slot_prices_s is not None
    assert bound.slot_prices_s <= exact * (1 + 1e-9)
    assert bound.slot_prices_s >= exact * 0.99
    assert bound.mean_s == max(bound.fastest_s, bound.shortest_first_s, bound.slot_prices_s)


@settings(max_examples=20, deadline=None)
@given(
    arrivals=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 1)), min_size=3, max_size=3),
    start=st.integers(0, 1),
    gpus=st.integers(1, 3),
)
def test_no_schedule_of_a_tiny_cluster_is_below_the_bounds(
    arrivals: list[int], runs: list[tuple[int, int, int]], start: int, gpus: int
) -> None:
    run_s = []
    for alone, less, lesser in runs[: len(arrivals)]:
        times = {1: alone, 2: max(1, alone - less), 3: max(1, alone - less - lesser)}
        run_s.append({g: t for g, t in times.items() if g <= gpus})
    best = best_by_search(tuple(arrivals), tuple(run_s), start, gpus) / len(arrivals)
    counts = np.arange(1, gpus + 1)
    time = np.array([[start + times[int(g)] for g in counts] for times in run_s], dtype=np.float64)
    found = BoundInstance.of(np.array(arrivals, dtype=np.float64), counts, time, gpus)
    bound = lower_bound(found, SlotOptions(slot_s=0.5, iterations=(60, 30)))
    assert bound.slot_prices_s is not None
    for value in (bound.fastest_s, bound.shortest_first_s, bound.slot_prices_s):
        assert value <= float(best) + 1e-9


def test_the_search_of_tiny_clusters_is_right_itself() -> None:
    """By hand: two jobs of 2 s on one GPU end after 2 and 4 s; on two GPUs side by side after 2 and 2."""
    assert best_by_search((0, 0), ({1: 2}, {1: 2}), 0, 1) == 6
    assert best_by_search((0, 0), ({1: 2, 2: 1}, {1: 2, 2: 1}), 0, 2) == 3
    assert best_by_search((0, 0), ({1: 2, 2: 1}, {1: 2, 2: 1}), 1, 2) == Fraction(6)


@pytest.mark.parametrize("seed", range(5))
def test_on_one_gpu_without_starts_shortest_first_is_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrivals = tuple(rng.integers(0, 6, 4).tolist())
    lengths = rng.integers(1, 6, 4).tolist()
    best = best_by_search(arrivals, tuple({1: length} for length in lengths), 0, 1)
    total = srpt_total_s(np.array(arrivals, dtype=np.float64), np.array(lengths, dtype=np.float64))
    assert total == pytest.approx(float(best))


def random_schedule_mean(found: BoundInstance, start: np.ndarray, rng: np.random.Generator) -> float:
    """Run jobs under random counts that change at random moments; every change costs a start."""
    n, now = len(found.submit_s), float(found.submit_s.min())
    rest, held, ready = np.ones(n), np.zeros(n, dtype=int), np.zeros(n)
    done = np.full(n, np.nan)
    run = found.time_s[:, 0] - start[:, None]
    gpus = int(found.gpus[0, 0])
    while np.isnan(done).any():
        left = gpus
        for job in rng.permutation(n):
            if not np.isnan(done[job]) or found.submit_s[job] > now:
                continue
            allowed = [k for k in range(len(COUNTS)) if np.isfinite(run[job, k]) and COUNTS[k] <= left]
            if held[job] and COUNTS[held[job] - 1] <= left and rng.random() < 0.8:
                left -= COUNTS[held[job] - 1]
            elif allowed and rng.random() < 0.8:
                held[job] = int(rng.choice(allowed)) + 1
                left -= COUNTS[held[job] - 1]
                ready[job] = now + start[job]
            else:
                held[job] = 0
        until = now + float(rng.exponential(10.0))
        for job in np.flatnonzero((held > 0) & np.isnan(done)):
            begin = max(now, ready[job])
            seconds = rest[job] * run[job, held[job] - 1]
            if begin + seconds <= until:
                done[job], held[job] = begin + seconds, 0
            else:
                rest[job] -= max(0.0, until - begin) / run[job, held[job] - 1]
        now = until
    return float((done - found.submit_s).mean())


@pytest.mark.parametrize("seed", range(12))
def test_no_random_schedule_is_below_the_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = instance(rng, 6, 4)
    start = np.full(6, float(rng.choice([0.0, 3.0])))
    time = found.time_s + start[:, None, None]
    found = BoundInstance.of(found.submit_s, COUNTS, time, 4)
    bound = lower_bound(found, SlotOptions(slot_s=5.0))
    for _ in range(10):
        assert random_schedule_mean(found, start, rng) >= bound.mean_s - 1e-9


def test_one_job_alone_is_exact() -> None:
    found = BoundInstance.of(np.array([1e6]), COUNTS, np.array([[40.0, 25.0, np.inf, 24.0]]), 4)
    bound = lower_bound(found)
    assert bound.fastest_s == 24.0
    assert bound.slot_prices_s == pytest.approx(24.0, rel=0.03)
    assert bound.slot_prices_s <= 24.0
    assert bound.mean_s == 24.0


def test_without_jobs_the_bounds_are_zero() -> None:
    empty = BoundInstance.of(np.zeros(0), COUNTS, np.zeros((0, 4)), 4)
    bound = lower_bound(empty)
    assert (bound.mean_s, bound.jobs, bound.slot_prices_s) == (0.0, 0, None)


def test_a_shift_of_the_clock_changes_nothing() -> None:
    found = instance(np.random.default_rng(3), 10, 4)
    later = BoundInstance.of(found.submit_s - 5e8, COUNTS, found.time_s, 4)
    quick = SlotOptions(slot_s=8.0)
    first, second = lower_bound(found, quick), lower_bound(later, quick)
    assert second.mean_s == pytest.approx(first.mean_s, rel=5e-3)
    assert fastest_bound(later) == fastest_bound(found)
    assert shortest_first_bound(later) == pytest.approx(shortest_first_bound(found), rel=1e-6)


def test_fewer_gpus_after_a_failure_raise_the_bound() -> None:
    found = instance(np.random.default_rng(5), 14, 4)
    half = float(np.median(found.submit_s))
    failing = BoundInstance(
        found.submit_s, COUNTS, found.time_s, np.array([-np.inf, half]), np.array([[4.0], [1.0]])
    )
    np.testing.assert_allclose(
        failing.capacity(10.0, 20).sum(),
        4 * (half - found.submit_s.min()) + (200 - (half - found.submit_s.min())),
    )
    quick = SlotOptions(slot_s=8.0)
    whole, broken = lower_bound(found, quick), lower_bound(failing, quick)
    assert whole.slot_prices_s is not None
    assert broken.slot_prices_s is not None
    assert broken.slot_prices_s > 1.1 * whole.slot_prices_s


def test_a_price_for_each_type_is_tighter_than_pooled_gpus() -> None:
    """Half of the jobs can use the fast type only: pooling would let all GPUs be fast."""
    rng = np.random.default_rng(11)
    time = 400.0 / (rng.uniform(0.5, 2.0, 20)[:, None] * COUNTS[None, :].astype(float) ** 0.9)
    both = np.stack([time, 5.0 * time], axis=1)
    both[::2, 1] = np.inf
    submit = rng.uniform(0.0, 300.0, 20)
    quick = SlotOptions(slot_s=20.0)
    apart = lower_bound(BoundInstance.of(submit, COUNTS, both, (2.0, 6.0)), quick)
    pooled = lower_bound(BoundInstance.of(submit, COUNTS, both.min(axis=1), 8.0), quick)
    assert apart.slot_prices_s is not None
    assert pooled.slot_prices_s is not None
    assert apart.slot_prices_s > 1.5 * pooled.slot_prices_s


def test_the_same_instance_gives_the_same_bound() -> None:
    found = instance(np.random.default_rng(7), 12, 4)
    quick = SlotOptions(slot_s=8.0)
    assert lower_bound(found, quick).mean_s == lower_bound(found, quick).mean_s


def test_too_many_jobs_leave_the_slot_prices_out() -> None:
    found = instance(np.random.default_rng(8), 12, 4)
    bound = lower_bound(found, SlotOptions(max_jobs=11))
    assert bound.slot_prices_s is None
    assert bound.mean_s == max(bound.fastest_s, bound.shortest_first_s)
