"""Looking for groups in shards and in several processes: the same columns, whatever happens to a process."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Recipe, random_snapshot

from ymir_opt.candidates import Pool, PoolLimits
from ymir_opt.candidates.generate import Generator
from ymir_opt.candidates.prices import Prices
from ymir_opt.candidates.shards import SHARED_MODES, WEIGHT, split
from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.snapshot import Mode, Snapshot
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.columns import MODES
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.planner.pipeline import solve

MERGING = Recipe(jobs=14, nodes=4, node_sizes=(2, 4, 8), models=4, tasks=4)
SHARDED = replace(PoolLimits.of_size(1000), exhaustive_below=0, shards=3)


def generator_of(snapshot: Snapshot, limits: PoolLimits = SHARDED, cores: int = 1) -> Generator:
    return Generator(Evaluator(Instance.of(snapshot), Estimates(snapshot)), limits, cores=cores)


def passes(generator: Generator) -> list[Pool]:
    """Return the first pool and one at invented prices."""
    first = generator.first()
    jobs = generator.evaluator.jobs.count
    rng = np.random.default_rng(jobs)
    assert first.prices is not None
    some = Prices(first.prices.gpu * 0.5, first.prices.job * rng.uniform(0.2, 1.0, jobs))
    return [first, generator.again(some)]


def columns(pool: Pool) -> list[tuple[object, ...]]:
    table = pool.table
    shapes = [*table.shapes, None]
    return [
        (table.jobs[c].tolist(), MODES[table.mode[c]], shapes[table.shape[c]], int(table.cost[c]))
        for c in range(len(table))
    ]


def figures(pool: Pool) -> tuple[int, int, int, bool]:
    return pool.generated, pool.dominated, pool.dropped, pool.cut


def assert_equal(found: list[Pool], expected: list[Pool]) -> None:
    for one, two in zip(found, expected, strict=True):
        assert columns(one) == columns(two)
        assert figures(one) == figures(two)


@given(
    st.lists(st.integers(-1, 5), min_size=1, max_size=40),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_every_job_is_in_one_shard_of_each_mode(fms, shards, random):
    fm = np.array(fms)
    jobs = np.array([random.random() < 0.8 for _ in fms])
    found = split(fm, jobs, shards)
    assert len(found) <= shards
    for mode in SHARED_MODES:
        masks = [shard[mode] for shard in found if mode in shard]
        times = np.sum(masks, axis=0) if masks else np.zeros(len(fm))
        expected = jobs & (fm >= 0) if mode is not Mode.GPU_SHARE else jobs
        assert np.array_equal(times, expected.astype(int))
        # one foundation model is never torn apart within a mode
        for model in set(fms):
            assert sum(bool((mask & jobs & (fm == model)).any()) for mask in masks) <= 1


def test_shards_have_about_equal_work():
    fm = np.repeat(np.arange(10), [340, 171, 114, 85, 68, 57, 49, 43, 38, 35])
    for shards in (2, 3, 4):
        found = split(fm, np.ones(len(fm), bool), shards)
        work = [sum(WEIGHT[mode] * mask.sum() for mode, mask in shard.items()) for shard in found]
        assert max(work) <= 1.1 * min(work)
    # a single model falls apart by mode
    assert len(split(np.zeros(50, int), np.ones(50, bool), 2)) == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_pool_is_the_same_on_any_number_of_cores(seed):
    snapshot = random_snapshot(seed, MERGING)
    alone = generator_of(snapshot)
    expected = passes(alone)
    for cores in (2, 3, 8):
        generator = generator_of(snapshot, cores=cores)
        try:
            assert_equal(passes(generator), expected)
            assert generator.spread is not None
            assert len(generator.spread.processes) == min(cores, len(generator.spread.shards)) - 1
        finally:
            generator.close()


def test_shards_lose_no_group_where_every_pair_is_scored():
    """With wide limits the columns are those of one shard, in another order."""
    wide = replace(
        SHARDED,
        all_pairs_to=10**9,
        pairs_per_job=99,
        partners_per_job=99,
        grown_per_job=999,
        counts_per_set=99,
    )
    snapshot = random_snapshot(3, MERGING)
    one = passes(generator_of(snapshot, replace(wide, shards=1)))
    three = passes(generator_of(snapshot, wide))
    for a, b in zip(one, three, strict=True):
        cheapest = {}
        for pool in (a, b):
            for jobs, mode, shape, cost in columns(pool):
                # gpu_share may be in another shard than colocate: then neither prunes the other
                if mode in (Mode.GPU_SHARE, Mode.COLOCATE):
                    continue
                cheapest.setdefault((tuple(jobs), mode, shape), set()).add(cost)
        assert all(len(costs) == 1 for costs in cheapest.values())
        kept = [{(tuple(j), m, s) for j, m, s, _ in columns(p) if m is Mode.JOINT} for p in (a, b)]
        assert kept[0] <= kept[1]


@pytest.mark.parametrize("moment", ["before", "between"])
def test_a_lost_process_changes_nothing(moment):
    snapshot = random_snapshot(2, MERGING)
    expected = passes(generator_of(snapshot))
    generator = generator_of(snapshot, cores=3)
    try:
        if moment == "before":
            generator.first = lambda ask=generator.first: kill_first(generator, ask)
        found = [generator.first()]
        if moment == "between":
            kill(generator)
        rng = np.random.default_rng(generator.evaluator.jobs.count)
        prices = Prices(
            found[0].prices.gpu * 0.5, found[0].prices.job * rng.uniform(0.2, 1.0, len(found[0].prices.job))
        )
        found.append(generator.again(prices))
        assert_equal(found, expected)
    finally:
        generator.close()


def kill_first(generator: Generator, ask) -> Pool:
    """Ask once for nothing, so that the processes exist, end them, and ask again from the beginning."""
    ask()
    kill(generator)
    for shard in generator.spread.shards:
        shard.table = generator.expander.empty()
        shard.expander.generated = shard.expander.dropped = 0
        shard.memory._known.clear()
    generator.expander.generated = 0
    return ask()


def kill(generator: Generator) -> None:
    processes = generator.spread.processes
    assert len(processes) == 2
    for process in processes.values():
        os.kill(process.pid, signal.SIGKILL)


def test_no_fork_beside_other_threads():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        snapshot = random_snapshot(1, MERGING)
        generator = generator_of(snapshot, cores=4)
        found = passes(generator)
        assert generator.spread is not None
        assert not generator.spread.processes
    finally:
        done.set()
        thread.join()
    assert_equal(found, passes(generator_of(snapshot)))


def test_close_ends_the_processes():
    generator = generator_of(random_snapshot(1, MERGING), cores=3)
    generator.first()
    pids = [process.pid for process in generator.spread.processes.values()]
    assert pids
    generator.close()
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_plans_are_the_same_on_one_core_and_on_two():
    snapshot = synthetic_snapshot(620, 240)
    one, two = (solve(snapshot, cores=cores) for cores in (1, 2))
    wall = {"solver": {"wall_s": True}}
    assert one.model_dump(exclude=wall) == two.model_dump(exclude=wall)
