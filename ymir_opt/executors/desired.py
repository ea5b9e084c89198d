"""From a plan to what each device should do: groups, and one assignment a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ymir_opt.domain.base import short
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.outcome import outcome
from ymir_opt.domain.plan import ActionKind, Group, Plan
from ymir_opt.domain.request import SubmittedJob
from ymir_opt.domain.snapshot import Job, Mode, Snapshot
from ymir_opt.executors.records import GroupRecord, JobPhase, JobRecord

__all__ = ["ProfileWish", "Want", "carried_over", "differences", "groups_of", "wants_of"]


@dataclass(frozen=True)
class ProfileWish:
    """A job whose speed should be measured on a device."""

    job: str
    node: str
    gpu: int


@dataclass(frozen=True)
class Want:
    """What one worker should do.

    Attributes
    ----------
    node, gpu, lane
        Where.
    model, label
        The foundation model's request block and id.
    group : dict or None
        As the assignment has it.
    profile, prepare : tuple of str
        Keys.
    """

    node: str
    gpu: int
    lane: int
    model: Mapping[str, Any]
    label: str
    group: Mapping[str, Any] | None
    profile: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()

    @property
    def slot(self) -> tuple[str, int, int]:
        """Node, GPU and lane."""
        return (self.node, self.gpu, self.lane)

    @property
    def jobs(self) -> tuple[str, ...]:
        """Keys of the jobs that it trains or measures."""
        return (*(self.group["jobs"] if self.group else ()), *self.profile)


def _device(place: str, placement: Mapping[str, Sequence[int]]) -> tuple[str, int]:
    found = [(node, gpu) for node, gpus in placement.items() for gpu in gpus]
    if len(found) != 1:
        raise InputError(
            place, f"{len(found)} GPUs, but a job is trained on one device", "plan with max_gpus 1"
        )
    return found[0]


def groups_of(
    plan: Plan, snapshot: Snapshot, keys: Mapping[str, str], now: float
) -> tuple[list[GroupRecord], list[ProfileWish]]:
    """Return the groups and profile actions of a plan.

    Parameters
    ----------
    plan : Plan
    snapshot : Snapshot
        The one that it was made for.
    keys : mapping
        Key of each known job by its id.
    now : float

    Raises
    ------
    InputError
        A job was not submitted, or a group wants more than one device.
    InvalidPlanError
        The plan contradicts the snapshot.
    """
    after = {job.id: job for job in outcome(snapshot, plan).jobs}
    for i, group in enumerate(plan.groups):
        for name in group.jobs:
            if name not in keys:
                raise InputError(
                    f"groups[{i}].jobs",
                    f"{short(name)} was not submitted",
                    "`ymir-plan jobs submit` it first",
                )
    groups = [
        _group(group, f"groups[{i}].placement", keys, after, now) for i, group in enumerate(plan.groups)
    ]
    wishes = [
        ProfileWish(keys[action.job], *_device(f"actions of {short(action.job)}", action.to.placement))
        for action in plan.actions
        if action.action is ActionKind.PROFILE and action.to is not None and action.job in keys
    ]
    return groups, wishes


def _group(
    group: Group, place: str, keys: Mapping[str, str], after: Mapping[str, Job], now: float
) -> GroupRecord:
    node, gpu = _device(place, group.placement)
    predicted = {}
    for number, name in enumerate(group.jobs):
        job, found = after[name], group.predicted.get(name)
        work, ratio = job.remaining_samples, None if found is None else found.work_ratio
        if group.mode is Mode.SEQUENCE and number and work is not None and ratio is not None:
            # it waits as it is; the ratio applies when it starts from its predecessor
            work = ratio * (job.done_samples + work)
        limits = (None, None) if found is None else (found.low, found.high)
        predicted[keys[name]] = {
            "work": work,
            "low": job.remaining_samples_low if limits[0] is None else limits[0],
            "high": job.remaining_samples_high if limits[1] is None else limits[1],
            "work_ratio": ratio,
            "samples_per_s": None if found is None else found.samples_per_s,
            "source": None if found is None else found.source.value,
        }
    starts: dict[str, list[str]] = {}
    for name, start in group.starts_from.items():
        source = start.adapter if start.adapter is not None else start.job
        if source is not None and source in keys:
            starts[keys[name]] = ["adapter" if start.adapter is not None else "job", keys[source]]
    evaluations = group.probe.evaluations if group.probe is not None else 0
    return GroupRecord(
        id=group.id,
        mode=group.mode.value,
        jobs=[keys[name] for name in group.jobs],
        node=node,
        gpu=gpu,
        started_at_s=now,
        starts_from=starts,
        sources={key: list(value) for key, value in starts.items()},
        evaluations=evaluations,
        probe="running" if evaluations else "none",
        probe_cost_s=group.probe.cost_s if group.probe is not None else 0.0,
        predicted=predicted,
    )


def carried_over(
    new: Sequence[GroupRecord], old: Mapping[str, GroupRecord], over: Callable[[str], bool]
) -> list[GroupRecord]:
    """Return the new groups, with the old record where a group goes on as it is.

    Parameters
    ----------
    new : sequence of GroupRecord
    old : mapping of str to GroupRecord
    over : callable
        Whether a job, by its key, has ended: the rest of its group goes on.
    """
    result = []
    for group in new:
        before = old.get(group.id)
        if before is not None and _same(before, group, over):
            result.append(before)
        else:
            result.append(group)
    return result


def _same(before: GroupRecord, after: GroupRecord, over: Callable[[str], bool]) -> bool:
    left = [key for key in before.jobs if not over(key)]
    if (before.node, before.gpu) != (after.node, after.gpu):
        return False
    if before.mode == Mode.SEQUENCE == after.mode:
        return left == list(after.jobs)
    # the last member of a shared group is a solo group to the planner
    return sorted(left) == sorted(after.jobs) and (before.mode == after.mode or len(left) == 1)


def wants_of(
    groups: Sequence[GroupRecord],
    wishes: Sequence[ProfileWish],
    jobs: Mapping[str, JobRecord],
    request: Callable[[str], SubmittedJob],
    checkpoint: Callable[[str], str],
) -> list[Want]:
    """Return what each worker should do, in the order of the groups.

    Members that have ended are left out; a group without members wants nothing. Every member of a
    ``gpu_share`` group has a worker of its own, on its own lane.

    Parameters
    ----------
    groups, wishes
    jobs : mapping of str to JobRecord
    request : callable
        The request of a job by its key.
    checkpoint : callable
        Folder of the last checkpoint of a job by its key.
    """
    found: list[Want] = []
    for group in groups:
        left = [key for key in group.jobs if not jobs[key].over]
        if not left:
            continue
        if group.mode == Mode.GPU_SHARE:
            # lanes follow the plan's order, so that a member's end does not move the others
            for lane, key in enumerate(group.jobs):
                if key in left:
                    body = _body(group, [key], Mode.SOLO, checkpoint)
                    found.append(_want(group.node, group.gpu, lane, request(key), body))
            continue
        if group.mode == Mode.SEQUENCE:
            # who follows starts from the weights of who completed before
            named = [key for key in group.jobs if key in left or jobs[key].phase == JobPhase.COMPLETED]
            body = _body(group, named, Mode.SEQUENCE if len(named) > 1 else Mode.SOLO, checkpoint)
        else:
            body = _body(group, left, Mode(group.mode) if len(left) > 1 else Mode.SOLO, checkpoint)
        found.append(_want(group.node, group.gpu, 0, request(left[0]), body))
    for wish in wishes:
        if jobs[wish.job].over:
            continue
        want = replace(_want(wish.node, wish.gpu, 0, request(wish.job), None), profile=(wish.job,))
        found.append(want)
    return found


def _want(node: str, gpu: int, lane: int, request: SubmittedJob, group: Mapping[str, Any] | None) -> Want:
    model = request.model.model_dump(mode="json")
    return Want(node, gpu, lane, model, request.model.label, group)


def _body(
    group: GroupRecord, jobs: Sequence[str], mode: Mode, checkpoint: Callable[[str], str]
) -> dict[str, Any]:
    expected = {key: _expected(group.predicted.get(key, {})) for key in jobs}
    probing = group.probe == "running"
    probe = {"evaluations": group.evaluations, "expected": expected} if probing else None
    return {
        "id": group.id,
        "mode": mode.value,
        "jobs": list(jobs),
        "starts_from": {
            key: checkpoint(source[1]) for key, source in group.starts_from.items() if key in jobs
        },
        "probe": probe,
    }


def _expected(predicted: Mapping[str, Any]) -> dict[str, float]:
    """Return what a probe compares with: samples from the merge to the target, together and alone."""
    work, ratio = predicted.get("work"), predicted.get("work_ratio")
    limit = predicted.get("high") or work
    return {
        **({"samples_to_target": float(limit)} if limit else {}),
        **(
            {"samples_alone": float(work) / float(ratio), "work_ratio": float(ratio)}
            if work and ratio
            else {}
        ),
    }


def differences(wants: Sequence[Want], held: Mapping[str, tuple[str, int]]) -> tuple[str, ...]:
    """Return in words where what runs is not what is wanted.

    Parameters
    ----------
    wants : sequence of Want
    held : mapping
        Node and GPU of each job, by its key, that a worker trains now.
    """
    wanted = {key: (want.node, want.gpu) for want in wants for key in want.jobs}
    lines = []
    for key in sorted(wanted.keys() | held.keys()):
        plan, now = wanted.get(key), held.get(key)
        if plan == now:
            continue
        there = "nowhere" if now is None else f"on {now[0]}:{now[1]}"
        then = "nowhere" if plan is None else f"on {plan[0]}:{plan[1]}"
        lines.append(f"{key} runs {there}, planned {then}")
    return tuple(lines)
