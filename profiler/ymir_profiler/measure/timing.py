"""Step times with an interval, repeated until it is narrow enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from ymir_profiler.measure.machine import load_average, spending

__all__ = ["StepTimes", "clock_of", "interval", "time_steps"]

LEAST = 6


def clock_of(device: str, threads: int) -> str:
    """Return which clock rates are taken from.

    One thread on a CPU: its CPU time, which neighbours disturb little. Otherwise the wall clock.
    """
    return "cpu" if device == "cpu" and threads == 1 else "wall"


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return the median with a distribution-free interval from order statistics.

    Parameters
    ----------
    values : sequence of float
    level : float
        Coverage; with too few values for it, the interval is their range.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    rank = int(stats.binom.ppf((1 - level) / 2, n, 0.5))
    rank = max(rank - 1, 0) if stats.binom.cdf(rank - 1, n, 0.5) > (1 - level) / 2 else max(rank, 1) - 1
    return float(np.median(ordered)), float(ordered[rank]), float(ordered[n - 1 - rank])


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each timed step, by both clocks."""

    cpu_s: tuple[float, ...]
    wall_s: tuple[float, ...]

    def of(self, clock: str) -> tuple[float, ...]:
        """Return the seconds of one clock."""
        return self.cpu_s if clock == "cpu" else self.wall_s

    def summary(self, clock: str, rows: int) -> dict[str, Any]:
        """Return rates with their interval as plain values; ``rows`` samples a step."""
        median, low, high = interval(self.of(clock))
        return {
            "clock": clock,
            "steps": len(self.cpu_s),
            "step_s": median,
            "step_low_s": low,
            "step_high_s": high,
            "step_cpu_s": float(np.median(self.cpu_s)),
            "step_wall_s": float(np.median(self.wall_s)),
            "samples_per_s": rows / median,
            "samples_per_s_low": rows / high,
            "samples_per_s_high": rows / low,
            "load": load_average(),
        }


def time_steps(
    step: Callable[[], None],
    *,
    device: str,
    clock: str,
    warmup: int,
    relative_width: float,
    most: int,
) -> StepTimes:
    """Time a step until half the interval's width is at most ``relative_width`` of the median.

    Parameters
    ----------
    step : callable
    device : str
    clock : str
        ``cpu`` or ``wall``: which of the two must become narrow.
    warmup : int
        Steps that are not counted.
    relative_width : float
    most : int
        Steps at most.
    """
    for _ in range(warmup):
        step()
    times = StepTimes((), ())
    while len(times.cpu_s) < most:
        with spending(device) as spent:
            step()
        times = StepTimes((*times.cpu_s, spent.cpu_s), (*times.wall_s, spent.wall_s))
        if len(times.cpu_s) >= LEAST:
            median, low, high = interval(times.of(clock))
            if (high - low) / 2 <= relative_width * median:
                break
    return times
