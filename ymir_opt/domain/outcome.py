"""What the cluster looks like the moment a plan has been carried out.

No time passes: ``taken_at_s`` and ``resident_fm`` stay, work that a restart would repeat since the
last checkpoint is not added (the objective charges it, the next snapshot shows it), and profile
actions leave their job pending. Planning again from the outcome must move nothing (invariant 10).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ymir_opt.domain.base import FrozenDict, freeze, short
from ymir_opt.domain.documents import snapshot_sha256
from ymir_opt.domain.errors import InputError, InvalidPlanError
from ymir_opt.domain.plan import Action, ActionKind, Group, Plan, Prediction
from ymir_opt.domain.snapshot import (
    Job,
    JobState,
    Mode,
    ProbeState,
    Provenance,
    RunningGroup,
    Snapshot,
    TransferMode,
    TransferRow,
)
from ymir_opt.domain.validate import validate

__all__ = ["RatioOf", "joint_ratio", "outcome", "require_same_snapshot"]

RatioOf = Callable[[Snapshot, str, tuple[str, ...]], float | None]
"""(snapshot, job id, ids of the other members) -> joint work ratio, or None if unknown."""


def require_same_snapshot(snapshot: Snapshot, plan: Plan) -> None:
    """Refuse a plan that was made for another snapshot.

    Raises
    ------
    InputError
        With both hashes.
    """
    expected = snapshot_sha256(snapshot)
    if plan.snapshot_sha256 != expected:
        raise InputError(
            "snapshot_sha256",
            f"made for snapshot {short(plan.snapshot_sha256, 16)}, but this one is {expected[:13]}...",
            "give the snapshot that the plan was made for, or solve again",
        )


def joint_ratio(snapshot: Snapshot, job: str, others: tuple[str, ...]) -> float | None:
    """Return the joint work ratio of a job with other members from the snapshot's transfer rows.

    The row whose source equals the other members' tasks; without one, the geometric mean of the
    pairs' rows. None where a needed row is missing.

    Parameters
    ----------
    snapshot : Snapshot
    job : str
        The job whose work is asked for.
    others : tuple of str
        Ids of the other members.
    """
    jobs = {j.id: j for j in snapshot.jobs}
    target = jobs[job]
    best: dict[tuple[str, ...], TransferRow] = {}
    for row in snapshot.profiles.transfer:
        if (
            row.mode is TransferMode.JOINT
            and row.foundation_model == target.foundation_model
            and row.target == target.task
        ):
            source = (row.source,) if isinstance(row.source, str) else row.source
            key = tuple(sorted(source))
            if key not in best or _trust(row) < _trust(best[key]):
                best[key] = row
    rows = {key: row.work_ratio for key, row in best.items()}
    tasks = tuple(sorted(str(jobs[name].task) for name in others))
    if tasks in rows:
        return rows[tasks]
    pairs = [rows.get((task,)) for task in tasks]
    known = [ratio for ratio in pairs if ratio is not None]
    if not known or len(known) < len(pairs):
        return None
    return math.exp(math.fsum(math.log(ratio) for ratio in known) / len(known))


def _trust(row: TransferRow) -> tuple[bool, bool]:
    """Order rows for the same figure: measured first, then matched hyper-parameters."""
    return (row.provenance is Provenance.PREDICTED, not row.matched_hyperparameters)


def outcome(
    snapshot: Snapshot, plan: Plan, *, ratio_of: RatioOf = joint_ratio, compare_hash: bool = True
) -> Snapshot:
    """Return the snapshot in which the plan has been carried out and no time has passed.

    Jobs that the plan places become running on its GPUs; those it keeps stay as they are; jobs it
    preempts, and the members of a sequence that wait, become pending. A new start from other
    weights has ``done_samples`` 0 and W = ratio x (done + remaining) left; a new joint member has
    W = ratio x remaining left, with the plan's 80 % limits; a job that leaves a joint group has
    what is left divided by that group's ratio.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot that the plan was made for.
    plan : Plan
    ratio_of : callable
        Joint work ratio of a running group that a job leaves; the default reads the snapshot's rows.
    compare_hash : bool
        False trusts that the plan was made for this snapshot (the planner itself).

    Raises
    ------
    InputError
        If the plan was made for another snapshot, or a left group's ratio is unknown.
    InvalidPlanError
        If the plan contradicts the snapshot (unknown jobs or GPUs, GPUs used twice, a missing action).
    """
    if compare_hash:
        require_same_snapshot(snapshot, plan)
    actions = _actions(snapshot, plan)
    left = {name: group for group in snapshot.groups if group.mode is Mode.JOINT for name in group.jobs}
    placed: dict[str, Group] = {}
    known = actions.keys()
    for i, group in enumerate(plan.groups):
        for name in group.jobs:
            if name not in known:
                raise InvalidPlanError(
                    f"groups[{i}].jobs", f"{short(name)} is not a job of the snapshot", "solve again"
                )
            if name in placed:
                raise InvalidPlanError(
                    f"groups[{i}].jobs", f"{short(name)} is also in {short(placed[name].id)}", "solve again"
                )
            placed[name] = group

    def alone(job: Job) -> Job:
        """Express what is left in the job's own mode when it leaves its joint group."""
        group = left.get(job.id)
        if group is None:
            return job
        others = tuple(name for name in group.jobs if name != job.id)
        if not others:
            return job
        ratio = ratio_of(snapshot, job.id, others)
        if ratio is None:
            raise InputError(
                "profiles.transfer",
                f"no joint work ratio of {short(job.id)} with the members of group {short(group.id)}",
                "add the row, so that the work left outside the group is known",
            )
        return job.model_copy(
            update={name: value / ratio for name in _WORK if (value := getattr(job, name)) is not None}
        )

    jobs = tuple(
        _carry_out(snapshot, job, actions[job.id], placed.get(job.id), alone) for job in snapshot.jobs
    )
    result = snapshot.model_copy(update={"jobs": jobs, "groups": _groups(snapshot, plan, actions)})
    try:
        validate(result)
    except InputError as error:
        raise InvalidPlanError(error.place, error.problem, "the plan breaks this; solve again") from None
    return result


