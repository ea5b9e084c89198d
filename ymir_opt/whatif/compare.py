"""Plans side by side: who starts, waits, is stopped or moved, finishes when, and why it changes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ymir_opt.api import solve
from ymir_opt.domain.plan import Action, ActionKind, Alternative, Explanation, Group, ObjectiveDelta, Plan
from ymir_opt.domain.snapshot import JobState, Mode, Snapshot
from ymir_opt.explain.words import count_of, names, seconds
from ymir_opt.planner import solve as own_solve
from ymir_opt.planner.pipeline import OWN_POLICIES
from ymir_opt.whatif.ahead import Outlook, look_ahead

__all__ = ["Change", "Comparison", "Difference", "Place", "Scenario", "compare", "plan_scenario"]

# who held the GPUs is told by where they come from
_HOLDERS = re.compile(r"; held by [^;]*")
# a finish is another one from this share and this many seconds on
SHARE, SECONDS = 0.05, 5.0


class Change(StrEnum):
    """What becomes of a job, the first that fits in this order."""

    ADDED = "added"
    LEFT = "left out"
    STARTS = "starts"
    KEPT = "goes on"
    PREEMPTED = "preempted"
    WAITS = "waits"
    MOVED = "elsewhere"
    SOONER = "sooner"
    LATER = "later"
    REASON = "other reason"
    SAME = "same"


@dataclass(frozen=True)
class Place:
    """Where a plan puts a job.

    Attributes
    ----------
    action : ActionKind or None
        None where the job is not in the snapshot.
    text : str
        In words.
    option : str
        The same as explanations name options, to find it among another plan's alternatives.
    runs : bool
        It holds GPUs this round.
    start_s, finish_s : float or None
        Seconds from now, from the look ahead where the plan does not say.
    reason, message : str
        Of the explanation.
    """

    action: ActionKind | None = None
    text: str = "-"
    option: str = ""
    runs: bool = False
    start_s: float | None = None
    finish_s: float | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Scenario:
    """One snapshot and its plan.

    Attributes
    ----------
    name : str
    policy : str
    snapshot : Snapshot
    plan : Plan
    outlook : dict of str to Outlook
    rounds : int
        Rounds that were looked ahead.
    """

    name: str
    policy: str
    snapshot: Snapshot
    plan: Plan
    outlook: Mapping[str, Outlook] = field(default_factory=dict)
    rounds: int = 0


@dataclass(frozen=True)
class Difference:
    """What changes for one job from the first scenario to another."""

    job: str
    change: Change
    before: Place
    after: Place
    why: str
    loss: ObjectiveDelta | None = None


@dataclass(frozen=True)
class Comparison:
    """Scenarios, and for each after the first what differs from it.

    ``comparable[i]`` says that scenario i's objective means the same as the first one's: the jobs, queues,
    figures and GPU types are the same.
    """

    scenarios: tuple[Scenario, ...]
    differences: tuple[tuple[Difference, ...], ...]
    comparable: tuple[bool, ...]


def plan_scenario(name: str, policy: str, snapshot: Snapshot, *, rounds: int = 0, **options: Any) -> Scenario:
    """Plan a snapshot under a policy, and look some rounds ahead.

    Parameters
    ----------
    name, policy : str
    snapshot : Snapshot
    rounds : int
        Rounds to look ahead at most.
    **options
        Of `ymir_opt.planner.solve`: backend, estimates, measured_only, seed, ...; a baseline takes none.

    Raises
    ------
    InputError
        The policy or an option is unknown.
    """

    def ahead(later: Snapshot, previous: Plan) -> Plan:
        if policy in OWN_POLICIES:
            return own_solve(later, policy=policy, previous=previous, alternatives=False, **options)
        return solve(later, policy=policy, previous=previous)

    plan = solve(snapshot, policy=policy, **options)
    return Scenario(name, policy, snapshot, plan, look_ahead(snapshot, plan, ahead, rounds), rounds)


def compare(scenarios: Sequence[Scenario]) -> Comparison:
    """Compare the plans of scenarios with the first one's."""
    base = scenarios[0]
    return Comparison(
        tuple(scenarios),
        tuple(_differences(base, other) for other in scenarios[1:]),
        tuple(_comparable(base.snapshot, other.snapshot) for other in scenarios),
    )


