"""Exhaustive pricing finds every column that pays at any prices, and nothing else."""

from __future__ import annotations

import zlib
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Recipe, random_snapshot

from ymir_opt.candidates import PoolLimits, generate
from ymir_opt.candidates.exhaustive import Exhaustive, reduced_costs
from ymir_opt.candidates.outside import Asked, Budget, LimitError
from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.snapshot import Mode, Snapshot
from ymir_opt.estimates import Estimates
from ymir_opt.estimates.protocols import Colocation, WorkRatio
from ymir_opt.formulation.columns import ColumnTable, concatenate
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance

SHARED = (Mode.GPU_SHARE, Mode.COLOCATE, Mode.JOINT, Mode.SEQUENCE)
RECIPES = (
    Recipe(jobs=8, nodes=4, node_sizes=(1, 2, 4), models=1, tasks=4),
    Recipe(jobs=8, nodes=2, node_sizes=(1, 2, 8), gpu_types=("A100",), models=1, tasks=3, rigid=False),
    Recipe(jobs=8, nodes=3, node_sizes=(2, 4), models=2, tasks=2),
)


def share(*words: object) -> float:
    """Return a number between 0 and 1 that the words alone decide."""
    return zlib.crc32(repr(words).encode()) / 2**32


class Guess:
    """A predictor of many minds: ratios above and below 1, and sometimes none."""

    name, version, sha256 = "guess", "7", "0" * 64

    def throughput(self, key, gpu_type, gpus, batch):
        return np.full(len(gpus), np.nan), np.full(len(gpus), np.nan)

    def colocation(self, mode, gpu_type, gpus, members):
        if share("known", mode, gpus, members) < 0.3:
            return None
        ratios = tuple(0.3 + share(mode, gpus, members, k) for k in range(len(members)))
        return Colocation(ratios, 1.0, predicted=True)

    def warm_start(self, foundation_model, source, target):
        return self._ratio("warm", foundation_model, source, target)

    def joint(self, foundation_model, others, target):
        return self._ratio("joint", foundation_model, tuple(sorted(others)), target)

    def _ratio(self, *words):
        if share("unknown", words) < 0.2:
            return None
        ratio = 0.2 + share(words)
        return WorkRatio(ratio, ratio * 0.8, ratio * 1.3, share("p", words), predicted=True)


def evaluator_of(snapshot: Snapshot, predictor: object = None) -> Evaluator:
    evaluator = Evaluator(Instance.of(snapshot), Estimates(snapshot, predictor))
    # what must go on as it runs may not start
    generate(evaluator, PoolLimits(exhaustive_below=0))
    return evaluator


def every_column(exhaustive: Exhaustive) -> ColumnTable:
    """Return the columns of every set of two to four jobs, one after the other."""
    jobs = exhaustive.evaluator.jobs
    rows = np.flatnonzero(jobs.startable & ~jobs.rigid).tolist()
    tables = [exhaustive.expander.empty()]
    for mode in SHARED:
        for size in (2, 3, 4):
            orders = permutations(rows, size) if mode is Mode.SEQUENCE else combinations(rows, size)
            sets = np.array(list(orders), dtype=np.int64).reshape(-1, size)
            sets = sets[exhaustive.rules.allowed(mode, sets)] if len(sets) else sets
            if len(sets):
                tables.append(exhaustive.expander.expand(mode, sets))
    return concatenate(tables)


def names(table: ColumnTable) -> set[tuple[object, ...]]:
    arrays = table.mode, table.jobs, table.type, table.gpus, table.warm, table.start
    rows = {repr(row) for row in zip(*(a.tolist() for a in arrays), strict=True)}
    assert len(rows) == len(table), "a column was found twice"
    return rows


def unlimited() -> Budget:
    return Budget(10**12, 10**12, lambda: False)


def agree(evaluator: Evaluator, seed: int) -> int:
    """Compare at prices at which few, some and many columns pay; return how many paid."""
    exhaustive = Exhaustive(evaluator)
    every = every_column(exhaustive)
    queued = evaluator.queued_quanta.astype(np.float64)
    mean = float(queued.mean()) if len(queued) else 0.0
    rng = np.random.default_rng(seed)
    paid = 0
    for high, rent, margin in ((1.0, 0.1, 0.0), (1.1, 0.3, 0.0), (1.6, 0.6, 0.1)):
        asked = Asked(
            queued * rng.uniform(0.3, high, len(queued)),
            rng.uniform(0, rent, len(evaluator.instance.types)) * mean,
            margin * mean,
        )
        wanted = every.take(np.flatnonzero(reduced_costs(every, asked) < asked.below))
        found, reduced = exhaustive.below(asked, unlimited())
        assert names(found) == names(wanted)
        assert (reduced < asked.below).all()
        paid += len(found)
    return paid


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), recipe=st.sampled_from(RECIPES), guessed=st.booleans())
def test_it_finds_what_trying_every_group_finds(seed, recipe, guessed) -> None:
    agree(evaluator_of(random_snapshot(seed, recipe), Guess() if guessed else None), seed)


def test_the_comparison_is_not_hollow() -> None:
    for guessed in (None, Guess()):
        found = [agree(evaluator_of(random_snapshot(seed, RECIPES[1]), guessed), seed) for seed in range(8)]
        assert sum(found) > 100
        assert sum(count > 0 for count in found) >= 3


def test_synthetic_rounds_agree_too() -> None:
    assert agree(evaluator_of(synthetic_snapshot(14, 64, 2)), 2) > 0


def test_limits_end_the_search() -> None:
    evaluator = evaluator_of(synthetic_snapshot(14, 64, 2))
    exhaustive = Exhaustive(evaluator)
    asked = Asked(evaluator.queued_quanta.astype(np.float64), np.zeros(2))
    for budget, words in (
        (Budget(3, 10**9, lambda: False), "sets to look at"),
        (Budget(10**9, 3, lambda: False), "sets to evaluate"),
        (Budget(10**9, 10**9, lambda: True), "too little time"),
    ):
        with pytest.raises(LimitError, match=words):
            exhaustive.below(asked, budget)


def test_a_fitted_model_with_too_many_questions_bounds_nothing(monkeypatch) -> None:
    """Where ratios are not asked for, nothing is given up because of them."""
    from ymir_opt.candidates import outside_shared

    monkeypatch.setattr(outside_shared, "MOST_ASKED", 0)
    for seed in range(4):
        agree(evaluator_of(random_snapshot(seed, RECIPES[0]), Guess()), seed)
