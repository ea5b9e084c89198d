"""Gavel's throughput tables and traces (OSDI'20, public artefact): reading and checking.

A table maps worker type -> job type -> ``{"null": steps/s alone, other job type: [own, other's
steps/s] when both share the GPUs}``; a job type is ``('ResNet-18 (batch size 16)', scale factor)``.
``[0, 0]`` means not measured or out of memory: do not share.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ymir_opt.domain.base import nearest, short
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.importers.base import read_json

__all__ = ["GavelJob", "GavelTable", "JobType", "read_table", "read_trace"]

PHYSICAL = 10
GENERATED = 7


@dataclass(frozen=True, order=True)
class JobType:
    """A measured program.

    Attributes
    ----------
    name : str
        As the table writes it, ``ResNet-18 (batch size 16)``.
    gpus : int
        Scale factor: GPUs of the job.
    """

    name: str
    gpus: int

    @property
    def model(self) -> str:
        """Return the name without the batch size."""
        return re.sub(r"\s*\(batch size \d+\)$", "", self.name)

    @property
    def batch_size(self) -> int:
        """Return the batch size in the name; 1 where there is none (a sample is then a step)."""
        found = re.search(r"\(batch size (\d+)\)$", self.name)
        return max(1, int(found[1])) if found else 1


@dataclass(frozen=True)
class GavelTable:
    """Measured steps/s.

    Attributes
    ----------
    alone : mapping
        (worker type, job type) -> steps/s; only what ran.
    pairs : mapping
        (worker type, job type, job type) -> steps/s of both; only what ran.
    workers : tuple of str
    """

    alone: Mapping[tuple[str, JobType], float]
    pairs: Mapping[tuple[str, JobType, JobType], tuple[float, float]]
    workers: tuple[str, ...]

    def worker_of(self, gpu_type: str) -> str:
        """Return the table's worker type of a GPU type (case does not matter).

        Raises
        ------
        NotFoundError
            The table has none.
        """
        for worker in self.workers:
            if worker.lower() == gpu_type.lower():
                return worker
        known = ", ".join(w for w in self.workers if not w.endswith("_unconsolidated"))
        raise NotFoundError(f"GPU type {gpu_type[:60]}", "has no throughputs", f"known: {known}")


@dataclass(frozen=True)
class GavelJob:
    """One line of a trace: what it runs, for how many steps, and when it arrives."""

    line: int
    kind: JobType
    steps: float
    arrival_s: float
    weight: float = 1.0
    slo: float | None = None


def _kind(place: str, text: str) -> JobType:
    if not text.startswith("("):
        return JobType(text, 1)
    try:
        name, scale = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        name, scale = None, None
    if not isinstance(name, str) or not isinstance(scale, int) or isinstance(scale, bool) or scale < 1:
        raise InputError(
            place, f"{short(text)} is not a job type", "write it as ('ResNet-18 (batch size 16)', 1)"
        )
    return JobType(name, scale)


def _rate(place: str, value: Any) -> float:
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    if not ok or not math.isfinite(value) or value < 0:
        raise InputError(place, f"{short(value)} is not a rate", "give steps/s of 0 or more")
    return float(value)


def read_table(path: str | Path) -> GavelTable:
    """Read a throughput table.

    Raises
    ------
    InputError
        The file is missing or not such a table; the place is named.
    """
    data = read_json(path)
    if not isinstance(data, dict) or not data:
        raise InputError(str(path), "is not an object of worker types", "give a Gavel throughput table")
    alone: dict[tuple[str, JobType], float] = {}
    pairs: dict[tuple[str, JobType, JobType], tuple[float, float]] = {}
    for worker, kinds in data.items():
        if not isinstance(kinds, dict):
            raise InputError(f"{path}: {short(worker)}", "is not an object", "map job types to throughputs")
        for text, row in kinds.items():
            place = f"{path}: {worker}.{short(text)}"
            kind = _kind(place, text)
            if not isinstance(row, dict):
                raise InputError(place, "is not an object", "map null and other job types to steps/s")
            for other, value in row.items():
                if other == "null":
                    rate = _rate(f"{place}.null", value)
                    if rate > 0:
                        alone[worker, kind] = rate
                    continue
                if not isinstance(value, list) or len(value) != 2:
                    raise InputError(
                        f"{place}.{short(other)}",
                        f"{short(value)} is no pair of rates",
                        "give [own, other's]",
                    )
                first, second = (_rate(f"{place}.{short(other)}", each) for each in value)
                if first > 0 and second > 0:
                    pairs[worker, kind, _kind(place, other)] = (first, second)
    return GavelTable(alone, pairs, tuple(data))


def read_trace(path: str | Path, table: GavelTable) -> tuple[GavelJob, ...]:
    """Read a trace of the physical (10 columns) or generated (7 columns) kind, sorted by arrival.

    A program must be in the table; whether it was measured on its number of GPUs is not asked here.

    Raises
    ------
    InputError
        Naming line and column.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise NotFoundError(str(path), f"cannot be read ({error.strerror})", "check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"byte {error.start} is not UTF-8", "save the file as UTF-8") from None
    names = {kind.name for _, kind in table.alone}
    jobs = [
        _job(f"{path}: line {number}", number, line.split("\t"), names)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    return tuple(sorted(jobs, key=lambda job: job.arrival_s))


def _job(place: str, number: int, fields: list[str], names: set[str]) -> GavelJob:
    if len(fields) not in (PHYSICAL, GENERATED):
        raise InputError(
            place, f"has {len(fields)} columns", f"a trace has {PHYSICAL} or {GENERATED}, separated by tabs"
        )

    def number_of(column: str, index: int, least: float) -> float:
        try:
            value = float(fields[index])
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least:
            raise InputError(
                f"{place}, column {column}",
                f"{short(fields[index])} is not a number of {least:g} or more",
                "correct the value",
            )
        return value

    name = fields[0].strip()
    if name not in names:
        raise InputError(f"{place}, column job_type", f"{short(name)} was not measured", nearest(name, names))
    physical = len(fields) == PHYSICAL
    scale = number_of("scale_factor", 6, 1)
    if scale != int(scale) or scale > 10**6:
        raise InputError(
            f"{place}, column scale_factor", f"{short(fields[6])} is not a GPU count", "correct the value"
        )
    slo = number_of("SLO", 8, -math.inf) if physical else -1.0
    return GavelJob(
        line=number,
        kind=JobType(name, int(scale)),
        steps=number_of("total_steps", 5 if physical else 4, 1),
        arrival_s=number_of("arrival_time", 9 if physical else 5, 0),
        weight=number_of("priority_weight", 7, 1e-6) if physical else 1.0,
        slo=slo if slo > 0 else None,
    )