def _comparable(one: Snapshot, two: Snapshot) -> bool:
    types = ({node.gpu_type for node in s.cluster.nodes} for s in (one, two))
    same = next(types) == next(types)
    return same and (one.jobs, one.queues, one.profiles) == (two.jobs, two.queues, two.profiles)


def _differences(base: Scenario, other: Scenario) -> tuple[Difference, ...]:
    before, after = _places(base), _places(other)
    ran = {job.id for job in base.snapshot.jobs if job.state is JobState.RUNNING}
    had = _Holders(base, other)
    out = []
    for name in dict.fromkeys([*before, *after]):
        one, two = before.get(name, Place()), after.get(name, Place())
        change = _change(one, two, name in ran)
        if change is not Change.SAME:
            why, loss = _why(change, name, one, two, base.plan, other.plan)
            if two.runs and change in (Change.STARTS, Change.MOVED, Change.ADDED):
                why = "; ".join(part for part in (had.of(name), why) if part)
            out.append(Difference(name, change, one, two, why, loss))
    order = list(Change)
    return tuple(sorted(out, key=lambda d: order.index(d.change)))


class _Holders:
    """Tells whose GPUs in the first plan a job gets in the second."""

    def __init__(self, base: Scenario, other: Scenario) -> None:
        self.nodes = {node.id for node in base.snapshot.cluster.nodes}
        self.before = {gpu: jobs for gpus, jobs in _held(base.plan) for gpu in gpus}
        self.after = {name: gpus for gpus, jobs in _held(other.plan) for name in jobs}

    def of(self, name: str) -> str:
        """Return in words where a job's GPUs come from, nothing where it had them itself."""
        gpus = self.after.get(name, ())
        new = list(dict.fromkeys(node for node, _ in gpus if node not in self.nodes))
        owners = dict.fromkeys(
            owner for gpu in gpus for owner in self.before.get(gpu, ()) if name not in self.before[gpu]
        )
        idle = sum(gpu not in self.before and gpu[0] in self.nodes for gpu in gpus)
        parts = []
        if new:
            parts.append(f"on {', '.join(new)}, which {'is' if len(new) == 1 else 'are'} new")
        if owners:
            parts.append(f"on GPUs that {names(owners, 4, 'job')} had")
        if idle and not new:
            parts.append(f"on {count_of(idle, 'idle GPU')}")
        return ", ".join(parts)


def _held(plan: Plan) -> list[tuple[list[tuple[str, int]], tuple[str, ...]]]:
    """Return (GPUs, jobs) of every group and profile action."""
    found = [
        ([(node, gpu) for node, gpus in group.placement.items() for gpu in gpus], group.jobs)
        for group in plan.groups
    ]
    for action in plan.actions:
        if action.action is ActionKind.PROFILE and action.to is not None:
            gpus = [(node, gpu) for node, rows in action.to.placement.items() for gpu in rows]
            found.append((gpus, (action.job,)))
    return found


def _places(scenario: Scenario) -> dict[str, Place]:
    plan, now = scenario.plan, scenario.snapshot.taken_at_s
    group_of = {name: group for group in plan.groups for name in group.jobs}
    out = {}
    for action in plan.actions:
        name = action.job
        group = group_of.get(name)
        told = plan.explanations.get(name)
        outlook = scenario.outlook.get(name, Outlook())
        finish = outlook.finish_s
        if group is not None and name in group.predicted:
            at = group.predicted[name].finish_at_s
            finish = finish if at is None else at - now
        waits = group is None or (group.mode is Mode.SEQUENCE and group.jobs[0] != name)
        out[name] = Place(
            action=action.action,
            text=_text(action, group, name),
            option=_option(action, group, name),
            runs=not waits or action.action is ActionKind.PROFILE,
            start_s=outlook.start_s,
            finish_s=finish,
            reason="" if told is None else told.reason.value,
            message="" if told is None else told.message,
        )
    return out


