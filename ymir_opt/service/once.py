"""Carrying out one plan to the end of its groups; going on with it after an interruption."""

from __future__ import annotations

import time
from collections.abc import Callable

from ymir_opt.domain.base import nearest, short
from ymir_opt.domain.documents import snapshot_sha256
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.executors.base import Happening, StalePlanError
from ymir_opt.executors.pool import WorkerPool
from ymir_opt.executors.records import JobRecord
from ymir_opt.service.intake import Intake
from ymir_opt.service.realised import write_rows

__all__ = ["adopt_plan", "follow"]

POLL_S = 0.1


def adopt_plan(pool: WorkerPool, plan: Plan, snapshot: Snapshot) -> tuple[str, ...]:
    """Make a plan the wanted state, or go on with it where it is the one that was applied last.

    A plan may be applied to a jobs folder in which the snapshot's running jobs run where it says, or whose
    last plan's outcome is the snapshot.

    Returns
    -------
    tuple of str
        Differences between the plan and what runs, in words.

    Raises
    ------
    InputError
        It names a node that this executor does not have.
    StalePlanError
        Something else runs, or another plan was applied since.
    """
    Intake(pool, pool.folder, time.time).take()
    last = pool.journal.get("meta", "plan")
    if last is not None and last["snapshot_sha256"] == plan.snapshot_sha256:
        return ()
    known = {node.id for node in pool.nodes()}
    for i, group in enumerate(plan.groups):
        for node in group.placement:
            if node not in known:
                raise InputError(
                    f"groups[{i}].placement",
                    f"{short(node)} is not a node of this executor",
                    nearest(node, known),
                )
    if last is None:
        _require_agreement(pool, snapshot)
        pool.observed(snapshot)
    return pool.apply(plan, snapshot)


def _require_agreement(pool: WorkerPool, snapshot: Snapshot) -> None:
    keys = pool.state.keys()
    holders = {
        job.id: next(((node, gpu) for node, gpus in job.allocation.items() for gpu in gpus), None)
        for job in snapshot.jobs
        if job.allocation
    }
    held = {pool.state.jobs[key].id: where for key, where in pool.held().items()}
    for name in sorted(holders.keys() | held.keys()):
        if holders.get(name) != held.get(name):
            there = held.get(name)
            raise StalePlanError(
                "snapshot",
                f"job {name} {'does not run' if there is None else f'runs on {there[0]}:{there[1]}'}, "
                f"the snapshot says {holders.get(name) or 'it waits'}",
                f"plan again from a new snapshot (this one is {snapshot_sha256(snapshot)[:13]})",
            )
    missing = [job.id for job in snapshot.jobs if job.id not in keys and job.allocation]
    if missing:
        raise StalePlanError("snapshot", f"running job {missing[0]} was not submitted here", "plan again")


def follow(
    pool: WorkerPool,
    stopped: Callable[[], bool],
    on_news: Callable[[tuple[Happening, ...]], None] | None = None,
) -> list[JobRecord]:
    """Tick until every job that the plan runs is over and every measurement is made.

    Parameters
    ----------
    pool : WorkerPool
    stopped : callable
        Whether to stop early; workers then checkpoint, and the same call goes on later.
    on_news : callable, optional

    Returns
    -------
    list of JobRecord
        The plan's jobs as they are now.
    """
    jobs = list(pool.wanted_jobs())
    while not stopped():
        news = pool.tick()
        write_rows(pool, news)
        if news and on_news is not None:
            on_news(news)
        if not pool.state.wishes and all(
            job.over and not job.ending for job in pool.wanted_jobs() if job.key not in _measured(pool)
        ):
            break
        time.sleep(POLL_S)
    pool.stop()
    return jobs


def _measured(pool: WorkerPool) -> set[str]:
    return {wish.job for wish in pool.state.wishes}
