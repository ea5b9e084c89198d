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
