"""Profile rows from measured tables and curves: throughput, switch cost, transfer, GPU sharing.

Everything is measured. What was not measured has no row; a transfer whose curve never reaches the
target has none either, because only a lower limit of its work is known (:class:`Censored` says so).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

from ymir_opt.domain.snapshot import (
    ColocationMember,
    ColocationRow,
    Mode,
    SwitchRow,
    ThroughputRow,
    TransferMode,
    TransferRow,
)
from ymir_opt.jobmodel import JobModel, TransferRatio, WorkloadJob, packed

__all__ = [
    "PEFT_TYPE",
    "Censored",
    "Transfers",
    "colocation_rows",
    "switch_rows",
    "throughput_rows",
    "transfer_rows",
]

PEFT_TYPE = "FULL"
MEASURED_NODE_GPUS = 4
"""GPUs of the nodes on which the step times were measured."""
MAX_MEMBERS = 4
MAX_BATCHES = 128


@dataclass(frozen=True)
class Censored:
    """A transfer whose curve never reaches the target.

    Attributes
    ----------
    mode : {"warm_start", "joint"}
    model, source, target : str
        Foundation model, the other task, and the task whose target is missed.
    at_least : float
        Lower limit of the work ratio against the job's own setting.
    """

    mode: str
    model: str
    source: str
    target: str
    at_least: float


@dataclass(frozen=True)
class Transfers:
    """Transfer rows, and the transfers that have none because their curve misses the target."""

    rows: tuple[TransferRow, ...]
    censored: tuple[Censored, ...]
    varied: tuple[tuple[str, str], ...]


def _batches(jobs: Iterable[WorkloadJob]) -> dict[str, list[int]]:
    """Return for each model the batches of its jobs and of every joint group of at most four."""
    own: dict[str, set[int]] = {}
    for job in jobs:
        own.setdefault(job.model, set()).add(job.batch_size)
    out = {}
    for model, batches in own.items():
        found = set(batches)
        for members in range(2, MAX_MEMBERS + 1):
            sums = {sum(chosen) for chosen in combinations_with_replacement(sorted(batches), members)}
            if len(found | sums) > MAX_BATCHES:
                break
            found |= sums
        out[model] = sorted(found)
    return out


def throughput_rows(
    model: JobModel, jobs: Sequence[WorkloadJob], node_gpus: Mapping[str, int], limit: int = 32
) -> list[ThroughputRow]:
    """Return samples/s and memory of every model, batch and GPU count that the tables cover.

    A count whose packed placement on the cluster's nodes was not measured (nodes larger than those of
    the tables) gets the row of the packed placement on the tables' own nodes, with ``nodes`` set: it
    was measured on more nodes than the gang would use, so the figure errs on the slow side.

    Parameters
    ----------
    model : JobModel
    jobs : sequence of WorkloadJob
        Their batches, and the sums of up to four, are covered.
    node_gpus : mapping of str to int
        GPUs of the largest node of each GPU type of the cluster.
    limit : int
        Largest GPU count of a job.

    Raises
    ------
    NotFoundError
        A model has no step times on a GPU type.
    """
    rows = []
    for name, batches in _batches(jobs).items():
        for gpu_type, size in node_gpus.items():
            smallest, _ = model.batch_limits(name, gpu_type)
            for batch in batches:
                for gpus in range(1, min(limit, max(1, batch // smallest)) + 1):
                    row = _throughput(model, name, gpu_type, batch, gpus, size)
                    if row is not None:
                        rows.append(row)
    return rows


def _throughput(
    model: JobModel, name: str, gpu_type: str, batch: int, gpus: int, size: int
) -> ThroughputRow | None:
    nodes = None
    found = model.iteration(name, batch, packed(gpus, size), gpu_type)
    if found is None and size > MEASURED_NODE_GPUS:
        placement = packed(gpus, MEASURED_NODE_GPUS)
        nodes = len(placement)
        found = model.iteration(name, batch, placement, gpu_type)
    if found is None:
        return None
    return ThroughputRow(
        foundation_model=name,
        peft_type=PEFT_TYPE,
        gpu_type=gpu_type,
        gpus=gpus,
        batch_size=batch,
        samples_per_s=found.samples_per_s,
        memory_gib=_memory(model, name, gpu_type, found.local_batch),
        nodes=nodes,
    )


def _memory(model: JobModel, name: str, gpu_type: str, local_batch: int) -> float | None:
    """Return GiB per GPU; below the smallest measured batch that batch's, which is enough."""
    table = model.memory_table(name, gpu_type)
    return None if table is None else table.at(max(local_batch, float(table.batch[0])))


def switch_rows(
    model: JobModel, models: Iterable[str], gpu_types: Iterable[str], warm_s: float | None
) -> list[SwitchRow]:
    """Return the cost of a start: 30 s and the measured context switch.

    Parameters
    ----------
    warm_s : float or None
        Seconds of a start on GPUs that hold the model already; None: as a cold one, because the tables
        do not say.
    """
    rows = []
    for name in models:
        for gpu_type in gpu_types:
            cold = model.cold_start_s(name, gpu_type)
            warm = cold if warm_s is None else min(warm_s, cold)
            rows.append(SwitchRow(foundation_model=name, gpu_type=gpu_type, cold_s=cold, warm_s=warm))
    return rows