_WORK = ("remaining_samples", "remaining_samples_low", "remaining_samples_high")


def _actions(snapshot: Snapshot, plan: Plan) -> dict[str, Action]:
    known = {job.id for job in snapshot.jobs}
    actions: dict[str, Action] = {}
    for i, action in enumerate(plan.actions):
        if action.job not in known:
            raise InvalidPlanError(
                f"actions[{i}].job", f"{short(action.job)} is not a job of the snapshot", "solve again"
            )
        if action.job in actions:
            raise InvalidPlanError(f"actions[{i}].job", f"{short(action.job)} has two actions", "solve again")
        actions[action.job] = action
    for job in snapshot.jobs:
        if job.id not in actions:
            raise InvalidPlanError("actions", f"job {short(job.id)} has none", "solve again")
    return actions


def _carry_out(
    snapshot: Snapshot, job: Job, action: Action, group: Group | None, alone: Callable[[Job], Job]
) -> Job:
    kind = action.action
    waits = group is None or (group.mode is Mode.SEQUENCE and group.jobs[0] != job.id)
    if waits:
        return _stop(job, kind, alone)
    assert group is not None
    if kind is ActionKind.KEEP:
        if job.state is not JobState.RUNNING or _as_sets(job.allocation or {}) != _as_sets(group.placement):
            raise InvalidPlanError(
                "actions", f"job {short(job.id)} is kept, but not on the GPUs that it holds", "solve again"
            )
        return job
    changes: dict[str, Any] = {
        "state": JobState.RUNNING,
        "allocation": group.placement,
        "last_start_s": snapshot.taken_at_s,
        "first_start_s": snapshot.taken_at_s if job.first_start_s is None else job.first_start_s,
        "restarts": job.restarts + (job.first_start_s is not None or job.state is JobState.RUNNING),
    }
    prediction = group.predicted.get(job.id)
    own = alone(job)
    if job.id in group.starts_from:
        left = _remaining(own)
        changes |= _work(own, prediction, own.done_samples + left)
        changes["done_samples"] = 0.0
        if job.last_checkpoint_samples is not None:
            changes["last_checkpoint_samples"] = 0.0
    elif group.mode is Mode.JOINT:
        changes |= _work(own, prediction, _remaining(own))
    else:
        changes |= {name: getattr(own, name) for name in _WORK}
    changes["samples_at_last_start"] = changes.get("done_samples", job.done_samples)
    return job.model_copy(update=changes)


def _stop(job: Job, kind: ActionKind, alone: Callable[[Job], Job]) -> Job:
    if job.state is not JobState.RUNNING:
        return job
    if kind is not ActionKind.PREEMPT:
        raise InvalidPlanError(
            "actions", f"job {short(job.id)} runs and is not placed, but its action is {kind}", "solve again"
        )
    return alone(job).model_copy(
        update={
            "state": JobState.PENDING,
            "allocation": None,
            "last_start_s": None,
            "preemptions": job.preemptions + 1,
        }
    )


def _remaining(job: Job) -> float:
    if job.remaining_samples is not None:
        return job.remaining_samples
    most = job.target.max_samples if job.target is not None else None
    return max(0.0, most - job.done_samples) if most is not None else 0.0


def _work(job: Job, prediction: Prediction | None, base: float) -> dict[str, float | None]:
    """Return the work fields of a new start: W = ``work_ratio`` x base, limits from the prediction."""
    if job.remaining_s is not None:
        return {}
    ratio = prediction.work_ratio if prediction is not None else None
    if prediction is None or ratio is None:
        raise InvalidPlanError(
            "groups",
            f"job {short(job.id)} starts from other weights or joins others, but no work_ratio is predicted",
            "solve again",
        )
    work = ratio * base
    low, high = prediction.low, prediction.high
    return {
        "remaining_samples": work,
        "remaining_samples_low": None if low is None else min(low, work),
        "remaining_samples_high": None if high is None else max(high, work),
    }


def _groups(snapshot: Snapshot, plan: Plan, actions: Mapping[str, Action]) -> tuple[RunningGroup, ...]:
    before = {group.jobs: group for group in snapshot.groups}
    first_start = {job.id: job.last_start_s for job in snapshot.jobs}
    groups = []
    for group in plan.groups:
        holders = group.jobs[:1] if group.mode is Mode.SEQUENCE else group.jobs
        kept = all(actions[name].action is ActionKind.KEEP for name in holders)
        old = before.get(group.jobs)
        if kept and old is not None and old.mode is group.mode:
            groups.append(old.model_copy(update={"id": group.id}))
            continue
        groups.append(
            RunningGroup(
                id=group.id,
                mode=group.mode,
                jobs=group.jobs,
                starts_from=group.starts_from,
                started_at_s=first_start[holders[0]] if kept else snapshot.taken_at_s,
                probe=ProbeState(state="running", evaluations_left=group.probe.evaluations)
                if group.probe is not None
                else None,
            )
        )
    return tuple(groups)


def _as_sets(placement: Mapping[str, tuple[int, ...]]) -> FrozenDict:
    return freeze({node: frozenset(gpus) for node, gpus in placement.items() if gpus})
