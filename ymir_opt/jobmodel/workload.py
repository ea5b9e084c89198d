"""Titan's workload files: one row a job, no duration (it follows from the job model)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ymir_opt.domain.errors import InputError
from ymir_opt.jobmodel.tables import count, finite, read_rows, text

__all__ = ["WorkloadJob", "read_workload"]


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


def read_workload(path: Path | str) -> tuple[WorkloadJob, ...]:
    """Read a workload file, sorted by submission (stable).

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
        "target_metric": finite,
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
