"""Invariant 5, apart from quotas and priorities: what may not be moved, and what may not start yet."""

from __future__ import annotations

from collections.abc import Iterator

from ymir_opt.domain.base import short
from ymir_opt.domain.snapshot import JobState
from ymir_opt.verify.facts import Facts
from ymir_opt.verify.violation import Violation

__all__ = ["limits"]


def limits(facts: Facts) -> Iterator[Violation]:
    """Yield every protected job that does not stay as it runs, and every job that starts too early.

    Protection ends where a node or GPU of the allocation is down or unavailable.
    """
    now = facts.snapshot.taken_at_s
    for held in facts.held:
        if not held.keepable or facts.stays(held):
            continue
        for name in held.holders:
            job = facts.jobs[name]
            if not job.movable:
                yield Violation(5, f"job {short(name)}", "is not movable, but does not stay as it runs")
            elif job.last_start_s is not None and now - job.last_start_s < job.min_runtime_s:
                yield Violation(
                    5,
                    f"job {short(name)}",
                    f"runs for {now - job.last_start_s:.6g} s of its minimum of {job.min_runtime_s:.6g} s, "
                    "but does not stay as it runs",
                )
    for placed in facts.placed:
        if placed.kept is not None:
            continue
        for job in placed.members:
            if job.state is JobState.PENDING and job.not_before_s is not None and job.not_before_s > now:
                yield Violation(
                    5,
                    f"{placed.place}.jobs",
                    f"job {short(job.id)} may not start for another {job.not_before_s - now:.6g} s",
                )
    yield from _profiling(facts)


def _profiling(facts: Facts) -> Iterator[Violation]:
    """Yield profile actions beyond the reserve that the plan's objective states."""
    stated = facts.plan.planner.objective
    if stated is None or not facts.profiled or "profile_gpus_cap" not in stated.parameters:
        return
    cap = stated.parameters["profile_gpus_cap"]
    if not isinstance(cap, int):
        ready = sum(facts.ready((n.id, i)) for n in facts.nodes.values() for i in range(n.gpus))
        cap = max(4, ready // 50)
    used = sum(len(gpus) for gpus in facts.profiled.values())
    if used > cap:
        yield Violation(5, "actions", f"{used} GPUs are used for profiling, but at most {cap} may be")
