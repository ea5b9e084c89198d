"""Carrying out a decision: checks first, then releases, then starts by decreasing size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ymir_opt.domain.errors import InvalidPlanError
from ymir_opt.policies.view import Decision, GroupDecision, GroupView, SnapshotView
from ymir_opt.simulator.state import Run, Taken
from ymir_opt.simulator.world import World

__all__ = ["apply_decision", "check_decision"]

MODES = ("solo", "gpu_share", "colocate", "joint", "sequence")


def check_decision(view: SnapshotView, decision: Decision, policy: str) -> None:
    """Check the array form of a decision.

    Raises
    ------
    InvalidPlanError
        Naming the policy: wrong shapes, a job twice, a count that is not allowed, more GPUs than there
        are, a job moved that must not be, or a merge that is not allowed.
    """
    place = f"policy {policy}"
    size = len(view)
    gpus = decision.gpus
    if gpus.shape != (size,) or gpus.dtype.kind not in "iu":
        raise InvalidPlanError(place, f"gives {gpus.shape} counts for {size} jobs", "give one integer a row")
    running, wanted = view.gpus, gpus > 0
    changed = gpus != running
    largest = np.maximum(view.max_gpus, view.requested_gpus)
    bad = changed & wanted & (gpus < view.min_gpus) | (gpus < 0)
    if "max_gpus" not in decision.waived:
        bad |= changed & wanted & (gpus > largest)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InvalidPlanError(
            place,
            f"gives job {view.id(row)} {int(gpus[row])} GPUs",
            f"allowed are {int(view.min_gpus[row])} to {int(largest[row])}",
        )
    used = int(gpus.sum()) + sum(group.gpus for group in decision.groups)
    if used > view.total_gpus and "capacity" not in decision.waived:
        raise InvalidPlanError(place, f"uses {used} GPUs of {view.total_gpus}", "use no more than there are")
    moved = changed & (running > 0)
    moved |= _type_changes(view, decision)
    moved[list(decision.moved)] |= running[list(decision.moved)] > 0
    if decision.groups:
        _check_groups(view, decision, place)
        for group in decision.groups:
            moved[list(group.rows)] = running[list(group.rows)] > 0
            if _kept(view, decision, group) is not None:
                moved[list(group.rows)] = False
    if moved.any():
        fixed = moved & (view.column("movable") == 0)
        young = view.now_s - view.column("last_start_s") < view.column("min_runtime_s")
        for mask, what in ((fixed, "must not be moved"), (moved & young, "has not run its minimum time")):
            if mask.any():
                row = int(np.flatnonzero(mask)[0])
                raise InvalidPlanError(place, f"moves job {view.id(row)}, which {what}", "keep it")


def _type_changes(view: SnapshotView, decision: Decision) -> np.ndarray:
    if decision.gpu_type is None:
        return np.zeros(len(view), dtype=np.bool_)
    given = decision.gpu_type >= 0
    different = given & (decision.gpu_type != view.gpu_type)
    return np.asarray((view.gpus > 0) & (decision.gpus > 0) & different)


def _kept(view: SnapshotView, decision: Decision, group: GroupDecision) -> GroupView | None:
    """Return the running group that a wanted group keeps as it is, if there is one."""
    if group.rows[0] in decision.moved:
        return None
    for running in view.groups:
        if (
            running.mode == group.mode
            and running.rows == tuple(group.rows)
            and running.gpus == group.gpus
            and group.gpu_type in (-1, running.gpu_type)
        ):
            return running
    return None


def _check_groups(view: SnapshotView, decision: Decision, place: str) -> None:
    seen: set[int] = set()
    for group in decision.groups:
        if group.mode not in MODES or not group.rows or group.gpus < 1:
            raise InvalidPlanError(
                place, f"gives a group {group.mode!r} of {len(group.rows)} jobs", "correct it"
            )
        if group.mode == "solo" and len(group.rows) > 1:
            raise InvalidPlanError(place, f"gives a solo group of {len(group.rows)} jobs", "name the mode")
        for row in group.rows:
            if not 0 <= row < len(view) or row in seen or decision.gpus[row]:
                raise InvalidPlanError(place, f"puts row {row} into two groups", "use a job once")
            seen.add(row)
        if len(group.rows) == 1 or _kept(view, decision, group) is not None:
            continue
        rows = list(group.rows)
        if group.mode in ("joint", "sequence", "colocate"):
            kinds = view.kind[rows]
            models = {view.transfer.models[k] for k in kinds if k >= 0}
            if len(models) != 1 or (kinds < 0).any():
                raise InvalidPlanError(
                    place, f"merges jobs of different models ({group.mode})", "one model a group"
                )
        if group.mode == "joint" and (view.done[rows] > 0).any():
            together = [g for g in view.groups if g.mode == "joint" and set(rows) <= set(g.rows)]
            if not together:
                raise InvalidPlanError(place, "merges jobs with progress jointly", "merge before they start")
        least = 1 if group.mode in ("gpu_share", "colocate") else 2
        if (view.column("sharing")[rows] < least).any():
            raise InvalidPlanError(place, "merges a job that does not share", "respect the sharing level")


@dataclass
class _Start:
    """A start to be placed."""

    gpus: int
    rank: int
    row: int
    group: GroupDecision | None


def apply_decision(
    world: World, view: SnapshotView, decision: Decision, now: float, policy: str
) -> tuple[bool, list[Run]]:
    """Carry out a checked decision.

    Returns
    -------
    bool
        Whether anything changed.
    list of Run
        The groups that were started.
    """
    slots, target, current = view.slots, decision.gpus, view.gpus
    changed = (target != current) | _type_changes(view, decision)
    changed[list(decision.moved)] = True
    grouped, starting = _groups(world, view, decision)
    told = decision.why if world.recorder.want_segments else None
    freed: list[int] = []
    for run in _to_stop(world, view, decision, changed, grouped, starting):
        why = "" if told is None else _lines(told, np.flatnonzero(np.isin(slots, run.holders)).tolist())
        freed += world.stop(run, now, "preempted", why=why)
    rows = np.flatnonzero(target > 0)
    rows = rows[world.store.columns.data["gpus"][slots[rows]] == 0]
    begun: list[Run] = []
    for start in _ordered(view, decision, rows, starting):
        where = _place(world, view, start, decision, policy)
        if where is None:
            world.stats["unplaced"] += 1
            if decision.stop_at_first:
                break
            continue
        members = (start.row,) if start.group is None else start.group.rows
        why = "" if told is None else _lines(told, members)
        begun.append(_begin(world, view, start, where, now, why))
    world.count_preempted(freed)
    return bool(freed or begun), begun


def _lines(told: Callable[[int], str], rows: Sequence[int]) -> str:
    """Return the policy's own reasons, a line a row."""
    return "\n".join(filter(None, map(told, rows)))


