"""Throughput and memory between and around the measured points of a snapshot.

Rules of the contract: GPU counts are interpolated (linearly in samples/s) inside the measured
range and extrapolated by at most one doubling or halving, with a power law through the two nearest
measured counts (exponent within [0, 1]; 0.8 where only one count is measured). Between measured
batches the seconds per step are linear in the batch; above the largest, accumulation keeps its
samples/s (a plateau); below the smallest, a step takes as long as the smallest's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.base import MIN_POSITIVE
from ymir_opt.domain.snapshot import Provenance, ThroughputRow
from ymir_opt.estimates.protocols import ThroughputKey

__all__ = ["SINGLE_COUNT_EXPONENT", "ThroughputTable"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

SINGLE_COUNT_EXPONENT = 0.8
FEW = 1000


@dataclass(frozen=True)
class _Curve:
    """Measured points at one GPU count, ascending in batch."""

    gpus: int
    batch: FloatArray
    step_s: FloatArray
    memory: FloatArray
    predicted: BoolArray

    def rate(self, batch: FloatArray) -> FloatArray:
        step = np.interp(batch, self.batch, self.step_s)
        inside = batch / np.maximum(step, 1e-300)
        # accumulation above the largest measured batch keeps its samples/s
        return np.where(batch > self.batch[-1], self.batch[-1] / max(self.step_s[-1], 1e-300), inside)

    def memory_gib(self, batch: FloatArray) -> FloatArray:
        position = np.minimum(np.searchsorted(self.batch, batch, side="left"), len(self.batch) - 1)
        return self.memory[position]

    def is_predicted(self, batch: FloatArray) -> BoolArray:
        """Say whether a predicted row enters the rate at these batches."""
        right = np.minimum(np.searchsorted(self.batch, batch, side="left"), len(self.batch) - 1)
        left = np.where(batch < self.batch[right], np.maximum(right - 1, 0), right)
        return self.predicted[left] | self.predicted[right]


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values, ascending, and the place of each value among them."""
    top = int(values.max())
    if int(values.min()) < 0 or top > 4 * len(values):
        found, inverse = np.unique(values, return_inverse=True)
        return found, inverse.reshape(-1)
    present = np.zeros(top + 1, dtype=np.bool_)
    present[values] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[values]


