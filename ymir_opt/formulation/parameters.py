"""Every constant of objective version 1, so that a plan can state them all.

Source: the experiment of Ymir-opt's solver notes on Titan's traces; symbols as in
``docs/formulation.md``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ymir_opt.domain.base import MAX_COUNT, MAX_MAGNITUDE, MIN_POSITIVE
from ymir_opt.domain.errors import InputError

__all__ = ["OBJECTIVE_NAME", "OBJECTIVE_VERSION", "Parameters"]

OBJECTIVE_NAME = "soft-shortest-first"
OBJECTIVE_VERSION = 1


@dataclass(frozen=True)
class Parameters:
    """Constants and switches of the objective.

    Attributes
    ----------
    d0_s : float
        Shortest completion that is told apart, seconds (``D0``).
    x0_gpu_s : float
        GPU-seconds added to the remaining work before the square root (``x0``).
    age_exponent : float
        Exponent of the ageing term (``r``); 0 plans for the pure mean.
    kappa : float
        Advantage of a column that keeps a job exactly as it runs.
    uncertainty : float
        Weight of the pessimistic work in the completion time (``k``).
    deadline_horizon_rounds : float
        Tardiness at which the deadline term saturates, in rounds.
    probe_work_fraction : float
        Share of a merged run that a failed probe wastes.
    probe_evaluations : int
        Evaluations after which a merge must have helped.
    prepare_ahead_s : float
        How long before a start its data loader is prepared.
    profile_gpus_cap : int or None
        GPUs a round may spend on profiling; None means ``max(4, 2 % of the ready GPUs)``.
    profile_gpus, profile_gpus_pipeline : int
        GPUs of one profile action.
    deadlines, preemption, probes, ageing : bool
        Switch a term off.
    """

    d0_s: float = 30.0
    x0_gpu_s: float = 50.0
    age_exponent: float = 0.25
    kappa: float = 1.15
    uncertainty: float = 0.25
    deadline_horizon_rounds: float = 30.0
    probe_work_fraction: float = 0.1
    probe_evaluations: int = 2
    prepare_ahead_s: float = 30.0
    profile_gpus_cap: int | None = None
    profile_gpus: int = 1
    profile_gpus_pipeline: int = 4
    deadlines: bool = True
    preemption: bool = True
    probes: bool = True
    ageing: bool = True

    def __post_init__(self) -> None:
        """Refuse constants with which no cost can be computed."""
        for name in ("d0_s", "kappa", "deadline_horizon_rounds"):
            self._within(name, MIN_POSITIVE, MAX_MAGNITUDE)
        for name in ("x0_gpu_s", "age_exponent", "probe_work_fraction", "prepare_ahead_s"):
            self._within(name, 0.0, MAX_MAGNITUDE)
        self._within("uncertainty", 0.0, 1.0)
        for name in ("probe_evaluations", "profile_gpus_cap", "profile_gpus", "profile_gpus_pipeline"):
            self._within(name, 0, MAX_COUNT)

    def _within(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if value is not None and not low <= value <= high:
            raise InputError(
                f"planner.objective.parameters.{name}",
                f"{value} is not within {low:g} and {high:g}",
                "take a figure between them",
            )

    def as_dict(self) -> dict[str, object]:
        """Return the constants by name, for the plan."""
        return asdict(self)
