"""One action a job, by precedence preempt > split > merge > migrate > resize > start > keep > wait."""

from __future__ import annotations

from ymir_opt.domain.plan import Action, ActionKind, Group, Situation
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.instance import Instance, Running

__all__ = ["action_of", "situation_before"]


def _running(instance: Instance, j: int) -> Running | None:
    """Return the running group whose GPUs a job holds."""
    r = int(instance.running_of[j])
    if r < 0 or j not in instance.running[r].holders:
        return None
    return instance.running[r]


def situation_before(instance: Instance, j: int) -> Situation | None:
    """Return where a job runs now, or None."""
    group = _running(instance, j)
    if group is None:
        return None
    return Situation(
        group=group.id,
        gpu_type=instance.types[group.type],
        gpus=len(group.gpus),
        placement=dict(instance.jobs[j].allocation or {}),
    )


def action_of(
    instance: Instance, j: int, before: Situation | None, group: Group | None, *, kept: bool, ahead: float
) -> Action:
    """Return a job's action.

    Parameters
    ----------
    instance : Instance
    j : int
    before : Situation or None
        Where it runs now.
    group : Group or None
        Its group in the plan.
    kept : bool
        The group goes on exactly as it runs.
    ahead : float
        Seconds before a start at which its data loader is prepared.
    """
    name = instance.jobs[j].id
    waits = group is not None and group.mode is Mode.SEQUENCE and group.jobs[0] != name
    to = None
    if group is not None:
        to = Situation(
            group=group.id, gpu_type=group.gpu_type, gpus=group.gpus, placement=dict(group.placement)
        )
    if before is not None and (group is None or waits):
        return Action(job=name, action=ActionKind.PREEMPT, from_=before, to=to)
    if group is None or waits:
        return Action(job=name, action=ActionKind.WAIT, to=to)
    if before is None:
        joined = ActionKind.MERGE if len(group.jobs) > 1 else ActionKind.START
        return Action(job=name, action=joined, to=to, prepare_ahead_s=ahead)
    if kept:
        return Action(job=name, action=ActionKind.KEEP, from_=before, to=to)
    return Action(
        job=name,
        action=_change(instance, j, before, group),
        from_=before,
        to=to,
        prepare_ahead_s=ahead,
    )


def _change(instance: Instance, j: int, before: Situation, group: Group) -> ActionKind:
    """Say how a running job's situation changes."""
    old = _running(instance, j)
    partners = {instance.jobs[i].id for i in old.members if i != j} if old is not None else set()
    now = set(group.jobs) - {instance.jobs[j].id}
    if partners - now:
        return ActionKind.SPLIT
    if now - partners:
        return ActionKind.MERGE
    if before.gpus != group.gpus and before.gpu_type == group.gpu_type:
        return ActionKind.RESIZE
    return ActionKind.MIGRATE
