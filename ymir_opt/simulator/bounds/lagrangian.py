"""The slot-price bound: a price per GPU-second, type and slot, raised where jobs want more than there is.

Relaxing "in no slot more GPU-seconds than there are" with prices lambda >= 0 leaves each job alone with

    min (completion - submission) + sum_t lambda_t (its GPU-seconds in slot t),

and for every lambda ``sum of these minima - sum_t lambda_t capacity_t`` is at most the least possible sum of
completion times minus submissions. The best prices are searched by a subgradient method with Polyak's step
towards a target that is lowered when it proves too high; slots are halved twice on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.simulator.bounds.instance import BoundInstance
from ymir_opt.simulator.bounds.slots import Shapes, SlotJobs, shapes

__all__ = ["SlotBound", "SlotOptions", "slot_price_bound"]

FloatArray = NDArray[np.float64]

_MAX_CELLS = 12_000_000
_MAX_SHAPES = 400
_ROUNDING = 1e-10


@dataclass(frozen=True)
class SlotOptions:
    """How hard to search.

    Attributes
    ----------
    slot_s : float or None
        Length of a slot in the end; None: a twenty-fourth of the simple bounds' mean, at least a
        two-thousandth of the horizon.
    iterations : tuple of int
        Limits of the stages; every stage halves the slots of the one before.
    tolerance : float
        A stage ends when the target is closer to the best value than this fraction of it.
    patience : int
        Steps without progress after which the target is lowered.
    shrink : float
        Factor of the target's distance from the best value when it is lowered.
    ratio, final_ratio : float
        Ratio of neighbouring shadow prices of work, in the search and in the final evaluation.
    max_jobs : int
        Above this the bound is not computed.
    """

    slot_s: float | None = None
    iterations: tuple[int, ...] = (160, 60, 30)
    tolerance: float = 3e-4
    patience: int = 6
    shrink: float = 0.6
    ratio: float = 1.15
    final_ratio: float = 1.03
    max_jobs: int = 20_000


@dataclass(frozen=True)
class SlotBound:
    """The bound and the prices that prove it.

    Attributes
    ----------
    mean_s : float
        Bound on the mean of completion minus submission, seconds.
    slot_s : float
    price : float64[types, slots]
        Seconds of (total) completion time per GPU-second, by slot from the first submission on.
    iterations : int
    """

    mean_s: float
    slot_s: float
    price: FloatArray
    iterations: int


def slot_price_bound(
    instance: BoundInstance, simple_mean_s: float, options: SlotOptions | None = None
) -> SlotBound | None:
    """Return the slot-price bound, or None if the instance is too large for it (or has no jobs).

    Parameters
    ----------
    instance : BoundInstance
    simple_mean_s : float
        A simpler bound on the mean, for the scale of the slots.
    options : SlotOptions, optional
    """
    options = options or SlotOptions()
    number = len(instance.submit_s)
    if not number or number > options.max_jobs:
        return None
    found = _shapes(instance)
    if found is None:
        return None
    submit = instance.submit_s - instance.submit_s.min()
    fastest = instance.fastest_s()
    horizon = _horizon_s(instance)
    stages = len(options.iterations)
    slot = options.slot_s or max(simple_mean_s / 24.0, horizon / 2000.0)
    levels, spent = 8, 0
    done: tuple[SlotJobs, FloatArray, FloatArray] | None = None
    for stage, limit in enumerate(options.iterations):
        length = slot * 2.0 ** (stages - 1 - stage)
        slots = int(np.ceil(horizon / length))
        jobs = SlotJobs(submit, found, fastest, length, slots, options.ratio)
        capacity = instance.capacity(length, slots)
        if done is None:
            price = np.zeros_like(capacity)
        else:
            price = np.repeat(done[1], 2, axis=1)[:, :slots]
            jobs.extend(2 * done[0].reach)
        search = _Search(jobs, capacity, price, levels, 0.3 if stage == 0 else 0.02)
        if search.cells() > _MAX_CELLS:
            break
        spent += search.run(limit, options)
        levels = search.levels
        done = jobs, search.best_price, capacity
    if done is None:
        return None
    jobs, price, capacity = done
    final = SlotJobs(submit, found, fastest, jobs.slot_s, jobs.slots, options.final_ratio)
    final.extend(jobs.reach)
    steps = int(np.ceil((levels + 1) * np.log(options.ratio) / np.log(options.final_ratio)))
    cost = float((price * capacity).sum())
    value = float(final.evaluate(price, steps).value_s.sum()) - cost
    # Rounding must not lift a bound above the truth.
    value -= _ROUNDING * (abs(value) + cost)
    return SlotBound(value / number, jobs.slot_s, price, spent)


def _horizon_s(instance: BoundInstance) -> float:
    """Return when a busy cluster has surely done all the work, from the first submission on, seconds.

    A completion later than this costs at least the time until then: the horizon limits effort, not validity.
    """
    # With several types the work may not spread over all of them.
    left = float(instance.area_s().sum()) * instance.gpus.shape[1]
    now = float(instance.submit_s.max())
    ends = np.append(instance.changes_s[1:], np.inf)
    for end, gpus in zip(ends, instance.gpus.sum(axis=1).tolist(), strict=True):
        if end > now and gpus > 0:
            step = min(float(end) - now, left / gpus)
            left -= step * gpus
            now += step
            if left <= 0:
                break
        elif np.isfinite(end):
            now = max(now, float(end))
    return now - float(instance.submit_s.min()) + float(instance.fastest_s().max())


def _shapes(instance: BoundInstance) -> Shapes | None:
    """Return the jobs' shapes, rounded up if there are too many."""
    for tolerance in (0.0, 0.01, 0.05, 0.2):
        found = shapes(instance.time_s, instance.counts, tolerance)
        if len(found.gpus) <= _MAX_SHAPES:
            return found
    return None


class _Search:
    """One stage of the subgradient method."""

    def __init__(
        self, jobs: SlotJobs, capacity: FloatArray, price: FloatArray, levels: int, distance: float
    ) -> None:
        self.jobs = jobs
        self.capacity = capacity
        self.best_price = price
        self.best = -np.inf
        self.levels = levels
        self.distance = distance

    def cells(self) -> int:
        """Return the size of an evaluation."""
        tables = self.capacity.size * len(self.jobs.found.gpus)
        return self.levels * (tables + len(self.jobs.owner))

    def run(self, limit: int, options: SlotOptions) -> int:
        """Improve the prices; return the iterations spent."""
        price = self.best_price
        above: float | None = None
        failures = 0
        for iteration in range(limit):
            found = self.jobs.evaluate(price, self.levels)
            if found.highest >= self.levels - 1 and self.cells() < _MAX_CELLS:
                self.levels += 2 + self.levels // 3
            value = float(found.value_s.sum() - (price * self.capacity).sum())
            if above is None:
                above = self.distance * abs(value)
            if value > self.best:
                failures = 0 if value > self.best + 0.1 * above else failures
                self.best, self.best_price = value, price
            else:
                failures += 1
            if failures >= options.patience:
                above, failures, price = options.shrink * above, 0, self.best_price
            if above < options.tolerance * self.best:
                return iteration + 1
            excess = found.usage - self.capacity
            direction = np.where((price <= 0.0) & (excess < 0.0), 0.0, excess)
            square = float((direction * direction).sum())
            if square == 0.0:
                return iteration + 1
            # The step leads from the value here to a target above the best value.
            price = np.maximum(0.0, price + (self.best + above - value) / square * direction)
        return limit
