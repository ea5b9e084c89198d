"""Completion times of groups: members progress together, the first finisher leaves, rates change.

gpu_share and colocate: ``r = speed_ratio x alone on the same GPUs``. joint: with ``B`` the sum of
the active members' batches, ``r = throughput(B) x own batch / B``. When a member finishes, the
rest go on at the row of the remaining set, one member at its speed alone, else unchanged.
sequence: one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Mode
from ymir_opt.estimates import Colocation, ThroughputKey
from ymir_opt.formulation.jobs import JobTable
from ymir_opt.formulation.rowwise import any_of, min_of, sum_of
from ymir_opt.formulation.work import unique_rows

__all__ = ["GroupSpeeds", "run_times"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

RateFunction = Callable[[BoolArray, FloatArray | None], FloatArray]


def run_times(
    work: FloatArray, present: BoolArray, rates: RateFunction, first: FloatArray | None = None
) -> FloatArray:
    """Return seconds until each member finishes, float64[M, K]; NaN pads, inf never.

    Parameters
    ----------
    work : float64[M, K]
        Samples to do.
    present : bool[M, K]
    rates : callable
        ``rates(active, previous)`` gives samples/s, float64[M, K], of the active members;
        ``previous`` are the rates before someone left (None at the start).
    first : float64[M, K], optional
        ``rates(present, None)`` where it is known already.
    """
    left = work.copy()
    active = present.copy()
    clock = np.zeros(len(work))
    out = np.full(work.shape, np.nan)
    current: FloatArray | None = None
    for _ in range(work.shape[1]):
        if not active.any():
            break
        current = first if current is None and first is not None else rates(active, current)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            eta = np.where(active, left / current, np.inf)
        eta = np.where(active & (left <= 0), 0.0, eta)
        step = min_of(eta)
        running = np.isfinite(step)
        stuck = active & ~running[:, None]
        out[stuck] = np.inf
        finished = active & (eta <= (step * (1 + 1e-12))[:, None]) & running[:, None]
        advance = np.where(running, step, 0.0)
        clock = clock + advance
        out = np.where(finished, clock[:, None], out)
        with np.errstate(over="ignore", invalid="ignore"):
            left = np.where(active, left - np.nan_to_num(current) * advance[:, None], left)
        active = active & ~finished & ~stuck
    return out


class _Unasked:
    """Marks what has not been looked up yet."""


_UNASKED = _Unasked()


class GroupSpeeds:
    """Rates and memory of groups in every mode."""

    def __init__(self, jobs: JobTable) -> None:
        self.jobs = jobs
        keys = []
        rows: dict[ThroughputKey, int] = {}
        for member in jobs.member_keys:
            keys.append(-1 if member is None else rows.setdefault(member.key, len(rows)))
        self.key = np.array(keys, dtype=np.int64)
        self.keys = tuple(rows)
        self.batch = np.array([j.batch_size or 0 for j in jobs.instance.jobs], dtype=np.int64)
        self.backbone = np.array(
            [np.nan if (gib := jobs.estimates.backbone_gib(fm)) is None else gib for fm in jobs.instance.fms]
            + [np.nan]
        )

        self._speeds: dict[tuple[int, ...], tuple[float, float, float]] = {}
        self._known: dict[Mode, dict[tuple[int, ...], Colocation | None]] = {mode: {} for mode in Mode}

    def alone(self, members: IntArray, types: IntArray, gpus: IntArray) -> FloatArray:
        """Return each member's samples/s alone on the group's GPUs, [M, K]; NaN where unknown."""
        return self._spread(self.jobs.rate, members, types, gpus)

    def alone_or_largest(self, members: IntArray, types: IntArray, gpus: IntArray) -> FloatArray:
        """Return the rate alone, or that of the largest known count below ``gpus``."""
        return self._spread(self.jobs.rate_or_largest, members, types, gpus)

    def alone_memory(self, members: IntArray, types: IntArray, gpus: IntArray) -> FloatArray:
        """Return each member's GiB per GPU alone, [M, K]; NaN where unknown or absent."""
        return self._spread(self.jobs.memory, members, types, gpus)

    @staticmethod
    def _spread(
        function: Callable[[IntArray, IntArray, IntArray], FloatArray],
        members: IntArray,
        types: IntArray,
        gpus: IntArray,
    ) -> FloatArray:
        shape = members.shape
        safe = np.where(members >= 0, members, 0).reshape(-1)
        values = function(safe, np.repeat(types, shape[1]), np.repeat(gpus, shape[1])).reshape(shape)
        return np.where(members >= 0, values, np.nan)

    def shared(
        self, mode: Mode, members: IntArray, types: IntArray, gpus: IntArray, active: BoolArray
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return speed ratios [M, K], group memory [M] and predicted [M] of gpu_share or colocate."""
        signature = np.where(active, self.jobs.signature[np.where(members >= 0, members, 0)], -1)
        unknown = any_of(active & (signature < 0))
        order = np.argsort(signature, axis=1, kind="stable")
        ordered = np.take_along_axis(signature, order, axis=1)
        rows, inverse = unique_rows(np.column_stack([types, gpus, ordered]))
        ratio = np.full((len(rows), members.shape[1]), np.nan)
        memory, predicted = np.full(len(rows), np.nan), np.zeros(len(rows), np.bool_)
        for i, row in enumerate(rows.tolist()):
            found = self._colocated(mode, tuple(row))
            if found is not None:
                ratio[i, members.shape[1] - len(found.speed_ratio) :] = found.speed_ratio
                memory[i] = np.nan if found.memory_gib is None else found.memory_gib
                predicted[i] = found.predicted
        out = np.full(members.shape, np.nan)
        np.put_along_axis(out, order, ratio[inverse], axis=1)
        out[unknown] = np.nan
        return out, memory[inverse], predicted[inverse]

    def _colocated(self, mode: Mode, row: tuple[int, ...]) -> Colocation | None:
        """Return the estimate of (type, GPUs, member signatures; -1 pads in front), remembered."""
        found = self._known[mode].get(row, _UNASKED)
        if isinstance(found, _Unasked):
            group = [s for s in row[2:] if s >= 0]
            found = None
            if len(group) > 1:
                found = self.jobs.estimates.colocation.lookup(
                    mode,
                    self.jobs.instance.types[row[0]],
                    row[1],
                    [self.jobs.signature_keys[s] for s in group],
                )
            self._known[mode][row] = found
        return found

    def joint(
        self, members: IntArray, types: IntArray, gpus: IntArray, active: BoolArray
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return rates [M, K], memory [M] and predicted [M] at the active members' summed batch."""
        safe = np.where(members >= 0, members, 0)
        batch = np.where(active, self.batch[safe], 0)
        total = sum_of(batch)
        lead = np.argmax(active, axis=1)
        key = self.key[safe[np.arange(len(members)), lead]]
        asked, inverse = unique_rows(np.column_stack([key, types, gpus, total]))
        answer = self._joint_speeds(asked)
        rate, memory, predicted = answer[inverse, 0], answer[inverse, 1], answer[inverse, 2] == 1.0
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            each = rate[:, None] * batch / np.maximum(total, 1)[:, None]
        return np.where(active, each, np.nan), memory, predicted

    def _joint_speeds(self, asked: IntArray) -> FloatArray:
        """Return [M, 3] samples/s, memory and predicted (0 or 1) of (key, type, GPUs, batch), remembered."""
        rows = [tuple(row) for row in asked.tolist()]
        missing: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        for row in rows:
            if row not in self._speeds and row[0] >= 0:
                missing.setdefault(row[:2], []).append(row)
        for (k, t), group in missing.items():
            found = self.jobs.estimates.throughput(
                self.keys[k],
                self.jobs.instance.types[t],
                np.array([row[2] for row in group], dtype=np.int64),
                np.array([row[3] for row in group], dtype=np.int64),
            )
            for i, row in enumerate(group):
                self._speeds[row] = (float(found[0][i]), float(found[1][i]), float(found[2][i]))
        unknown = (np.nan, np.nan, 0.0)
        return np.array([self._speeds.get(row, unknown) for row in rows], dtype=np.float64).reshape(-1, 3)

    def rate_function(self, mode: Mode, members: IntArray, types: IntArray, gpus: IntArray) -> RateFunction:
        """Return the rates of a mode as `run_times` asks for them."""
        single = self.alone_or_largest(members, types, gpus)

        def rates(active: BoolArray, previous: FloatArray | None) -> FloatArray:
            if mode is Mode.JOINT:
                now = self.joint(members, types, gpus, active)[0]
            elif mode in (Mode.GPU_SHARE, Mode.COLOCATE):
                now = self.shared(mode, members, types, gpus, active)[0] * single
            else:
                now = single
            alone = active & (sum_of(active.astype(np.int64)) == 1)[:, None]
            now = np.where(alone, single, now)
            if previous is not None:
                now = np.where(np.isnan(now), previous, now)
            return now

        return rates
