"""Titan's workload files: one row a job, no duration (it follows from the job model)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ymir_opt.domain.errors import InputError
from ymir_opt.jobmodel.tables import count, finite, read_rows, text

__all__ = ["WorkloadJob", "read_workload", "reference_target"]


@dataclass(frozen=True)
class WorkloadJob:
    """One row of a workload file.

    Attributes
    ----------
    name : str
        The job's id.
    submitted_at_s : float
        Seconds.
    model, task : str
        The two parts of ``model@task``.
    requested_gpus : int
    batch_size : int
        Global batch, samples.
    learning_rate : str
        As written: it keys the curves.
    accumulation : int
        The accumulation steps that key the curves.
    target : float
        Metric value that ends the job.
    """

    name: str
    submitted_at_s: float
    model: str
    task: str
    requested_gpus: int
    batch_size: int
    learning_rate: str
    accumulation: int
    target: float

    @property
    def setting(self) -> tuple[str, int]:
        """Return the key of the job's own learning curve."""
        return (self.learning_rate, self.accumulation)


def _application(value: str) -> tuple[str, str]:
    model, at, task = text(value).partition("@")
    if not (model and at and task):
        raise ValueError("is not model@task")
    return model, task


_MAX_DIGITS = 17


def reference_target(value: str) -> float:
    """Return a number as the reference's CSV reader reads it.

    It gathers up to 17 digits in a double and divides by a power of ten once. Above 2^53 the gathered
    digits are rounded, so that some targets come out one unit in the last place too high: a curve that
    reaches exactly the target then never does, and the job runs to its limit of ten epochs. On the public
    traces this concerns qnli, mrpc, sst2 and snli on roberta-base and mrpc on roberta-large.
    """
    exact = finite(value)
    whole, _, fraction = value.strip().lstrip("+").partition(".")
    if not (whole + fraction).isdigit() or len(whole) > _MAX_DIGITS:
        return exact
    digits = fraction[: _MAX_DIGITS - len(whole)]
    number = 0.0
    for digit in whole + digits:
        number = number * 10.0 + int(digit)
    return float(number / 10.0 ** len(digits))


def read_workload(path: Path | str, read_target: Callable[[str], float] = finite) -> tuple[WorkloadJob, ...]:
    """Read a workload file, sorted by submission (stable).

    Parameters
    ----------
    path : Path or str
    read_target : callable
        Reads ``target_metric``: exactly, or as `reference_target` does.

    Raises
    ------
    InputError
        A row is wrong or a name occurs twice; file, line and column are named.
    """
    path = Path(path)
    columns = {
        "name": text,
        "submission_time": finite,
        "application": _application,
        "num_gpus": count,
        "target_batch_size": count,
        "target_lr": text,
        "target_gradient_steps": count,
        "target_metric": read_target,
    }
    jobs: list[WorkloadJob] = []
    seen: dict[str, int] = {}
    for line, (name, submitted, application, gpus, batch, rate, steps, target) in read_rows(path, columns):
        if name in seen:
            raise InputError(
                f"{path}: line {line}, column name",
                f"{name[:60]!r} is already on line {seen[name]}",
                "give every job its own name",
            )
        seen[name] = line
        model, task = application
        jobs.append(WorkloadJob(name, submitted, model, task, gpus, batch, rate, steps, target))
    return tuple(sorted(jobs, key=lambda job: job.submitted_at_s))
