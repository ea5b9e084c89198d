"""What each job pays at given prices of GPU-seconds: the inner problem of the slot-price bound.

Notation: slot t lasts ``slot_s`` seconds and has one price lambda_t per GPU-second (of each GPU type). A job
that finishes in slot k works at a *shadow price of work* mu (seconds per job): in every slot before k it
takes the GPUs of the type that maximise ``mu v(g) - lambda_t g``, where v is the concave envelope of its
speeds on that type (jobs per second on g GPUs).

Work is counted in units of a job's cheapest GPU-seconds (its *area*), so that jobs whose speeds differ by
a factor only are of one *shape*: then ``mu v(g) = m w(g)`` with ``m = mu / area`` and w the shape. Shadow
prices are tried on a geometric grid of m; what depends on (shape, m, slot) is tabulated once for all jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["Evaluation", "Shapes", "SlotJobs", "shapes"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Shapes:
    """Concave envelopes of speed over GPUs of each type, scaled so that the steepest slope is one.

    Attributes
    ----------
    of : int64[n]
        Each job's shape.
    area_s : float64[n]
        Each job's least GPU-seconds (the inverse of its steepest slope).
    gpus : list of list of float64[m]
        By shape and type: GPUs at the end of each segment; empty where the type is not allowed.
    slope : list of list of float64[m]
        By shape and type: speed gained per GPU in each segment, decreasing.
    """

    of: IntArray
    area_s: FloatArray
    gpus: list[list[FloatArray]]
    slope: list[list[FloatArray]]


def shapes(time_s: FloatArray, counts: IntArray, tolerance: float = 0.0) -> Shapes:
    """Return the shapes of the concave envelopes of the speeds ``1 / time_s`` through the origin.

    Parameters
    ----------
    time_s : float64[n, types, c]
        Seconds on ``counts[c]`` GPUs, ``inf`` where not allowed; at least one finite a job.
    counts : int64[c]
        GPU counts, at least 1, distinct.
    tolerance : float
        Slopes are rounded up to a power of ``1 + tolerance``: fewer shapes, each at least as fast as the
        true one, so a bound stays valid.
    """
    order = np.argsort(counts, kind="stable")
    places = counts[order].astype(np.float64)
    jobs, types, _ = time_s.shape
    distinct, inverse = np.unique(time_s[:, :, order].reshape(jobs, -1), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    area = np.zeros(len(distinct))
    which = np.zeros(len(distinct), dtype=np.int64)
    known: dict[tuple[float, ...], int] = {}
    gpus: list[list[FloatArray]] = []
    slope: list[list[FloatArray]] = []
    for row, times in enumerate(distinct.reshape(len(distinct), types, -1)):
        hulls = [np.array(_hull(places, 1.0 / line)).reshape(-1, 2) for line in times]
        steepest = max(float(hull[0, 1] / hull[0, 0]) for hull in hulls if len(hull))
        area[row] = 1.0 / steepest
        relative = [_rounded_up(hull[:, 1] / hull[:, 0] / steepest, tolerance) for hull in hulls]
        # Twelve digits: shapes that differ by rounding only are one.
        key = tuple(
            value
            for hull, rises in zip(hulls, relative, strict=True)
            for value in (-1.0, *hull[:, 0].tolist(), *np.round(rises, 12).tolist())
        )
        if key not in known:
            known[key] = len(gpus)
            gpus.append([np.cumsum(hull[:, 0]) for hull in hulls])
            slope.append(relative)
        which[row] = known[key]
    return Shapes(which[inverse], area[inverse], gpus, slope)


def _rounded_up(slopes: FloatArray, tolerance: float) -> FloatArray:
    if not tolerance:
        return slopes
    step = np.log1p(tolerance)
    return np.asarray(np.exp(np.ceil(np.log(slopes) / step - 1e-9) * step))


def _hull(places: FloatArray, speed: FloatArray) -> list[tuple[float, float]]:
    """Return (width, rise) of the upper concave hull's increasing part."""
    points: list[tuple[float, float]] = [(0.0, 0.0)]
    for x, y in zip(places.tolist(), speed.tolist(), strict=True):
        if y <= points[-1][1]:
            continue
        while len(points) > 1:
            (x0, y0), (x1, y1) = points[-2], points[-1]
            if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                break
            points.pop()
        points.append((x, y))
    return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(points)]


@dataclass(frozen=True)
class Evaluation:
    """The dual function at some prices.

    Attributes
    ----------
    value_s : float64[n]
        Of each job: a lower limit of the least (completion - submission) + price of its GPUs, seconds.
    usage : float64[types, slots]
        GPU-seconds that all jobs would use in each slot; less the capacity, an (approximate) supergradient.
    highest : int
        The highest shadow price used, as a number of steps on the grid; more must be tried than this.
    """

    value_s: FloatArray
    usage: FloatArray
    highest: int


