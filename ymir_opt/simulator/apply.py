"""Carrying out a decision: checks first, then releases, then starts by decreasing size."""

from __future__ import annotations

import numpy as np

from ymir_opt.domain.errors import InvalidPlanError
from ymir_opt.policies.view import Decision, GroupDecision, SnapshotView
from ymir_opt.simulator.world import Run, World

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
    running = view.gpus
    changed = gpus != running
    wanted = gpus > 0
    largest = np.maximum(view.max_gpus, view.requested_gpus)
    bad = changed & wanted & (gpus < view.min_gpus)
    if "max_gpus" not in decision.waived:
        bad |= changed & wanted & (gpus > largest)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InvalidPlanError(
            place,
            f"gives job {view.id(row)} {int(gpus[row])} GPUs",
            f"allowed are {int(view.min_gpus[row])} to {int(view.max_gpus[row])}",
        )
    used = int(gpus.sum()) + sum(group.gpus for group in decision.groups)
    if used > view.total_gpus and "capacity" not in decision.waived:
        raise InvalidPlanError(place, f"uses {used} GPUs of {view.total_gpus}", "use no more than there are")
    moved = changed & (running > 0)
    if decision.gpu_type is not None:
        moved |= (running > 0) & wanted & (decision.gpu_type >= 0) & (decision.gpu_type != view.gpu_type)
    if decision.groups:
        _check_groups(view, decision, place)
        for group in decision.groups:
            moved[list(group.rows)] = False
    if moved.any():
        fixed = moved & (view.column("movable") == 0)
        young = view.now_s - view.column("last_start_s") < view.column("min_runtime_s")
        for mask, what in ((fixed, "must not be moved"), (moved & young, "has not run its minimum time")):
            if mask.any():
                row = int(np.flatnonzero(mask)[0])
                raise InvalidPlanError(place, f"moves job {view.id(row)}, which {what}", "keep it")


def _check_groups(view: SnapshotView, decision: Decision, place: str) -> None:
    seen: set[int] = set()
    for group in decision.groups:
        if group.mode not in MODES or not group.rows or group.gpus < 1:
            raise InvalidPlanError(
                place, f"gives a group {group.mode!r} of {len(group.rows)} jobs", "correct it"
            )
        for row in group.rows:
            if not 0 <= row < len(view) or row in seen or decision.gpus[row]:
                raise InvalidPlanError(place, f"puts row {row} into two groups", "use a job once")
            seen.add(row)
        running = next((g for g in view.groups if _same(g.mode, g.rows, g.gpus, group)), None)
        if running is not None:
            continue
        if group.mode == "joint" and len(group.rows) > 1:
            kinds = view.kind[list(group.rows)]
            models = {view.transfer.models[k] for k in kinds if k >= 0}
            if len(models) != 1 or (kinds < 0).any():
                raise InvalidPlanError(place, "merges jobs of different models jointly", "one model a group")
            if (view.done[list(group.rows)] > 0).any():
                raise InvalidPlanError(place, "merges jobs with progress jointly", "merge before they start")
        if len(group.rows) > 1 and (view.column("sharing")[list(group.rows)] == 0).any():
            raise InvalidPlanError(place, "merges a job that does not share", "respect the sharing level")


def _same(mode: str, rows: tuple[int, ...], gpus: int, group: GroupDecision) -> bool:
    return mode == group.mode and rows == tuple(group.rows) and gpus == group.gpus


