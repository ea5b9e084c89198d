"""All invariants of one plan."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ymir_opt.domain.base import short
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.outcome import require_same_snapshot
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.estimates import Estimates
from ymir_opt.estimates.protocols import Predictor
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.parameters import OBJECTIVE_NAME, OBJECTIVE_VERSION, Parameters
from ymir_opt.verify.cost import cost
from ymir_opt.verify.devices import devices
from ymir_opt.verify.evictions import evictions
from ymir_opt.verify.facts import Facts
from ymir_opt.verify.gangs import gangs
from ymir_opt.verify.limits import limits
from ymir_opt.verify.membership import membership
from ymir_opt.verify.memory import MemoryNeeds
from ymir_opt.verify.merging import merging
from ymir_opt.verify.priority import priorities
from ymir_opt.verify.quotas import quotas
from ymir_opt.verify.reasons import reasons
from ymir_opt.verify.violation import Violation

__all__ = ["check"]

# name of the estimates of a plan that refuses every predicted figure
MEASURED = "measured"


def check(
    snapshot: Snapshot,
    plan: Plan,
    *,
    evaluator: Evaluator | None = None,
    predictor: Predictor | None = None,
    compare_hash: bool = True,
) -> list[Violation]:
    """Return what a plan breaks of invariants 1 to 5, and of 6 to 8 where it declares them.

    Parameters
    ----------
    snapshot : Snapshot
        A validated snapshot.
    plan : Plan
    evaluator : Evaluator, optional
        Built for this snapshot with the plan's estimates and parameters; otherwise made here.
    predictor : Predictor, optional
        The fitted models with which the plan was made, where no evaluator is given.
    compare_hash : bool
        False trusts that the plan was made for this snapshot (the planner itself).

    Returns
    -------
    list of Violation
        Sorted by invariant; empty if the plan holds.

    Raises
    ------
    InputError
        If the plan was made for another snapshot, or states objective parameters that do not exist.
    """
    if compare_hash:
        require_same_snapshot(snapshot, plan)
    facts = Facts(snapshot, plan)
    if evaluator is not None:
        estimates = evaluator.estimates
    else:
        stated = plan.planner.estimates
        strict = stated is not None and stated.name == MEASURED
        estimates = Estimates(snapshot, predictor, measured_only=strict)
    needs = MemoryNeeds(estimates)
    found = list(_always(facts, needs))
    if 6 in plan.planner.declares:

        def recheck(other: Plan) -> Iterator[Violation]:
            changed = Facts(snapshot, other)
            again = MemoryNeeds(estimates)
            return chain(devices(changed, again), quotas(changed), priorities(changed, again))

        found += evictions(facts, recheck)
    if 7 in plan.planner.declares and plan.solver.objective is not None:
        if evaluator is None:
            evaluator = Evaluator(Instance.of(snapshot), estimates, _parameters(plan))
        found += cost(facts, evaluator)
    if 8 in plan.planner.declares:
        found += reasons(facts)
    return sorted(found, key=lambda violation: violation.invariant)


def _always(facts: Facts, needs: MemoryNeeds) -> Iterator[Violation]:
    yield from membership(facts)
    yield from devices(facts, needs)
    yield from gangs(facts, needs)
    yield from merging(facts, needs)
    yield from limits(facts)
    yield from quotas(facts)
    yield from priorities(facts, needs)


def _parameters(plan: Plan) -> Parameters:
    """Return the objective's parameters that the plan states."""
    stated = plan.planner.objective
    if stated is None:
        return Parameters()
    known = Parameters().as_dict()
    if stated.name != OBJECTIVE_NAME or not stated.parameters.keys() <= known.keys():
        unknown = sorted(set(stated.parameters) - set(known))
        raise InputError(
            "planner.objective",
            f"{short(stated.name)} with {short(unknown[0])}"
            if unknown
            else f"{short(stated.name)} is unknown",
            f"this version knows {OBJECTIVE_NAME} with: {', '.join(sorted(known))}",
        )
    if stated.version != OBJECTIVE_VERSION:
        raise InputError(
            "planner.objective.version",
            f"{stated.version} is not known to this version, which proves {OBJECTIVE_VERSION}",
            "check with the version that made the plan",
        )
    for name, value in stated.parameters.items():
        if isinstance(value, bool) != isinstance(known[name], bool) or not (
            isinstance(value, int | float) or (value is None and known[name] is None)
        ):
            raise InputError(
                f"planner.objective.parameters.{name}", f"{short(value)} is not a number", "solve again"
            )
    return Parameters(**dict(stated.parameters))
