"""What the journal keeps of jobs, groups and workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

__all__ = ["GroupRecord", "JobPhase", "JobRecord", "WorkerRecord", "WorkerState"]


class JobPhase(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"

    @property
    def over(self) -> bool:
        """Whether nothing will start the job again."""
        return self not in (JobPhase.PENDING, JobPhase.RUNNING)


class WorkerState(StrEnum):
    """Where a worker stands; an intent is written before the process exists."""

    INTENT = "intent"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class _Record:
    """To and from JSON values."""

    def plain(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """Return the record of JSON values; fields of other versions are left out."""
        names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: item for name, item in value.items() if name in names})


@dataclass
class JobRecord(_Record):
    """One job.

    Attributes
    ----------
    key, id, tenant : str
    phase : JobPhase
    reason : str
        Why it waits or how it ended, in words.
    max_samples : float
        Samples until its epochs are done.
    samples, checkpoint_samples, samples_at_start : float
        Trained so far; at its last checkpoint; when its present group began.
    work : float or None
        Samples that it was expected to need when its present group began.
    rate : float
        Samples/s of the last heartbeat.
    no_transfer : bool
        A start from other weights did not help it: it is not tried again.
    failed_starts : int
        Starts in a row that ended without a new checkpoint.
    ending, ending_reason : str
        The state in which it shall end as soon as no worker trains it; empty: it goes on.
    """

    key: str
    id: str
    tenant: str
    submitted_at_s: float
    max_samples: float
    phase: str = JobPhase.PENDING
    reason: str = ""
    samples: float = 0.0
    checkpoint_samples: float = 0.0
    samples_at_start: float = 0.0
    samples_at_failure: float = -1.0
    work: float | None = None
    metric: float | None = None
    train_loss: float | None = None
    rate: float | None = None
    failed_starts: int = 0
    not_before_s: float | None = None
    first_start_s: float | None = None
    last_start_s: float | None = None
    finished_at_s: float | None = None
    running_s: float = 0.0
    restarts: int = 0
    preemptions: int = 0
    group: str | None = None
    no_transfer: bool = False
    ending: str = ""
    ending_reason: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing will start the job again."""
        return bool(self.ending) or JobPhase(self.phase).over

    @property
    def has_result(self) -> bool:
        """Whether its worker ended it, and so need not be told to leave it."""
        return self.phase in (JobPhase.COMPLETED, JobPhase.FAILED)


@dataclass
class GroupRecord(_Record):
    """A group that is wanted.

    Attributes
    ----------
    id, mode : str
    jobs : list of str
        Keys, in the plan's order.
    node : str
    gpu : int
    starts_from : dict of str to (kind, id)
        ``["adapter", key]`` or ``["job", key]`` by key, until the first checkpoint in this group.
    sources : dict
        The same for good.
    evaluations : int
        Of the probe; 0: none.
    probe : str
        ``none``, ``running`` or ``passed``.
    predicted : dict
        By key: work, low, high, samples_per_s.
    seen : dict of str to int
        Evaluations of each member in this group so far.
    """

    id: str
    mode: str
    jobs: list[str]
    node: str
    gpu: int
    started_at_s: float
    starts_from: dict[str, list[str]] = field(default_factory=dict)
    sources: dict[str, list[str]] = field(default_factory=dict)
    evaluations: int = 0
    probe: str = "none"
    probe_cost_s: float = 0.0
    predicted: dict[str, dict[str, Any]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)


@dataclass
class WorkerRecord(_Record):
    """A worker: a process or an actor with an action's id.

    Attributes
    ----------
    id : str
        The action's id, in the process's arguments or the actor's name.
    node, gpu, lane
        Where; workers that share a GPU have different lanes.
    gpu_type : str
        Of the node, under which its measurements are kept.
    model : dict
        The request's model block.
    label : str
        The foundation model's id.
    version : int
        Of the last assignment written.
    holding : list of str
        Keys of jobs that it may be training.
    offset : int
        How far its events were read.
    handle : dict
        What the executor needs to find it: process id and start time, say.
    """

    id: str
    node: str
    gpu: int
    lane: int
    model: dict[str, Any]
    label: str
    gpu_type: str = ""
    state: str = WorkerState.INTENT
    version: int = 0
    assignment: dict[str, Any] = field(default_factory=dict)
    holding: list[str] = field(default_factory=list)
    offset: int = 0
    handle: dict[str, Any] = field(default_factory=dict)
    started_at_s: float = 0.0
    idle_since_s: float | None = None
    stop_asked_s: float | None = None
    ready: bool = False
    reason: str = ""

    @property
    def slot(self) -> tuple[str, int, int]:
        """Node, GPU and lane."""
        return (self.node, self.gpu, self.lane)

    @property
    def live(self) -> bool:
        """Whether it may still run."""
        return self.state != WorkerState.ENDED
