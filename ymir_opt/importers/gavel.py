"""Heterogeneous snapshots from Gavel's traces and measured throughputs (OSDI'20).

Jobs keep their GPU count and may run on any GPU type that they were measured on; measured pairs on
one GPU become ``gpu_share`` rows. A job's samples are steps times the batch size in its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.snapshot import (
    Cluster,
    ColocationMember,
    ColocationRow,
    Job,
    Mode,
    Profiles,
    Sharing,
    Snapshot,
    ThroughputRow,
)
from ymir_opt.domain.validate import validate
from ymir_opt.importers.base import Imported, some_of
from ymir_opt.importers.gavel_tables import GavelJob, GavelTable, JobType, read_table, read_trace
from ymir_opt.importers.nodes import memory_options, nodes_of
from ymir_opt.simulator.cluster import parse_cluster

__all__ = ["CLUSTER", "MEASURED_ON_GIB", "import_gavel", "table_beside"]

CLUSTER = "2x4:V100,4x4:P100,6x4:K80"
"""The 48 GPUs of Gavel's physical experiments."""
MEASURED_ON_GIB = {"v100": 16.0, "p100": 16.0, "k80": 12.0}
"""Memory of the GPUs that the tables were measured on, GiB."""
TABLE = "simulation_throughputs.json"


def import_gavel(
    trace: str,
    *,
    throughputs: str | None = None,
    at: float | None = None,
    cluster: str = CLUSTER,
    gpu_memory: tuple[str, ...] = (),
) -> Imported:
    """Make a snapshot with several GPU types from a Gavel trace.

    Parameters
    ----------
    trace : str
        Tab-separated file with job type, command, ..., scale factor and arrival time.
    throughputs : str or None
        Table of measured steps/s (default: simulation_throughputs.json beside the trace or one folder up).
    at : float or None
        Time of the snapshot, seconds; jobs that arrived by then are in it (default: the last arrival).
    cluster : str
        Nodes x GPUs : type.
    gpu_memory : tuple of str
        TYPE=GIB, memory of a GPU type.

    Raises
    ------
    InputError
        A file is missing or wrong (line and column are named), or a GPU type has no throughputs.
    """
    if at is not None and not math.isfinite(at):
        raise InputError("--at", f"{at} is not a finite number", "give seconds")
    table = read_table(throughputs if throughputs is not None else table_beside(trace))
    rows = read_trace(trace, table)
    specs = parse_cluster(cluster)
    workers = {kind: table.worker_of(kind) for kind in dict.fromkeys(spec.gpu_type for spec in specs)}
    proven = {kind: MEASURED_ON_GIB.get(worker.lower(), 0.0) for kind, worker in workers.items()}
    nodes = nodes_of(specs, memory_options(gpu_memory), proven)
    taken = at if at is not None else max((row.arrival_s for row in rows), default=0.0)
    active = [row for row in rows if row.arrival_s <= taken]
    kinds = sorted({row.kind for row in rows})
    snapshot = Snapshot(
        taken_at_s=taken,
        cluster=Cluster(nodes=nodes),
        jobs=tuple(_job(row) for row in active),
        profiles=Profiles(
            throughput=tuple(_throughput(table, kinds, workers)),
            colocation=tuple(_pairs(table, kinds, workers)),
        ),
        labels={"source": "gavel"},
    )
    validate(snapshot)
    summary = (
        f"{len(active)} of {len(rows)} jobs, {sum(node.gpus for node in nodes)} GPUs of {len(workers)} "
        f"types, {len(snapshot.profiles.throughput)} throughput and "
        f"{len(snapshot.profiles.colocation)} gpu_share rows"
    )
    return Imported(snapshot, summary, tuple(_notes(snapshot, table, active, workers)))


def table_beside(trace: str) -> Path:
    """Return the throughput table beside a trace or one folder up; raises `NotFoundError`."""
    folder = Path(trace).resolve().parent
    for place in (folder, folder.parent):
        if (place / TABLE).is_file():
            return place / TABLE
    raise NotFoundError("--throughputs", f"no {TABLE} beside the trace", "name the table of steps/s")


