"""Traces of other systems as one document, and such a document as a workload.

Schema ``ymir.trace/1``: jobs with their true work and, where it was measured, their speed. A job with `run_s`
is rigid: so many seconds on its `gpus`. A job with `samples` runs at the rows of `speeds`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field, ValidationError

from ymir_opt.domain.base import (
    Id,
    Model,
    NonNegative,
    Positive,
    PositiveCount,
    Real,
    Text,
    first_error,
    short,
)
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.simulator.workload import RigidSpeeds, Speeds, TraceJob, TransferTruth, Workload

__all__ = [
    "TRACE_SCHEMA",
    "PairRow",
    "SpeedRow",
    "TraceDocument",
    "TraceEntry",
    "parse_trace",
    "read_text",
    "workload_of",
]

TRACE_SCHEMA: Final = "ymir.trace/1"
Batch = Annotated[int, Field(ge=1, le=10**9)]


class TraceEntry(Model):
    """One job: rigid with `run_s`, or with `samples` and a model and batch that `speeds` has rows for."""

    id: Id
    submitted_at_s: Real
    gpus: PositiveCount = 1
    run_s: Positive | None = None
    foundation_model: Id | None = None
    batch_size: Batch | None = None
    samples: Positive | None = None
    gpu_types: tuple[Id, ...] | None = None
    queue: Id = "default"
    user: Id | None = None
    priority: int = 0
    weight: Annotated[float, Field(gt=0, le=1e9)] = 1.0


class SpeedRow(Model):
    """Samples/s of a model and batch on so many GPUs, and where they lie on more than one node."""

    foundation_model: Id
    batch_size: Batch
    gpu_type: Id
    gpus: PositiveCount
    samples_per_s: Positive
    spread_samples_per_s: NonNegative | None = None


class PairRow(Model):
    """Two jobs on one GPU: the speed of each over its speed alone there."""

    gpu_type: Id
    members: tuple[tuple[Id, Batch], tuple[Id, Batch]]
    speed_ratio: tuple[NonNegative, NonNegative]


class TraceDocument(Model):
    """A trace.

    Times are seconds on any clock; `clock` says which in words.
    """

    schema_: Annotated[Literal["ymir.trace/1"], Field(alias="schema")] = TRACE_SCHEMA
    name: Text = ""
    clock: Text = ""
    jobs: tuple[TraceEntry, ...] = ()
    speeds: tuple[SpeedRow, ...] = ()
    pairs: tuple[PairRow, ...] = ()


class RowSpeeds:
    """Speeds from the rows of a trace; counts without a row cannot run."""

    def __init__(self, document: TraceDocument, types: tuple[str, ...], restart_s: float) -> None:
        self.types = types
        self.restart_s = restart_s
        self._rows = {
            (row.foundation_model, row.batch_size, row.gpu_type, row.gpus): row for row in document.speeds
        }

    def rate(self, model: str, batch: int, placement: tuple[int, ...], gpu_type: str) -> float:
        """Return samples/s (a rigid job: 1); the spread figure where more than one node is used."""
        if not model:
            return 1.0
        row = self._rows.get((model, batch, gpu_type, sum(placement)))
        if row is None:
            return 0.0
        if len(placement) > 1 and row.spread_samples_per_s is not None:
            return row.spread_samples_per_s
        return row.samples_per_s

    def predicted(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        """Return seconds a sample."""
        rate = self.rate(model, batch, (gpus,), gpu_type)
        return 1.0 / rate if rate > 0 else float("inf")

    def start_s(self, model: str, gpu_type: str, warm: bool) -> float:
        """Return the restart cost."""
        return self.restart_s

    def memory_gib(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        """Return nan: unknown."""
        return float("nan")

    def gpu_memory_gib(self, gpu_type: str) -> float:
        """Return what excludes nothing."""
        return RigidSpeeds((gpu_type,)).gpu_memory_gib(gpu_type)


def parse_trace(text: str | bytes, name: str = "trace") -> TraceDocument:
    """Parse a trace of schema ``ymir.trace/1``.

    Raises
    ------
    InputError
        Naming place, value and remedy of the first fault.
    """
    try:
        document = TraceDocument.model_validate_json(text)
    except ValidationError as error:
        fault = first_error(error, TraceDocument)
        raise InputError(f"{name}: {fault.place}", fault.problem, fault.remedy) from None
    seen: set[str] = set()
    for number, job in enumerate(document.jobs):
        place = f"{name}: jobs[{number}]"
        if job.id in seen:
            raise InputError(f"{place}.id", f"{short(job.id)} occurs twice", "give every job its own id")
        seen.add(job.id)
        if (job.run_s is None) == (job.samples is None):
            raise InputError(
                place, "has not one of run_s and samples", "give seconds, or samples with a model"
            )
        if job.samples is not None and (job.foundation_model is None or job.batch_size is None):
            raise InputError(place, "has samples but no model or batch size", "add them")
    return document


def workload_of(document: TraceDocument, gpu_types: tuple[str, ...], *, restart_s: float = 0.0) -> Workload:
    """Return a trace as a workload for a cluster of some GPU types.

    Rigid jobs run at the same speed on every type. Pairs are the truth of shared GPUs where there is one
    type only (the table of shared speeds has no type).

    Parameters
    ----------
    document : TraceDocument
    gpu_types : tuple of str
        Types of the cluster.
    restart_s : float
        Seconds of every start, with the GPUs held.
    """
    # The number of GPUs is part of a job's class: pairs were measured on one GPU only.
    kinds = sorted({_class(entry) for entry in document.jobs if entry.samples is not None})
    number = {kind: k for k, kind in enumerate(kinds)}
    jobs = []
    for entry in document.jobs:
        kind = _class(entry)
        rigid = entry.run_s is not None
        jobs.append(
            TraceJob(
                id=entry.id,
                submitted_at_s=entry.submitted_at_s,
                work=entry.run_s if entry.run_s is not None else entry.samples or 0.0,
                requested_gpus=entry.gpus,
                min_gpus=entry.gpus,
                max_gpus=entry.gpus,
                model="" if rigid else kind[0],
                batch_size=0 if rigid else kind[1],
                kind=-1 if rigid else number[kind],
                queue=entry.queue,
                priority=entry.priority,
                weight=entry.weight,
                sharing="none" if rigid else "backbone",
                gpu_types=entry.gpu_types,
            )
        )
    if kinds:
        speeds: Speeds = RowSpeeds(document, gpu_types, restart_s)
    else:
        speeds = RigidSpeeds(gpu_types, restart_s)
    return Workload.of(document.name, jobs, speeds, transfer=_shares(document, kinds, gpu_types))


def _class(entry: TraceEntry) -> tuple[str, int, int]:
    return entry.foundation_model or "", entry.batch_size or 0, entry.gpus


def _shares(
    document: TraceDocument, kinds: list[tuple[str, int, int]], gpu_types: tuple[str, ...]
) -> TransferTruth:
    size = len(kinds)
    warm, joint, share, memory = (np.full((size, size), np.nan) for _ in range(4))
    if len(gpu_types) == 1:
        index = {(model, batch): k for k, (model, batch, gpus) in enumerate(kinds) if gpus == 1}
        for row in document.pairs:
            a, b = (index.get(member) for member in row.members)
            if row.gpu_type == gpu_types[0] and a is not None and b is not None:
                share[a, b], share[b, a] = row.speed_ratio
    models, batches = tuple(k[0] for k in kinds), tuple(k[1] for k in kinds)
    return TransferTruth(models, models, batches, warm, joint, share, memory)


def read_text(path: str | Path) -> str:
    """Return a text file.

    Raises
    ------
    NotFoundError
        It does not exist or cannot be read.
    InputError
        It is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise NotFoundError(str(path), f"cannot be read ({error.strerror})", "check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"byte {error.start} is not UTF-8", "save the file as UTF-8") from None
