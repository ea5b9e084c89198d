"""Small traces and policies that the simulator's tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ymir_opt.jobmodel import JobModel
from ymir_opt.policies.base import Cadence, load_policy
from ymir_opt.policies.view import Decision, SnapshotView
from ymir_opt.simulator.cluster import parse_cluster
from ymir_opt.simulator.engine import simulate
from ymir_opt.simulator.results import SimulationResult
from ymir_opt.simulator.state import Options
from ymir_opt.simulator.workload import RigidSpeeds, TraceJob, TransferTruth, Workload, titan_workload

TITAN_32 = "8x4:V100"


def titan(data_dir: Path, trace: str, **options: Any) -> Workload:
    """Return one of Titan's workloads."""
    path = data_dir / "titan" / "workloads" / trace / "workload-0.csv"
    return titan_workload(path, JobModel(data_dir / "titan"), **options)


def run_titan(
    data_dir: Path, trace: str, policy: str, against: str = "trace", **options: Any
) -> SimulationResult:
    """Run a policy by name on one of Titan's workloads on 32 V100, completions rounded as published."""
    return simulate(
        titan(data_dir, trace, against=against),
        parse_cluster(TITAN_32),
        load_policy(policy),
        options=Options(completion_rounding_s=1.0),
        **options,
    )


class LinearSpeeds:
    """Speed = GPUs ** power for every model; starts cost what is said."""

    def __init__(
        self, types: tuple[str, ...] = ("V100",), power: float = 1.0, cold: float = 10.0, warm: float = 2.0
    ) -> None:
        self.types = types
        self.power, self.cold, self.warm = power, cold, warm

    def rate(self, model: str, batch: int, placement: tuple[int, ...], gpu_type: str) -> float:
        return float(sum(placement) ** self.power)

    def predicted(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        return 1.0 / self.rate(model, batch, (gpus,), gpu_type)

    def start_s(self, model: str, gpu_type: str, warm: bool) -> float:
        return self.warm if warm else self.cold

    def memory_gib(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        return 1.0

    def gpu_memory_gib(self, gpu_type: str) -> float:
        return 32.0


def elastic(name: str, at: float, work: float, most: int = 4, **fields: Any) -> TraceJob:
    """Return a job whose work is GPU-seconds on linear speeds."""
    given = {"requested_gpus": 1, "batch_size": 8, "model": "m", "task": name, "kind": -1, **fields}
    return TraceJob(name, at, work, max_gpus=most, **given)


def rigid(name: str, at: float, seconds: float, gpus: int = 1, **fields: Any) -> TraceJob:
    """Return a rigid job."""
    return TraceJob(name, at, seconds, gpus, gpus, gpus, **fields)


def rigid_workload(
    jobs: list[TraceJob], restart_s: float = 0.0, types: tuple[str, ...] = ("V100",)
) -> Workload:
    """Return a workload of rigid jobs."""
    return Workload.of("rigid", jobs, RigidSpeeds(types, restart_s))


def linear_workload(jobs: list[TraceJob], transfer: TransferTruth | None = None, **speeds: Any) -> Workload:
    """Return a workload of elastic jobs with linear speeds."""
    given = {} if transfer is None else {"transfer": transfer}
    batches = sorted({(j.model, b) for j in jobs for b in (j.batch_size, 2 * j.batch_size, 3 * j.batch_size)})
    return Workload.of("linear", jobs, LinearSpeeds(**speeds), throughput_keys=tuple(batches), **given)


class Scripted:
    """A columnar policy made of a function."""

    name = "scripted"

    def __init__(self, decide: Callable[[SnapshotView], Decision], cadence: Cadence | None = None) -> None:
        self._decide = decide
        self.cadence = cadence or Cadence.events(0.0)
        self.seen: list[tuple[float, list[str]]] = []

    def decide(self, view: SnapshotView) -> Decision:
        self.seen.append((view.now_s, view.ids()))
        return self._decide(view)

    def reset(self) -> None:
        self.seen.clear()


def counts(view: SnapshotView, **wanted: int) -> np.ndarray:
    """Return GPU counts by job id; others keep theirs."""
    gpus = view.gpus.copy()
    for row, name in enumerate(view.ids()):
        if name in wanted:
            gpus[row] = wanted[name]
    return gpus


def completions(result: SimulationResult) -> dict[str, float]:
    """Return completion times by job."""
    return {job.id: job.completed_at_s for job in result.jobs}