def _job(row: GavelJob) -> Job:
    return Job(
        id=f"job-{row.line:05d}",
        submitted_at_s=row.arrival_s,
        weight=row.weight,
        foundation_model=row.kind.model,
        batch_size=row.kind.batch_size,
        remaining_samples=row.steps * row.kind.batch_size,
        requested_gpus=row.kind.gpus,
        min_gpus=row.kind.gpus,
        max_gpus=row.kind.gpus,
        # programs differ: they may share a GPU, but never weights
        sharing=Sharing.BACKBONE,
    )


def _throughput(
    table: GavelTable, kinds: Sequence[JobType], workers: dict[str, str]
) -> Iterable[ThroughputRow]:
    for gpu_type, worker in workers.items():
        shares = {kind for w, a, b in table.pairs if w == worker for kind in (a, b)}
        for kind in kinds:
            rate = table.alone.get((worker, kind))
            if rate is None:
                continue
            yield ThroughputRow(
                foundation_model=kind.model,
                gpu_type=gpu_type,
                gpus=kind.gpus,
                batch_size=kind.batch_size,
                samples_per_s=rate * kind.batch_size,
                memory_gib=_half(worker) if kind in shares else None,
            )


def _half(worker: str) -> float | None:
    """Return half the memory of the measured GPU: two of these are then exactly one GPU."""
    size = MEASURED_ON_GIB.get(worker.lower())
    return None if size is None else size / 2


def _pairs(table: GavelTable, kinds: Sequence[JobType], workers: dict[str, str]) -> Iterable[ColocationRow]:
    for gpu_type, worker in workers.items():
        for i, first in enumerate(kinds):
            for second in kinds[i:]:
                found = _measured(table, worker, first, second)
                if found is None:
                    continue
                yield ColocationRow(
                    mode=Mode.GPU_SHARE,
                    gpu_type=gpu_type,
                    gpus=first.gpus,
                    members=tuple(
                        ColocationMember(foundation_model=kind.model, batch_size=kind.batch_size)
                        for kind in (first, second)
                    ),
                    speed_ratio=found,
                    memory_gib=MEASURED_ON_GIB.get(worker.lower()),
                )


def _measured(table: GavelTable, worker: str, first: JobType, second: JobType) -> tuple[float, float] | None:
    """Return both jobs' speed in a pair over their speed alone, or None if they were not measured."""
    alone = table.alone.get((worker, first)), table.alone.get((worker, second))
    pair = table.pairs.get((worker, first, second))
    if pair is None:
        other = table.pairs.get((worker, second, first))
        pair = None if other is None else (other[1], other[0])
    if pair is None or alone[0] is None or alone[1] is None or first.gpus != second.gpus:
        return None
    return pair[0] / alone[0], pair[1] / alone[1]


def _notes(
    snapshot: Snapshot, table: GavelTable, active: Sequence[GavelJob], workers: dict[str, str]
) -> list[str]:
    notes = [
        "the tables hold no start cost: the planner's default applies",
        "the tables hold no memory: a job that was measured sharing a GPU counts as half of that GPU, so "
        "that exactly the measured pairs fit",
    ]
    slow = [
        f"job-{row.line:05d}"
        for row in active
        if not any((worker, row.kind) in table.alone for worker in workers.values())
    ]
    if slow:
        notes.append(
            f"{len(slow)} jobs were not measured at their GPU count on any type of this cluster: "
            f"{some_of(slow)}"
        )
    size: dict[str, int] = {}
    for node in snapshot.cluster.nodes:
        size[node.gpu_type] = size.get(node.gpu_type, 0) + node.gpus
    large = [f"job-{row.line:05d}" for row in active if row.kind.gpus > max(size.values(), default=0)]
    if large:
        notes.append(f"{len(large)} jobs need more GPUs than any type has: {some_of(large)}")
    if any(row.slo is not None for row in active):
        notes.append("SLO figures are not used")
    if not active:
        notes.append("no job has arrived by then")
    return notes
