"""Looking ahead: when jobs that wait would start, if nothing new arrived and estimates were right.

The plan is carried out, time goes on to the first round in which a job has finished, and the round is
planned again. Between two rounds a job's work falls in proportion to its predicted finish. What a probe
would show, what is being measured, and arrivals are not known, so a look ahead is an outlook, no plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ymir_opt.domain.errors import YmirError
from ymir_opt.domain.outcome import outcome
from ymir_opt.domain.plan import ActionKind, Group, Plan
from ymir_opt.domain.snapshot import Job, JobState, Mode, RunningGroup, Snapshot
from ymir_opt.domain.validate import validate

__all__ = ["Outlook", "advance", "look_ahead"]

PlanRound = Callable[[Snapshot, Plan], Plan]


@dataclass(frozen=True)
class Outlook:
    """When a job gets GPUs and when it finishes, seconds from now; None: not within the look ahead."""

    start_s: float | None = None
    finish_s: float | None = None


def look_ahead(snapshot: Snapshot, plan: Plan, plan_round: PlanRound, rounds: int) -> dict[str, Outlook]:
    """Return the outlook of every job.

    Parameters
    ----------
    snapshot : Snapshot
    plan : Plan
        This round's.
    plan_round : callable
        ``plan_round(snapshot, previous) -> Plan``.
    rounds : int
        Rounds that are planned at most; 0 tells of this one only.
    """
    now = snapshot.taken_at_s
    found = _merged({}, plan, now, now)
    state, current = snapshot, plan
    for _ in range(rounds):
        if all(outlook.start_s is not None for outlook in found.values()):
            break
        try:
            after = outcome(state, current, compare_hash=False)
            until = _next_round(after, current)
            if until is None:
                break
            state = advance(after, current, until)
            current = plan_round(state, current)
        except YmirError:
            break
        found = _merged(found, current, now, state.taken_at_s)
    return found


def _merged(found: dict[str, Outlook], plan: Plan, now: float, at: float) -> dict[str, Outlook]:
    """Take a plan's starts and finishes in; the first start and the last finish of a job count."""
    finish: dict[str, float | None] = {}
    holds: set[str] = set()
    for group in plan.groups:
        holds.update(group.jobs[:1] if group.mode is Mode.SEQUENCE else group.jobs)
        for k, name in enumerate(group.jobs):
            told = group.predicted.get(name)
            finish[name] = None if told is None else told.finish_at_s
            if group.mode is Mode.SEQUENCE and k > 0 and finish[group.jobs[k - 1]] is not None:
                holds.add(name)
    starts = {}
    for group in plan.groups:
        if group.mode is Mode.SEQUENCE:
            for before, name in zip(group.jobs, group.jobs[1:], strict=False):
                starts[name] = finish[before]
    out = dict(found)
    for action in plan.actions:
        name = action.job
        if action.action is ActionKind.PROFILE:
            holds.add(name)
        old = out.get(name, Outlook())
        start = old.start_s
        if start is None and name in holds:
            begins = starts.get(name, at)
            start = None if begins is None else max(0.0, begins - now)
        ends = finish.get(name)
        out[name] = Outlook(start, old.finish_s if ends is None else ends - now)
    return out


def _next_round(after: Snapshot, plan: Plan) -> float | None:
    """Return the first round's time at which something has changed, or None."""
    now = after.taken_at_s
    events = [
        told.finish_at_s
        for group in plan.groups
        for told in group.predicted.values()
        if told.finish_at_s is not None
    ]
    events += [job.not_before_s for job in after.jobs if job.not_before_s is not None]
    later = [event for event in events if event > now]
    if not later:
        return None
    rounds = max(1, math.ceil((min(later) - now) / after.round_s - 1e-9))
    return now + rounds * after.round_s


