"""Learning rates over the steps of a run, under transformers' names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

__all__ = ["SCHEDULES", "rate_factor"]


def _constant(_progress: float) -> float:
    return 1.0


def _linear(progress: float) -> float:
    return 1.0 - progress


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


# progress after the warm-up, from 0 to 1 -> share of the learning rate
SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": _constant,
    "constant_with_warmup": _constant,
    "linear": _linear,
    "cosine": _cosine,
}


def rate_factor(kind: str, step: int, warmup: int, total: int | None) -> float:
    """Return what the learning rate is multiplied by at a step (the first is 0).

    Parameters
    ----------
    kind : str
        A key of `SCHEDULES`.
    step : int
    warmup : int
        The factor rises linearly over these steps, the first of which already trains.
    total : int or None
        Steps of the whole run; None: the rate stays after the warm-up.

    Returns
    -------
    float
        Never 0 before ``total`` steps are done, so that every planned step trains.
    """
    if step < warmup:
        return (step + 1) / warmup
    if total is None:
        return 1.0
    return SCHEDULES[kind](min(1.0, (step - warmup) / max(1, total - warmup)))
