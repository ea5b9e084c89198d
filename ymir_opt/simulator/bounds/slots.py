"""The price function of slot prices: what each job pays at given prices, and which GPUs it would use.

Notation: slot t lasts ``slot_s`` seconds and has one price lambda_t per GPU-second. A job that finishes in
slot k works at a *shadow price of work* mu (seconds per job): in every slot before k it takes the GPUs that
maximise ``mu v(g) - lambda_t g``, where v is the concave envelope of its speeds (jobs per second on g GPUs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Envelope", "SlotJobs", "envelopes"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MIN_SPREAD = 1.0005
_MAX_SPREAD = 2.0


@dataclass(frozen=True)
class Envelope:
    """Concave envelopes of speed over GPUs as segments of decreasing slope; unused segments are zero.

    Attributes
    ----------
    gpus : float64[n, m]
        Width of a segment, GPUs.
    slope : float64[n, m]
        Speed gained per GPU, jobs per GPU-second; decreasing along a row.
    """

    gpus: FloatArray
    slope: FloatArray

    def take(self, rows: IntArray) -> Envelope:
        """Return the envelopes of some jobs."""
        return Envelope(self.gpus[rows], self.slope[rows])


def envelopes(time_s: FloatArray, counts: IntArray) -> Envelope:
    """Return the concave envelopes of the speeds ``1 / time_s`` through the origin.

    Parameters
    ----------
    time_s : float64[n, c]
        Seconds on ``counts[c]`` GPUs, ``inf`` where not allowed.
    counts : int64[c]
        GPU counts, at least 1.
    """
    order = np.argsort(counts, kind="stable")
    places = np.concatenate([[0.0], counts[order].astype(np.float64)])
    speed = np.zeros((time_s.shape[0], len(places)))
    speed[:, 1:] = 1.0 / time_s[:, order]
    shapes, inverse = np.unique(speed, axis=0, return_inverse=True)
    hulls = [_hull(places, row) for row in shapes]
    width = max((len(h) for h in hulls), default=1)
    gpus = np.zeros((len(hulls), width))
    slope = np.zeros((len(hulls), width))
    for row, hull in enumerate(hulls):
        for column, (step, rise) in enumerate(hull):
            gpus[row, column] = step
            slope[row, column] = rise / step
    inverse = inverse.reshape(-1)
    return Envelope(gpus[inverse], slope[inverse])


def _hull(places: FloatArray, speed: FloatArray) -> list[tuple[float, float]]:
    """Return (width, rise) of the upper concave hull's increasing part."""
    points: list[tuple[float, float]] = [(0.0, 0.0)]
    for x, y in zip(places[1:].tolist(), speed[1:].tolist(), strict=True):
        if y <= points[-1][1]:
            continue
        if x == points[-1][0]:
            points.pop()
        while len(points) > 1:
            (x0, y0), (x1, y1) = points[-2], points[-1]
            if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                break
            points.pop()
        points.append((x, y))
    return [(b[0] - a[0], b[1] - a[1]) for a, b in zip(points, points[1:], strict=False)]


@dataclass
class _Bucket:
    """Jobs with windows of about the same length, as dense matrices."""

    rows: IntArray
    first: IntArray
    """Slot of the submission."""
    lead_s: FloatArray
    """Seconds of the first slot after the submission."""
    window: int
    envelope: Envelope


@dataclass(frozen=True)
class Evaluation:
    """The dual function at some prices.

    Attributes
    ----------
    value_s : float64[n]
        Of each job: a lower limit of the least (completion - submission) + price of its GPUs, seconds.
    usage : float64[slots]
        GPU-seconds that all jobs would use in each slot: with the capacity, an (approximate) supergradient.
    beyond : int
        Jobs whose window was too short for an exact answer (their value is still a valid lower limit).
    """

    value_s: FloatArray
    usage: FloatArray
    beyond: int


