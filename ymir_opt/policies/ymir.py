"""Ymir-opt's own planner as a policy.

* Source: This project: groups, GPU counts, types and nodes from one proven optimisation per round.
* Parameters: Those of the objective; they are in every plan (``planner.objective``). ``ymir`` has those
  of ``solve``. ``ymir-no-merge`` ages less, :data:`NO_MERGE_EXPONENT` instead of 0.25: without merging the
  queue is long, and ageing lets small jobs that have waited pass large ones (``docs/comparison.md``).
* Cadence: On events (arrival, completion, node change, end of a probe), at least 10 s apart.
* Variants: ``ymir`` may merge jobs and start them from completed adapters; ``ymir-no-merge`` does neither,
  so that what it gains comes from GPU counts, order and placement alone. ``r=NUMBER``: the ageing exponent;
  ``greedy``, ``highs``, ``cpsat``, ``cbc``, ``decompose``: the solver.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.policies.base import Cadence, variant

if TYPE_CHECKING:
    from ymir_opt.formulation.parameters import Parameters

__all__ = ["NO_MERGE_EXPONENT", "Ymir", "ymir", "ymir_no_merge"]

OPTIONS = ("greedy", "highs", "cpsat", "cbc", "decompose")
NO_MERGE_EXPONENT = 0.15
LARGEST_EXPONENT = 4.0


class Ymir:
    """Plans with :func:`ymir_opt.planner.pipeline.plan_round`.

    Parameters
    ----------
    name : {"ymir", "ymir-no-merge"}
    text : str
        Variant.
    parameters : Parameters or None
        Constants of the objective; None: the defaults with the variant's or the policy's ageing exponent.
    options
        Passed on to ``plan_round``.

    Attributes
    ----------
    uses_adapters : bool
        Whether a simulation offers it completed adapters to start from.
    parameters : Parameters
    """

    def __init__(
        self, name: str, text: str = "", *, parameters: Parameters | None = None, **options: Any
    ) -> None:
        from ymir_opt.formulation.parameters import Parameters

        given = text.split(":")
        exponents = [part for part in given if part.startswith("r=")]
        others = ":".join(part for part in given if part not in exponents)
        parts = variant(name, others, OPTIONS) - {"faithful", "fixed"}
        self.name = f"{name}:{text}" if text else name
        self.cadence = Cadence.events(10.0)
        self.uses_adapters = name == "ymir"
        self.parameters = parameters or Parameters()
        if exponents:
            self.parameters = replace(self.parameters, age_exponent=_exponent(self.name, exponents))
        elif parameters is None and name == "ymir-no-merge":
            self.parameters = replace(self.parameters, age_exponent=NO_MERGE_EXPONENT)
        self._policy = name
        # a simulation reads decisions, not what else could have been done
        self._options: dict[str, Any] = {"alternatives": False, **options}
        if parts:
            self._options["backend"] = next(iter(sorted(parts)))

    def reset(self) -> None:
        """Keep no state: the previous plan is passed in."""

    def plan(self, snapshot: Snapshot, previous: Plan | None = None) -> Plan:
        """Plan one round."""
        from ymir_opt.planner.pipeline import OWN_POLICIES, plan_round

        return plan_round(
            snapshot,
            policy=self._policy,
            merge=OWN_POLICIES[self._policy],
            previous=previous,
            parameters=self.parameters,
            **self._options,
        )


def _exponent(name: str, parts: list[str]) -> float:
    try:
        (value,) = (float(part[2:]) for part in parts)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LARGEST_EXPONENT:
        raise InputError(
            f"policy {name[:60]}",
            "has no single ageing exponent in reach",
            f"give one r=NUMBER, 0 to {LARGEST_EXPONENT:g}",
        )
    return value


def ymir(text: str = "", **options: Any) -> Ymir:
    """Return the policy with merging."""
    return Ymir("ymir", text, **options)


def ymir_no_merge(text: str = "", **options: Any) -> Ymir:
    """Return the policy without merging."""
    return Ymir("ymir-no-merge", text, **options)
