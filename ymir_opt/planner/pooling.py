"""The candidate columns of a round: enumerated, then priced again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np

from ymir_opt.candidates import Generator, Pool, PoolLimits
from ymir_opt.candidates.prices import dual_prices, row_guess
from ymir_opt.candidates.shards import Look
from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.linear import LinearModel
from ymir_opt.formulation.model import RoundModel
from ymir_opt.formulation.quota import QuotaTable
from ymir_opt.planner.profiling import Reservation
from ymir_opt.planner.search import Round
from ymir_opt.planner.state import SolverState

__all__ = ["HEURISTICS", "make_pool", "struck"]

HEURISTICS = ("greedy", "matching")


def make_pool(
    evaluator: Evaluator,
    quotas: QuotaTable,
    reservation: Reservation,
    limits: PoolLimits | None,
    *,
    merge: bool,
    backend: str,
    deadline: float | None = None,
    state: SolverState | None = None,
    cores: int | None = None,
) -> tuple[Pool, Round]:
    """Return the candidate columns: enumerated, then priced again with the duals of their relaxation.

    Past the deadline they are not priced again. Where the state of the round before is given, the first pool
    is what pays at its prices, and its groups.
    """

    def known(alone: ColumnTable) -> Look | None:
        prices = None if state is None else state.prices(evaluator.instance, alone)
        if state is None or prices is None:
            return None
        return Look(prices, -np.inf, rough=True, sets=state.sets(evaluator.instance))

    def round_of(pool: Pool) -> Round:
        table = pool.table.take(np.flatnonzero(quotas.allowed(pool.table)))
        return Round(evaluator, table, quotas, reservation.available, reservation.charged)

    generator = Generator(evaluator, limits, merge=merge, stop=lambda: struck(deadline), cores=cores)
    with closing(generator):
        pool = _priced(generator, round_of, known, backend, deadline)
    return pool, round_of(pool)


def _priced(
    generator: Generator,
    round_of: Callable[[Pool], Round],
    known: Callable[[ColumnTable], Look | None],
    backend: str,
    deadline: float | None,
) -> Pool:
    """Return the first pool, or where it pays the pool after some pricings."""
    passes = generator.passes if backend not in HEURISTICS else 0
    pool = generator.first(known) if passes else generator.first()
    # what the round before knew stands in for a first look and its relaxation
    passes -= generator.informed
    for _ in range(passes):
        if struck(deadline):
            break
        from ymir_opt.solvers.lp import relax

        stated = round_of(pool).model()
        relaxed = relax(guessed(stated, pool), deadline=monotonic(deadline))
        if relaxed is None or not relaxed.optimal:
            break
        before = len(pool.table)
        types = len(generator.evaluator.instance.types)
        pool = generator.again(dual_prices(stated, relaxed.row_duals, types))
        if len(pool.table) <= before:
            break
    return pool


def guessed(stated: RoundModel, pool: Pool) -> LinearModel:
    """Return the model with a guess at its duals from the pool's prices."""
    if pool.prices is None:
        return stated.model
    return replace(stated.model, guess=row_guess(stated, pool.prices))


def monotonic(deadline: float | None) -> float | None:
    """Return a deadline of ``time.perf_counter()`` on ``time.monotonic()``."""
    return None if deadline is None else time.monotonic() + deadline - time.perf_counter()


def struck(deadline: float | None) -> bool:
    """Say whether the wall-clock guard has struck."""
    return deadline is not None and time.perf_counter() >= deadline