class SlotJobs:
    """Jobs on a grid of slots; remembers each job's shadow prices from one evaluation to the next.

    Parameters
    ----------
    submit_s : float64[n]
        Submissions relative to the grid's begin.
    envelope : Envelope
    slot_s : float
        Length of a slot, seconds.
    slots : int
        Number of priced slots; later ones are free of charge.
    mu : float64[n]
        First guess of each job's shadow price of work, seconds.
    reach_s : float64[n]
        First guess of how far after its submission a job's completion must be searched.
    """

    def __init__(
        self,
        submit_s: FloatArray,
        envelope: Envelope,
        slot_s: float,
        slots: int,
        mu: FloatArray,
        reach_s: FloatArray,
    ) -> None:
        self.submit_s = submit_s
        self.envelope = envelope
        self.slot_s = slot_s
        self.slots = slots
        self.mu = mu.copy()
        self.spread = np.full(len(mu), 1.2)
        self.reach_s = reach_s.copy()
        self._buckets: list[_Bucket] = []
        self._bucket()

    def _bucket(self) -> None:
        """Group the jobs by the length of their windows, in steps of a third."""
        need = np.ceil(self.reach_s / self.slot_s) + 2.0
        level = np.ceil(np.log(need) / np.log(1.35)).astype(np.int64)
        first = np.floor(self.submit_s / self.slot_s).astype(np.int64)
        lead = (first + 1) * self.slot_s - self.submit_s
        self._buckets = []
        for value in np.unique(level):
            rows = np.flatnonzero(level == value).astype(np.int64)
            window = int(np.ceil(1.35 ** float(value)))
            self._buckets.append(_Bucket(rows, first[rows], lead[rows], window, self.envelope.take(rows)))

    @property
    def cells(self) -> int:
        """Return the number of (job, slot) pairs that an evaluation visits."""
        return sum(len(b.rows) * b.window for b in self._buckets)

    def evaluate(self, price: FloatArray, *, refine: int = 0) -> Evaluation:
        """Return the jobs' least costs at some prices and what they would use.

        Proof that ``value_s`` is a lower limit. Let a job finish in slot k, tau seconds after its begin, and
        let d_t be the seconds of slot t after the submission. For every mu >= 0 (weak duality on "the work
        is done")::

            cost >= e_k + tau + mu - sum_{t<k} d_t phi_t(mu) - tau phi_k(mu),
            phi_t(mu) = max_g (mu v(g) - lambda_t g) = sum_j gpus_j (mu slope_j - lambda_t)^+

        with e_k the seconds from the submission to the begin of slot k (0 in the first). The least value
        over tau in [0, d_k] is ``e_k + mu - sum_{t<k} d_t phi_t - d_k (phi_k - 1)^+``. It holds for every
        mu, so for the best of those tried; the minimum over k, with the tail "later than the window" that
        costs at least the window's length, is a lower limit of the job's cost. For the best mu it is exact:
        the expression is linear in tau and concave in mu, so minimum and maximum may be exchanged.

        Parameters
        ----------
        price : float64[slots]
            Prices per GPU-second, at least 0.
        refine : int
            Extra rounds that tighten the shadow prices at the same prices.
        """
        longest = max((b.window for b in self._buckets), default=0)
        padded = np.concatenate([price, np.zeros(longest + 1)])
        value = np.zeros(len(self.submit_s))
        usage = np.zeros(len(padded))
        beyond = 0
        for bucket in self._buckets:
            beyond += self._evaluate_bucket(bucket, padded, value, usage, refine)
        if beyond:
            self._bucket()
        return Evaluation(value, usage[: self.slots], beyond)

    def _evaluate_bucket(
        self, b: _Bucket, price: FloatArray, value: FloatArray, usage: FloatArray, refine: int
    ) -> int:
        cells = np.minimum(b.first[:, None] + np.arange(b.window), len(price) - 1)
        lam = price[cells]
        length = np.full(lam.shape, self.slot_s)
        length[:, 0] = b.lead_s
        begin = np.cumsum(length, axis=1) - length
        end = begin[:, -1] + length[:, -1]
        every = np.arange(len(b.rows))
        best = None
        for _ in range(refine + 1):
            mu, spread = self.mu[b.rows], self.spread[b.rows]
            tries = [mu / spread, mu, mu * spread]
            parts = [self._limits(b.envelope, m, lam, length, begin) for m in tries]
            limit = np.maximum(np.maximum(parts[0][0], parts[1][0]), parts[2][0])
            if best is not None:
                np.maximum(limit, best, out=limit)
            best = limit
            at = np.argmin(limit, axis=1)
            there = np.stack([p[0][every, at] for p in parts])
            which = np.argmax(there, axis=0)
            self.mu[b.rows] = np.stack(tries)[which, every]
            edge = which != 1
            self.spread[b.rows] = np.clip(np.where(edge, spread**1.5, spread**0.6), _MIN_SPREAD, _MAX_SPREAD)
        low = limit[every, at]
        value[b.rows] = np.minimum(low, end)
        self._add_usage(b, tries, parts, at, length, cells, usage)
        short = low > end
        self.reach_s[b.rows] = np.where(short, self.reach_s[b.rows] * 2.0, self.reach_s[b.rows])
        return int(short.sum())

    @staticmethod
    def _limits(
        envelope: Envelope, mu: FloatArray, lam: FloatArray, length: FloatArray, begin: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return (limit per completion slot, GPUs per slot, work done before each slot's end, total)."""
        phi = np.zeros_like(lam)
        gpus = np.zeros_like(lam)
        for j in range(envelope.gpus.shape[1]):
            width = envelope.gpus[:, j, None]
            gain = (mu * envelope.slope[:, j])[:, None] - lam
            gpus += width * (gain > 0)
            np.maximum(gain, 0.0, out=gain)
            gain *= width
            phi += gain
        rate = (phi + lam * gpus) / mu[:, None]
        inner = phi * length
        spent = np.cumsum(inner, axis=1)
        limit = begin + mu[:, None] - (spent - inner) - np.maximum(inner - length, 0.0)
        running = phi > 1.0
        done = np.cumsum(rate * length, axis=1)
        done -= rate * length * ~running
        gpus_final = np.where(running, gpus, 0.0)
        return limit, np.stack([gpus, gpus_final]), done, spent[:, -1]

    @staticmethod
    def _add_usage(
        b: _Bucket,
        tries: list[FloatArray],
        parts: list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]],
        at: IntArray,
        length: FloatArray,
        cells: IntArray,
        usage: FloatArray,
    ) -> None:
        """Add the GPU-seconds of each job: the mix of two shadow prices that does exactly its work."""
        every = np.arange(len(b.rows))
        work = np.stack([p[2][every, at] for p in parts])
        weight = np.zeros_like(work)
        inside = (work[:-1] <= 1.0) & (work[1:] > 1.0)
        has = inside.any(axis=0)
        lower = np.argmax(inside, axis=0)
        low, high = work[lower, every], work[np.minimum(lower + 1, 2), every]
        share = np.where(has, (1.0 - low) / np.maximum(high - low, 1e-300), 0.0)
        weight[lower[has], every[has]] = 1.0 - share[has]
        weight[lower[has] + 1, every[has]] = share[has]
        nearest = np.where(work[0] > 1.0, 0, 2)
        weight[nearest[~has], every[~has]] = 1.0
        before = np.arange(b.window) < at[:, None]
        total = np.zeros(length.shape)
        for p, (_, gpus, _, _) in enumerate(parts):
            final = gpus[1][every, at]
            used = np.where(before, gpus[0], 0.0)
            used[every, at] = final
            total += weight[p][:, None] * used
        total *= length
        usage += np.bincount(cells.ravel(), weights=total.ravel(), minlength=len(usage))
