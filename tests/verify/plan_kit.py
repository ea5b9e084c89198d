"""Hand-made plans: groups in, a plan with matching actions and explanations out; and ways to spoil it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ymir_opt.domain.documents import snapshot_sha256
from ymir_opt.domain.plan import (
    Action,
    ActionKind,
    Decision,
    Explanation,
    Group,
    Plan,
    PlannerInfo,
    Reason,
    Situation,
    SolverInfo,
    SolverStatus,
)
from ymir_opt.domain.snapshot import Job, JobState, Mode, Snapshot
from ymir_opt.verify import check

Placing = dict[str, tuple[int, ...]]


def lies(mode: Mode, jobs: Iterable[str], where: Placing, **fields: Any) -> Group:
    """Return a group; id, type and count follow from the rest unless given."""
    names = tuple(jobs)
    defaults = {
        "id": "-".join((mode.value, *names)),
        "gpu_type": "A100",
        "gpus": sum(len(gpus) for gpus in where.values()),
        "foundation_model": "fm",
    }
    return Group(mode=mode, jobs=names, placement=where, **(defaults | fields))


def solo(name: str, where: Placing, **fields: Any) -> Group:
    return lies(Mode.SOLO, (name,), where, **fields)


def plan(
    snapshot: Snapshot,
    *groups: Group,
    profiled: dict[str, Placing] | None = None,
    reason: Reason = Reason.INSUFFICIENT_GPUS,
    declares: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8),
) -> Plan:
    """Return the plan in which these groups run and the other jobs wait or are stopped."""
    actions = tuple(_action(snapshot, job, groups, (profiled or {}).get(job.id)) for job in snapshot.jobs)
    placed = {name for g in groups for name in g.jobs}
    explanations = {
        action.job: Explanation(
            decision=Decision(action.action.value),
            reason=Reason.UNKNOWN_THROUGHPUT
            if action.action is ActionKind.PROFILE
            else Reason.CHOSEN
            if action.job in placed
            else reason,
            message="",
        )
        for action in actions
    }
    return Plan(
        snapshot_sha256=snapshot_sha256(snapshot),
        planner=PlannerInfo(version="0", policy="by-hand", declares=declares),
        solver=SolverInfo(backend="none", status=SolverStatus.FEASIBLE),
        groups=groups,
        actions=actions,
        explanations=explanations,
    )


def _before(snapshot: Snapshot, job: Job) -> Situation | None:
    if job.state is not JobState.RUNNING:
        return None
    where = dict(job.allocation or {})
    types = {node.id: node.gpu_type for node in snapshot.cluster.nodes}
    held = next((g.id for g in snapshot.groups if job.id in g.jobs), None)
    return Situation(
        group=held,
        gpu_type=types[next(iter(where))],
        gpus=sum(len(gpus) for gpus in where.values()),
        placement=where,
    )


def _action(snapshot: Snapshot, job: Job, groups: tuple[Group, ...], profile: Placing | None) -> Action:
    before = _before(snapshot, job)
    if profile is not None:
        to = Situation(gpu_type="A100", gpus=sum(map(len, profile.values())), placement=profile)
        return Action(job=job.id, action=ActionKind.PROFILE, from_=before, to=to)
    mine = next((g for g in groups if job.id in g.jobs), None)
    if mine is None:
        kind = ActionKind.WAIT if before is None else ActionKind.PREEMPT
        return Action(job=job.id, action=kind, from_=before)
    to = Situation(group=mine.id, gpu_type=mine.gpu_type, gpus=mine.gpus, placement=mine.placement)
    if mine.mode is Mode.SEQUENCE and mine.jobs[0] != job.id:
        kind = ActionKind.WAIT if before is None else ActionKind.PREEMPT
        return Action(job=job.id, action=kind, from_=before, to=to)
    if before is None:
        kind = ActionKind.MERGE if len(mine.jobs) > 1 else ActionKind.START
        return Action(job=job.id, action=kind, to=to)
    entry = next((g for g in snapshot.groups if job.id in g.jobs), None)
    same = set(mine.jobs) == (set(entry.jobs) if entry is not None else {job.id})
    same = same and mine.mode is (entry.mode if entry is not None else Mode.SOLO)
    where = {node: set(gpus) for node, gpus in mine.placement.items()}
    stays = same and where == {node: set(gpus) for node, gpus in before.placement.items()}
    kind = ActionKind.KEEP if stays else ActionKind.MIGRATE
    if not same:
        kind = ActionKind.MERGE if len(mine.jobs) > 1 else ActionKind.SPLIT
    return Action(job=job.id, action=kind, from_=before, to=to)


def broken(snapshot: Snapshot, made: Plan) -> set[int]:
    """Return the numbers of the invariants that a plan breaks."""
    found = check(snapshot, made)
    assert all("\n" not in v.message and v.message and v.place for v in found)
    return {violation.invariant for violation in found}


def messages(snapshot: Snapshot, made: Plan) -> str:
    return " | ".join(f"{v.invariant} {v.place}: {v.message}" for v in check(snapshot, made))


def regroup(made: Plan, index: int, **changes: Any) -> Plan:
    """Change one group and nothing else."""
    groups = list(made.groups)
    groups[index] = groups[index].model_copy(update=changes)
    return made.model_copy(update={"groups": tuple(groups)})