def advance(after: Snapshot, plan: Plan, until_s: float) -> Snapshot:
    """Return the snapshot of a later time, in which the plan went on as predicted.

    Parameters
    ----------
    after : Snapshot
        The plan's outcome.
    plan : Plan
    until_s : float
        On the snapshot's clock.

    Raises
    ------
    InputError
        The result is no valid snapshot.
    """
    jobs = {job.id: job for job in after.jobs}
    groups = {group.jobs: group for group in after.groups}
    running: list[RunningGroup] = []
    for group in plan.groups:
        left = _sequence(jobs, group, after, until_s)
        if left is None:
            left = _together(jobs, group, after, until_s)
        entry = groups.get(group.jobs)
        if entry is not None and len(left) > 1:
            starts = {name: source for name, source in entry.starts_from.items() if name in left}
            running.append(entry.model_copy(update={"jobs": left, "starts_from": starts}))
    made = after.model_copy(
        update={
            "taken_at_s": until_s,
            "jobs": tuple(jobs[job.id] for job in after.jobs if job.id in jobs),
            "groups": tuple(running),
        }
    )
    validate(made)
    return made


def _together(jobs: dict[str, Job], group: Group, after: Snapshot, until_s: float) -> tuple[str, ...]:
    """Advance members that run at the same time; return those that are left."""
    now = after.taken_at_s
    left = []
    for name in group.jobs:
        told = group.predicted.get(name)
        finish = None if told is None else told.finish_at_s
        if finish is not None and finish <= until_s:
            del jobs[name]
            continue
        left.append(name)
        share = 0.0 if finish is None or finish <= now else (until_s - now) / (finish - now)
        jobs[name] = _worked(jobs[name], share, until_s - now)
    return tuple(left)


def _sequence(jobs: dict[str, Job], group: Group, after: Snapshot, until_s: float) -> tuple[str, ...] | None:
    """Advance a sequence: who is done leaves, the next one starts from its weights; None for other modes."""
    if group.mode is not Mode.SEQUENCE:
        return None
    begins = after.taken_at_s
    left = list(group.jobs)
    allocation = jobs[left[0]].allocation
    while left:
        name = left[0]
        told = group.predicted.get(name)
        finish = None if told is None else told.finish_at_s
        if finish is not None and finish <= until_s:
            del jobs[name]
            begins = finish
            left.pop(0)
            continue
        if name != group.jobs[0]:
            ratio = 1.0 if told is None or told.work_ratio is None else told.work_ratio
            jobs[name] = _succeeded(jobs[name], ratio, allocation, begins)
        share = 0.0 if finish is None or finish <= begins else (until_s - begins) / (finish - begins)
        jobs[name] = _worked(jobs[name], share, until_s - begins)
        break
    return tuple(left)


def _succeeded(job: Job, ratio: float, allocation: Any, at_s: float) -> Job:
    """Return a job that has started from its predecessor's weights."""
    whole = job.done_samples + (job.remaining_samples or 0.0)
    return job.model_copy(
        update={
            "state": JobState.RUNNING,
            "allocation": allocation,
            "first_start_s": at_s if job.first_start_s is None else job.first_start_s,
            "last_start_s": at_s,
            "done_samples": 0.0,
            "last_checkpoint_samples": None if job.last_checkpoint_samples is None else 0.0,
            "samples_at_last_start": 0.0,
            "remaining_samples": ratio * whole,
            "remaining_samples_low": None,
            "remaining_samples_high": None,
        }
    )


def _worked(job: Job, share: float, seconds: float) -> Job:
    """Return a job after it has done a share of what is left."""
    share = min(1.0, max(0.0, share))
    gpus = sum(len(rows) for rows in (job.allocation or {}).values())
    changes: dict[str, Any] = {
        "running_s": job.running_s + seconds,
        "attained_gpu_s": job.attained_gpu_s + seconds * gpus,
    }
    for name in ("remaining_s", "remaining_samples", "remaining_samples_low", "remaining_samples_high"):
        value = getattr(job, name)
        if value is not None:
            changes[name] = value * (1 - share)
    if job.remaining_samples is not None:
        changes["done_samples"] = job.done_samples + job.remaining_samples * share
        if job.last_checkpoint_samples is not None:
            changes["last_checkpoint_samples"] = changes["done_samples"]
    return job.model_copy(update=changes)
