"""The questions that the core asks about speed, work and transfer.

Answers come, in order, from a measured row of the snapshot, from interpolation between rows, and
from a `Predictor` (fitted models, flagged as predicted). What nobody can answer is NaN or None:
the core never guesses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Colocation", "MemberKey", "Predictor", "ThroughputKey", "WorkRatio", "benefit_probability"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# 80 % two-sided limits of a normal distribution lie this many standard deviations out
Z80 = 1.2815515655446004


@dataclass(frozen=True, order=True)
class ThroughputKey:
    """What throughput depends on, apart from GPUs and batch."""

    foundation_model: str
    peft_type: str | None
    config: str


@dataclass(frozen=True, order=True)
class MemberKey:
    """What a member's co-located speed depends on."""

    key: ThroughputKey
    batch_size: int
    task: str | None


@dataclass(frozen=True)
class WorkRatio:
    """Work with the source over work alone, with 80 % limits.

    Attributes
    ----------
    ratio, low, high : float
        Samples to target with transfer, over samples alone.
    p_benefit : float
        Probability that the ratio is below 1.
    predicted : bool
        The figure comes from a fitted model or from a rule over measured pairs.
    """

    ratio: float
    low: float
    high: float
    p_benefit: float
    predicted: bool


@dataclass(frozen=True)
class Colocation:
    """Speed ratios of the members of a group in their order; memory per GPU of the whole group, GiB."""

    speed_ratio: tuple[float, ...]
    memory_gib: float | None
    predicted: bool


class Predictor(Protocol):
    """Fitted models that answer where no row does; None or NaN where they abstain."""

    name: str
    version: str
    sha256: str

    def throughput(
        self, key: ThroughputKey, gpu_type: str, gpus: IntArray, batch: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return samples/s and memory per GPU (GiB), NaN where unknown, for arrays of equal length."""
        ...

    def colocation(
        self, mode: str, gpu_type: str, gpus: int, members: Sequence[MemberKey]
    ) -> Colocation | None:
        """Return the speed ratios of a group on ``gpus`` GPUs."""
        ...

    def warm_start(self, foundation_model: str, source: str, target: str) -> WorkRatio | None:
        """Return the work ratio of ``target`` started from ``source``'s weights."""
        ...

    def joint(self, foundation_model: str, others: Sequence[str], target: str) -> WorkRatio | None:
        """Return the work ratio of ``target`` trained together with ``others``."""
        ...


def benefit_probability(ratio: float, low: float, high: float) -> float:
    """Return P(true ratio < 1) of a log-normal with these 80 % limits (0 or 1 without an interval)."""
    if low >= high or low <= 0:
        return 1.0 if ratio < 1 else 0.0
    sigma = (math.log(high) - math.log(low)) / (2 * Z80)
    return 0.5 * math.erfc(math.log(ratio) / (sigma * math.sqrt(2)))
