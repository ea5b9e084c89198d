"""Traces: what arrives when, and the truth about it (work, speed, transfer).

The truth is used by the engine only; policies see :mod:`ymir_opt.simulator.estimates` through a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ymir_opt.domain.snapshot import Queue
from ymir_opt.jobmodel import JobModel, WorkloadJob, read_workload, reference_target
from ymir_opt.simulator.speeds import ModelSpeeds, RigidSpeeds, Speeds

__all__ = [
    "ModelSpeeds",
    "RigidSpeeds",
    "Speeds",
    "TraceJob",
    "TransferTruth",
    "Workload",
    "synthetic_rigid",
    "titan_workload",
]


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace, with its true work.

    Attributes
    ----------
    id : str
    submitted_at_s : float
    work : float
        Samples to the target (rigid jobs: seconds at `requested_gpus`).
    requested_gpus, min_gpus, max_gpus : int
        A rigid job has all three equal.
    model, task : str
        Foundation model and task; "" for rigid jobs.
    batch_size : int
        Global batch, samples; 0 for rigid jobs.
    kind : int
        Job class in the workload's transfer truth, -1 none.
    epoch_samples : float
        Samples between two evaluations (probes count them).
    reached : bool
        False: the target is never reached and the job ends at its epoch limit.
    failing_starts : int
        How many starts fail before one succeeds.
    gpu_types : tuple of str or None
        Allowed types; None: all.
    """

    id: str
    submitted_at_s: float
    work: float
    requested_gpus: int = 1
    min_gpus: int = 1
    max_gpus: int = 1
    model: str = ""
    task: str = ""
    batch_size: int = 0
    kind: int = -1
    epoch_samples: float = 0.0
    reached: bool = True
    queue: str = "default"
    priority: int = 0
    weight: float = 1.0
    deadline_s: float = float("inf")
    min_runtime_s: float = 0.0
    movable: bool = True
    sharing: str = "tenant"
    failing_starts: int = 0
    gpu_types: tuple[str, ...] | None = None

    @property
    def rigid(self) -> bool:
        """Say whether the work is seconds at the requested count."""
        return not self.model


@dataclass(frozen=True)
class TransferTruth:
    """True transfer between job classes; see :class:`ymir_opt.policies.view.TransferTable`.

    Attributes
    ----------
    warm_censored, joint_censored : bool[C, C]
        Ratios of runs that never reached their target: lower limits. A job merged all the same has at least
        so much work; estimates say that the ratio is unknown. Empty: none.
    """

    models: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    warm: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    joint: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    share: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    share_gib: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    warm_censored: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.bool_))
    joint_censored: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.bool_))


@dataclass(frozen=True)
class Workload:
    """A trace and its truth.

    Attributes
    ----------
    name : str
    jobs : callable
        Returns a fresh iterator over the jobs in order of submission (so that a long trace need not be
        held in memory, and a run can be resumed).
    speeds : Speeds
    transfer : TransferTruth
    throughput_keys : tuple of (str, int)
        (model, batch) pairs that the speed table must hold.
    counts : int
        Largest GPU count of the speed table.
    queues : tuple of str
    quotas : tuple of Queue
        Queues with quotas, weights and cohorts, for policies that respect them.
    length : int or None
        Number of jobs, if known (for progress).
    notes : tuple of str
        What was left out or assumed, one line each.
    """

    name: str
    jobs: Callable[[], Iterator[TraceJob]]
    speeds: Speeds
    transfer: TransferTruth = field(default_factory=TransferTruth)
    throughput_keys: tuple[tuple[str, int], ...] = ()
    counts: int = 1
    queues: tuple[str, ...] = ("default",)
    quotas: tuple[Queue, ...] = ()
    length: int | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, jobs: Iterable[TraceJob], speeds: Speeds, **fields: object) -> Workload:
        """Return a workload that holds its jobs, sorted by submission (stable)."""
        held = tuple(sorted(jobs, key=lambda job: job.submitted_at_s))
        known = {
            "throughput_keys": tuple(sorted({(j.model, j.batch_size) for j in held if not j.rigid})),
            "counts": max((j.max_gpus for j in held), default=1),
            "queues": tuple(sorted({j.queue for j in held} | {"default"})),
            "length": len(held),
            **fields,
        }
        return cls(name, lambda: iter(held), speeds, **known)  # type: ignore[arg-type]