@dataclass(frozen=True)
class _Tables:
    """What depends on (shape, level) and slot only; a row for each pair in use.

    Attributes
    ----------
    mu : float64[rows]
        Shadow price per unit of area.
    profit : float64[rows, slots]
        ``phi_t = max_g (mu w(g) - lambda_t g)``.
    gpus : float64[types, rows, slots]
        The maximiser g, on its type.
    rate : float64[rows, slots]
        w(g) of the maximiser.
    before, done : float64[rows, slots + 1]
        Sums of profit and of rate over the slots before, times the slot's length.
    limit : float64[rows, slots]
        ``begin of t - before - (slot's length) (phi_t - 1)^+``.
    """

    mu: FloatArray
    profit: FloatArray
    gpus: FloatArray
    rate: FloatArray
    before: FloatArray
    done: FloatArray
    limit: FloatArray


class SlotJobs:
    """Jobs on a grid of slots; remembers how far each job's completion must be searched.

    Parameters
    ----------
    submit_s : float64[n]
        Submissions relative to the grid's begin, at least 0.
    found : Shapes
    fastest_s : float64[n]
        Each job's time alone at its best count.
    slot_s : float
        Length of a slot, seconds.
    slots : int
        Number of slots; a completion after the last costs at least the time until then.
    ratio : float
        Ratio of neighbouring shadow prices on the grid.
    """

    def __init__(
        self,
        submit_s: FloatArray,
        found: Shapes,
        fastest_s: FloatArray,
        slot_s: float,
        slots: int,
        ratio: float = 1.05,
    ) -> None:
        self.submit_s = submit_s
        self.found = found
        self.fastest_s = fastest_s
        self.slot_s = slot_s
        self.slots = slots
        self.step = float(np.log(ratio))
        # Without prices the best shadow price of all the work is the fastest time.
        self.floor: IntArray = np.floor(np.log(fastest_s / found.area_s) / self.step).astype(np.int64)
        self.first: IntArray = np.minimum(np.floor(submit_s / slot_s), slots - 1).astype(np.int64)
        self.lead_s = (self.first + 1) * slot_s - submit_s
        self.reach: IntArray = np.ceil(2.0 * fastest_s / slot_s).astype(np.int64) + 2
        self._windows()

    def extend(self, reach: IntArray) -> None:
        """Search completions at least this many slots after the submission."""
        self.reach = np.maximum(self.reach, reach)
        self._windows()

    def _windows(self) -> None:
        """Lay out the (job, slot) pairs that are searched for a completion: slots after the first."""
        number = np.minimum(self.reach, self.slots - 1 - self.first)
        self.number: IntArray = np.maximum(number, 0)
        self.busy: IntArray = np.flatnonzero(self.number)
        number = self.number[self.busy]
        self.owner: IntArray = np.repeat(self.busy, number)
        self.begin: IntArray = np.concatenate([[0], np.cumsum(number)[:-1]]).astype(np.int64)
        within = np.arange(len(self.owner)) - np.repeat(self.begin, number)
        self.slot: IntArray = self.first[self.owner] + 1 + within

    def evaluate(self, price: FloatArray, levels: int) -> Evaluation:
        """Return the jobs' least costs at some prices and what they would use.

        Proof that ``value_s`` is a lower limit. Let a job finish in slot k, tau seconds after its begin, and
        let d_t be the seconds of slot t after the submission. For every mu >= 0 (weak duality on "the work
        is done")::

            cost >= e_k + tau + mu - sum_{t<k} d_t phi_t(mu) - tau phi_k(mu),
            phi_t(mu) = max_g (mu v(g) - lambda_t g)

        with e_k the seconds from the submission to the begin of slot k (0 in the first). The least value
        over tau in [0, d_k] is ``e_k + mu - sum_{t<k} d_t phi_t - d_k (phi_k - 1)^+``. It holds for every
        mu, so for the best of those tried; the minimum over k, with the tail "later than the window" that
        costs at least the window's length, is a lower limit of the job's cost. For the best mu it is exact:
        the expression is linear in tau and concave in mu, so minimum and maximum may be exchanged.

        Parameters
        ----------
        price : float64[types, slots]
            Prices per GPU-second, at least 0.
        levels : int
            Shadow prices tried, from the least possible one up.
        """
        tables, rows = self._tables(price, self.floor[:, None] + np.arange(levels))
        mu = tables.mu[rows] * self.found.area_s[:, None]
        first = self.first
        profit = tables.profit[rows, first[:, None]]
        same = mu - (self.submit_s + self.lead_s * profit.T).T + tables.before[rows, first[:, None] + 1]
        here = mu - self.lead_s[:, None] * np.maximum(profit - 1.0, 0.0)
        limit = np.full(len(self.owner), -np.inf)
        flat, width = tables.limit.ravel(), self.slots
        for p in range(levels):
            found = flat[rows[self.owner, p] * width + self.slot]
            found += same[self.owner, p]
            np.maximum(limit, found, out=limit)
        low = here.max(axis=1)
        at = first.copy()
        if len(self.busy):
            least = np.minimum.reduceat(limit, self.begin)
            is_least = limit == np.repeat(least, self.number[self.busy])
            where = np.minimum.reduceat(np.where(is_least, self.slot, self.slots), self.begin)
            better = least < low[self.busy]
            chosen = self.busy[better]
            low[chosen] = least[better]
            at[chosen] = where[better]
        tail = (self.first + 1 + self.number) * self.slot_s - self.submit_s
        usage, highest = self._usage(tables, rows, at)
        short = (low > tail) & (self.first + 1 + self.number < self.slots)
        if short.any():
            self.reach = np.where(short, 2 * self.reach, self.reach)
            self._windows()
        return Evaluation(np.minimum(low, tail), usage, highest)

    def _tables(self, price: FloatArray, levels: IntArray) -> tuple[_Tables, IntArray]:
        base = int(levels.min())
        span = int(levels.max()) - base + 1
        codes, rows = np.unique(self.found.of[:, None] * span + (levels - base), return_inverse=True)
        shape, level = codes // span, codes % span + base
        mu = np.exp(level * self.step)
        profit, rate = (np.zeros((len(codes), self.slots)) for _ in range(2))
        gpus = np.zeros((len(price), len(codes), self.slots))
        for kind in np.unique(shape).tolist():
            chosen = np.flatnonzero(shape == kind)
            for k, (slope, ends) in enumerate(
                zip(self.found.slope[kind], self.found.gpus[kind], strict=True)
            ):
                if not len(slope):
                    continue
                rates = np.concatenate([[0.0], np.cumsum(slope * np.diff(ends, prepend=0.0))])
                segments = np.searchsorted(-slope, -(price[k] / mu[chosen, None]), side="left")
                held, speed = np.concatenate([[0.0], ends])[segments], rates[segments]
                gain = mu[chosen, None] * speed - held * price[k]
                better = gain > profit[chosen]
                profit[chosen] = np.where(better, gain, profit[chosen])
                rate[chosen] = np.where(better, speed, rate[chosen])
                gpus[:, chosen] = np.where(better, 0.0, gpus[:, chosen])
                gpus[k, chosen] = np.where(better, held, gpus[k, chosen])
        before, done = (np.zeros((len(codes), self.slots + 1)) for _ in range(2))
        np.cumsum(profit, axis=1, out=before[:, 1:])
        np.cumsum(rate, axis=1, out=done[:, 1:])
        before *= self.slot_s
        done *= self.slot_s
        limit = np.arange(self.slots) * self.slot_s - before[:, :-1]
        limit -= self.slot_s * np.maximum(profit - 1.0, 0.0)
        return _Tables(mu, profit, gpus, rate, before, done, limit), rows.reshape(levels.shape)

    def _usage(self, tables: _Tables, rows: IntArray, at: IntArray) -> tuple[FloatArray, int]:
        """Return the GPU-seconds by slot, and the highest level used.

        A job that finishes in slot `at` uses the mix of two neighbouring levels that does exactly its work.
        """
        jobs = np.arange(len(at))
        first, column = self.first[:, None], at[:, None]
        later = at > self.first
        ends = np.where(
            tables.profit[rows, column] > 1.0, np.where(later, self.slot_s, self.lead_s)[:, None], 0.0
        )
        work = tables.rate[rows, column] * ends
        begin = tables.rate[rows, first] * self.lead_s[:, None]
        work += np.where(
            later[:, None], begin + tables.done[rows, column] - tables.done[rows, first + 1], 0.0
        )
        work /= self.found.area_s[:, None]
        above = np.argmax(work > 1.0, axis=1)
        none = work[:, -1] <= 1.0
        above[none] = work.shape[1] - 1
        below = np.maximum(above - 1, 0)
        low, high = work[jobs, below], work[jobs, above]
        share = np.where(high > low, (1.0 - low) / np.maximum(high - low, 1e-300), 1.0)
        share = np.where(none | (low > 1.0), 1.0, np.clip(share, 0.0, 1.0))
        usage = np.zeros((len(tables.gpus), self.slots))
        cover = np.zeros((len(tables.mu), self.slots + 1))
        for pick, weight in ((above, share), (below, 1.0 - share)):
            row = rows[jobs, pick]
            for held, used in zip(tables.gpus, usage, strict=True):
                np.add.at(used, at, weight * held[row, at] * ends[jobs, pick])
                opening = np.where(later, weight * held[row, self.first] * self.lead_s, 0.0)
                np.add.at(used, self.first, opening)
            np.add.at(cover, (row, self.first + 1), np.where(later, weight, 0.0))
            np.add.at(cover, (row, at), np.where(later, -weight, 0.0))
        inside = np.cumsum(cover, axis=1)[:, :-1]
        usage += self.slot_s * np.einsum("rs,krs->ks", inside, tables.gpus)
        return usage, int(above.max(initial=0))
