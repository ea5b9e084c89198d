"""Invariant 7: the objective is the recomputed cost, no bound exceeds it, gaps follow their formula.

The cost of the plan is the sum over its groups of their cost in whole quanta (a group that starts,
grows or moves pays one extra quantum, and so does stopping what could go on) and of the queueing cost of
every job that is in no group. A group starts warm if its foundation model is resident on all its GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ymir_opt.domain.base import short
from ymir_opt.domain.plan import GapScope, Plan, SolverStatus
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.verify.facts import Facts, Placed
from ymir_opt.verify.violation import Violation

__all__ = ["cost", "plan_quanta"]

REL = 1e-9


def cost(facts: Facts, evaluator: Evaluator) -> Iterator[Violation]:
    """Yield what is wrong with objective, bound and gaps; nothing where a policy has no objective."""
    solver = facts.plan.solver
    if solver.objective is None:
        return
    faults: list[Violation] = []
    total = plan_quanta(facts, evaluator, faults)
    yield from faults
    quantum = evaluator.quantum
    if abs(solver.objective / quantum - total) > 0.5:
        yield Violation(
            7,
            "solver.objective",
            f"{solver.objective:.12g} is stated, but the plan costs {total * quantum:.12g} "
            f"({total} quanta of {quantum:.6g})",
        )
    queueing = int(evaluator.queued_quanta.sum()) * quantum
    yield from _gaps(facts.plan, queueing)
    yield from _claims(facts.plan)


def _claims(plan: Plan) -> Iterator[Violation]:
    """Yield what contradicts itself: optimal without a bound, global without all candidates."""
    solver = plan.solver
    if solver.status is SolverStatus.OPTIMAL and solver.bound is None:
        yield Violation(7, "solver.status", "optimal is stated without a bound")
    if solver.gap_scope is GapScope.GLOBAL and not solver.candidates.exhaustive:
        yield Violation(7, "solver.gap_scope", "global is stated, but candidates were pruned by a heuristic")


def _gaps(plan: Plan, queueing: float) -> Iterator[Violation]:
    solver = plan.solver
    objective, bound = solver.objective, solver.bound
    if objective is None:
        return
    if bound is None:
        for name, stated in (("gap", solver.gap), ("value_gap", solver.value_gap)):
            if stated is not None:
                yield Violation(7, f"solver.{name}", f"{stated:.6g} is stated without a bound")
        return
    if bound > objective + REL * max(1.0, abs(objective)):
        yield Violation(7, "solver.bound", f"{bound:.12g} is above the objective {objective:.12g}")
        return
    loss = objective - bound
    gap = value_gap = 0.0
    if loss != 0:
        gap = loss / max(abs(objective), 1e-12)
        value_gap = loss / (queueing - bound) if queueing > bound else 0.0
    for name, stated, right in (("gap", solver.gap, gap), ("value_gap", solver.value_gap, value_gap)):
        if stated is None:
            yield Violation(7, f"solver.{name}", f"is null, but follows from the bound: {right:.6g}")
        elif abs(stated - right) > 1e-6 * abs(right) + REL:
            yield Violation(7, f"solver.{name}", f"{stated:.6g} is stated, but its formula gives {right:.6g}")


def plan_quanta(facts: Facts, evaluator: Evaluator, faults: list[Violation]) -> int:
    """Return the plan's cost in quanta; groups that cannot be priced or are not admitted are faults."""
    instance = evaluator.instance
    queued = evaluator.queued_quanta
    covered = np.zeros(len(instance.jobs), dtype=np.bool_)
    total = 0
    batches: dict[tuple[Mode, int], list[Placed]] = defaultdict(list)
    running_of = {group.members: row for row, group in enumerate(instance.running)}
    for placed in facts.placed:
        if not placed.members or len(placed.members) != len(placed.group.jobs):
            continue
        rows = [instance.job_row[job.id] for job in placed.members]
        covered[rows] = True
        if placed.kept is not None:
            names = tuple(instance.job_row[name] for name in placed.kept.jobs)
            kept = evaluator.keeps[running_of[names]]
            # a running group of unknown speed costs nothing: nobody can compute a gain from stopping it
            total += int(evaluator.quanta(kept.cost)[0]) if kept.known[0] else 0
        elif placed.group.gpu_type in instance.types and placed.group.gpus > 0:
            batches[placed.group.mode, len(rows)].append(placed)
    for (mode, size), groups in batches.items():
        total += _new(facts, evaluator, mode, size, groups, faults)
    return total + int(queued[~covered].sum())


def _new(
    facts: Facts,
    evaluator: Evaluator,
    mode: Mode,
    size: int,
    groups: list[Placed],
    faults: list[Violation],
) -> int:
    instance = evaluator.instance
    adapters = {adapter.id: i for i, adapter in enumerate(facts.snapshot.adapters)}
    members = np.zeros((len(groups), size), dtype=np.int64)
    start = np.full((len(groups), size), -1, dtype=np.int64)
    for i, placed in enumerate(groups):
        rows = [instance.job_row[name] for name in placed.group.jobs]
        rows = rows if mode is Mode.SEQUENCE else sorted(rows)
        members[i] = rows
        for k, row in enumerate(rows):
            source = placed.group.starts_from.get(instance.jobs[row].id)
            if source is not None and source.adapter is not None:
                start[i, k] = adapters.get(source.adapter, -1)
    types = np.array([instance.types.index(placed.group.gpu_type) for placed in groups], dtype=np.int64)
    gpus = np.array([placed.group.gpus for placed in groups], dtype=np.int64)
    warm = np.array([_warm(facts, placed) for placed in groups], dtype=np.bool_)
    result = evaluator.evaluate_placed(mode, members, types, gpus, start, warm)
    for i, placed in enumerate(groups):
        if not result.known[i] or not np.isfinite(result.cost[i]):
            faults.append(Violation(7, placed.place, "its speed, work or memory is unknown: it has no cost"))
        elif not result.valid[i]:
            names = ", ".join(short(name) for name in placed.group.jobs)
            faults.append(
                Violation(
                    7, placed.place, f"sharing by {names} is not admitted: running one by one is no worse"
                )
            )
    priced = np.isfinite(result.cost)
    return int((evaluator.quanta(result.cost[priced]) + 1).sum())


def _warm(facts: Facts, placed: Placed) -> bool:
    """Say whether the group's one foundation model is resident on all its GPUs."""
    models = {job.foundation_model for job in placed.members}
    if len(models) != 1 or None in models:
        return False
    (model,) = models
    return bool(placed.gpus) and all(
        facts.known(gpu)
        and facts.nodes[gpu[0]].resident_fm
        and facts.nodes[gpu[0]].resident_fm[gpu[1]] == model
        for gpu in placed.gpus
    )
