"""Runs a snapshot policy in a simulation: view to document, plan to decision, every plan checked.

Every plan's changes are checked when they are carried out; the whole plan is checked against its snapshot
every :data:`FULL_CHECK_ROUNDS` rounds, unless all are asked for.
"""

from __future__ import annotations

from typing import Any

from ymir_opt.domain.documents import dump_json, parse_plan
from ymir_opt.domain.errors import InvalidPlanError
from ymir_opt.domain.plan import Plan
from ymir_opt.policies.document import Documents, decision_of
from ymir_opt.policies.view import Decision, SnapshotView

__all__ = ["FULL_CHECK_ROUNDS", "SnapshotAdapter"]

FULL_CHECK_ROUNDS = 50


class SnapshotAdapter:
    """A columnar face for a snapshot policy.

    Parameters
    ----------
    policy : object
        Has ``plan(snapshot, previous=None) -> Plan``.
    name : str
        For messages.
    check_every : int
        Rounds between full checks; 1: every plan.
    """

    def __init__(self, policy: Any, name: str, check_every: int = FULL_CHECK_ROUNDS) -> None:
        self.policy = policy
        self.name = name
        self.check_every = check_every
        self.documents = Documents(adapters=getattr(policy, "uses_adapters", True))
        self.reset()

    def reset(self) -> None:
        """Forget everything kept between rounds."""
        self.documents.reset()
        if hasattr(self.policy, "reset"):
            self.policy.reset()
        self.previous: Plan | None = None
        self.rounds = 0

    def state(self) -> dict[str, Any]:
        """Return what is kept between rounds, as JSON values."""
        plan = None if self.previous is None else dump_json(self.previous)
        own = self.policy.state() if hasattr(self.policy, "state") else None
        return {"previous": plan, "rounds": self.rounds, "policy": own}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` gave."""
        self.previous = None if state["previous"] is None else parse_plan(state["previous"])
        self.rounds = int(state["rounds"])
        if state["policy"] is not None:
            self.policy.restore(state["policy"])

    def decide(self, view: SnapshotView) -> Decision:
        """Return the policy's plan as a decision.

        Raises
        ------
        InvalidPlanError
            The plan breaks an invariant; the policy is named.
        """
        snapshot = self.documents.snapshot(view)
        plan = self.policy.plan(snapshot, self.previous)
        self.previous = plan
        if self.rounds % self.check_every == 0:
            self._check(snapshot, plan)
        self.rounds += 1
        return decision_of(view, plan)

    def _check(self, snapshot: Any, plan: Plan) -> None:
        from ymir_opt.verify import check

        violations = check(snapshot, plan)
        if violations:
            first = violations[0]
            raise InvalidPlanError(
                f"policy {self.name}",
                f"breaks invariant {first.invariant} at {first.place}: {first.message}",
                "correct the policy",
            )
