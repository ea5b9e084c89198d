"""Raw profile rows to speeds, memory and work ratios, in plain arithmetic (no code of the formulation)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ymir_opt.domain.snapshot import Job, Mode, Provenance, Snapshot, TransferMode

Z80 = 1.2815515655446004
RULE_SD = 0.10
DEFAULT_SWITCH_S = 60.0


@dataclass(frozen=True)
class Ratio:
    ratio: float
    high: float
    p: float
    predicted: bool
    low: float


def lognormal_below_one(ratio: float, low: float, high: float) -> float:
    if low >= high:
        return 1.0 if ratio < 1 else 0.0
    sd = (math.log(high) - math.log(low)) / (2 * Z80)
    return 0.5 * (1 + math.erf(-math.log(ratio) / sd / math.sqrt(2)))


class Rows:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.profiles = snapshot.profiles
        self._speed: dict[tuple, tuple[float, float | None] | None] = {}
        self._share: dict[tuple, object] = {}

    # -- throughput -----------------------------------------------------------------------------

    def speed(self, job: Job, gpu_type: str, gpus: int, batch: int) -> tuple[float, float | None] | None:
        """(samples/s, GiB per GPU or None) at a global batch, or None where nobody knows."""
        key = (job.foundation_model, job.peft_type, job.config, gpu_type, gpus, batch)
        if key not in self._speed:
            self._speed[key] = self._find_speed(*key)
        return self._speed[key]

    def _find_speed(self, model, peft, config, gpu_type, gpus, batch):
        points: dict[int, dict[int, tuple[float, float | None]]] = {}
        for row in self.profiles.throughput:
            if (row.foundation_model, row.peft_type, row.config, row.gpu_type) == (
                model,
                peft,
                config,
                gpu_type,
            ):
                points.setdefault(row.gpus, {})[row.batch_size] = (row.samples_per_s, row.memory_gib)
        if not points:
            return None
        counts = sorted(points)
        at = {c: self._at_batch(points[c], batch) for c in counts}
        if gpus in at:
            return at[gpus]
        if counts[0] < gpus < counts[-1]:
            below = max(c for c in counts if c < gpus)
            above = min(c for c in counts if c > gpus)
            share = (gpus - below) / (above - below)
            rate = at[below][0] + share * (at[above][0] - at[below][0])
            sizes = (at[below][1], at[above][1])
            return rate, (None if None in sizes else max(sizes))
        end, inner = (counts[-1], counts[-2:][0]) if gpus > counts[-1] else (counts[0], counts[:2][-1])
        if gpus > 2 * end or 2 * gpus < end:
            return None
        exponent = 0.8
        if len(counts) > 1:
            exponent = math.log(at[end][0] / at[inner][0]) / math.log(end / inner)
            exponent = min(1.0, max(0.0, exponent))
        return at[end][0] * (gpus / end) ** exponent, at[end][1]

    @staticmethod
    def _at_batch(points, batch):
        batches = sorted(points)
        larger = [b for b in batches if b >= batch]
        memory = points[larger[0] if larger else batches[-1]][1]
        if batch >= batches[-1]:
            return points[batches[-1]][0], memory
        step = {b: b / points[b][0] for b in batches}
        if batch <= batches[0]:
            return batch / step[batches[0]], memory
        low = max(b for b in batches if b <= batch)
        high = min(b for b in batches if b >= batch)
        seconds = step[low]
        if high != low:
            seconds += (batch - low) / (high - low) * (step[high] - step[low])
        return batch / seconds, memory

    def rate(self, job: Job, gpu_type: str, gpus: int) -> float | None:
        """Samples/s alone; 1 for a rigid job on its requested count."""
        if job.remaining_s is not None:
            return 1.0 if gpus == (job.requested_gpus or _least(job)) else None
        found = self.speed(job, gpu_type, gpus, job.batch_size)
        return found[0] if found else None

    def rate_or_largest(self, job: Job, gpu_type: str, gpus: int) -> float | None:
        for g in range(gpus, 0, -1):
            found = self.rate(job, gpu_type, g)
            if found is not None:
                return found
        return None

    def memory(self, job: Job, gpu_type: str, gpus: int) -> float | None:
        found = None
        if job.remaining_s is None:
            speed = self.speed(job, gpu_type, gpus, job.batch_size)
            found = speed[1] if speed else None
        return job.memory_gib if found is None else found

    def switch(self, job: Job, gpu_type: str) -> tuple[float, float]:
        if job.foundation_model is None:
            return 0.0, 0.0
        for row in self.profiles.switch_s:
            if (row.foundation_model, row.gpu_type) == (job.foundation_model, gpu_type):
                return row.cold_s, row.warm_s
        return DEFAULT_SWITCH_S, DEFAULT_SWITCH_S

    def backbone(self, model: str) -> float | None:
        return next((r.gib for r in self.profiles.backbone_gib if r.foundation_model == model), None)

    # -- sharing --------------------------------------------------------------------------------

    def sharing(self, mode: Mode, gpu_type: str, gpus: int, jobs: tuple[Job, ...]):
        """(speed ratio of each, memory or None), or None; rows that name more tasks win."""
        key = (mode, gpu_type, gpus, tuple(job.id for job in jobs))
        if key not in self._share:
            self._share[key] = self._find_sharing(mode, gpu_type, gpus, jobs)
        return self._share[key]

    def _find_sharing(self, mode, gpu_type, gpus, jobs):
        best = None
        for row in self.profiles.colocation:
            if (row.mode, row.gpu_type, row.gpus, len(row.members)) != (mode, gpu_type, gpus, len(jobs)):
                continue
            for order in itertools.permutations(range(len(jobs))):
                members = [row.members[i] for i in order]
                if all(
                    (m.foundation_model, m.peft_type, m.config, m.batch_size)
                    == (j.foundation_model, j.peft_type, j.config, j.batch_size)
                    and m.task in (None, j.task)
                    for m, j in zip(members, jobs, strict=True)
                ):
                    named = sum(m.task is not None for m in members)
                    if best is None or named > best[0]:
                        best = (named, [row.speed_ratio[i] for i in order], row.memory_gib)
                    break
        return None if best is None else (best[1], best[2])

    # -- transfer -------------------------------------------------------------------------------

    def warm_start(self, model: str, source: str, target: str) -> Ratio | None:
        for row in self.profiles.transfer:
            if (row.mode, row.foundation_model, row.source, row.target) == (
                TransferMode.WARM_START,
                model,
                source,
                target,
            ):
                return _ratio(row)
        return None

    def joint(self, model: str, others: list[str], target: str) -> Ratio | None:
        for row in self.profiles.transfer:
            source = [row.source] if isinstance(row.source, str) else list(row.source)
            if (row.mode, row.foundation_model, sorted(source), row.target) == (
                TransferMode.JOINT,
                model,
                sorted(others),
                target,
            ):
                return _ratio(row)
        if len(others) < 2:
            return None
        pairs = [self.joint(model, [other], target) for other in others]
        if None in pairs:
            return None
        n = len(pairs)
        middle = sum(math.log(pair.ratio) for pair in pairs) / n
        halves = [(math.log(pair.high) - math.log(pair.low)) / 2 for pair in pairs]
        half = math.sqrt(sum(h * h for h in halves) / n + (Z80 * RULE_SD) ** 2)
        low, high = math.exp(middle - half), math.exp(middle + half)
        return Ratio(
            math.exp(middle), high, lognormal_below_one(math.exp(middle), low, high), predicted=True, low=low
        )

    def adapter_start(self, job: Job, adapter) -> Ratio | None:
        if job.task is None or job.foundation_model != adapter.foundation_model:
            return None
        return self.warm_start(job.foundation_model, adapter.id, job.task) or self.warm_start(
            job.foundation_model, adapter.task, job.task
        )


def _ratio(row) -> Ratio:
    low = row.work_ratio if row.low is None else row.low
    high = row.work_ratio if row.high is None else row.high
    p = lognormal_below_one(row.work_ratio, low, high) if row.p_benefit is None else row.p_benefit
    return Ratio(row.work_ratio, high, p, row.provenance is Provenance.PREDICTED, low)


def _least(job: Job) -> int:
    if job.workers is not None:
        return job.workers.count * job.workers.gpus_each
    return job.min_gpus or 1
