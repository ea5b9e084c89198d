"""Invariants 9 and 10: planning twice gives the same plan, planning on from the outcome moves nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ymir_opt.domain.outcome import outcome
from ymir_opt.domain.plan import ActionKind, Plan, StoppedBy
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.snapshots.compare import first_difference, same_plan

__all__ = ["DEFAULT_GAP_TARGET", "Replanned", "replan_check"]

DEFAULT_GAP_TARGET = 1e-4
_STILL = (ActionKind.KEEP, ActionKind.WAIT, ActionKind.PROFILE)


@dataclass
class Replanned:
    """What planning again showed.

    Attributes
    ----------
    violations : list of (invariant, place, message)
    tested : list of int
        The invariants that could be tested.
    notes : list of str
        Why one could not.
    """

    violations: list[tuple[int, str, str]] = field(default_factory=list)
    tested: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def replan_check(snapshot: Snapshot, plan: Plan, estimator: Any = None) -> Replanned:
    """Test invariants 9 and 10 on a plan.

    Invariant 9 is tested where the wall clock did not strike; invariant 10 for plans with a value
    gap within the target whose pool was exhaustive. What is not tested is said.

    Parameters
    ----------
    snapshot : Snapshot
    plan : Plan
        A plan without violations of invariants 1-8.
    estimator : optional
        The fitted models with which the plan was made.
    """
    from ymir_opt.api import solve

    answer = Replanned()
    options: dict[str, Any] = {
        "policy": plan.planner.policy,
        "backend": plan.solver.backend,
        "estimates": estimator,
        "seed": plan.planner.seed,
    }
    if plan.solver.stopped_by is StoppedBy.WALL_CLOCK:
        answer.notes.append("invariant 9 not tested: the wall clock stopped the solve")
    else:
        again = solve(snapshot, **options)
        answer.tested.append(9)
        if not same_plan(plan, again):
            answer.violations.append((9, first_difference(plan, again), "planning again gave another plan"))
    gap = plan.solver.value_gap
    if gap is None or gap > DEFAULT_GAP_TARGET or not plan.solver.candidates.exhaustive:
        why = (
            "the pool was not exhaustive"
            if gap is not None and gap <= DEFAULT_GAP_TARGET
            else "no proven gap"
        )
        answer.notes.append(f"invariant 10 not tested: {why}")
        return answer
    after = solve(outcome(snapshot, plan), previous=plan, **options)
    answer.tested.append(10)
    before = {action.job: action for action in plan.actions}
    for action in after.actions:
        same_profile = action.action is not ActionKind.PROFILE or (
            before[action.job].action is ActionKind.PROFILE and before[action.job].to == action.to
        )
        if action.action not in _STILL or not same_profile:
            answer.violations.append(
                (10, f"jobs {action.job}", f"planning again from the outcome would {action.action.value} it")
            )
    return answer