def _classes(jobs: Iterable[WorkloadJob]) -> dict[tuple[str, str], list[WorkloadJob]]:
    """Return for each (model, task) one job of every setting and target."""
    found: dict[tuple[str, str], dict[object, WorkloadJob]] = {}
    for job in jobs:
        found.setdefault((job.model, job.task), {}).setdefault((job.setting, job.target), job)
    return {key: list(classes.values()) for key, classes in found.items()}


def transfer_rows(model: JobModel, jobs: Sequence[WorkloadJob], first: str) -> Transfers:
    """Return warm-start and joint rows for every ordered pair of tasks of one model.

    Each pair has a row against the best measured single-task setting and, where it differs, one against
    the job's own setting; the planner uses the first of equals. The setting of the transfer runs was
    not recorded, so neither is a comparison at matched hyper-parameters; the best single setting is
    the cautious one of the two, because it takes out what better hyper-parameters alone would gain.

    Where jobs of one task have several settings or targets, the row is their geometric mean and its
    limits span them.

    Parameters
    ----------
    model : JobModel
    jobs : sequence of WorkloadJob
    first : {"best-single", "trace"}
        Which of the two comes first.
    """
    order = ("best_single", "trace") if first == "best-single" else ("trace", "best_single")
    classes = _classes(jobs)
    rows: list[TransferRow] = []
    censored: list[Censored] = []
    for (name, target), examples in classes.items():
        for other, source in classes:
            if other != name or source == target:
                continue
            for mode in (TransferMode.WARM_START, TransferMode.JOINT):
                found = {against: _ratios(model, mode, examples, source, against) for against in order}
                known = [ratio for ratio in found["trace"] if ratio is not None]
                missed = [ratio for ratio in known if not ratio.with_transfer.reached]
                if missed:
                    limit = min(ratio.ratio for ratio in missed)
                    censored.append(Censored(mode.value, name, source, target, limit))
                    continue
                made = [_row(mode, name, source, target, found[against]) for against in order]
                rows += list(dict.fromkeys(row for row in made if row is not None))
    varied = tuple(key for key, examples in classes.items() if len(examples) > 1)
    return Transfers(tuple(rows), tuple(censored), varied)


def _ratios(
    model: JobModel, mode: TransferMode, examples: list[WorkloadJob], source: str, against: str
) -> list[TransferRatio | None]:
    ask = model.temporal_ratio if mode is TransferMode.WARM_START else model.joint_ratio
    use = "best_single" if against == "best_single" else "trace"
    return [ask(job, source, use) for job in examples]  # type: ignore[arg-type]


def _row(
    mode: TransferMode, name: str, source: str, target: str, ratios: list[TransferRatio | None]
) -> TransferRow | None:
    known = [ratio.ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios):
        return None
    spread = len(known) > 1
    mean = math.exp(math.fsum(math.log(ratio) for ratio in known) / len(known)) if spread else known[0]
    return TransferRow(
        mode=mode,
        foundation_model=name,
        source=source if mode is TransferMode.WARM_START else (source,),
        target=target,
        work_ratio=mean,
        low=min(*known, mean) if spread else None,
        high=max(*known, mean) if spread else None,
        matched_hyperparameters=False,
    )


def colocation_rows(
    model: JobModel, jobs: Sequence[WorkloadJob], gpu_types: Iterable[str]
) -> list[ColocationRow]:
    """Return the measured pairs of jobs of one model that share one GPU.

    The tables name local batches; a job's local batch on one GPU is what its steps use, with or
    without accumulation.
    """
    rows = []
    own: dict[str, set[int]] = {}
    for job in jobs:
        own.setdefault(job.model, set()).add(job.batch_size)
    for name, batches in own.items():
        for gpu_type in gpu_types:
            table = model.sharing_table(name, gpu_type)
            if table is None:
                continue
            found = {batch: model.iteration(name, batch, 1, gpu_type) for batch in sorted(batches)}
            local = {batch: each.local_batch for batch, each in found.items() if each is not None}
            for pair in [*combinations(local, 2), *((batch, batch) for batch in local)]:
                speed = model.shared_speed(name, (local[pair[0]], local[pair[1]]), gpu_type)
                if speed is None:
                    continue
                rows.append(
                    ColocationRow(
                        mode=Mode.GPU_SHARE,
                        gpu_type=gpu_type,
                        gpus=1,
                        members=tuple(
                            ColocationMember(foundation_model=name, peft_type=PEFT_TYPE, batch_size=batch)
                            for batch in pair
                        ),
                        speed_ratio=speed,
                        memory_gib=table.memory_gib(local[pair[0]], local[pair[1]]),
                    )
                )
    return rows