class ThroughputTable:
    """Samples/s and memory per GPU from the rows of a snapshot."""

    def __init__(self, rows: Iterable[ThroughputRow]) -> None:
        best: dict[tuple[ThroughputKey, str, int, int], ThroughputRow] = {}
        for row in rows:
            if row.samples_per_s < MIN_POSITIVE:
                continue
            key = ThroughputKey(row.foundation_model, row.peft_type, row.config)
            at = (key, row.gpu_type, row.gpus, row.batch_size)
            if at not in best or self._rank(row) < self._rank(best[at]):
                best[at] = row
        points: dict[tuple[ThroughputKey, str], dict[int, list[ThroughputRow]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for (key, gpu_type, gpus, _), row in best.items():
            points[key, gpu_type][gpus].append(row)
        self._curves: dict[tuple[ThroughputKey, str], list[_Curve]] = {
            at: [self._curve(gpus, by_count[gpus]) for gpus in sorted(by_count)]
            for at, by_count in points.items()
        }

    @staticmethod
    def _rank(row: ThroughputRow) -> tuple[int, int]:
        # packed placements first, then measured before predicted
        return (row.nodes or 0, int(row.source is Provenance.PREDICTED))

    @staticmethod
    def _curve(gpus: int, rows: list[ThroughputRow]) -> _Curve:
        rows = sorted(rows, key=lambda row: row.batch_size)
        return _Curve(
            gpus,
            np.array([row.batch_size for row in rows], dtype=np.float64),
            np.array([row.batch_size / row.samples_per_s for row in rows]),
            np.array([np.nan if row.memory_gib is None else row.memory_gib for row in rows]),
            np.array([row.source is Provenance.PREDICTED for row in rows]),
        )

    def knows(self, key: ThroughputKey, gpu_type: str) -> bool:
        """Say whether any row exists for this key on this GPU type."""
        return (key, gpu_type) in self._curves

    def largest(self, key: ThroughputKey, gpu_type: str) -> int:
        """Return the largest GPU count that the rows can answer for (one doubling beyond them)."""
        curves = self._curves.get((key, gpu_type))
        return 2 * curves[-1].gpus if curves else 0

    def lookup(
        self, key: ThroughputKey, gpu_type: str, gpus: IntArray, batch: IntArray
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return samples/s, memory per GPU (GiB) and whether the figure is predicted.

        Parameters
        ----------
        gpus, batch : int64[k]
            GPU counts and global batch sizes.

        Returns
        -------
        rate, memory : float64[k]
            NaN where the rules give no answer.
        predicted : bool[k]
            Extrapolated beyond the measured counts, or from a predicted row.
        """
        gpus, batch = np.asarray(gpus, dtype=np.int64), np.asarray(batch, dtype=np.int64)
        if len(gpus) <= FEW:
            return self._answer(key, gpu_type, gpus, batch)
        # many questions about few counts and batches: answer each combination once
        counts, row = _distinct(gpus)
        batches, column = _distinct(batch)
        if len(counts) * len(batches) >= len(gpus):
            return self._answer(key, gpu_type, gpus, batch)
        grid = np.repeat(counts, len(batches)), np.tile(batches, len(counts))
        at = row * len(batches) + column
        rate, memory, predicted = self._answer(key, gpu_type, *grid)
        return rate[at], memory[at], predicted[at]

    def _answer(
        self, key: ThroughputKey, gpu_type: str, gpus: IntArray, batch: IntArray
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        batch_f = batch.astype(np.float64)
        rate = np.full(len(gpus), np.nan)
        memory = np.full(len(gpus), np.nan)
        predicted = np.zeros(len(gpus), dtype=np.bool_)
        curves = self._curves.get((key, gpu_type))
        if not curves or not len(gpus):
            return rate, memory, predicted
        counts = np.array([curve.gpus for curve in curves], dtype=np.int64)
        rates = np.stack([curve.rate(batch_f) for curve in curves])
        memories = np.stack([curve.memory_gib(batch_f) for curve in curves])
        flagged = np.stack([curve.is_predicted(batch_f) for curve in curves])
        columns = np.arange(len(gpus))
        right = np.minimum(np.searchsorted(counts, gpus, side="left"), len(counts) - 1)
        left = np.where(counts[right] > gpus, np.maximum(right - 1, 0), right)
        inside = (gpus >= counts[0]) & (gpus <= counts[-1])
        span = np.maximum(counts[right] - counts[left], 1)
        share = np.where(right == left, 0.0, (gpus - counts[left]) / span)
        between = rates[left, columns] * (1 - share) + rates[right, columns] * share
        rate[inside] = between[inside]
        # with unknown memory on one side the sum is unknown too
        larger = np.maximum(memories[left, columns], memories[right, columns])
        memory[inside] = larger[inside]
        predicted[inside] = (flagged[left, columns] | flagged[right, columns])[inside]
        for beyond, end, inner in (
            ((gpus > counts[-1]) & (gpus <= 2 * counts[-1]), -1, -2),
            ((gpus < counts[0]) & (2 * gpus >= counts[0]), 0, 1),
        ):
            if not beyond.any():
                continue
            exponent = np.full(len(gpus), SINGLE_COUNT_EXPONENT)
            if len(counts) > 1:
                with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                    ratio = np.log(rates[end] / rates[inner]) / np.log(counts[end] / counts[inner])
                exponent = np.clip(ratio, 0.0, 1.0)
            grown = rates[end] * (gpus / counts[end]) ** exponent
            rate[beyond] = grown[beyond]
            memory[beyond] = memories[end][beyond]
            predicted[beyond] = True
        return rate, memory, predicted
