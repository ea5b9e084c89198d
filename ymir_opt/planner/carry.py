"""The carried-over plan: everything that runs goes on, and waiting jobs fill what is free."""

from __future__ import annotations

import numpy as np

from ymir_opt.domain.plan import Plan
from ymir_opt.planner.greedy import fill
from ymir_opt.planner.search import Round
from ymir_opt.planner.selection import Selection, settle

__all__ = ["OUTCOME_LABEL", "carried", "resumed"]

OUTCOME_LABEL = "outcome_sha256"


def carried(work: Round, *, fill_idle: bool = True) -> Selection:
    """Return the carried-over selection: always feasible, the incumbent of every solver.

    Without ``fill_idle`` nothing starts.
    """
    keeps = np.flatnonzero(work.table.keep >= 0)
    if not fill_idle:
        running = work.evaluator.instance.running
        held = tuple(running[r].gpus for r in work.table.keep[keeps])
        return settle(work.evaluator, work.table, keeps, held)
    columns, gpus = fill(
        work.evaluator.instance,
        work.table,
        work.quotas,
        available=work.available,
        profiled=work.profiled,
        chosen=keeps,
    )
    return settle(work.evaluator, work.table, columns, gpus)


def resumed(previous: Plan | None, digest: str) -> bool:
    """Say whether nothing has happened since the previous plan was carried out.

    Then there is nothing to decide anew: it goes on. The plan carries the hash of its own outcome.
    """
    return previous is not None and previous.labels.get(OUTCOME_LABEL) == digest
