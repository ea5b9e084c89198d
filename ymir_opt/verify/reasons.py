"""Invariant 8: the explanation's chosen option is the plan's."""

from __future__ import annotations

from collections.abc import Iterator

from ymir_opt.domain.base import short
from ymir_opt.verify.facts import Facts
from ymir_opt.verify.violation import Violation

__all__ = ["reasons"]


def reasons(facts: Facts) -> Iterator[Violation]:
    """Yield every job whose explanation is missing or tells another decision than its action."""
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
