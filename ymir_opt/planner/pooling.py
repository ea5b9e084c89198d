"""The candidate columns of a round: enumerated, then priced again."""

from __future__ import annotations

import time

import numpy as np

from ymir_opt.candidates import Generator, Pool, PoolLimits
from ymir_opt.candidates.prices import dual_prices
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.quota import QuotaTable
from ymir_opt.planner.profiling import Reservation
from ymir_opt.planner.search import Round

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
) -> tuple[Pool, Round]:
    """Return the candidate columns: enumerated, then priced again with the duals of their relaxation.

    Past the deadline they are not priced again.
    """

    def round_of(pool: Pool) -> Round:
        table = pool.table.take(np.flatnonzero(quotas.allowed(pool.table)))
        return Round(evaluator, table, quotas, reservation.available, reservation.charged)

    generator = Generator(evaluator, limits, merge=merge)
    pool = generator.first()
    for _ in range(generator.passes if backend not in HEURISTICS else 0):
        if struck(deadline):
            break
        from ymir_opt.solvers.lp import relax

        stated = round_of(pool).model()
        relaxed = relax(stated.model)
        if relaxed is None:
            break
        before = len(pool.table)
        pool = generator.again(pool, dual_prices(stated, relaxed.row_duals, len(evaluator.instance.types)))
        if len(pool.table) <= before:
            break
    return pool, round_of(pool)


def struck(deadline: float | None) -> bool:
    """Say whether the wall-clock guard has struck."""
    return deadline is not None and time.perf_counter() >= deadline
