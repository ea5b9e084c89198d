"""Gavel's traces (OSDI'20) with their measured throughputs, as traces to simulate."""

from __future__ import annotations

from ymir_opt.domain.errors import InputError
from ymir_opt.importers.base import Imported, some_of
from ymir_opt.importers.gavel import CLUSTER, table_beside
from ymir_opt.importers.gavel_tables import GavelTable, JobType, read_table, read_trace
from ymir_opt.importers.traces import PairRow, SpeedRow, TraceDocument, TraceEntry
from ymir_opt.simulator.cluster import parse_cluster

__all__ = ["import_gavel_trace"]


def import_gavel_trace(
    trace: str, *, throughputs: str | None = None, gpu_types: tuple[str, ...] = ()
) -> Imported:
    """Make a trace with measured speeds from a Gavel trace.

    A job keeps its number of GPUs and runs on every type that it was measured on; on several nodes at the
    speed measured unconsolidated. Its samples are steps times the batch size in its name.

    Parameters
    ----------
    trace : str
        Tab-separated file with job type, command, ..., scale factor and arrival time.
    throughputs : str or None
        Table of measured steps/s (default: simulation_throughputs.json beside the trace or one folder up).
    gpu_types : tuple of str
        Types to take speeds of (default: those of Gavel's physical cluster).

    Raises
    ------
    InputError
        A file is missing or wrong (line and column are named), or a type has no throughputs.
    """
    types = gpu_types or tuple(dict.fromkeys(node.gpu_type for node in parse_cluster(CLUSTER)))
    if len(set(types)) < len(types):
        raise InputError("--gpu-types", "a type is named twice", "name it once")
    table = read_table(throughputs if throughputs is not None else table_beside(trace))
    workers = {kind: table.worker_of(kind) for kind in types}
    rows = read_trace(trace, table)
    kinds = sorted({row.kind for row in rows})
    speeds = [row for kind in kinds for row in _speeds(table, kind, workers)]
    measured = {(row.foundation_model, row.batch_size, row.gpus) for row in speeds}
    jobs = tuple(
        TraceEntry(
            id=f"job-{row.line:05d}",
            submitted_at_s=row.arrival_s,
            gpus=row.kind.gpus,
            foundation_model=row.kind.model,
            batch_size=row.kind.batch_size,
            samples=row.steps * row.kind.batch_size,
            weight=row.weight,
        )
        for row in rows
    )
    never = [job.id for job in jobs if (job.foundation_model, job.batch_size, job.gpus) not in measured]
    notes = ["the tables hold no start cost"]
    if never:
        notes.append(
            f"{len(never)} jobs were not measured at their GPU count on these types: {some_of(never)}"
        )
    if any(row.slo is not None for row in rows):
        notes.append("SLO figures are not used")
    pairs = [row for kind in types for row in _pairs(table, workers[kind], kind, kinds)]
    return Imported(
        TraceDocument(
            clock="seconds since the begin of the trace", jobs=jobs, speeds=tuple(speeds), pairs=tuple(pairs)
        ),
        f"{len(jobs)} jobs, {len(speeds)} speeds on {len(types)} types, {len(pairs)} pairs",
        tuple(notes),
    )


def _speeds(table: GavelTable, kind: JobType, workers: dict[str, str]) -> list[SpeedRow]:
    rows = []
    for gpu_type, worker in workers.items():
        rate = table.alone.get((worker, kind))
        if rate is None:
            continue
        spread = table.alone.get((f"{worker}_unconsolidated", kind))
        rows.append(
            SpeedRow(
                foundation_model=kind.model,
                batch_size=kind.batch_size,
                gpu_type=gpu_type,
                gpus=kind.gpus,
                samples_per_s=rate * kind.batch_size,
                spread_samples_per_s=None if spread is None else spread * kind.batch_size,
            )
        )
    return rows


def _pairs(table: GavelTable, worker: str, gpu_type: str, kinds: list[JobType]) -> list[PairRow]:
    """Return the pairs measured on one GPU; a job's speed there over its speed alone."""
    rows = []
    single = [kind for kind in kinds if kind.gpus == 1 and (worker, kind) in table.alone]
    for i, first in enumerate(single):
        for second in single[i:]:
            pair = table.pairs.get((worker, first, second))
            if pair is None:
                continue
            rows.append(
                PairRow(
                    gpu_type=gpu_type,
                    members=((first.model, first.batch_size), (second.model, second.batch_size)),
                    speed_ratio=(pair[0] / table.alone[worker, first], pair[1] / table.alone[worker, second]),
                )
            )
    return rows
