"""What a simulation leaves behind: one record a finished job, series over time, optional GPU segments."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["JobRecord", "Recorder", "Segment", "SimulationResult"]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A finished job.

    Attributes
    ----------
    id : str
    submitted_at_s, first_start_s, completed_at_s : float
    requested_gpus : int
    gpu_s : float
        GPU-seconds held (a shared group's GPUs divided among its members).
    switch_gpu_s : float
        Part of `gpu_s` spent on starting.
    starts, preemptions : int
    model, task, queue : str
    exclusive_s : float
        True time alone on the requested GPUs from submission, one cold start included (inf if the
        requested count cannot run); for finish-time fairness.
    fastest_s : float
        True fastest isolated time over all allowed counts and types, one cold start included.
    """

    id: str
    submitted_at_s: float
    first_start_s: float
    completed_at_s: float
    requested_gpus: int
    gpu_s: float
    switch_gpu_s: float
    starts: int
    preemptions: int
    model: str
    task: str
    queue: str
    exclusive_s: float
    fastest_s: float

    @property
    def jct_s(self) -> float:
        """Return completion minus submission."""
        return self.completed_at_s - self.submitted_at_s


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time in which a group held GPUs.

    Attributes
    ----------
    group : int
    mode : str
    jobs : tuple of str
        Members that held the GPUs when the segment began.
    nodes : tuple of (str, int)
        (node id, bit mask of its GPUs).
    start_s, ready_s, end_s : float
        Begin, end of the switch, end.
    ended_by : str
        ``finished``, ``preempted``, ``failed``, ``split`` or ``member`` (a member left, the rest goes on).
    why, ended_why : str
        The policy's own reasons, where it gives any: for the start (a line a member; "" where a group goes
        on after a member left), and for the end where a plan ended it.
    """

    group: int
    mode: str
    jobs: tuple[str, ...]
    nodes: tuple[tuple[str, int], ...]
    start_s: float
    ready_s: float
    end_s: float
    ended_by: str
    why: str = ""
    ended_why: str = ""


@dataclass
class SimulationResult:
    """A finished run.

    Attributes
    ----------
    trace, policy : str
    seed : int
    gpus : int
        GPUs at the start.
    jobs : list of JobRecord
        In order of completion (empty if a sink took them).
    unfinished : tuple of str
        Jobs that could never be placed (the run ended without them).
    series : dict of float64[m]
        Per planning round: ``time_s``, ``used_gpus``, ``total_gpus``, ``waiting_jobs``, ``running_jobs``,
        ``largest_gang`` (most GPUs free on one node), ``plan_wall_s``, ``value_gap`` (nan: none given).
    segments : list of Segment
        Only if asked for.
    merges_kept, merges_rolled_back : int
        Shared groups that ended well, and probes that failed.
    node_failures, failed_starts, unplaced : int
        Jobs stopped by a node, starts that failed, and wanted starts that found no room on the nodes.
    jobs_finished : int
    mean_jct_s, makespan_s : float
        Kept as running sums, so they hold with a sink too; the makespan counts from the first submission to
        the last completion.
    """

    trace: str
    policy: str
    seed: int
    gpus: int
    jobs: list[JobRecord] = field(default_factory=list)
    unfinished: tuple[str, ...] = ()
    series: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    merges_kept: int = 0
    merges_rolled_back: int = 0
    node_failures: int = 0
    failed_starts: int = 0
    unplaced: int = 0
    starts: int = 0
    preemptions: int = 0
    jobs_finished: int = 0
    jct_sum_s: float = 0.0
    makespan_s: float = 0.0
    rounds: int = 0
    events: int = 0

    @property
    def mean_jct_s(self) -> float:
        """Return the mean of completion minus submission (nan without jobs)."""
        return self.jct_sum_s / self.jobs_finished if self.jobs_finished else float("nan")

    def jct_s(self) -> NDArray[np.float64]:
        """Return the jobs' completion minus submission, in order of completion."""
        return np.array([job.jct_s for job in self.jobs], dtype=np.float64)


SERIES = (
    "time_s",
    "used_gpus",
    "total_gpus",
    "waiting_jobs",
    "running_jobs",
    "largest_gang",
    "plan_wall_s",
    "value_gap",
)


class Recorder:
    """Collects records; a `sink` may take them instead of the list."""

    def __init__(
        self, sink: Callable[[JobRecord], None] | None = None, segments: bool = False, series: bool = True
    ) -> None:
        self.sink = sink
        self.jobs: list[JobRecord] = []
        self.want_segments = segments
        self.segments: list[Segment] = []
        self.want_series = series
        self.series: dict[str, array[float]] = {name: array("d") for name in SERIES}

    def job(self, record: JobRecord) -> None:
        """Take one finished job."""
        if self.sink is not None:
            self.sink(record)
        else:
            self.jobs.append(record)

    def round(self, *values: float) -> None:
        """Take one planning round, values in the order of ``SERIES``."""
        if self.want_series:
            for name, value in zip(SERIES, values, strict=True):
                self.series[name].append(value)

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "jobs": [[getattr(j, f) for f in JobRecord.__slots__] for j in self.jobs],
            "segments": [[getattr(s, f) for f in Segment.__slots__] for s in self.segments],
            "series": {name: list(values) for name, values in self.series.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` gave."""
        self.jobs = [JobRecord(*row) for row in state["jobs"]]
        self.segments = [
            Segment(r[0], r[1], tuple(r[2]), tuple((n, m) for n, m in r[3]), *r[4:])
            for r in state["segments"]
        ]
        self.series = {name: array("d", values) for name, values in state["series"].items()}
