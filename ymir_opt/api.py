"""The functions of ``from ymir_opt import ...`` that need more than one room of the house."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Snapshot

if TYPE_CHECKING:
    from ymir_opt.estimates.protocols import Predictor
    from ymir_opt.planner.state import SolverMemory

__all__ = ["solve"]


def solve(
    snapshot: Snapshot,
    *,
    policy: str = "ymir",
    backend: str = "auto",
    time_limit_s: float | None = None,
    gap: float | None = None,
    previous: Plan | None = None,
    estimates: Predictor | None = None,
    measured_only: bool = False,
    prove_global: bool = False,
    seed: int = 0,
    memory: SolverMemory | None = None,
) -> Plan:
    """Plan one round with our planner, or with an installed policy by its name.

    Parameters
    ----------
    snapshot : Snapshot
    policy : str
        ``ymir``, ``ymir-no-merge``, or a baseline by its system's name.
    backend, time_limit_s, gap, previous, estimates, measured_only, prove_global, seed, memory
        See `ymir_opt.planner.solve`; a baseline takes `previous` only.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        An argument is out of range, or names an unknown policy or backend.
    """
    from ymir_opt.planner.pipeline import OWN_POLICIES
    from ymir_opt.planner.pipeline import solve as own

    if policy in OWN_POLICIES:
        return own(
            snapshot,
            policy=policy,
            backend=backend,
            time_limit_s=time_limit_s,
            gap=gap,
            previous=previous,
            estimates=estimates,
            measured_only=measured_only,
            prove_global=prove_global,
            seed=seed,
            memory=memory,
        )
    from ymir_opt.policies.base import load_policy
    from ymir_opt.policies.plan_by import plan_by

    return plan_by(load_policy(policy), snapshot, previous)
