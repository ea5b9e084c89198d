"""Traces in the Standard Workload Format, version 2.2 (Parallel Workloads Archive), as rigid jobs.

A line has 18 numbers: job number, submit time, wait time, run time, allocated processors, average CPU time,
used memory, requested processors, requested time, requested memory, status, user, group, executable,
queue, partition, preceding job, think time; -1 is unknown. Lines that begin with ``;`` are comments, the
first of them a header ``; Field: value``.
"""

from __future__ import annotations

import math
from collections import Counter

from ymir_opt.domain.base import short
from ymir_opt.domain.errors import InputError
from ymir_opt.importers.base import Imported
from ymir_opt.importers.traces import TraceDocument, TraceEntry, read_text

__all__ = ["COLUMNS", "import_swf"]

COLUMNS = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
)
PARTIAL = (2, 3, 4)
"""Status of lines that tell a part of a job which has a line of its own as a whole."""
SHORTEST_S = 0.5
"""A run time of 0 means less than half a second."""


def import_swf(trace: str, *, processors_per_gpu: int = 1) -> Imported:
    """Make a trace of rigid jobs from a file in the Standard Workload Format.

    Parameters
    ----------
    trace : str
        The file; lines need not be in order.
    processors_per_gpu : int
        So many processors count as one GPU; a job gets the next whole number.

    Raises
    ------
    InputError
        A line is wrong; file, line and column are named.
    """
    if processors_per_gpu < 1:
        raise InputError("--processors-per-gpu", f"{processors_per_gpu} is less than 1", "give 1 or more")
    jobs: list[TraceEntry] = []
    seen: dict[int, int] = {}
    left_out: Counter[str] = Counter()
    header: dict[str, str] = {}
    for number, line in enumerate(read_text(trace).splitlines(), 1):
        text = line.strip()
        if text.startswith(";"):
            key, _, value = text[1:].partition(":")
            header.setdefault(key.strip(), value.strip())
            continue
        if not text:
            continue
        entry = _job(f"{trace}: line {number}", text.split(), processors_per_gpu)
        if isinstance(entry, str):
            left_out[entry] += 1
            continue
        job, identity = entry
        if identity in seen:
            raise InputError(
                f"{trace}: line {number}, column job number",
                f"{identity} is already on line {seen[identity]}",
                "give every job its own number",
            )
        seen[identity] = number
        jobs.append(job)
    jobs.sort(key=lambda job: job.submitted_at_s)
    clock = "seconds since the begin of the log"
    if header.get("UnixStartTime", "").lstrip("-").isdigit():
        clock += f" (Unix time {header['UnixStartTime']})"
    notes = [f"{count} lines left out: {why}" for why, count in sorted(left_out.items())]
    notes.append(f"{processors_per_gpu} processors count as one GPU; jobs are rigid")
    largest = max((job.gpus for job in jobs), default=0)
    return Imported(
        TraceDocument(name=header.get("Computer", "")[:200], clock=clock, jobs=tuple(jobs)),
        f"{len(jobs)} jobs of up to {largest} GPUs",
        tuple(notes),
    )


def _job(place: str, fields: list[str], processors_per_gpu: int) -> tuple[TraceEntry, int] | str:
    """Return a line's job and number, or why it is left out."""
    if len(fields) != len(COLUMNS):
        raise InputError(place, f"has {len(fields)} columns", f"a line has {len(COLUMNS)} numbers")
    values: dict[str, float] = {}
    for column, field in zip(COLUMNS, fields, strict=True):
        try:
            value = float(field)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or abs(value) > 1e15:
            raise InputError(
                f"{place}, column {column}", f"{short(field)} is not a number", "correct the value"
            )
        values[column] = value
    for column in ("job number", "allocated processors", "requested processors", "status"):
        if values[column] != int(values[column]):
            raise InputError(
                f"{place}, column {column}", f"{values[column]:g} is not a whole number", "correct the value"
            )
    if values["submit time"] < 0:
        raise InputError(
            f"{place}, column submit time", f"{values['submit time']:g} is negative", "shift the log"
        )
    if values["status"] in PARTIAL:
        return "they tell a part of a job that has its own line (status 2-4)"
    processors = values["requested processors"]
    if processors <= 0:
        processors = values["allocated processors"]
    if values["run time"] < 0:
        return "the run time is unknown (never started, or not recorded)"
    if processors <= 0:
        return "the number of processors is unknown"
    gpus = -(-int(processors) // processors_per_gpu)
    if gpus > 1_000_000:
        raise InputError(
            f"{place}, column requested processors", f"{processors:g} is too many", "correct the value"
        )
    identity = int(values["job number"])
    return (
        TraceEntry(
            id=f"job-{identity}",
            submitted_at_s=values["submit time"],
            gpus=gpus,
            run_s=max(values["run time"], SHORTEST_S),
            queue=f"queue-{int(values['queue'])}" if values["queue"] >= 0 else "default",
            user=f"user-{int(values['user'])}" if values["user"] >= 0 else None,
        ),
        identity,
    )
