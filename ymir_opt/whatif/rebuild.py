"""What a plan was chosen from, rebuilt from the plan and its snapshot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.base import short
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.outcome import require_same_snapshot
from ymir_opt.domain.plan import Group, Plan
from ymir_opt.domain.snapshot import Mode, Snapshot
from ymir_opt.estimates import Estimates
from ymir_opt.estimates.protocols import Predictor
from ymir_opt.formulation.columns import MODES, ColumnTable, concatenate
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.parameters import Parameters
from ymir_opt.formulation.quota import QuotaTable
from ymir_opt.planner.pipeline import OWN_POLICIES, make_pool
from ymir_opt.planner.profiling import Reservation, reserve
from ymir_opt.planner.search import Round
from ymir_opt.planner.selection import Selection, settle
from ymir_opt.verify import check

__all__ = ["Rebuilt", "rebuild"]

IntArray = NDArray[np.int64]
SAME = 1e-9


@dataclass(frozen=True)
class Rebuilt:
    """A plan's round.

    Attributes
    ----------
    plan : Plan
    work : Round
        The pool, and the plan's own groups.
    selection : Selection
        The plan.
    reservation : Reservation
        Its profile actions.
    bound : int or None
        Its proven bound, in quanta.
    merge : bool
        Its policy makes groups.
    """

    plan: Plan
    work: Round
    selection: Selection
    reservation: Reservation
    bound: int | None
    merge: bool


def rebuild(snapshot: Snapshot, plan: Plan, predictor: Predictor | None = None) -> Rebuilt:
    """Return what one of our planner's plans was chosen from.

    Parameters
    ----------
    snapshot : Snapshot
        The one that the plan was made for.
    plan : Plan
    predictor : Predictor, optional
        The fitted models with which it was made.

    Raises
    ------
    InputError
        The plan is for another snapshot, breaks an invariant, has no objective (a baseline's), or costs
        something else here: it was made with other estimates or by another version.
    """
    require_same_snapshot(snapshot, plan)
    if plan.planner.policy not in OWN_POLICIES:
        raise InputError(
            "planner.policy",
            f"{short(plan.planner.policy)} has no objective that could be solved again",
            f"solve with --policy {' or '.join(OWN_POLICIES)}",
        )
    _require_sound(snapshot, plan, predictor)
    merge = OWN_POLICIES[plan.planner.policy]
    stated = plan.planner.estimates
    estimates = Estimates(snapshot, predictor, measured_only=stated is not None and stated.name == "measured")
    evaluator = Evaluator(Instance.of(snapshot), estimates, _parameters(plan))
    quotas = QuotaTable(evaluator.instance)
    reservation = reserve(evaluator, quotas, plan, only_earlier=True)
    _, work = make_pool(evaluator, quotas, reservation, None, merge=merge, backend="highs")
    table = _with_groups(work, plan.groups)
    work = Round(evaluator, table, quotas, reservation.available, reservation.charged)
    columns = [_find(work, group) for group in plan.groups]
    gpus = tuple(_rows(evaluator.instance, group) for group in plan.groups)
    selection = settle(evaluator, table, np.array(columns, dtype=np.int64), gpus)
    objective = selection.objective * table.quantum
    told = plan.solver.objective
    if told is None or abs(told - objective) > SAME * max(1.0, abs(objective)) + table.quantum:
        raise InputError(
            "solver.objective",
            f"{told} is stated, but here the plan costs {objective:.9g}",
            "give the models that it was made with (--models), or solve again",
        )
    bound = None if plan.solver.bound is None else round(plan.solver.bound / table.quantum)
    return Rebuilt(plan, work, selection, reservation, bound, merge)


def _require_sound(snapshot: Snapshot, plan: Plan, predictor: Predictor | None) -> None:
    """Refuse a plan that breaks an invariant; what it costs is compared later."""
    for fault in check(snapshot, plan, predictor=predictor):
        if fault.invariant != 7:
            raise InputError(
                fault.place, f"breaks invariant {fault.invariant}: {fault.message}", "solve again"
            )


def _parameters(plan: Plan) -> Parameters:
    stated = plan.planner.objective
    if stated is None:
        return Parameters()
    try:
        return Parameters(**dict(stated.parameters))
    except TypeError:
        raise InputError(
            "planner.objective.parameters", "names a constant that this version lacks", "solve again"
        ) from None


def _with_groups(work: Round, groups: tuple[Group, ...]) -> ColumnTable:
    """Return the pool with the columns of the plan's own new groups, whatever pruned them."""
    evaluator = work.evaluator
    expander = Expander(evaluator, Rules(evaluator), PoolLimits.of_size(evaluator.jobs.count))
    tables = [work.table]
    for group in groups:
        members = np.array([_members(evaluator.instance, group)], dtype=np.int64)
        if evaluator.jobs.startable[members].all():
            found = expander.expand(group.mode, members)
            tables.append(found.take(np.flatnonzero(work.quotas.allowed(found))))
    return concatenate(tables)


def _members(instance: Instance, group: Group) -> list[int]:
    rows = [instance.job_row[name] for name in group.jobs]
    return rows if group.mode is Mode.SEQUENCE else sorted(rows)


def _find(work: Round, group: Group) -> int:
    """Return the column that is a group of the plan."""
    instance, table = work.evaluator.instance, work.table
    members = _members(instance, group)
    wide = np.full(table.jobs.shape[1], -1, dtype=np.int64)
    kept = _kept(work, group)
    if kept is not None:
        return kept
    wide[: len(members)] = members
    adapters = {adapter.id: i for i, adapter in enumerate(instance.snapshot.adapters)}
    start = np.full(table.start.shape[1], -1, dtype=np.int64)
    for k, j in enumerate(members):
        source = group.starts_from.get(instance.jobs[j].id)
        if source is not None and source.adapter is not None:
            start[k] = adapters.get(source.adapter, -1)
    same = (table.keep < 0) & (table.jobs == wide).all(axis=1) & (table.start == start).all(axis=1)
    same &= (table.mode == MODES.index(group.mode)) & (table.gpus == group.gpus)
    same &= table.type == (instance.types.index(group.gpu_type) if group.gpu_type in instance.types else -1)
    rows = np.flatnonzero(same)
    if not len(rows):
        raise InputError(
            f"group {short(group.id)}",
            "is no candidate here",
            "give the models that the plan was made with (--models), or solve again",
        )
    return int(rows[0])


def _kept(work: Round, group: Group) -> int | None:
    """Return the keep column of a group that goes on as it runs."""
    instance, table = work.evaluator.instance, work.table
    held = _rows(instance, group)
    for c in np.flatnonzero(table.keep >= 0).tolist():
        running = instance.running[table.keep[c]]
        names = tuple(instance.jobs[j].id for j in running.members)
        before = dict(running.source.starts_from) if running.source is not None else {}
        same = running.mode is group.mode and len(running.gpus) == len(held)
        # the same jobs on the same GPUs from an adapter are a new start
        same = same and dict(group.starts_from) in ({}, before)
        if group.mode is Mode.SEQUENCE:
            same = same and names == group.jobs
        if same and set(names) == set(group.jobs) and (running.gpus == held).all():
            return int(c)
    return None


def _rows(instance: Instance, group: Group) -> IntArray:
    found = [
        int(instance.node_first_gpu[instance.node_row[node]]) + gpu
        for node, gpus in group.placement.items()
        for gpu in gpus
    ]
    return np.array(sorted(found), dtype=np.int64)
