"""One reason and one message a job, in words that do not change between identical rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ymir_opt.domain.plan import Action, ActionKind, Decision, Explanation, Group, Reason
from ymir_opt.domain.snapshot import Mode
from ymir_opt.explain.waiting import WaitingReasons

if TYPE_CHECKING:
    from ymir_opt.planner.profiling import Reservation
    from ymir_opt.planner.search import Round
    from ymir_opt.planner.selection import Selection

__all__ = ["explain_all"]


def explain_all(
    work: Round,
    selection: Selection,
    reservation: Reservation,
    groups: list[Group],
    actions: list[Action],
) -> dict[str, Explanation]:
    """Return the explanation of every job."""
    waiting = WaitingReasons(work, selection, reservation)
    group_of = {name: group for group in groups for name in group.jobs}
    out = {}
    for j, action in enumerate(actions):
        reason, message = _why(work, waiting, j, action, group_of.get(action.job))
        out[action.job] = Explanation(decision=Decision(action.action.value), reason=reason, message=message)
    return out


def _why(
    work: Round, waiting: WaitingReasons, j: int, action: Action, group: Group | None
) -> tuple[Reason, str]:
    instance = work.evaluator.instance
    if action.action is ActionKind.PROFILE:
        assert action.to is not None
        return (
            Reason.UNKNOWN_THROUGHPUT,
            f"no throughput is known; it is measured on {action.to.gpus} {action.to.gpu_type}",
        )
    if group is None:
        if action.action is ActionKind.PREEMPT:
            return waiting.preempted(j)
        return waiting.why(j)
    position = group.jobs.index(action.job)
    if group.mode is Mode.SEQUENCE and position > 0:
        return Reason.CHOSEN, f"after {group.jobs[position - 1]}, starting from its weights"
    finish = group.predicted[action.job].finish_at_s
    text = _placed(action, group)
    if finish is not None:
        text += f"; finishes in {finish - instance.snapshot.taken_at_s:.6g} s"
    deadline = instance.jobs[j].deadline_s
    if deadline is not None and finish is not None and finish > deadline:
        return (
            Reason.DEADLINE_UNREACHABLE,
            f"{text}, {finish - deadline:.6g} s after its deadline, the best the plan found",
        )
    if action.action is ActionKind.KEEP and work.evaluator.jobs.protected[j]:
        why = "it may not be moved" if not instance.jobs[j].movable else "its minimum run time is not over"
        return Reason.MIN_RUNTIME_PROTECTED, f"{text}; {why}"
    if action.action is ActionKind.KEEP and not np.isfinite(finish if finish is not None else np.nan):
        return Reason.UNKNOWN_THROUGHPUT, f"{text}; its speed is not known, so it is not disturbed"
    return Reason.CHOSEN, text


def _placed(action: Action, group: Group) -> str:
    verb = {
        ActionKind.KEEP: "keeps",
        ActionKind.RESIZE: "changes to",
        ActionKind.MIGRATE: "moves to",
        ActionKind.SPLIT: "leaves its group for",
        ActionKind.MERGE: "starts on",
        ActionKind.START: "starts on",
    }.get(action.action, "runs on")
    text = f"{verb} {group.gpus} {group.gpu_type}"
    if len(group.jobs) > 1:
        others = ", ".join(name for name in group.jobs if name != action.job)
        text += f" in {group.mode.value} with {others}"
    start = group.starts_from.get(action.job)
    if start is not None:
        text += f", starting from {start.adapter or start.job}"
    return text