def titan_workload(
    path: Path | str,
    model: JobModel,
    *,
    gpu_types: tuple[str, ...] = ("V100",),
    cluster_gpus: int = 32,
    warm_s: float | None = None,
    restart_s: float = 30.0,
    against: str = "trace",
    load: float = 1.0,
    exact_targets: bool = False,
) -> Workload:
    """Return one of Titan's workloads with the truth of the measured tables.

    Parameters
    ----------
    path : Path or str
        ``workload-0.csv``.
    model : JobModel
    gpu_types : tuple of str
    cluster_gpus : int
        Cap of every job's GPUs (the reference uses min(32, floor(T / bmin))).
    warm_s, restart_s : float
        See :class:`ModelSpeeds`.
    against : {"trace", "best_single"}
        Denominator of the transfer ratios. The work of a job alone is always the trace's own setting; with
        "best_single" the gain that only comes from better hyper-parameters is taken out of the ratios.
    load : float
        Arrivals are this many times as frequent.
    exact_targets : bool
        False: targets as the reference reads them (:func:`ymir_opt.jobmodel.reference_target`), so that the
        work is that of the published figures; True: as written.
    """
    rows = read_workload(path) if exact_targets else read_workload(path, reference_target)
    classes: dict[tuple[str, str, tuple[str, int], float, int], int] = {}
    examples: list[WorkloadJob] = []
    jobs = []
    for row in rows:
        key = (row.model, row.task, row.setting, row.target, row.batch_size)
        if key not in classes:
            classes[key] = len(examples)
            examples.append(row)
        work = model.work(row)
        jobs.append(
            TraceJob(
                id=row.name,
                submitted_at_s=row.submitted_at_s / load,
                work=work.samples,
                requested_gpus=row.requested_gpus,
                max_gpus=model.max_gpus(row.model, row.batch_size, cluster_gpus),
                model=row.model,
                task=row.task,
                batch_size=row.batch_size,
                kind=classes[key],
                epoch_samples=float(model.samples_per_epoch(row.task)),
                reached=work.reached,
            )
        )
    transfer, notes = _transfer(model, examples, against, gpu_types[0])
    keys = {(row.model, row.batch_size) for row in examples}
    keys |= {(a.model, a.batch_size + b.batch_size) for a in examples for b in examples if a.model == b.model}
    return Workload.of(
        Path(path).parent.name or str(path),
        jobs,
        ModelSpeeds(model, gpu_types, warm_s, restart_s),
        transfer=transfer,
        throughput_keys=tuple(sorted(keys)),
        counts=cluster_gpus,
        notes=notes,
    )


def _transfer(
    model: JobModel, examples: list[WorkloadJob], against: str, gpu_type: str
) -> tuple[TransferTruth, tuple[str, ...]]:
    """Return the transfer between classes, and notes on what is not known of it.

    A run with transfer that never reaches the target says only that the ratio is at least so large: it is
    right-censored at the epoch limit. A censored run alone makes a ratio too large, never too small.
    """
    size = len(examples)
    warm_missed, joint_missed = (np.zeros((size, size), dtype=np.bool_) for _ in range(2))
    warm, joint, share, share_gib = (np.full((size, size), np.nan) for _ in range(4))
    use = "best_single" if against == "best_single" else "trace"
    for i, job in enumerate(examples):
        for j, other in enumerate(examples):
            if job.model != other.model:
                continue
            for ratios, missed, ask in (
                (warm, warm_missed, model.temporal_ratio),
                (joint, joint_missed, model.joint_ratio),
            ):
                found = ask(job, other.task, use) if job.task != other.task else None  # type: ignore[arg-type]
                if found is not None:
                    ratios[i, j] = found.ratio
                    missed[i, j] = not found.with_transfer.reached
            local = [model.iteration(job.model, e.batch_size, 1, gpu_type) for e in (job, other)]
            if local[0] is not None and local[1] is not None:
                speed = model.shared_speed(job.model, (local[0].local_batch, local[1].local_batch), gpu_type)
                table = model.sharing_table(job.model, gpu_type)
                if speed is not None and table is not None:
                    share[i, j] = speed[0]
                    memory = table.memory_gib(local[0].local_batch, local[1].local_batch)
                    share_gib[i, j] = np.nan if memory is None else memory
    truth = TransferTruth(
        tuple(e.model for e in examples),
        tuple(e.task for e in examples),
        tuple(e.batch_size for e in examples),
        warm,
        joint,
        share,
        share_gib,
        warm_missed,
        joint_missed,
    )
    notes = tuple(
        f"{int(missed.sum())} of {int((~np.isnan(ratios)).sum())} measured {name} never reach the target; "
        "their work ratios are only lower limits, on which no plan may count"
        for name, ratios, missed in (("warm starts", warm, warm_missed), ("joint runs", joint, joint_missed))
        if missed.any()
    )
    return truth, notes


def synthetic_rigid(
    jobs: int,
    *,
    gpus: int,
    seed: int = 0,
    load: float = 0.9,
    mean_s: float = 3600.0,
    sizes: tuple[int, ...] = (1, 2, 4, 8),
    gpu_type: str = "V100",
    held: bool = False,
) -> Workload:
    """Return a synthetic trace of rigid jobs: Poisson arrivals, log-normal run times.

    Parameters
    ----------
    jobs : int
    gpus : int
        Size of the cluster that `load` refers to.
    seed : int
    load : float
        Offered GPU-seconds per second over `gpus`.
    mean_s : float
        Mean run time.
    sizes : tuple of int
        GPU counts, equally likely.
    held : bool
        True: keep the jobs in memory; False: generate them anew for every run.
    """
    gap = mean_s * float(np.mean(sizes)) / (load * gpus)

    def generate() -> Iterator[TraceJob]:
        rng = np.random.default_rng(seed)
        now, made = 0.0, 0
        while made < jobs:
            number = min(4096, jobs - made)
            gaps = rng.exponential(gap, number)
            works = rng.lognormal(np.log(mean_s) - 0.5, 1.0, number)
            counts = rng.choice(sizes, number)
            for step, work, size in zip(gaps.tolist(), works.tolist(), counts.tolist(), strict=True):
                now += step
                yield TraceJob(f"r{made}", now, max(work, 1.0), size, size, size)
                made += 1

    speeds = RigidSpeeds((gpu_type,))
    name = f"rigid-{jobs}"
    if held:
        return Workload.of(name, generate(), speeds)
    return Workload(name, generate, speeds, counts=max(sizes), length=jobs)
