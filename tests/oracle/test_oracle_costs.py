"""Group by group: the formulation's costs against plain arithmetic, and the pool against everything."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from oracle_generate import small_snapshot
from oracle_jobs import Jobs
from oracle_options import Option, Options
from oracle_rules import Rules

from ymir_opt.candidates import generate
from ymir_opt.domain.snapshot import Mode
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.columns import MODES
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance

SEEDS = range(40)


def both(seed: int) -> tuple[Evaluator, Jobs]:
    snapshot = small_snapshot(seed)
    return Evaluator(Instance.of(snapshot), Estimates(snapshot)), Jobs(snapshot)


def same(a, b) -> bool:
    return np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_importance_and_the_cost_of_waiting(seed):
    evaluator, jobs = both(seed)
    assert same(evaluator.jobs.importance, jobs.importance)
    assert same(evaluator.jobs.weight, jobs.weight)
    assert same(evaluator.lost_s, jobs.lost)
    assert same(evaluator.queued_cost, jobs.queued)
    assert list(evaluator.jobs.known) == jobs.known
    assert list(evaluator.instance.job_class) == jobs.rank


@pytest.mark.parametrize("seed", SEEDS)
def test_keeping_costs_the_same(seed):
    evaluator, jobs = both(seed)
    found = {
        group.members: keep for group, keep in zip(evaluator.instance.running, evaluator.keeps, strict=True)
    }
    for option, priced in Options(jobs).keeps():
        keep = found[option.members]
        assert bool(keep.known[0]) == priced, option
        if priced:
            assert same(keep.cost[0], option.cost), option


def columns_of(evaluator: Evaluator, options: list[Option]):
    """Evaluate options in batches of one mode and size; yield (option, valid, cost)."""
    instance = evaluator.instance
    adapters = {a.id: i for i, a in enumerate(instance.snapshot.adapters)}
    batches: dict[tuple[Mode, int], list[Option]] = defaultdict(list)
    for option in options:
        batches[option.mode, len(option.members)].append(option)
    for (mode, _), batch in batches.items():
        result = evaluator.evaluate(
            mode,
            np.array([o.members for o in batch], np.int64),
            np.array([instance.types.index(o.gpu_type) for o in batch], np.int64),
            np.array([o.gpus for o in batch], np.int64),
            np.array([[-1 if s is None else adapters[s] for s in o.starts] for o in batch], np.int64),
            np.array([o.warm is not None for o in batch], np.bool_),
        )
        yield from zip(batch, result.valid, result.cost, result.memory, strict=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_new_group_costs_the_same(seed):
    evaluator, jobs = both(seed)
    options = Options(jobs).every()
    for option, valid, cost, memory in columns_of(evaluator, options):
        assert valid, option
        assert same(cost, option.cost), option
        assert same(np.nan_to_num(memory), option.need), option


@pytest.mark.parametrize("seed", SEEDS)
def test_the_pool_holds_what_exists_and_nothing_else(seed):
    """Every column is an option of the brute force, and no option's footprint is cheaper than the pool's."""
    evaluator, jobs = both(seed)
    instance = evaluator.instance
    # groups of unknown speed go on: they are in no new column
    pinned = evaluator.pinned
    pool = generate(evaluator)
    table = pool.table
    cheapest: dict[tuple, float] = {}
    for option in Options(jobs).new():
        if not any(pinned[j] for j in option.members):
            head = option.members[0] if option.mode is Mode.SEQUENCE else -1
            key = (frozenset(option.members), head, option.gpu_type, option.gpus, option.warm)
            cheapest[key] = min(option.cost, cheapest.get(key, np.inf))
    for c in np.flatnonzero(table.keep < 0):
        members = [int(j) for j in table.jobs[c] if j >= 0]
        mode = MODES[table.mode[c]]
        head = members[0] if mode is Mode.SEQUENCE else -1
        warm = instance.fms[table.shapes[table.shape[c]].resident] if table.warm[c] else None
        key = (frozenset(members), head, instance.types[table.type[c]], int(table.gpus[c]), warm)
        assert key in cheapest, (mode, key)
        # dearer ways to lie on the same GPUs are allowed where they need less memory
        assert (table.cost[c] - 1) * table.quantum >= cheapest[key] - table.quantum, (mode, key)
    assert pool.exhaustive


@pytest.mark.parametrize("seed", range(20))
def test_entries_of_quotas_agree(seed):
    from ymir_opt.formulation.quota import QuotaTable

    evaluator, jobs = both(4 * seed + 2)
    table, rules = QuotaTable(evaluator.instance), Rules(jobs)
    assert len(table.rows) == len(rules.entries)
    for row, entry in zip(table.rows, rules.entries, strict=True):
        assert row.nominal == entry["nominal"] * table.unit
        assert row.guaranteed == entry["own"] * table.unit
        assert {evaluator.instance.types[t] for t in row.types} == entry["types"]

    def as_sets(parts):
        return {frozenset(part) for part in parts}

    assert as_sets(pool.rows for pool in table.pools()) == as_sets(rules.cohorts)
    assert as_sets(pool.rows for pool in table.areas()) == as_sets(rules.areas)
