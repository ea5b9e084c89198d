"""Invariant 8: the explanation's chosen option is the plan's."""

from __future__ import annotations

from collections.abc import Iterator

from ymir_opt.domain.base import short
from ymir_opt.domain.plan import Reason
from ymir_opt.verify.facts import Facts
from ymir_opt.verify.violation import Violation

__all__ = ["reasons"]

# why a job has no GPUs: never told of one that has some
_WITHOUT_GPUS = frozenset(
    {
        Reason.EXCEEDS_MAX_QUOTA,
        Reason.INSUFFICIENT_GPUS,
        Reason.TOPOLOGY_PLACEMENT_FAILED,
        Reason.NO_FEASIBLE_GPU_TYPE,
        Reason.MEMORY_EXCEEDS_GPU,
        Reason.BACK_OFF,
    }
)


def reasons(facts: Facts) -> Iterator[Violation]:
    """Yield every job whose explanation is missing, tells another decision, or a reason against the plan."""
    for name, action in facts.actions.items():
        found = facts.plan.explanations.get(name)
        place = f"explanations.{name}"
        if found is None:
            yield Violation(8, place, f"job {short(name)} has no explanation")
        elif found.decision.value != action.action.value:
            yield Violation(
                8,
                place,
                f"explains {found.decision.value}, but the action of job {short(name)} is "
                f"{action.action.value}",
            )
        elif found.reason in _WITHOUT_GPUS and name in facts.holding:
            yield Violation(
                8,
                f"{place}.reason",
                f"{found.reason.value} is told of job {short(name)}, which holds GPUs after the plan",
            )
