"""What the bounds need of a workload: submissions, the fastest possible times, and the GPUs over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.jobmodel import packed
from ymir_opt.simulator.cluster import NodeEvent, NodeSpec
from ymir_opt.simulator.workload import Speeds, TraceJob, Workload

__all__ = ["BoundInstance", "bound_instance"]

_MAX_SPARE = 7

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class BoundInstance:
    """Jobs that are alone, and how many GPUs there are when.

    Attributes
    ----------
    submit_s : float64[n]
    counts : int64[c]
        GPU counts, distinct.
    time_s : float64[n, types, c]
        Seconds of a whole run, one start included, on ``counts[c]`` GPUs of a type; ``inf`` where not
        allowed. Each job has a finite one.
    changes_s : float64[k]
        Times from which a number of GPUs holds, increasing; the first is -inf.
    gpus : float64[k, types]
    ids : tuple of str
        Of the jobs, in the order of the rows.
    never : tuple of str
        Jobs that no allowed count and type can run; they are left out.
    """

    submit_s: FloatArray
    counts: IntArray
    time_s: FloatArray
    changes_s: FloatArray
    gpus: FloatArray
    ids: tuple[str, ...] = ()
    never: tuple[str, ...] = field(default=())

    @classmethod
    def of(
        cls, submit_s: FloatArray, counts: IntArray, time_s: FloatArray, gpus: float | tuple[float, ...]
    ) -> BoundInstance:
        """Return an instance with constant GPUs (of each type; `time_s` may leave that axis out)."""
        time = time_s if time_s.ndim == 3 else time_s[:, None, :]
        return cls(
            submit_s,
            counts,
            time,
            np.array([-np.inf]),
            np.atleast_1d(np.asarray(gpus, dtype=np.float64))[None, :],
        )

    def fastest_s(self) -> FloatArray:
        """Return each job's least time."""
        return np.asarray(self.time_s.min(axis=(1, 2))) if len(self.time_s) else np.zeros(0)

    def area_s(self) -> FloatArray:
        """Return each job's least GPU-seconds."""
        return np.asarray((self.time_s * self.counts).min(axis=(1, 2))) if len(self.time_s) else np.zeros(0)

    def most_gpus(self) -> float:
        """Return the most GPUs of all types that there ever are from the first submission on."""
        ends = np.append(self.changes_s[1:], np.inf)
        return float(self.gpus[ends > self.submit_s.min()].sum(axis=1).max())

    def capacity(self, slot_s: float, slots: int) -> FloatArray:
        """Return the GPU-seconds of each type and slot, counted from the first submission."""
        origin = float(self.submit_s.min())
        edges = origin + slot_s * np.arange(slots + 1)
        total = np.zeros((self.gpus.shape[1], slots))
        ends = np.append(self.changes_s[1:], np.inf)
        for begin, end, gpus in zip(self.changes_s, ends, self.gpus, strict=True):
            seconds = np.maximum(0.0, np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin))
            total += gpus[:, None] * seconds
        return total


def bound_instance(
    workload: Workload, nodes: tuple[NodeSpec, ...], node_events: tuple[NodeEvent, ...] = ()
) -> BoundInstance:
    """Return the clairvoyant's view of a workload on a cluster.

    A run on a count takes its true time on the best placement on the fewest nodes, with the cheapest start
    (warm, where starts can be). Merging is not considered: the bounds hold for schedules
    in which every job does all its own work.

    Parameters
    ----------
    workload : Workload
    nodes : tuple of NodeSpec
    node_events : tuple of NodeEvent
        Nodes that leave, return or are added.
    """
    every = (*nodes, *(event.spec for event in node_events if event.spec is not None))
    table = _TimeTable(workload.speeds, every)
    jobs = list(workload.jobs())
    counts: IntArray = np.array(
        sorted(
            {n for job in jobs for n in (*range(job.min_gpus, job.max_gpus + 1), job.requested_gpus)} or {1}
        ),
        dtype=np.int64,
    )
    types = list(table.sizes)
    time = np.full((len(jobs), len(types), len(counts)), np.inf)
    column = {int(count): k for k, count in enumerate(counts)}
    for row, job in enumerate(jobs):
        for (kind, count), seconds in table.times(job).items():
            time[row, types.index(kind), column[count]] = seconds
    able = np.isfinite(time).any(axis=(1, 2))
    rows = np.flatnonzero(able)
    submit = np.array([job.submitted_at_s for job in jobs], dtype=np.float64)
    changes, gpus = _gpus_over_time(nodes, node_events, types)
    return BoundInstance(
        submit[rows],
        counts,
        time[rows],
        changes,
        gpus,
        tuple(jobs[row].id for row in rows),
        tuple(jobs[row].id for row in np.flatnonzero(~able)),
    )