def _groups(world: World, view: SnapshotView, decision: Decision) -> tuple[set[int], list[GroupDecision]]:
    """Return the ids of shared runs that go on, and the groups to start."""
    going_on: set[int] = set()
    starting = []
    for group in decision.groups:
        kept = _kept(view, decision, group)
        if kept is not None:
            going_on.add(kept.id)
        else:
            starting.append(group)
    for running in view.groups:
        if running.id not in going_on and _continues_alone(running, decision):
            world.drop_waiting(world.runs[running.id])
            going_on.add(running.id)
    return going_on, starting


def _continues_alone(running: GroupView, decision: Decision) -> bool:
    """Say whether the head of a sequence goes on alone on the same GPUs."""
    head = running.rows[0]
    if running.mode != "sequence" or head in decision.moved:
        return False
    if decision.gpu_type is not None and decision.gpu_type[head] not in (-1, running.gpu_type):
        return False
    return bool(decision.gpus[head] == running.gpus)


def _to_stop(
    world: World,
    view: SnapshotView,
    decision: Decision,
    changed: np.ndarray,
    going_on: set[int],
    starting: list[GroupDecision],
) -> list[Run]:
    found: dict[int, Run] = {}
    for running in view.groups:
        if running.id not in going_on:
            found[running.id] = world.runs[running.id]
    rows = np.flatnonzero(changed & (view.gpus > 0)).tolist()
    rows += [row for group in starting for row in group.rows if view.gpus[row]]
    for row in rows:
        number = world.run_of.get(int(view.slots[row]))
        if number is not None and number not in going_on:
            found[number] = world.runs[number]
    return list(found.values())


def _ordered(
    view: SnapshotView, decision: Decision, rows: np.ndarray, groups: list[GroupDecision]
) -> list[_Start]:
    """Return the starts in order of placement: large ones first unless the policy wants its own order."""
    starts: list[_Start] = []
    if len(rows):
        rows = rows[view.column("not_before_s")[rows] <= view.now_s]
        rank = np.full(len(view), len(view), dtype=np.int64)
        if decision.order is not None:
            rank[decision.order] = np.arange(len(decision.order))
        ordered = rows[np.lexsort((rows, rank[rows]))]
        starts = [_Start(int(decision.gpus[row]), i, row, None) for i, row in enumerate(ordered.tolist())]
    starts += [_Start(group.gpus, len(starts) + i, group.rows[0], group) for i, group in enumerate(groups)]
    if decision.large_first:
        starts.sort(key=lambda start: (-start.gpus, start.rank))
    return starts


def _begin(
    world: World, view: SnapshotView, start: _Start, where: tuple[int, Taken], now: float, why: str
) -> Run:
    group = start.group
    if group is None:
        return world.start("solo", [int(view.slots[start.row])], where[0], where[1], now, why=why)
    members = [int(view.slots[row]) for row in group.rows]
    sources = {int(view.slots[row]): kind for row, kind in group.starts_from.items()}
    if group.mode == "sequence":
        for before, after in pairwise(members):
            sources.setdefault(after, world.store.job(before).kind)
    limits = {int(view.slots[row]): most for row, most in group.probe_limits.items()}
    probe = group.probe_evaluations
    return world.start(group.mode, members, where[0], where[1], now, probe, sources, limits, why)


def _place(
    world: World, view: SnapshotView, start: _Start, decision: Decision, policy: str
) -> tuple[int, Taken] | None:
    """Return (GPU type, GPUs) for a start, or None where there is no room.

    Raises
    ------
    InvalidPlanError
        The policy placed it itself, on GPUs that are not free or not as many as it wants.
    """
    cluster, group = world.cluster, start.group
    given = group.nodes if group is not None else decision.nodes.get(start.row)
    if given is not None:
        count = sum(mask.bit_count() for _, mask in given)
        if count != start.gpus or not cluster.can_take(given):
            raise InvalidPlanError(
                f"policy {policy}",
                f"places job {view.id(start.row)} on {count} GPUs for {start.gpus}, or on some not free",
                "place jobs on free GPUs",
            )
        return int(cluster.type[given[0][0]]), given
    kind = -1 if decision.gpu_type is None else int(decision.gpu_type[start.row])
    if group is not None:
        kind = group.gpu_type
    mask = int(view.column("type_mask")[start.row])
    model = world.model_index(world.store.job(int(view.slots[start.row])).model)
    for t in range(len(cluster.types)) if kind < 0 else (kind,):
        if mask >> t & 1:
            found = cluster.find(start.gpus, t)
            if found is not None:
                return t, cluster.pick(found, model)
    return None
