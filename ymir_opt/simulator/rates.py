"""True speeds: alone, shared and joint, and a job's isolated times."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ymir_opt.simulator.cluster import Cluster
from ymir_opt.simulator.workload import TraceJob, Workload

__all__ = ["Rates", "work_ratio"]


class Rates:
    """True speeds of a workload on a cluster, remembered."""

    def __init__(self, workload: Workload, cluster: Cluster) -> None:
        self.workload = workload
        self.cluster = cluster
        self._alone: dict[tuple[str, int, tuple[int, ...], int], float] = {}
        self._isolated: dict[tuple[str, int, int, int, int], tuple[float, float, float]] = {}

    def alone(self, model: str, batch: int, placement: tuple[int, ...], gpu_type: int) -> float:
        """Return samples/s of a (model, batch) on a placement."""
        key = (model, batch, placement, gpu_type)
        found = self._alone.get(key)
        if found is None:
            found = self.workload.speeds.rate(model, batch, placement, self.cluster.types[gpu_type])
            self._alone[key] = found
        return found

    def of_group(
        self, mode: str, jobs: list[TraceJob], placement: tuple[int, ...], gpu_type: int
    ) -> list[float]:
        """Return the speed of every job that holds a group's GPUs.

        Solo and the head of a sequence at their own throughput; joint at throughput(B) x own batch / B with B
        the sum of the members' batches; gpu_share and colocate at speed ratio x alone.
        """
        if len(jobs) == 1:
            return [self.alone(jobs[0].model, jobs[0].batch_size, placement, gpu_type)]
        if mode == "joint":
            batch = sum(job.batch_size for job in jobs)
            together = self.alone(jobs[0].model, batch, placement, gpu_type)
            return [together * job.batch_size / batch for job in jobs]
        return [
            self.alone(job.model, job.batch_size, placement, gpu_type)
            * self.shared_ratio(job, [other for other in jobs if other is not job])
            for job in jobs
        ]

    def shared_ratio(self, job: TraceJob, others: list[TraceJob]) -> float:
        """Return a member's true speed on shared GPUs over alone; pairs multiply for larger groups.

        A pair that was not measured divides the GPUs fairly: 1 / number of jobs.
        """
        table = self.workload.transfer.share
        ratio = 1.0
        for other in others:
            known = 0 <= job.kind < len(table) and 0 <= other.kind < len(table)
            pair = float(table[job.kind, other.kind]) if known else math.nan
            ratio *= 1.0 / (len(others) + 1) if math.isnan(pair) else pair
        return ratio

    def isolated(self, job: TraceJob) -> tuple[float, float]:
        """Return true (time alone on the requested count, fastest time alone), a cold start included."""
        key = (job.model, job.batch_size, job.requested_gpus, job.min_gpus, job.max_gpus)
        if job.gpu_types is not None or key not in self._isolated:
            found = self._fastest(job)
            if job.gpu_types is not None:
                return _times(job, *found)
            self._isolated[key] = found
        return _times(job, *self._isolated[key])

    def _fastest(self, job: TraceJob) -> tuple[float, float, float]:
        """Return (speed on the requested count, best speed, least start)."""
        requested, best, start = 0.0, 0.0, math.inf
        node = int(self.cluster.size.max())
        counts = [job.requested_gpus] if job.rigid else range(job.min_gpus, job.max_gpus + 1)
        for t, name in enumerate(self.cluster.types):
            if job.gpu_types is not None and name not in job.gpu_types:
                continue
            start = min(start, self.workload.speeds.start_s(job.model, name, False))
            for n in {*counts, job.requested_gpus}:
                full, rest = divmod(n, node)
                speed = self.alone(job.model, job.batch_size, (node,) * full + ((rest,) if rest else ()), t)
                if n in counts:
                    best = max(best, speed)
                if n == job.requested_gpus:
                    requested = max(requested, speed)
        return requested, best, start


def _times(job: TraceJob, requested: float, best: float, start: float) -> tuple[float, float]:
    return (
        start + job.work / requested if requested else math.inf,
        start + job.work / best if best else math.inf,
    )


def work_ratio(table: NDArray[np.float64], kind: int, others: list[int]) -> float:
    """Return the ratio of a class with others: geometric mean of the pairs, 1 where unknown."""
    if kind < 0 or not others:
        return 1.0
    pairs = [float(table[kind, other]) if other >= 0 else math.nan for other in others]
    if any(math.isnan(pair) for pair in pairs):
        return 1.0
    return float(np.exp(np.mean(np.log(pairs))))
