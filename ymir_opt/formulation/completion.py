"""Completion times of groups: members progress together, the first finisher leaves, rates change.

gpu_share and colocate: ``r = speed_ratio x alone on the same GPUs``. joint: with ``B`` the sum of
the active members' batches, ``r = throughput(B) x own batch / B``. When a member finishes, the
rest go on at the row of the remaining set, one member at its speed alone, else unchanged.
sequence: one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Mode
from ymir_opt.estimates import ThroughputKey
from ymir_opt.formulation.jobs import JobTable
from ymir_opt.formulation.numbering import Answers, Rows
from ymir_opt.formulation.rowwise import any_of, min_of, rank_of, sorted_columns, sum_of

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
    for k in range(work.shape[1]):
        if k and not active.any():
            break
        current = first if current is None and first is not None else rates(active, current)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            eta = left / current
            eta[left <= 0] = 0.0
            eta[~active] = np.inf
            step = min_of(eta)
            running = np.isfinite(step)
            if not running.all():
                stuck = active & ~running[:, None]
                out[stuck] = np.inf
                active &= ~stuck
                step[~running] = 0.0
            finished = active & (eta <= (step * (1 + 1e-12))[:, None])
            clock += step
            np.copyto(out, clock[:, None], where=finished)
            # what is left of those who have left already means nothing
            left -= current * step[:, None]
        active &= ~finished
    return out


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

        # speed, memory and predicted (0 or 1) of joint groups by (key, type, GPUs, batch)
        self._joint = Answers(4, 3, self._joint_speeds)
        # by mode and width: speed ratios in ascending order of signature, memory, predicted (0 or 1)
        self._colocations: dict[tuple[Mode, int], Answers] = {}

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
        width = members.shape[1]
        kind = (mode, width)
        if kind not in self._colocations:
            self._colocations[kind] = Answers(2 + width, width + 2, partial(self._colocated, mode))
        answers = self._colocations[kind]
        numbers = answers.numbers([types, gpus, *sorted_columns(signature)])
        known = answers.known
        out = known.reshape(-1)[numbers[:, None] * (width + 2) + rank_of(signature)]
        out[any_of(active & (signature < 0))] = np.nan
        return out, known[numbers, width], known[numbers, width + 1] == 1.0

    def _colocated(self, mode: Mode, rows: Rows) -> FloatArray:
        """Return the figures of rows of (type, GPUs, member signatures; -1 pads in front), [N, K + 2]."""
        width = len(rows[0]) - 2
        out = np.full((len(rows), width + 2), np.nan)
        out[:, -1] = 0.0
        for figures, (t, gpus, *signatures) in zip(out, rows, strict=True):
            group = [self.jobs.signature_keys[s] for s in signatures if s >= 0]
            if len(group) < 2:
                continue
            name = self.jobs.instance.types[t]
            found = self.jobs.estimates.colocation.lookup(mode, name, gpus, group)
            if found is not None:
                figures[width - len(group) : width] = found.speed_ratio
                figures[width:] = (np.nan if found.memory_gib is None else found.memory_gib, found.predicted)
        return out

    def joint(
        self, members: IntArray, types: IntArray, gpus: IntArray, active: BoolArray
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return rates [M, K], memory [M] and predicted [M] at the active members' summed batch."""
        return self._joint_function(members, types, gpus)(active)

    def _joint_function(
        self, members: IntArray, types: IntArray, gpus: IntArray
    ) -> Callable[[BoolArray], tuple[FloatArray, FloatArray, BoolArray]]:
        """Return `joint` as a function of the active members."""
        safe = np.where(members >= 0, members, 0)
        batches, keys = self.batch[safe], self.key[safe]
        row = np.arange(len(members))

        def joint(active: BoolArray) -> tuple[FloatArray, FloatArray, BoolArray]:
            batch = np.where(active, batches, 0)
            total = sum_of(batch)
            numbers = self._joint.numbers([keys[row, np.argmax(active, axis=1)], types, gpus, total])
            answer = self._joint.known[numbers]
            rate, memory, predicted = answer[:, 0], answer[:, 1], answer[:, 2] == 1.0
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                each = rate[:, None] * batch / np.maximum(total, 1)[:, None]
            each[~active] = np.nan
            return each, memory, predicted

        return joint

    def _joint_speeds(self, rows: Rows) -> FloatArray:
        """Return samples/s, memory and predicted (0 or 1) of rows of (key, type, GPUs, batch), [N, 3]."""
        asked = np.array(rows, dtype=np.int64)
        out = np.tile(np.array([np.nan, np.nan, 0.0]), (len(rows), 1))
        for k, t in sorted({(k, t) for k, t in asked[:, :2].tolist() if k >= 0}):
            mine = np.flatnonzero((asked[:, 0] == k) & (asked[:, 1] == t))
            found = self.jobs.estimates.throughput(
                self.keys[k], self.jobs.instance.types[t], asked[mine, 2], asked[mine, 3]
            )
            out[mine] = np.column_stack(found)
        return out

    def rate_function(self, mode: Mode, members: IntArray, types: IntArray, gpus: IntArray) -> RateFunction:
        """Return the rates of a mode as `run_times` asks for them."""
        single = self.alone_or_largest(members, types, gpus)
        together = self._joint_function(members, types, gpus) if mode is Mode.JOINT else None

        def rates(active: BoolArray, previous: FloatArray | None) -> FloatArray:
            if together is not None:
                now = together(active)[0]
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