def _text(action: Action, group: Group | None, name: str) -> str:
    if group is None:
        if action.to is not None:
            return f"measured on {action.to.gpus} x {action.to.gpu_type}"
        return "stopped" if action.action is ActionKind.PREEMPT else "waits"
    others = ", ".join(other for other in group.jobs if other != name)
    where = f"{group.gpus} x {group.gpu_type}"
    if group.mode is Mode.SEQUENCE:
        position = group.jobs.index(name)
        return f"{where}, then {others}" if position == 0 else f"after {group.jobs[position - 1]}, {where}"
    text = f"{where} {group.mode.value} with {others}" if others else where
    source = group.starts_from.get(name)
    return f"{text} from {source.adapter}" if source is not None and source.adapter else text


def _option(action: Action, group: Group | None, name: str) -> str:
    if action.action is ActionKind.KEEP:
        return "to go on as it runs"
    if group is None:
        return "to stop for now" if action.from_ is not None else "to wait"
    if group.mode is Mode.SOLO:
        return f"{group.gpus} x {group.gpu_type} alone"
    position = group.jobs.index(name)
    if group.mode is Mode.SEQUENCE:
        near = group.jobs[position - 1] if position else group.jobs[1]
        return f"sequence {'after' if position else 'before'} {near}"
    other = next(other for other in group.jobs if other != name)
    return f"{group.mode.value} with {other}"


def _change(one: Place, two: Place, ran: bool) -> Change:
    if one.action is None:
        return Change.ADDED
    if two.action is None:
        return Change.LEFT
    if not one.runs and two.runs:
        return Change.KEPT if two.action is ActionKind.KEEP else Change.STARTS
    if one.runs and not two.runs:
        return Change.PREEMPTED if ran else Change.WAITS
    if one.text != two.text:
        return Change.MOVED
    if (one.start_s is None) != (two.start_s is None):
        return Change.SOONER if one.start_s is None else Change.LATER
    # of jobs that wait the start tells more: their finishes are outlooks
    times = (one.finish_s, two.finish_s) if one.runs else (one.start_s, two.start_s)
    if times[0] is not None and times[1] is not None and seconds(times[0]) != seconds(times[1]):
        if times[1] < times[0] * (1 - SHARE) - SECONDS:
            return Change.SOONER
        if times[1] > times[0] * (1 + SHARE) + SECONDS:
            return Change.LATER
    if not two.runs and one.reason != two.reason:
        return Change.REASON
    return Change.SAME


def _why(
    change: Change, name: str, one: Place, two: Place, before: Plan, after: Plan
) -> tuple[str, ObjectiveDelta | None]:
    """Say why a job's place changes.

    What the first plan says against the new place, or what the second says against the old one; else the
    second plan's reason.
    """
    if change in (Change.ADDED, Change.LEFT):
        return two.message or "it is not in the snapshot", None
    if change in (Change.STARTS, Change.KEPT):
        found = _alternative(before.explanations.get(name), two.option)
        if found is not None:
            return f"before: {found.why_not}", found.objective_delta
        return f"before: {_HOLDERS.sub('', one.message)}", None
    if change in (Change.PREEMPTED, Change.WAITS, Change.REASON):
        found = _alternative(after.explanations.get(name), one.option)
        return two.message, None if found is None else found.objective_delta
    if change is Change.MOVED and not two.runs:
        return two.message, None
    if change is Change.MOVED:
        found = _alternative(after.explanations.get(name), one.option)
        if found is not None:
            return f"now its former place: {found.why_not}", found.objective_delta
        found = _alternative(before.explanations.get(name), two.option)
        if found is not None:
            return f"before: {found.why_not}", found.objective_delta
        return "", None
    return two.message, None


def _alternative(told: Explanation | None, option: str) -> Alternative | None:
    if told is None:
        return None
    return next((found for found in told.alternatives if found.option == option), None)
