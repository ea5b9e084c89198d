"""Whether a merge keeps what was promised: the rule of the probe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ymir_opt.runtime.settings import Settings

__all__ = ["Verdict", "judge", "projected_samples", "value_on"]

Point = tuple[int, float]
"""Samples trained, metric."""


@dataclass(frozen=True)
class Verdict:
    """Whether the merge helps a member, and the figures compared.

    Attributes
    ----------
    passed : bool
    rule : str
        Which comparison decided: ``reached``, ``own curve``, ``samples``, ``metric before``.
    predicted, realised : float or None
        What was expected and what came, in the rule's unit (samples, or the metric).
    """

    passed: bool
    rule: str
    predicted: float | None
    realised: float | None


def value_on(curve: Sequence[Point], samples: int) -> float | None:
    """Return the metric of a curve at a number of samples, linear in the logarithm of the samples.

    None outside the curve: what it did not measure it does not tell.
    """
    points = sorted(curve)
    if not points or not points[0][0] <= samples <= points[-1][0]:
        return None
    for (a, x), (b, y) in pairwise(points):
        if a <= samples <= b:
            if a == b:
                return y
            low, high = math.log(max(a, 1)), math.log(max(b, 1))
            share = 1.0 if high == low else (math.log(max(samples, 1)) - low) / (high - low)
            return x + share * (y - x)
    return points[-1][1]


def projected_samples(points: Sequence[Point], target: float, *, greater: bool) -> float:
    """Return the samples at which the last points reach the target, going on as they do.

    The metric is taken as linear in the logarithm of the samples, through the first and the last point;
    infinite where it does not come nearer.
    """
    if not points:
        return math.inf
    (a, x), (b, y) = points[0], points[-1]
    sign = 1.0 if greater else -1.0
    if sign * (y - target) >= 0:
        return float(b)
    if b <= a or sign * (y - x) <= 0:
        return math.inf
    slope = (y - x) / (math.log(b) - math.log(max(a, 1)))
    exponent = math.log(b) + (target - y) / slope
    return math.exp(exponent) if exponent < 700 else math.inf


def judge(
    settings: Settings,
    points: Sequence[Point],
    before: float | None,
    expected: Mapping[str, Any],
    own_curve: Sequence[Point] = (),
) -> Verdict:
    """Judge a member's merge after the probe's evaluations.

    A merge must show an improvement, else it is undone: the error handling of Ymir (Gao et al., ICS 2024)
    cancels a merge when a task does not improve within two epochs. What an improvement is depends on what
    is known, in this order:

    1. the target is reached: passed;
    2. the member's own curve alone covers these samples: the metric at the last evaluation is better;
    3. the samples to the target are expected (``samples_to_target``, the most that the prediction allows)
       or known alone (``samples_alone``): the projection is within the one or below the other;
    4. otherwise: the metric is better than before the merge, or than at the first evaluation in it.

    Parameters
    ----------
    settings : Settings
    points : sequence of (samples, metric)
        Evaluations since the merge; samples count from the weights the merge started with.
    before : float or None
        The metric when the merge began.
    expected : mapping
        ``samples_to_target``, ``samples_alone``, both counted from the merge; either may be missing.
    own_curve : sequence of (samples, metric)
        The member alone, counted in the same way.
    """
    samples, value = points[-1]
    if settings.reached(value):
        return Verdict(True, "reached", settings.target, value)
    alone = value_on(own_curve, samples)
    if alone is not None:
        return Verdict(settings.better(value, alone), "own curve", alone, value)
    limits = [float(v) for k in ("samples_to_target", "samples_alone") if (v := expected.get(k)) is not None]
    if limits and settings.target is not None and len(points) > 1:
        projected = projected_samples(points, settings.target, greater=settings.greater)
        within = projected <= limits[0] * (1 + 1e-9) or projected < limits[-1]
        realised = projected if math.isfinite(projected) else None
        return Verdict(within, "samples", limits[0], realised)
    reference = before if before is not None else (points[0][1] if len(points) > 1 else None)
    return Verdict(reference is None or settings.better(value, reference), "metric before", reference, value)
