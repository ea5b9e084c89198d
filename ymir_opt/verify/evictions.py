"""Invariant 6: a preemption is for something.

A preempted job's GPUs or quota are used by a group that starts, grows or migrates, unless its node
left or keeping it would break another invariant. Both are the same question: could the running group
be put back into the plan as it was? If nothing speaks against it, it was stopped for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ymir_opt.domain.base import short
from ymir_opt.domain.plan import Group, Plan
from ymir_opt.verify.facts import Facts, Gpu, Held
from ymir_opt.verify.violation import Violation

__all__ = ["evictions"]

Recheck = Callable[[Plan], Iterable[Violation]]


def evictions(facts: Facts, recheck: Recheck) -> Iterator[Violation]:
    """Yield every preempted job whose group could have stayed.

    Parameters
    ----------
    facts : Facts
    recheck : callable
        Violations of invariants 2 and 5 of a plan for the same snapshot.
    """
    used = {gpu for placed in facts.placed if placed.kept is None for gpu in placed.gpus}
    used |= {gpu for gpus in facts.profiled.values() for gpu in gpus}
    for held in facts.held:
        stopped = [name for name in held.holders if name not in facts.placed_by]
        if not stopped or not held.keepable or held.gpus & used:
            continue
        if any(name in facts.placed_by for name in held.jobs):
            continue  # a member goes on elsewhere: the group as it was cannot be kept
        if any(True for _ in recheck(_with(facts.plan, held))):
            continue
        for name in stopped:
            yield Violation(
                6,
                f"job {short(name)}",
                f"is preempted, but nothing uses its {len(held.gpus)} GPUs or its quota",
            )


def _with(plan: Plan, held: Held) -> Plan:
    """Return the plan with one running group put back."""
    placement: dict[str, tuple[int, ...]] = {}
    gpu: Gpu
    for gpu in sorted(held.gpus):
        placement[gpu[0]] = (*placement.get(gpu[0], ()), gpu[1])
    back = Group(
        id="kept",
        mode=held.mode,
        jobs=held.jobs,
        gpu_type=held.gpu_type,
        gpus=len(held.gpus),
        placement=placement,
    )
    return plan.model_copy(update={"groups": (*plan.groups, back)})
