"""Ymir-opt's own planner as a policy.

* Source: This project: groups, GPU counts, types and nodes from one proven optimisation per round.
* Parameters: Those of the objective; they are in every plan (``planner.objective``).
* Cadence: On events (arrival, completion, node change, end of a probe), at least 10 s apart.
* Variants: ``ymir`` may merge jobs and start them from completed adapters; ``ymir-no-merge`` does neither,
  so that what it gains comes from GPU counts, order and placement alone.
"""

from __future__ import annotations

from typing import Any

from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.policies.base import Cadence, variant

__all__ = ["Ymir", "ymir", "ymir_no_merge"]

OPTIONS = ("greedy", "highs", "cpsat", "cbc", "decompose")


class Ymir:
    """Plans with :func:`ymir_opt.planner.solve`.

    Attributes
    ----------
    uses_adapters : bool
        Whether a simulation offers it completed adapters to start from.
    """

    def __init__(self, name: str, text: str = "", **options: Any) -> None:
        parts = variant(name, text, OPTIONS) - {"faithful", "fixed"}
        self.name = f"{name}:{text}" if text else name
        self.cadence = Cadence.events(10.0)
        self.uses_adapters = name == "ymir"
        self._policy = name
        # a simulation reads decisions, not reasons
        self._options: dict[str, Any] = {"alternatives": False, **options}
        if parts:
            self._options["backend"] = next(iter(sorted(parts)))

    def reset(self) -> None:
        """Keep no state: the previous plan is passed in."""

    def plan(self, snapshot: Snapshot, previous: Plan | None = None) -> Plan:
        """Plan one round."""
        from ymir_opt.planner import solve

        return solve(snapshot, policy=self._policy, previous=previous, **self._options)


def ymir(text: str = "", **options: Any) -> Ymir:
    """Return the policy with merging."""
    return Ymir("ymir", text, **options)


def ymir_no_merge(text: str = "", **options: Any) -> Ymir:
    """Return the policy without merging."""
    return Ymir("ymir-no-merge", text, **options)
