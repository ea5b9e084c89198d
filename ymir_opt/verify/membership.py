"""Invariant 1: a job is in at most one group, and every unplaced job has a reason.

The actions state the same as the groups: one a job, none that contradicts where the job is.
"""

from __future__ import annotations

from collections.abc import Iterator

from ymir_opt.domain.base import short
from ymir_opt.domain.plan import Action, ActionKind, Reason, Situation
from ymir_opt.domain.snapshot import Mode
from ymir_opt.verify.facts import Facts, Held, Placed, gpu_list
from ymir_opt.verify.violation import Violation

__all__ = ["membership"]

_STARTS = (ActionKind.START, ActionKind.MERGE)


def membership(facts: Facts) -> Iterator[Violation]:
    """Yield every job that is unknown, in two groups, or unplaced without a reason."""
    seen: dict[str, int] = {}
    ids: dict[str, int] = {}
    for placed in facts.placed:
        group = placed.group
        if group.id in ids:
            yield Violation(1, f"{placed.place}.id", f"{short(group.id)} is also groups[{ids[group.id]}]")
        ids.setdefault(group.id, placed.index)
        for name in group.jobs:
            if name not in facts.jobs:
                yield Violation(1, f"{placed.place}.jobs", f"{short(name)} is not a job of the snapshot")
            elif name in seen:
                yield Violation(1, f"{placed.place}.jobs", f"{short(name)} is also in groups[{seen[name]}]")
            seen.setdefault(name, placed.index)
        if group.mode is Mode.SOLO and len(group.jobs) > 1:
            yield Violation(1, f"{placed.place}.jobs", f"solo with {len(group.jobs)} jobs")
        elif group.mode is not Mode.SOLO and len(group.jobs) < 2:
            yield Violation(1, f"{placed.place}.jobs", f"{group.mode.value} with 1 job")
    yield from _actions(facts)
    yield from _reasons(facts)


def _reasons(facts: Facts) -> Iterator[Violation]:
    for name in facts.plan.explanations:
        if name not in facts.jobs:
            yield Violation(1, "explanations", f"{short(name)} is not a job of the snapshot")
    for name in facts.jobs:
        if name in facts.placed_by:
            continue
        found = facts.plan.explanations.get(name)
        if found is None:
            yield Violation(1, "explanations", f"job {short(name)} is not placed and has no reason")
        elif found.reason is Reason.CHOSEN and name not in facts.profiled:
            yield Violation(
                1, f"explanations.{name}.reason", f"job {short(name)} is not placed, but its reason is Chosen"
            )


def _actions(facts: Facts) -> Iterator[Violation]:
    first: dict[str, int] = {}
    for i, action in enumerate(facts.plan.actions):
        place = f"actions[{i}]"
        if action.job not in facts.jobs:
            yield Violation(1, f"{place}.job", f"{short(action.job)} is not a job of the snapshot")
            continue
        if action.job in first:
            yield Violation(1, f"{place}.job", f"{short(action.job)} also has actions[{first[action.job]}]")
            continue
        first[action.job] = i
        for message in _contradictions(facts, action):
            yield Violation(1, place, f"job {short(action.job)} {message}")
    for name in facts.jobs:
        if name not in first:
            yield Violation(1, "actions", f"job {short(name)} has no action")


def _contradictions(facts: Facts, action: Action) -> Iterator[str]:
    kind = action.action
    holds, holding = facts.holds.get(action.job), facts.holding.get(action.job)
    if holds is not None and (action.from_ is None or not _was(action.from_, holds)):
        yield f"has a {kind.value} that does not start from the GPUs it holds"
    if holds is None and action.from_ is not None:
        yield f"has a {kind.value} that starts from GPUs, but it holds none"
    if holding is None:
        if kind is ActionKind.PROFILE:
            if holds is not None:
                yield "runs and is to be profiled"
            if action.to is None or action.to.group is not None:
                yield "is to be profiled, but its action names no GPUs of its own"
            elif len(gpu_list(action.to.placement)) != action.to.gpus:
                yield (
                    f"is to be profiled on {action.to.gpus} GPUs, "
                    f"but {len(gpu_list(action.to.placement))} are named"
                )
            return
        wanted = ActionKind.WAIT if holds is None else ActionKind.PREEMPT
        if kind is not wanted:
            yield f"holds no GPUs after the plan, but its action is {kind.value} instead of {wanted.value}"
        waits_in = facts.placed_by.get(action.job)
        if action.to is not None and waits_in is None:
            yield f"holds no GPUs after the plan, but its {kind.value} leads somewhere"
        elif action.to is not None and waits_in is not None and not _agrees(action.to, waits_in):
            yield f"has a {kind.value} that leads elsewhere than to {waits_in.place}"
        return
    kept = holding.kept is not None
    if kept != (kind is ActionKind.KEEP):
        state = "stays exactly as it runs" if kept else "does not stay as it runs"
        yield f"{state}, but its action is {kind.value}"
    elif kind in (ActionKind.WAIT, ActionKind.PREEMPT, ActionKind.PROFILE):
        yield f"holds GPUs after the plan, but its action is {kind.value}"
    elif holds is None and kind not in _STARTS:
        yield f"is pending, but its action is {kind.value}"
    elif holds is not None and kind is ActionKind.START:
        yield "runs already, but its action is start"
    if action.to is None:
        yield f"has a {kind.value} that leads nowhere"
    elif not _agrees(action.to, holding):
        yield f"has a {kind.value} that leads elsewhere than to {holding.place}"


def _was(before: Situation, holds: Held) -> bool:
    return (
        before.gpu_type == holds.gpu_type
        and before.gpus == len(holds.gpus)
        and set(gpu_list(before.placement)) == holds.gpus
        and (holds.source is None or before.group == holds.source.id)
    )


def _agrees(to: Situation, placed: Placed) -> bool:
    group = placed.group
    return (
        to.group == group.id
        and to.gpu_type == group.gpu_type
        and to.gpus == group.gpus
        and set(gpu_list(to.placement)) == set(placed.gpus)
    )
