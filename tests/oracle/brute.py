"""The optimum of one round by trying every grouping; shares no code with the formulation.

Depth first over the jobs: each is left out, goes on as it runs, or joins a new group with jobs that are
still open. A branch is cut only by its cost: what is chosen so far plus the least that every open job
must add (its share of the cheapest group it could be in). Quotas, priorities and placement are tried at
the leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from oracle_jobs import Jobs
from oracle_options import Option, Options
from oracle_rules import Placement, Rules

from ymir_opt.domain.snapshot import Snapshot


@dataclass(frozen=True)
class Best:
    """The optimum: objective in its own units, the chosen groups, and the cost of queueing everything."""

    objective: float
    chosen: tuple[Option, ...]
    queueing: float
    leaves: int


def brute_force(
    snapshot: Snapshot, job: int = -1, does: Callable[[Option | None], bool] = lambda option: True
) -> Best:
    """Return the optimal objective of a snapshot of at most about six jobs, all of known speed.

    With a job: among the plans in which its group (None: it is left out) is one that it ``does``; without
    any the objective is infinite.
    """
    jobs, rules, placement, options, cheapest, every = _prepared(snapshot)
    keeps = options.keeps()
    pinned = {j for j in range(len(jobs.jobs)) if jobs.protected[j]}
    pinned |= {j for option, priced in keeps if not priced for j in option.holders}
    candidates = cheapest
    if job >= 0:
        # a dominated option of the job may be the one that is asked for
        candidates = [option for option in candidates if job not in option.members]
        candidates += [option for option in every if job in option.members and does(option)]
        keeps = [keep for keep in keeps if job not in keep[0].members or does(keep[0])]
    new = [
        option
        for option in candidates
        if not pinned & set(option.members) and rules.type_allowed(option) and _alone(placement, option)
    ]
    everything = [option for option, _ in keeps] + new
    count = len(jobs.jobs)
    by_job: list[list[Option]] = [[] for _ in range(count)]
    for option in sorted(everything, key=lambda o: o.cost):
        for j in option.members:
            by_job[j].append(option)
    share = [
        min([jobs.queued[j], *(o.cost / len(o.members) for o in by_job[j])]) if j not in pinned else 0.0
        for j in range(count)
    ]
    tail = [0.0] * (1 << count)
    for mask in range(1, 1 << count):
        low = (mask & -mask).bit_length() - 1
        tail[mask] = tail[mask & (mask - 1)] + share[low]
    best = [math.inf, ()]
    leaves = 0
    capacity = {t: options.total[t] for t in jobs.types}
    outside = {
        (r, jobs.runs[r].gpu_type): sum(not rules.ready(gpu) for gpu in jobs.runs[r].gpus)
        for r in range(len(jobs.runs))
    }

    def descend(open_jobs: int, cost: float, chosen: list[Option], used: dict[str, int]) -> None:
        nonlocal leaves
        if cost + tail[open_jobs] >= best[0] - 1e-12 * abs(best[0]):
            return
        if not open_jobs:
            leaves += 1
            if rules.hold(chosen) and placement.fits(chosen):
                best[0], best[1] = cost, tuple(chosen)
            return
        j = (open_jobs & -open_jobs).bit_length() - 1
        choices: list[tuple[float, Option | None]] = [
            (o.cost + tail[open_jobs & ~o.mask], o) for o in by_job[j] if o.mask & ~open_jobs == 0
        ]
        if j not in pinned and (j != job or does(None)):
            choices.append((jobs.queued[j] + tail[open_jobs & ~(1 << j)], None))
        for _, option in sorted(choices, key=lambda choice: choice[0]):
            if option is None:
                descend(open_jobs & ~(1 << j), cost + jobs.queued[j], chosen, used)
                continue
            t = option.gpu_type
            took = option.gpus - (outside[option.run, t] if option.run >= 0 else 0)
            if used[t] + took > capacity[t]:
                continue
            descend(
                open_jobs & ~option.mask, cost + option.cost, [*chosen, option], {**used, t: used[t] + took}
            )

    descend((1 << count) - 1, 0.0, [], dict.fromkeys(jobs.types, 0))
    return Best(best[0], best[1], math.fsum(jobs.queued), leaves)


@lru_cache(maxsize=1)
def _prepared(snapshot: Snapshot) -> tuple[Jobs, Rules, Placement, Options, list[Option], list[Option]]:
    """Return the tables of a snapshot, the cheapest option of every footprint, and all options."""
    jobs = Jobs(snapshot)
    rules = Rules(jobs)
    options = Options(jobs)
    return jobs, rules, Placement(rules), options, options.new(), options.every()


def _alone(placement: Placement, option: Option) -> bool:
    """Could the option lie anywhere if nothing else ran?"""
    return placement.fits([option])
