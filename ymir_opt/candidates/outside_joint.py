"""Joint groups that would pay at given prices.

The members of a joint group share its samples in proportion to their batches: with ``s(B)`` the samples/s
by unit of batch at the active members' summed batch ``B``, each member's progress by unit of its batch is
the same, and member ``j`` ends once it is ``u_j = ratio_j work_j / batch_j``:

    ``run_j = integral_0^{u_j} du / s(sum of the batches with u_k > u)``.

A lower bound on ``run_j`` has in place of ``s`` the largest ``s`` over the sums of at least ``B`` that up
to four jobs can have, ``cap(B)``: never less, and never rising with ``B``, so that the bound holds when
only some members are known (the active batch is at least theirs) and rises with every member's work. Where
a larger batch takes longer a step, as it does, ``cap`` is ``s`` and the bound of a whole group is exact.
Ratios are exact by tuple of tasks (rows, rules and fitted models alike are asked about each), and the least
over all groups where some members are open. The pessimistic run is at least ``h`` times the other, with
``h`` the least ratio of pessimistic to expected work among the members, because runs scale with the works
and rise with each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.outside import Asked, Budget, Gains, Terms, Wanted
from ymir_opt.candidates.outside_family import Family
from ymir_opt.candidates.outside_groups import Groups
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["JointSearch"]

BoolArray = NDArray[np.bool_]


class JointSearch:
    """Finds the joint groups of one instance; `wanted` for any prices."""

    def __init__(self, evaluator: Evaluator, rules: Rules, expander: Expander, terms: Terms) -> None:
        self.evaluator, self.expander = evaluator, expander
        jobs = evaluator.jobs
        able = np.flatnonzero(jobs.startable & ~jobs.rigid & (evaluator.works.task >= 0) & (jobs.fm >= 0))
        kinds = rules.trained[able]
        self.families = [
            Family(evaluator, rules, expander, terms, able[kinds == kind]) for kind in np.unique(kinds)
        ]

    def wanted(self, asked: Asked, budget: Budget) -> Iterator[Wanted]:
        """Yield sets that may have a column of a reduced cost below what is asked."""
        gains = Gains(self.evaluator, asked)
        for family in self.families:
            family.prepare(budget)
            seen = asked.open(family.rows)
            for t, menu in enumerate(self.expander.menu):
                for g in menu.tolist():
                    yield from self._at(family, seen, gains, budget, t, g, asked.least(t, g))

    def _at(
        self, family: Family, seen: BoolArray, gains: Gains, budget: Budget, t: int, g: int, least: float
    ) -> Iterator[Wanted]:
        jobs, rows = self.evaluator.jobs, family.rows
        use = np.flatnonzero(seen & self.expander._typed[rows, t] & (jobs.min[rows] <= g))
        # four members hold at most the sum of their largest counts
        if len(use) < 2 or int(np.sort(jobs.max[rows[use]])[-4:].sum()) < g:
            return
        budget.check()
        for sets in Groups(family, gains, budget, t, g, use).found(least):
            yield Wanted(Mode.JOINT, t, g, sets)
