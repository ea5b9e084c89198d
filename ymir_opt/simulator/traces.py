"""Traces by format: which reader understands a file, from the entry-point group ``ymir_opt.traces``.

An entry is an object with ``matches(path, head) -> bool`` (``head``: the first 4 KiB) and
``read(path, options) -> Workload``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from ymir_opt.domain.base import short
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.simulator.workload import TraceJob, Workload, titan_workload

__all__ = ["GROUP", "TraceOptions", "TraceReader", "load_trace", "scale_load", "titan_reader"]

GROUP = "ymir_opt.traces"
HEAD_BYTES = 4096


@dataclass(frozen=True)
class TraceOptions:
    """What a reader may need besides the file.

    Attributes
    ----------
    profiles : str or None
        Folder or file with measured speeds.
    gpu_types : tuple of str
        GPU types of the cluster.
    cluster_gpus : int
        GPUs of the cluster.
    against : {"best_single", "trace"}
        Denominator of transfer ratios; see :func:`ymir_opt.simulator.workload.titan_workload`.
    warm_s : float or None
        Seconds of a start on GPUs that hold the model; None: as a cold one.
    """

    profiles: str | None = None
    gpu_types: tuple[str, ...] = ("V100",)
    cluster_gpus: int = 32
    against: str = "best_single"
    warm_s: float | None = None


class TraceReader(Protocol):
    """Reads one format."""

    def matches(self, path: Path, head: bytes) -> bool:
        """Say whether the file is of this format."""
        ...

    def read(self, path: Path, options: TraceOptions) -> Workload:
        """Return the workload."""
        ...


class _Titan:
    """Titan's workload files (CSV with submission_time and application)."""

    MAX_GPUS = 32

    def matches(self, path: Path, head: bytes) -> bool:
        """Look for two columns that only this format has."""
        first = head.partition(b"\n")[0]
        return b"submission_time" in first and b"application" in first

    def read(self, path: Path, options: TraceOptions) -> Workload:
        """Read the file and the profiles that its jobs need."""
        from ymir_opt.jobmodel import JobModel

        if options.profiles is None:
            raise InputError("--profiles", "is missing", "name the folder with lut/ and curves/")
        return titan_workload(
            path,
            JobModel(options.profiles),
            gpu_types=options.gpu_types,
            cluster_gpus=min(self.MAX_GPUS, options.cluster_gpus),
            warm_s=options.warm_s,
            against=options.against,
        )


titan_reader = _Titan()


def load_trace(path: str | Path, options: TraceOptions) -> Workload:
    """Return the workload of a trace file.

    Raises
    ------
    NotFoundError
        The file does not exist or cannot be read.
    InputError
        No reader understands it, or a row is wrong (file, line and column are named).
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError as error:
        raise NotFoundError(str(path), f"cannot be read ({error.strerror})", "name a trace file") from None
    if not head:
        raise InputError(str(path), "is empty", "name a trace file")
    names = []
    for entry in sorted(entry_points(group=GROUP), key=lambda found: found.name):
        names.append(entry.name)
        reader: TraceReader = entry.load()
        if reader.matches(path, head):
            return reader.read(path, options)
    raise InputError(
        str(path),
        f"is of no known trace format (begins with {short(head[:24].decode('latin-1'))})",
        f"known: {', '.join(names)}",
    )


def scale_load(workload: Workload, factor: float) -> Workload:
    """Return a workload whose jobs arrive `factor` times as often, from the same first submission on.

    Raises
    ------
    InputError
        The factor is not a positive number.
    """
    if not 0 < factor < float("inf"):
        raise InputError("--scale-load", f"{factor} is not above 0", "give a positive number")
    if factor == 1.0:
        return workload

    def faster() -> list[TraceJob]:
        jobs = list(workload.jobs())
        first = jobs[0].submitted_at_s if jobs else 0.0
        moved = []
        for job in jobs:
            at = first + (job.submitted_at_s - first) / factor
            moved.append(replace(job, submitted_at_s=at, deadline_s=job.deadline_s + at - job.submitted_at_s))
        return moved

    return replace(workload, jobs=lambda: iter(faster()))
