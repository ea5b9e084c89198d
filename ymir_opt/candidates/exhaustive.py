"""Every column outside the pool that would pay at given prices: exhaustive pricing."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.outside import Asked, Budget, EveryExpander, Terms
from ymir_opt.candidates.outside_chain import ChainSearch
from ymir_opt.candidates.outside_joint import JointSearch
from ymir_opt.candidates.outside_shared import SharedSearch
from ymir_opt.candidates.prune import undominated
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Job, JobState, Mode
from ymir_opt.formulation.columns import MAX_MEMBERS, ColumnTable, concatenate
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.numbering import rank_in_runs
from ymir_opt.formulation.rowwise import sum_of

__all__ = ["Exhaustive", "reduced_costs"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
BLOCK = 50_000
_TOLD = {"id", "submitted_at_s", "labels", "hyperparameters_sha256"}
"""Fields that no cost or rule depends on, importance apart."""
_FIELDS = tuple(name for name in Job.model_fields if name not in _TOLD)


class Exhaustive:
    """Prices every group of at most four jobs, in every mode, type, count and start.

    Parameters
    ----------
    evaluator : Evaluator
        Whose pool has been made: its jobs say which may start.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.rules = Rules(evaluator)
        limits = replace(PoolLimits.of_size(evaluator.jobs.count), exhaustive_below=10**9)
        self.expander = EveryExpander(evaluator, self.rules, limits)
        terms = Terms(evaluator, self.expander)
        parts = evaluator, self.rules, self.expander, terms
        self.searches = (
            SharedSearch(Mode.GPU_SHARE, *parts),
            SharedSearch(Mode.COLOCATE, *parts),
            JointSearch(*parts),
            ChainSearch(*parts),
        )

    def alone(self) -> ColumnTable:
        """Return every column of a single job."""
        self.expander.only = None
        startable = np.flatnonzero(self.evaluator.jobs.startable)
        return self.expander.expand(Mode.SOLO, startable.reshape(-1, 1))

    def below(self, asked: Asked, budget: Budget) -> tuple[ColumnTable, FloatArray]:
        """Return the columns of two or more whose reduced cost is below what is asked, and these, in quanta.

        Raises
        ------
        LimitError
            A limit on work was hit, so that some may be missing.
        """
        tables = [self.expander.empty()]
        for search in self.searches:
            for wanted in search.wanted(asked, budget):
                sets = wanted.sets[self.rules.allowed(wanted.mode, wanted.sets)]
                budget.want(len(sets))
                self.expander.only = wanted.type, wanted.gpus
                for begin in range(0, len(sets), BLOCK):
                    budget.check()
                    table = self.expander.expand(wanted.mode, sets[begin : begin + BLOCK])
                    good = np.flatnonzero(reduced_costs(table, asked) < asked.below)
                    if len(good):
                        tables.append(table.take(good))
        table = concatenate(tables)
        return table, reduced_costs(table, asked)

    @cached_property
    def alike(self) -> IntArray:
        """Class of each job, int64[J]: waiting jobs that no figure and no rule tells apart are equal."""
        instance, jobs = self.evaluator.instance, self.evaluator.jobs
        named = {name for merge in instance.snapshot.rejected_merges for name in merge.jobs}
        rows: dict[tuple[object, ...], int] = {}
        out = []
        for j, job in enumerate(instance.jobs):
            same = job.state is JobState.PENDING and instance.running_of[j] < 0 and job.id not in named
            figures = (float(jobs.importance[j]), float(jobs.weight[j]), bool(jobs.startable[j]))
            rules = tuple(repr(getattr(job, name)) for name in _FIELDS) if same else (j,)
            out.append(rows.setdefault((*figures, instance.tenant(j), *rules), len(rows)))
        return np.array(out, dtype=np.int64)

    def first_of_equals(self, worth: FloatArray) -> BoolArray:
        """Return the jobs that are among the four of most worth of their class, bool[J].

        A group with others of the class has a reduced cost no lower than with these in their place.
        """
        order = np.lexsort((-worth, self.alike))
        rank = rank_in_runs(self.alike[order])
        out = np.zeros(len(order), dtype=np.bool_)
        out[order[rank < MAX_MEMBERS]] = True
        return out

    def fresh(self, pool: ColumnTable, found: ColumnTable) -> IntArray:
        """Return the rows of what was found that neither the pool nor anything else found dominates."""
        running = self.evaluator.instance.running_of >= 0
        kept = undominated(concatenate([pool, found]), self.expander.fewest, running)
        return np.asarray(kept[kept >= len(pool)] - len(pool))


def reduced_costs(table: ColumnTable, asked: Asked) -> FloatArray:
    """Return ``cost - sum of the members' worth + price of the GPUs`` of new columns, float64[C], quanta."""
    worth = sum_of(np.append(asked.worth, 0.0)[table.jobs])
    return np.asarray(table.cost - worth + asked.gpu[table.type] * table.gpus)
