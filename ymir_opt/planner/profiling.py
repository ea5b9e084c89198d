"""Profile actions: a job whose speed nobody knows is measured on a few GPUs, never guessed.

They are scheduled before everything else, on GPUs that are free now, from a capped reserve, in an
order that depends only on the jobs, so that planning again repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.plan import ActionKind, Plan
from ymir_opt.domain.snapshot import Job, JobState
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.parts import host_left, set_aside
from ymir_opt.formulation.quota import QuotaTable

__all__ = ["Reservation", "profile_cap", "reserve"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Reservation:
    """What profile actions take.

    Attributes
    ----------
    gpus : dict of job row to int64 array
        GPU rows of each profile action.
    available : bool[U]
        GPUs left on which something may start if nothing is kept there.
    charged : int64[R]
        Charge on each quota row, in units.
    left : int
        GPUs that the round might still have spent on profiling.
    """

    gpus: dict[int, IntArray]
    available: BoolArray
    charged: IntArray
    left: int = 0


def profile_cap(evaluator: Evaluator) -> int:
    """Return the GPUs that a round may spend on profiling: by default ``max(4, 2 % of the ready GPUs)``."""
    cap = evaluator.parameters.profile_gpus_cap
    return cap if cap is not None else max(4, int(0.02 * int(evaluator.instance.gpu_ready.sum())))


def reserve(
    evaluator: Evaluator, quotas: QuotaTable, previous: Plan | None = None, *, only_earlier: bool = False
) -> Reservation:
    """Choose the jobs to profile and their GPUs.

    Parameters
    ----------
    evaluator : Evaluator
    quotas : QuotaTable
        A profile action is charged to its queue like a start.
    previous : Plan, optional
        Its profile actions are repeated where their GPUs are still free.
    only_earlier : bool
        Repeat those and add none: nothing has happened since that plan, even where it freed GPUs.
    """
    instance, jobs = evaluator.instance, evaluator.jobs
    stays = np.array([g.keepable for g in instance.running] + [False], dtype=np.bool_)
    free = instance.gpu_ready & ~stays[instance.gpu_held]
    aside = np.zeros((len(instance.nodes), 2))
    set_aside(instance, aside)
    host = host_left(instance, np.flatnonzero(stays[:-1]).tolist())
    charged = np.zeros(len(quotas.rows), dtype=np.int64)
    budget = _Budget(evaluator, quotas, charged)
    left = profile_cap(evaluator)
    chosen: dict[int, IntArray] = {}
    wish = _earlier(evaluator, previous)
    unknown = [
        j
        for j, job in enumerate(instance.jobs)
        if job.state is JobState.PENDING
        and not jobs.known[j]
        and not jobs.rigid[j]
        and not jobs.backed_off[j]
        and (not only_earlier or j in wish)
    ]
    unknown.sort(
        key=lambda j: (
            j not in wish,
            -int(instance.job_class[j]),
            instance.jobs[j].submitted_at_s,
            instance.jobs[j].id,
        )
    )
    for j in unknown:
        wanted = evaluator.profile_gpus(j)
        if wanted > left:
            continue
        use = _host_use(instance.jobs[j], wanted)
        roomy = np.logical_and.reduce(aside + use <= host + 1e-9, axis=1)
        open_gpu = free & _suits(evaluator, quotas, j) & roomy[instance.gpu_node]
        rows = wish.get(j)
        if rows is None or len(rows) != wanted or not open_gpu[rows].all():
            rows = _find(instance, open_gpu, wanted)
        if rows is None or not budget.take(j, int(instance.gpu_type[rows[0]]), wanted):
            continue
        chosen[j] = rows
        free[rows] = False
        aside[instance.gpu_node[rows[0]]] += use
        left -= wanted
    set_aside(instance, aside)
    available = instance.gpu_ready.copy()
    for rows in chosen.values():
        available[rows] = False
    return Reservation(chosen, available, charged, left)


def _earlier(evaluator: Evaluator, previous: Plan | None) -> dict[int, IntArray]:
    if previous is None:
        return {}
    instance = evaluator.instance
    found: dict[int, IntArray] = {}
    for action in previous.actions:
        if action.action is not ActionKind.PROFILE or action.to is None or action.job not in instance.job_row:
            continue
        rows = [
            int(instance.node_first_gpu[instance.node_row[node]]) + gpu
            for node, gpus in action.to.placement.items()
            if node in instance.node_row
            for gpu in gpus
            if gpu < instance.nodes[instance.node_row[node]].gpus
        ]
        found[instance.job_row[action.job]] = np.array(sorted(rows), dtype=np.int64)
    return found


def _suits(evaluator: Evaluator, quotas: QuotaTable, j: int) -> BoolArray:
    """Say on which GPUs a job may be measured, bool[U]: type, quota, selector and memory."""
    instance, job = evaluator.instance, evaluator.instance.jobs[j]
    allowed = evaluator.jobs.allowed_types[j] & (quotas.row_of[quotas.queue_of[j]] != -1)
    labels = tuple(sorted(job.node_selector.items()))
    mask = allowed[instance.gpu_type] & instance.eligible_nodes(labels)[instance.gpu_node]
    if job.memory_gib is not None:
        mask &= instance.gpu_usable >= job.memory_gib * (1 - 1e-9)
    return np.asarray(mask)


def _find(instance: Instance, open_gpu: BoolArray, wanted: int) -> IntArray | None:
    """Return GPUs of the node with the fewest that suffice."""
    count = np.bincount(instance.gpu_node[open_gpu], minlength=len(instance.nodes))
    nodes = np.flatnonzero(count >= wanted)
    if not len(nodes):
        return None
    node = nodes[np.argmin(count[nodes])]
    rows: IntArray = np.flatnonzero(open_gpu & (instance.gpu_node == node))[:wanted].astype(np.int64)
    return rows


def _host_use(job: Job, wanted: int) -> FloatArray:
    """Return CPUs and host memory (GiB) that measuring a job takes, float64[2]."""
    return np.array([(job.cpus_per_gpu or 0.0) * wanted, job.host_memory_gib or 0.0])


class _Budget:
    """Quota left if everything that runs stays."""

    def __init__(self, evaluator: Evaluator, quotas: QuotaTable, charged: IntArray) -> None:
        self.quotas, self.charged = quotas, charged
        self.used = np.zeros(len(quotas.rows), dtype=np.int64)
        for group in evaluator.instance.running:
            if not group.keepable:
                continue
            share = int(quotas.share(np.array(len(group.gpus)), np.array(len(group.holders))))
            for row in quotas.job_rows(np.array(group.holders), group.type):
                if row >= 0:
                    self.used[row] += share
        self.pools = quotas.pools()

    def take(self, j: int, t: int, gpus: int) -> bool:
        """Charge a profile action; False, and nothing charged, where the quota does not allow it."""
        row = int(self.quotas.row_of[self.quotas.queue_of[j], t])
        if row == -1:
            return False
        if row < 0:
            return True
        self.charged[row] += gpus * self.quotas.unit
        if self._within(row):
            return True
        self.charged[row] -= gpus * self.quotas.unit
        return False

    def _within(self, row: int) -> bool:
        use = self.used + self.charged
        rule = self.quotas.rows[row]
        if rule.limit is not None and use[row] > rule.limit:
            return False
        for pool in self.pools:
            if row in pool.rows:
                rows = [self.quotas.rows[r] for r in pool.rows]
                lent = sum(max(0, int(use[r]) - self.quotas.rows[r].guaranteed) for r in pool.rows)
                return lent <= sum(r.lendable for r in rows)
        return True