def apply_decision(world: World, view: SnapshotView, decision: Decision, now: float, policy: str) -> bool:
    """Carry out a checked decision; return whether anything changed."""
    slots = view.slots
    current, kinds = view.gpus, view.gpu_type
    target = decision.gpus
    changed = target != current
    if decision.gpu_type is not None:
        changed |= (current > 0) & (decision.gpu_type >= 0) & (decision.gpu_type != kinds)
    grouped, starting = _groups(world, view, decision, now)
    stop_rows = np.flatnonzero(changed & (current > 0))
    acted = bool(starting)
    for row in stop_rows.tolist():
        slot = int(slots[row])
        if row in grouped or slot not in world.run_of:
            continue
        world.stop(world.runs[world.run_of[slot]], now, "preempted")
        acted = True
    rows = np.flatnonzero((target > 0) & (world.columns.data["gpus"][slots] == 0))
    wanted: list[tuple[int, int, int, GroupDecision | None]] = []
    if len(rows):
        not_before = view.column("not_before_s")[rows]
        rows = rows[not_before <= now]
        rank = np.full(len(view), len(view), dtype=np.int64)
        if decision.order is not None:
            rank[decision.order] = np.arange(len(decision.order))
        ordered = rows[np.lexsort((rows, rank[rows]))]
        wanted = [(int(target[row]), i, int(row), None) for i, row in enumerate(ordered.tolist())]
    wanted += [(g.gpus, len(wanted) + i, g.rows[0], g) for i, g in enumerate(starting)]
    if decision.large_first:
        wanted.sort(key=lambda item: (-item[0], item[1]))
    for gpus, _, row, group in wanted:
        kind = -1 if decision.gpu_type is None else int(decision.gpu_type[row])
        if group is not None:
            kind = group.gpu_type
        where = _place(world, view, row, gpus, kind, group, decision)
        if where is None:
            world.stats["unplaced"] += 1
            if decision.stop_at_first:
                break
            continue
        chosen, nodes = where
        members = [int(slots[r]) for r in (group.rows if group is not None else (row,))]
        sources = {} if group is None else {int(slots[r]): c for r, c in group.starts_from.items()}
        if group is not None and group.mode == "sequence":
            for before, after in zip(members, members[1:], strict=False):
                sources.setdefault(after, world.true_job(before).kind)
        world.start(
            "solo" if group is None else group.mode,
            members,
            gpus,
            chosen,
            nodes,
            now,
            0 if group is None else group.probe_evaluations,
            sources,
        )
        acted = True
    return acted


def _groups(
    world: World, view: SnapshotView, decision: Decision, now: float
) -> tuple[set[int], list[GroupDecision]]:
    """Stop shared groups that are not kept; return rows kept in groups, and the groups to start."""
    slots = view.slots
    kept_rows: set[int] = set()
    kept_groups: set[int] = set()
    for running in view.groups:
        run = world.runs.get(running.id)
        if run is None:
            continue
        same = next(
            (
                g
                for g in decision.groups
                if _same(running.mode, running.rows, running.gpus, g) and g.gpu_type in (-1, running.gpu_type)
            ),
            None,
        )
        if same is not None:
            kept_rows.update(running.rows)
            kept_groups.add(id(same))
        elif not _continues_alone(run, running.rows, decision, view):
            world.stop(run, now, "preempted")
        else:
            _drop_waiting(world, run)
    starting = []
    for group in decision.groups:
        if id(group) in kept_groups:
            continue
        for row in group.rows:
            slot = int(slots[row])
            if slot in world.run_of:
                world.stop(world.runs[world.run_of[slot]], now, "preempted")
        starting.append(group)
    return kept_rows, starting


def _continues_alone(run: Run, rows: tuple[int, ...], decision: Decision, view: SnapshotView) -> bool:
    """Say whether the one holder of a group goes on with the same count as a solo run."""
    if len(run.holders) != 1:
        return False
    head = rows[0]
    if decision.gpu_type is not None and decision.gpu_type[head] not in (-1, run.gpu_type):
        return False
    return bool(decision.gpus[head] == run.gpus)


def _drop_waiting(world: World, run: Run) -> None:
    for slot in run.slots[1:]:
        world.columns.data["group"][slot] = -1
        world.run_of.pop(slot, None)
    del run.slots[1:]


def _place(
    world: World,
    view: SnapshotView,
    row: int,
    gpus: int,
    kind: int,
    group: GroupDecision | None,
    decision: Decision,
) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    """Return (GPU type, (node, count) pairs) for a start, or None."""
    given = group.nodes if group is not None else decision.nodes.get(row)
    cluster = world.cluster
    if given is not None:
        if sum(count for _, count in given) != gpus:
            raise InvalidPlanError(
                "placement", f"does not give job {view.id(row)} its {gpus} GPUs", "correct it"
            )
        if any(cluster.free[node] < count or not cluster.ready[node] for node, count in given):
            return None
        return int(cluster.type[given[0][0]]), given
    mask = int(view.column("type_mask")[row])
    for t in range(len(cluster.types)) if kind < 0 else (kind,):
        if mask >> t & 1:
            found = cluster.find(gpus, t)
            if found is not None:
                return t, found
    return None
