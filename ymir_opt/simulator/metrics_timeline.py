"""Utilisation, queue length and fragmentation of a finished simulation over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.simulator.results import SimulationResult

__all__ = ["StepSeries", "Timeline", "timeline"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StepSeries:
    """A figure that holds from one time to the next.

    Attributes
    ----------
    time_s : float64[n]
        Increasing.
    value : float64[n]
        From ``time_s[i]`` to ``time_s[i + 1]``; the last has no end.
    """

    time_s: FloatArray
    value: FloatArray

    @classmethod
    def of_changes(cls, time_s: FloatArray, change: FloatArray) -> StepSeries:
        """Return the running sum of changes, one entry a distinct time."""
        times, where = np.unique(time_s, return_inverse=True)
        total = np.zeros(len(times))
        np.add.at(total, where.reshape(-1), change)
        return cls(times, np.cumsum(total))

    def at(self, when_s: FloatArray) -> FloatArray:
        """Return the values at some times; 0 before the first."""
        index = np.searchsorted(self.time_s, when_s, side="right") - 1
        return np.where(index >= 0, self.value[np.maximum(index, 0)] if len(self.value) else 0.0, 0.0)

    def integral(self, begin_s: float, end_s: float) -> float:
        """Return value times seconds between two times."""
        if not len(self.time_s) or end_s <= begin_s:
            return 0.0
        inner = self.time_s[(self.time_s > begin_s) & (self.time_s < end_s)]
        edges = np.concatenate([[begin_s], inner, [end_s]])
        return float(self.at(edges[:-1]) @ np.diff(edges))

    def thinned(self, most: int) -> StepSeries:
        """Return at most about `most` steps: the mean over equal intervals, exact if there are few."""
        if len(self.time_s) <= most:
            return self
        edges = np.linspace(self.time_s[0], self.time_s[-1], most + 1)
        # The integral up to each edge, so that means over intervals cost no more than the steps.
        area = np.concatenate([[0.0], np.cumsum(self.value[:-1] * np.diff(self.time_s))])
        index = np.searchsorted(self.time_s, edges, side="right") - 1
        upto = area[index] + self.value[index] * (edges - self.time_s[index])
        means = np.diff(upto) / np.diff(edges)
        return StepSeries(edges, np.append(means, self.value[-1]))


@dataclass(frozen=True)
class Timeline:
    """What a run looked like over time.

    Attributes
    ----------
    used_gpus : StepSeries
        GPUs held, a start included.
    total_gpus : StepSeries
        GPUs of nodes that are ready.
    waiting_jobs, running_jobs : StepSeries
        Submitted jobs without GPUs, and with.
    fragmentation : StepSeries
        After each planning round, 1 - (most GPUs free on one node) / (most that one node could offer if the
        free GPUs lay together); 0 where none is free.
    exact : bool
        True: from GPU segments, between the rounds too; False: as seen at the planning rounds.
    """

    used_gpus: StepSeries
    total_gpus: StepSeries
    waiting_jobs: StepSeries
    running_jobs: StepSeries
    fragmentation: StepSeries
    exact: bool

    def utilisation(self, begin_s: float, end_s: float) -> float | None:
        """Return the GPU-seconds held over the GPU-seconds there were; None where there were none."""
        total = self.total_gpus.integral(begin_s, end_s)
        return self.used_gpus.integral(begin_s, end_s) / total if total > 0 else None


def timeline(result: SimulationResult) -> Timeline:
    """Return a run over time, from its segments where they were recorded, else from its rounds."""
    series = result.series
    empty = np.zeros(0)
    when = series.get("time_s", empty)

    def of(name: str) -> StepSeries:
        return StepSeries(when, series.get(name, empty))

    total = of("total_gpus")
    free = total.value - series.get("used_gpus", empty)
    largest = series.get("largest_gang", empty)
    held = [mask.bit_count() for segment in result.segments for _, mask in segment.nodes]
    node = max([float(largest.max(initial=0.0)), *held])
    with np.errstate(divide="ignore", invalid="ignore"):
        fragmented = np.where(free > 0, 1.0 - largest / np.minimum(free, node), 0.0)
    fragmentation = StepSeries(when, np.clip(fragmented, 0.0, 1.0))
    if not result.segments:
        return Timeline(
            of("used_gpus"), total, of("waiting_jobs"), of("running_jobs"), fragmentation, exact=False
        )
    begin = np.array([s.start_s for s in result.segments])
    end = np.array([s.end_s for s in result.segments])
    gpus = np.array([sum(mask.bit_count() for _, mask in s.nodes) for s in result.segments], dtype=np.float64)
    members = np.array([len(s.jobs) for s in result.segments], dtype=np.float64)
    both = np.concatenate([begin, end])
    used = StepSeries.of_changes(both, np.concatenate([gpus, -gpus]))
    running = StepSeries.of_changes(both, np.concatenate([members, -members]))
    arrivals = np.array([job.submitted_at_s for job in result.jobs])
    departures = np.array([job.completed_at_s for job in result.jobs])
    changes = np.concatenate([np.ones(len(arrivals)), -np.ones(len(departures)), -members, members])
    waiting = StepSeries.of_changes(np.concatenate([arrivals, departures, both]), changes)
    if not len(total.time_s):
        total = StepSeries(np.array([both.min()]), np.array([float(result.gpus)]))
    # Completions may be reported rounded, so that for a moment a job counts twice.
    waiting = StepSeries(waiting.time_s, np.maximum(waiting.value, 0.0))
    return Timeline(used, total, waiting, running, fragmentation, exact=True)
