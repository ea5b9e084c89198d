"""One reason and one message a job, in words that do not change between identical rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ymir_opt.domain.plan import Action, ActionKind, Alternative, Decision, Explanation, Group, Reason
from ymir_opt.domain.snapshot import Mode
from ymir_opt.explain.alternatives import Alternatives
from ymir_opt.explain.waiting import WaitingReasons
from ymir_opt.explain.words import seconds

if TYPE_CHECKING:
    from ymir_opt.planner.profiling import Reservation
    from ymir_opt.planner.search import Round
    from ymir_opt.planner.selection import Selection

__all__ = ["Explained", "Question", "explain_all"]


@dataclass(frozen=True)
class Question:
    """What the alternatives of a plan's jobs are compared with.

    Attributes
    ----------
    bound : int or None
        The plan's proven bound, in quanta.
    merge : bool
        The policy makes groups.
    exact_types : frozenset of int
        GPU types whose placement needed exact node-level rows.
    """

    bound: int | None
    merge: bool = True
    exact_types: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Explained:
    """The reasons of a plan: by job, and what a GPU-second of each class is worth (see `Alternatives`)."""

    jobs: dict[str, Explanation]
    prices: dict[str, float] = field(default_factory=dict)


def explain_all(
    work: Round,
    selection: Selection,
    reservation: Reservation,
    groups: list[Group],
    actions: list[Action],
    question: Question | None = None,
) -> Explained:
    """Explain every job; with a question also what else could be done with it.

    Parameters
    ----------
    work : Round
        What the plan was chosen from.
    selection, reservation
        What was chosen, and the GPUs of profile actions.
    groups, actions
        The plan's.
    question : Question, optional
        Without one there are no alternatives and no prices.
    """
    waiting = WaitingReasons(work, selection, reservation)
    asked = None
    if question is not None:
        asked = Alternatives(
            work, selection, groups, waiting, question.bound, question.merge, question.exact_types
        )
    group_of = {name: group for group in groups for name in group.jobs}
    out = {}
    for j, action in enumerate(actions):
        reason, message = _why(work, waiting, j, action, group_of.get(action.job))
        others: tuple[Alternative, ...] = ()
        if asked is not None and action.action is not ActionKind.PROFILE:
            others = tuple(offer.alternative for offer in asked.of(j))
        out[action.job] = Explanation(
            decision=Decision(action.action.value), reason=reason, message=message, alternatives=others
        )
    return Explained(out, asked.prices if asked is not None else {})


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
        text += f"; finishes in {seconds(finish - instance.snapshot.taken_at_s)}"
    deadline = instance.jobs[j].deadline_s
    if deadline is not None and finish is not None and finish > deadline:
        return (
            Reason.DEADLINE_UNREACHABLE,
            f"{text}, {seconds(finish - deadline)} after its deadline, the best the plan found",
        )
    if action.action is ActionKind.KEEP and work.evaluator.jobs.protected[j]:
        return Reason.MIN_RUNTIME_PROTECTED, f"{text}; {waiting.protected(j)}"
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
    others = [name for name in group.jobs if name != action.job]
    if others and group.mode is not Mode.SEQUENCE:
        text += f" in {group.mode.value} with {', '.join(others)}"
    start = group.starts_from.get(action.job)
    if start is not None:
        text += f", starting from {start.adapter or start.job}"
    if others and group.mode is Mode.SEQUENCE:
        text += f", then {', '.join(others)} from its weights"
    return text