class _TimeTable:
    """Best speeds by (model, batch, types, count)."""

    def __init__(self, speeds: Speeds, nodes: tuple[NodeSpec, ...]) -> None:
        self.speeds = speeds
        self.sizes: dict[str, list[int]] = {}
        for node in nodes:
            self.sizes.setdefault(node.gpu_type, []).append(node.gpus)
        self.known: dict[tuple[str, int, str, int], float] = {}

    def times(self, job: TraceJob) -> dict[tuple[str, int], float]:
        """Return (type, count) -> least seconds of a whole run."""
        found: dict[tuple[str, int], float] = {}
        for kind, sizes in self.sizes.items():
            if job.gpu_types is not None and kind not in job.gpu_types:
                continue
            start = min(self.speeds.start_s(job.model, kind, warm) for warm in (False, True))
            for count in {*range(job.min_gpus, job.max_gpus + 1), job.requested_gpus}:
                if count > sum(sizes):
                    continue
                key = (job.model, job.batch_size, kind, count)
                if key not in self.known:
                    self.known[key] = max(
                        (
                            self.speeds.rate(job.model, job.batch_size, placement, kind)
                            for size in set(sizes)
                            for placement in _fullest(count, size)
                        ),
                        default=0.0,
                    )
                rate = self.known[key]
                if rate > 0:
                    found[kind, count] = start + job.work / rate
        return found


def _fullest(gpus: int, size: int) -> Iterator[tuple[int, ...]]:
    """Yield the placements of a gang on the fewest nodes of a size, each order for up to four nodes.

    With much room to spare only the fullest one is given: measured tables know no others.
    """
    number = -(-gpus // size)
    if number * size - gpus > _MAX_SPARE:
        yield packed(gpus, size)
        return

    def parts(left: int, nodes: int, most: int) -> Iterator[tuple[int, ...]]:
        if nodes == 0:
            if left == 0:
                yield ()
            return
        for here in range(min(most, left), -(-left // nodes) - 1, -1):
            for rest in parts(left - here, nodes - 1, here):
                yield (here, *rest)

    for part in parts(gpus, number, size):
        if 1 < number <= 4 and len(set(part)) > 1:
            yield from sorted(set(permutations(part)))
        else:
            yield part


def _gpus_over_time(
    nodes: tuple[NodeSpec, ...], events: tuple[NodeEvent, ...], types: list[str]
) -> tuple[FloatArray, FloatArray]:
    """Return the times of change, and the GPUs of each type from each on."""
    known = {node.id: node for node in nodes}
    up = dict.fromkeys(known, True)

    def total() -> list[float]:
        there = [node for name, node in known.items() if up.get(name, False)]
        return [float(sum(node.gpus for node in there if node.gpu_type == kind)) for kind in types]

    times, gpus = [-np.inf], [total()]
    for event in sorted(events, key=lambda e: e.at_s):
        if event.spec is not None and event.node not in known:
            known[event.node] = event.spec
        up[event.node] = event.kind in ("up", "add")
        if times[-1] == event.at_s:
            gpus[-1] = total()
        else:
            times.append(event.at_s)
            gpus.append(total())
    return np.array(times), np.array(gpus).reshape(len(times), len(types))
