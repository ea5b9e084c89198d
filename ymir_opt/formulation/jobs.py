"""Per-job arrays: speeds at every count, work left, importance.

Symbols (see ``docs/formulation.md``): ``x_i`` remaining work in its cheapest GPU-seconds,
``Tiso_i`` fastest isolated time from the beginning with one start, ``U_i`` importance, ``W`` work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Job, JobState, Mode, Parallelism
from ymir_opt.estimates import Estimates, MemberKey, ThroughputKey
from ymir_opt.formulation.instance import (
    Instance,
    is_rigid,
    resolved_max,
    resolved_min,
    resolved_requested,
)
from ymir_opt.formulation.parameters import Parameters

__all__ = ["JobTable"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class _Speed:
    """Speeds of one (throughput key, batch): arrays [type][g], g from 0 to the largest count."""

    rate: tuple[FloatArray, ...]
    memory: tuple[FloatArray, ...]
    predicted: tuple[BoolArray, ...]


def _key(job: Job) -> ThroughputKey:
    return ThroughputKey(job.foundation_model or "", job.peft_type, job.config)


class JobTable:
    """Arrays over the jobs of an `Instance`.

    Attributes
    ----------
    rest, rest_high, rest_low : float64[J]
        Work left when the job goes on alone from its own weights, in samples (seconds if rigid),
        with 80 % limits. A running joint member's rest is divided by its joint ratio.
    whole : float64[J]
        Work from the beginning at own pace, ``done + remaining`` (what a start from other weights
        multiplies with its ratio).
    keep_work, keep_work_high : float64[J]
        Work left in the mode in which the job runs now.
    x, t_iso, importance : float64[J]
        ``x_i`` in GPU-seconds, ``Tiso_i`` in seconds, ``U_i``.
    cold, warm : float64[J, T]
        Start of each job on each type, seconds.
    known : bool[J]
        Some allowed (type, count) has a known speed.
    startable : bool[J]
        The job may be part of a new column (not backed off; running ones movable and past their
        minimum run time).
    """

    def __init__(self, instance: Instance, estimates: Estimates, parameters: Parameters) -> None:
        self.instance = instance
        self.estimates = estimates
        self.parameters = parameters
        jobs = instance.jobs
        snapshot = instance.snapshot
        self.count = len(jobs)
        self.min = np.array([resolved_min(j) for j in jobs], dtype=np.int64)
        self.max = np.array([resolved_max(j) for j in jobs], dtype=np.int64)
        self.rigid = np.array([is_rigid(j) for j in jobs], dtype=np.bool_)
        self.requested = np.array([resolved_requested(j) for j in jobs], dtype=np.int64)
        self.fm = np.array(
            [instance.fms.index(j.foundation_model) if j.foundation_model else -1 for j in jobs]
            if len(instance.fms) < 50
            else _rows([j.foundation_model for j in jobs], instance.fms),
            dtype=np.int64,
        )
        self.age = np.maximum(0.0, snapshot.taken_at_s - np.array([j.submitted_at_s for j in jobs]))
        self._speeds()
        self._work()
        self._switches()
        self._importance()
        self._startable()

    # -- speeds ---------------------------------------------------------------------------------

    def _speeds(self) -> None:
        profile_row: dict[tuple[object, ...], int] = {}
        self.profile = np.zeros(self.count, dtype=np.int64)
        wanted: list[tuple[Job, int]] = []
        for i, job in enumerate(self.instance.jobs):
            if self.rigid[i]:
                key: tuple[object, ...] = ("rigid", int(self.requested[i]))
            else:
                key = (_key(job), job.batch_size)
            row = profile_row.setdefault(key, len(profile_row))
            if row == len(wanted):
                wanted.append((job, int(self.max[i])))
            elif self.max[i] > wanted[row][1]:
                wanted[row] = (wanted[row][0], int(self.max[i]))
            self.profile[i] = row
        # a joint group of four may use the sum of its members' maxima
        self.speeds = [self._speed(job, 4 * top) for job, top in wanted]
        self.allowed_types = [
            np.array([t in job.gpu_types for t in self.instance.types], dtype=np.bool_)
            if job.gpu_types is not None
            else np.ones(len(self.instance.types), dtype=np.bool_)
            for job in self.instance.jobs
        ]

    def _speed(self, job: Job, top: int) -> _Speed:
        rates, memories, flags = [], [], []
        for name in self.instance.types:
            if is_rigid(job):
                requested = resolved_requested(job)
                rate = np.full(requested + 1, np.nan)
                rate[requested] = 1.0
                memory, predicted = np.full(requested + 1, np.nan), np.zeros(requested + 1, np.bool_)
            else:
                size = self.estimates.largest_count(_key(job), name, top)
                gpus = np.arange(1, size + 1, dtype=np.int64)
                batch = np.full(size, job.batch_size or 1, dtype=np.int64)
                rate, memory, predicted = self.estimates.throughput(_key(job), name, gpus, batch)
                rate = np.concatenate([[np.nan], rate])
                memory = np.concatenate([[np.nan], memory])
                predicted = np.concatenate([[False], predicted])
            rates.append(rate)
            memories.append(memory)
            flags.append(predicted)
        return _Speed(tuple(rates), tuple(memories), tuple(flags))

    def counts(self, j: int, t: int) -> IntArray:
        """Return the allowed GPU counts of a job alone on a type with known speed, ascending."""
        rate = self.speeds[self.profile[j]].rate[t]
        job = self.instance.jobs[j]
        if not self.allowed_types[j][t]:
            return np.zeros(0, np.int64)
        low, high = (self.requested[j], self.requested[j]) if self.rigid[j] else (self.min[j], self.max[j])
        gpus = np.arange(low, min(high, len(rate) - 1) + 1, dtype=np.int64)
        if job.gpu_counts is not None:
            gpus = gpus[np.isin(gpus, job.gpu_counts)]
        return np.asarray(gpus[~np.isnan(rate[gpus])])

    def rate(self, jobs: IntArray, types: IntArray, gpus: IntArray) -> FloatArray:
        """Return each job's samples/s alone on ``gpus`` GPUs of a type; NaN where unknown."""
        return self._gather(self._dense[0], jobs, types, gpus)

    def rate_or_largest(self, jobs: IntArray, types: IntArray, gpus: IntArray) -> FloatArray:
        """Return the rate, or beyond the known counts that of the largest known one below."""
        return self._gather(self._dense[1], jobs, types, np.minimum(gpus, self._dense[1].shape[2] - 1))

    def memory(self, jobs: IntArray, types: IntArray, gpus: IntArray) -> FloatArray:
        """Return memory per GPU alone, GiB: the row's, else the job's ``memory_gib``, else NaN."""
        found = self._gather(self._dense[2], jobs, types, gpus)
        return np.where(np.isnan(found), self._own_memory[jobs], found)

    def predicted_rate(self, jobs: IntArray, types: IntArray, gpus: IntArray) -> BoolArray:
        """Say whether the rate is extrapolated or modelled."""
        return np.asarray(self._gather(self._dense[3], jobs, types, gpus) == 1.0)

    def _gather(self, table: FloatArray, jobs: IntArray, types: IntArray, gpus: IntArray) -> FloatArray:
        inside = gpus < table.shape[2]
        value = table[self.profile[jobs], types, np.where(inside, gpus, 0)]
        return np.where(inside, value, np.nan)

    @cached_property
    def _own_memory(self) -> FloatArray:
        return np.array([np.nan if j.memory_gib is None else j.memory_gib for j in self.instance.jobs])

    @cached_property
    def _dense(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        types = len(self.instance.types)
        width = max((len(r) for s in self.speeds for r in s.rate), default=1)
        shape = (len(self.speeds), types, width)
        rate, memory, flag = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape)
        for p, speed in enumerate(self.speeds):
            for t in range(types):
                size = len(speed.rate[t])
                rate[p, t, :size] = speed.rate[t]
                memory[p, t, :size] = speed.memory[t]
                flag[p, t, :size] = speed.predicted[t]
        filled = rate.copy()
        for g in range(1, width):
            missing = np.isnan(filled[:, :, g])
            filled[:, :, g][missing] = filled[:, :, g - 1][missing]
        return rate, filled, memory, flag

    # -- work -----------------------------------------------------------------------------------

    def _work(self) -> None:
        jobs = self.instance.jobs
        remaining = np.zeros(self.count)
        low, high = np.zeros(self.count), np.zeros(self.count)
        done = np.array([j.done_samples for j in jobs], dtype=np.float64)
        for i, job in enumerate(jobs):
            limit = job.target.max_samples if job.target and job.target.max_samples is not None else np.inf
            left = max(0.0, limit - job.done_samples)
            point = job.remaining_s if job.remaining_s is not None else job.remaining_samples
            if point is None:
                # no estimate of the work: everything up to the job's own maximum, if it has one
                point = left if np.isfinite(left) else np.nan
            if job.remaining_s is not None:
                remaining[i] = low[i] = high[i] = point
                continue
            remaining[i] = min(point, left)
            low[i] = min(job.remaining_samples_low if job.remaining_samples_low is not None else point, left)
            high[i] = min(
                job.remaining_samples_high if job.remaining_samples_high is not None else point, left
            )
        self.done, self.keep_work, self.keep_work_high, self.keep_work_low = done, remaining, high, low
        joint, warm = np.ones(self.count), np.ones(self.count)
        for group in self.instance.running:
            for j in group.holders:
                joint[j], warm[j] = self._entry_ratios(group.source, group.mode, j)
        self.joint_ratio_now = joint
        self.rest, self.rest_low, self.rest_high = remaining / joint, low / joint, high / joint
        # work at the pace of a run from the job's own beginning
        self.whole = (done + remaining) / (joint * warm)
        self.whole_high = (done + high) / (joint * warm)
        self.whole_low = (done + low) / (joint * warm)
        self.own_work = remaining / (joint * warm)

    def _entry_ratios(self, source: object, mode: Mode, j: int) -> tuple[float, float]:
        """Return the joint and the start ratio that a running job's remaining work contains."""
        from ymir_opt.domain.snapshot import RunningGroup

        if not isinstance(source, RunningGroup):
            return (1.0, 1.0)
        job = self.instance.jobs[j]
        fm, task = job.foundation_model, job.task
        if fm is None or task is None:
            return (1.0, 1.0)
        joint = warm = 1.0
        if mode is Mode.JOINT and len(source.jobs) > 1:
            others = [
                self.instance.jobs[self.instance.job_row[name]].task for name in source.jobs if name != job.id
            ]
            if all(other is not None for other in others):
                found = self.estimates.transfer.joint(fm, [o for o in others if o is not None], task)
                joint = found.ratio if found is not None else 1.0
        start = source.starts_from.get(job.id)
        if start is not None:
            origin = start.adapter
            if start.job is not None and start.job in self.instance.job_row:
                origin = self.instance.jobs[self.instance.job_row[start.job]].task
            ratio = self.start_ratio(fm, origin, task)
            warm = ratio if ratio is not None else 1.0
        return (joint, warm)

    def start_ratio(self, fm: str, origin: str | None, task: str) -> float | None:
        """Return the work ratio of a start from an adapter (by id, else by its task) or a task."""
        if origin is None:
            return None
        found = self.estimates.transfer.warm_start(fm, origin, task)
        if found is None:
            adapter = next((a for a in self.instance.snapshot.adapters if a.id == origin), None)
            if adapter is not None:
                found = self.estimates.transfer.warm_start(fm, adapter.task, task)
        return found.ratio if found is not None else None

    # -- switching ------------------------------------------------------------------------------

    def _switches(self) -> None:
        types = self.instance.types
        table = np.array(
            [[self.estimates.switch_s(fm, name) for name in types] for fm in (*self.instance.fms, None)]
        ).reshape(len(self.instance.fms) + 1, len(types), 2)
        self.cold = table[self.fm, :, 0]
        self.warm = table[self.fm, :, 1]

    # -- importance -----------------------------------------------------------------------------

    def _importance(self) -> None:
        """Fill `x`, `t_iso`, `importance` and `known` (objective version 1, U_i)."""
        p = self.parameters
        self.x = np.zeros(self.count)
        self.t_iso = np.full(self.count, np.inf)
        self.known = np.zeros(self.count, dtype=np.bool_)
        cache: dict[tuple[object, ...], tuple[float, list[tuple[int, float]]]] = {}
        for j, job in enumerate(self.instance.jobs):
            key = (
                int(self.profile[j]),
                int(self.min[j]),
                int(self.max[j]),
                job.gpu_counts,
                job.gpu_types,
            )
            if key not in cache:
                cheapest, fastest = np.inf, []
                for t in range(len(self.instance.types)):
                    gpus = self.counts(j, t)
                    if len(gpus):
                        rate = self.speeds[self.profile[j]].rate[t][gpus]
                        cheapest = min(cheapest, float(np.min(gpus / rate)))
                        fastest.append((t, float(np.max(rate))))
                cache[key] = (cheapest, fastest)
            cheapest, fastest = cache[key]
            if fastest and np.isfinite(self.own_work[j]):
                self.known[j] = True
                self.x[j] = cheapest * self.own_work[j]
                self.t_iso[j] = min(self.cold[j, t] + self.whole[j] / rate for t, rate in fastest)
        weight = np.array([j.weight for j in self.instance.jobs]) * self.instance.queue_weight
        weight = weight * 2.0**self.instance.job_class
        if p.ageing:
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                factor = (self.age + self.t_iso) / np.maximum(self.t_iso, 1e-9)
            factor = np.where(np.isfinite(self.t_iso), factor, 1.0)
            weight = weight * factor**p.age_exponent
        self.weight = weight
        self.importance = weight * np.sqrt(self.x + p.x0_gpu_s)

    # -- eligibility ----------------------------------------------------------------------------

    def _startable(self) -> None:
        now = self.instance.snapshot.taken_at_s
        jobs = self.instance.jobs
        self.protected = np.zeros(self.count, dtype=np.bool_)
        self.backed_off = np.array(
            [
                j.state is JobState.PENDING and j.not_before_s is not None and j.not_before_s > now
                for j in jobs
            ],
            dtype=np.bool_,
        )
        for group in self.instance.running:
            if not group.keepable:
                continue
            for j in group.holders:
                job = jobs[j]
                young = job.last_start_s is not None and now - job.last_start_s < job.min_runtime_s
                self.protected[j] = young or not job.movable
        self.startable = ~self.protected & ~self.backed_off

    @cached_property
    def member_keys(self) -> tuple[MemberKey | None, ...]:
        """What each job's co-located speed depends on; None for jobs without a model.

        Tasks only where some row (or a predictor) tells them apart: fewer kinds of jobs to ask about.
        """
        tasks = self.estimates.colocation.by_task
        return tuple(
            None
            if job.foundation_model is None or job.batch_size is None or self.rigid[i]
            else MemberKey(_key(job), job.batch_size, job.task if tasks else None)
            for i, job in enumerate(self.instance.jobs)
        )

    @cached_property
    def signature(self) -> IntArray:
        """Row of each job's `MemberKey` among the distinct ones, -1 without."""
        rows: dict[MemberKey, int] = {}
        return np.array(
            [-1 if key is None else rows.setdefault(key, len(rows)) for key in self.member_keys],
            dtype=np.int64,
        )

    @cached_property
    def signature_keys(self) -> tuple[MemberKey, ...]:
        """The distinct member keys, in the order of `signature`."""
        return tuple(dict.fromkeys(key for key in self.member_keys if key is not None))

    @cached_property
    def pipeline(self) -> BoolArray:
        """Jobs that take whole nodes."""
        return np.array([j.parallelism is Parallelism.PIPELINE for j in self.instance.jobs], dtype=np.bool_)


def _rows(values: list[str | None], names: tuple[str, ...]) -> list[int]:
    row = {name: i for i, name in enumerate(names)}
    return [row[value] if value is not None else -1 for value in values]
