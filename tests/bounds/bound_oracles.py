"""Slow and plain answers to what the bounds compute: linear programs, and an exhaustive search."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from ymir_opt.simulator.bounds import BoundInstance


def segments(instance: BoundInstance, job: int, gpu_type: int = 0) -> list[tuple[float, float]]:
    """Return (width, slope) of the concave envelope of one job's speeds, by trying every pair of points."""
    points = [(0.0, 0.0)] + [
        (float(g), 1.0 / float(t))
        for g, t in zip(instance.counts, instance.time_s[job, gpu_type], strict=True)
        if np.isfinite(t)
    ]
    points.sort()
    found, at = [], points[0]
    while True:
        ahead = [(q[1] - at[1]) / (q[0] - at[0]) for q in points if q[0] > at[0]]
        if not ahead or max(ahead) <= 1e-15:
            return found
        best = max(ahead)
        nxt = max(q for q in points if q[0] > at[0] and (q[1] - at[1]) / (q[0] - at[0]) >= best - 1e-15)
        found.append((nxt[0] - at[0], best))
        at = nxt


def slot_lp(instance: BoundInstance, slot_s: float, slots: int, price: np.ndarray | None = None) -> float:
    """Return the least sum of (completion - submission) with jobs split over completion slots.

    With `price` the capacity is priced instead of limited (the sum over jobs of the inner problem).
    Columns of each (job, completion slot k): its share z, the seconds tau after the slot's begin, and in
    every slot up to k the seconds on each type and the GPU-seconds of each of its segments.
    """
    origin = float(instance.submit_s.min())
    types = instance.time_s.shape[1]
    cost: list[float] = []
    rows: list[tuple[int, int, float]] = []
    upper: list[tuple[int, int, float]] = []
    equal_rhs: list[float] = []
    upper_rhs: list[float] = []
    use: list[tuple[int, int, float]] = []

    def column(value: float) -> int:
        cost.append(value)
        return len(cost) - 1

    for job in range(len(instance.submit_s)):
        submit = float(instance.submit_s[job]) - origin
        first = int(submit // slot_s)
        one = len(equal_rhs)
        equal_rhs.append(1.0)
        for k in range(first, slots):
            z = column(max(0.0, k * slot_s - submit))
            tau = column(1.0)
            rows.append((one, z, 1.0))
            room = {t: slot_s if t > first else (first + 1) * slot_s - submit for t in range(first, k + 1)}
            upper += [(len(upper_rhs), tau, 1.0), (len(upper_rhs), z, -room[k])]
            upper_rhs.append(0.0)
            work = len(upper_rhs)
            upper_rhs.append(0.0)
            upper.append((work, z, 1.0))
            for t, seconds in room.items():
                time = len(upper_rhs)
                upper_rhs.append(0.0)
                upper.append((time, tau, -1.0) if t == k else (time, z, -seconds))
                for kind in range(types):
                    on = column(0.0)
                    upper.append((time, on, 1.0))
                    for width, slope in segments(instance, job, kind):
                        y = column(0.0 if price is None else float(price[kind, t]))
                        upper.append((work, y, -slope))
                        limit = len(upper_rhs)
                        upper_rhs.append(0.0)
                        upper += [(limit, y, 1.0), (limit, on, -width)]
                        use.append((kind * slots + t, y, 1.0))
    if price is None:
        base = len(upper_rhs)
        upper += [(base + t, y, value) for t, y, value in use]
        upper_rhs += instance.capacity(slot_s, slots).ravel().tolist()

    def matrix(entries: list[tuple[int, int, float]], height: int) -> csr_array:
        r, c, v = zip(*entries, strict=True)
        return csr_array((v, (r, c)), shape=(height, len(cost)))

    found = linprog(
        cost,
        A_ub=matrix(upper, len(upper_rhs)),
        b_ub=upper_rhs,
        A_eq=matrix(rows, len(equal_rhs)),
        b_eq=equal_rhs,
        method="highs",
    )
    assert found.status == 0, found.message
    return float(found.fun)


def best_by_search(
    arrivals: tuple[int, ...], run_s: tuple[dict[int, int], ...], start_s: int, gpus: int
) -> Fraction:
    """Return the least sum of (completion - submission) over schedules that change at whole seconds.

    Every start or change of a count costs `start_s` seconds with the GPUs held; a start is not given up.
    All jobs one after the other is one such schedule, so later than its end nothing needs to be tried.

    Parameters
    ----------
    arrivals : tuple of int
    run_s : tuple of dict
        By job: GPU count -> seconds of the whole run without the start.
    """

    horizon = max(arrivals) + sum(start_s + min(times.values()) for times in run_s)
    never = Fraction(10**9)

    @cache
    def least(now: int, state: tuple[tuple[Fraction, int, int] | None, ...]) -> Fraction:
        """state: by job None (done) or (rest of the work, GPUs, seconds since its start, capped)."""
        alive = [j for j, s in enumerate(state) if s is not None]
        if not alive:
            return Fraction(0)
        if now >= horizon:
            return never
        here = [j for j in alive if arrivals[j] <= now]
        if not here:
            return least(min(arrivals[j] for j in alive), state)
        best: Fraction | None = None
        for counts in product(*[(0, *run_s[j]) for j in here]):
            if sum(counts) > gpus or not any(counts):
                continue
            if any(
                state[j][1] not in (0, g) and state[j][2] < start_s for j, g in zip(here, counts, strict=True)
            ):
                continue
            cost, after = Fraction(0), list(state)
            for j, g in zip(here, counts, strict=True):
                entry = state[j]
                assert entry is not None
                rest, held, passed = entry
                passed = passed if held == g else 0
                if g == 0:
                    cost += 1
                    after[j] = (rest, 0, 0)
                    continue
                working = 1 if passed >= start_s else 0
                needed = rest * run_s[j][g]
                if working and needed <= 1:
                    cost += needed
                    after[j] = None
                else:
                    cost += 1
                    after[j] = (rest - Fraction(working, run_s[j][g]), g, min(passed + 1, start_s))
            total = cost + least(now + 1, tuple(after))
            best = total if best is None or total < best else best
        assert best is not None
        return best

    return least(min(arrivals), tuple((Fraction(1), 0, 0) for _ in arrivals))
