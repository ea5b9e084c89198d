"""What a policy sees and says in large simulations: columns in, columns out.

:class:`SnapshotView` holds observations and estimates only; the truth of a simulation lives elsewhere and
no object reachable from a view leads to it. Row ``j`` of every job column is the same job; rows are in
order of arrival. All arrays are read-only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Queue
from ymir_opt.policies.columns import JobColumns
from ymir_opt.policies.decision import Decision, GroupDecision
from ymir_opt.policies.tables import SpeedTable, TransferTable

__all__ = [
    "Decision",
    "GroupDecision",
    "GroupView",
    "JobColumns",
    "SnapshotView",
    "SpeedTable",
    "TransferTable",
]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

RIGID = -1
"""Speed key of a job whose work is seconds at its requested GPU count."""


@dataclass(frozen=True)
class GroupView:
    """A running group.

    Attributes
    ----------
    id : int
        Serial number of the group.
    mode : str
        ``solo``, ``gpu_share``, ``colocate``, ``joint`` or ``sequence``.
    rows : tuple of int
        Members that are not done, in the group's order.
    gpus, gpu_type : int
    nodes : tuple of (int, int)
        (node index, bit mask of its GPUs).
    started_at_s : float
    probe : str or None
        ``running``, ``passed`` or None.
    starts_from : mapping
        Row -> class whose weights the member started or will start from.
    """

    id: int
    mode: str
    rows: tuple[int, ...]
    gpus: int
    gpu_type: int
    nodes: tuple[tuple[int, int], ...]
    started_at_s: float
    probe: str | None = None
    starts_from: Mapping[int, int] = field(default_factory=dict)


class SnapshotView:
    """One moment of a simulated cluster, as read-only columns.

    Parameters
    ----------
    now_s : float
    columns : JobColumns
        Observations and estimates of the active jobs.
    slots : int64[n]
        Slots of the active jobs in order of arrival.
    speed : SpeedTable
    transfer : TransferTable
    nodes : mapping
        ``node_id`` (tuple of str), ``node_type``, ``node_gpus``, ``node_free``, ``node_ready``.
    groups : tuple of GroupView
        Every running group of more than one member (solo runs are in the columns).
    rejected : frozenset
        Merges that failed their probe: (mode, frozenset of serial numbers).
    queues : tuple of str
    adapters : frozenset of int
        Classes of completed jobs, whose weights a job may start from.
    quotas : tuple of Queue
        Queues with quotas, weights and cohorts.
    work_log_sd : float
        Standard deviation of the logarithm of the work estimates' errors, as the estimator knows it.

    Attributes
    ----------
    places : mapping
        Row -> (node index, bit mask of its GPUs) of every solo run; filled for snapshot policies only, as are
        ``node_resident`` (per node and GPU an index into ``models``, -1 none) and ``models`` in `nodes`.
    """

    def __init__(
        self,
        now_s: float,
        columns: JobColumns,
        slots: IntArray,
        speed: SpeedTable,
        transfer: TransferTable,
        nodes: Mapping[str, Any],
        groups: tuple[GroupView, ...] = (),
        rejected: frozenset[tuple[str, frozenset[int]]] = frozenset(),
        queues: tuple[str, ...] = (),
        adapters: frozenset[int] = frozenset(),
        quotas: tuple[Queue, ...] = (),
        work_log_sd: float = 0.0,
    ) -> None:
        self.now_s = now_s
        self.slots = slots
        self.speed = speed
        self.transfer = transfer
        self.nodes = nodes
        self.groups = groups
        self.rejected = rejected
        self.queues = queues
        self.adapters = adapters
        self.quotas = quotas
        self.work_log_sd = work_log_sd
        self.places: Mapping[int, tuple[tuple[int, int], ...]] = {}
        self._columns = columns
        self._cache: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.slots)

    def column(self, name: str) -> NDArray[Any]:
        """Return a job column, gathered in row order on first use, read-only."""
        found = self._cache.get(name)
        if found is None:
            found = self._columns.data[name][self.slots]
            found.flags.writeable = False
            self._cache[name] = found
        return found

    def ids(self) -> list[str]:
        """Return the jobs' ids by row."""
        names = self._columns.ids
        return [names[slot] for slot in self.slots]

    def id(self, row: int) -> str:
        """Return one job's id."""
        return self._columns.ids[int(self.slots[row])]

    @property
    def submitted_at_s(self) -> FloatArray:
        """float64[n]: submission times."""
        return self.column("submitted_at_s")

    @property
    def requested_gpus(self) -> IntArray:
        """int64[n]: requested GPU counts."""
        return self.column("requested_gpus")

    @property
    def min_gpus(self) -> IntArray:
        """int64[n]: smallest allowed GPU counts."""
        return self.column("min_gpus")

    @property
    def max_gpus(self) -> IntArray:
        """int64[n]: largest allowed GPU counts."""
        return self.column("max_gpus")

    @property
    def remaining(self) -> FloatArray:
        """float64[n]: estimated remaining work, samples (rigid: seconds)."""
        return self.column("remaining")

    @property
    def done(self) -> FloatArray:
        """float64[n]: observed progress, samples (rigid: seconds)."""
        return self.column("done")

    @property
    def key(self) -> IntArray:
        """int64[n]: speed key, -1 for rigid jobs."""
        return self.column("key")

    @property
    def kind(self) -> IntArray:
        """int64[n]: job class in the transfer table, -1 if none."""
        return self.column("kind")

    @property
    def gpus(self) -> IntArray:
        """int64[n]: GPUs held now (0: none)."""
        return self.column("gpus")

    @property
    def gpu_type(self) -> IntArray:
        """int64[n]: type of the GPUs held, -1 if none."""
        return self.column("gpu_type")

    @property
    def attained_gpu_s(self) -> FloatArray:
        """float64[n]: GPU-seconds of progress (switching excluded)."""
        return self.column("attained_gpu_s")

    @property
    def held_gpu_s(self) -> FloatArray:
        """float64[n]: GPU-seconds held (switching included)."""
        return self.column("held_gpu_s")

    @property
    def productive_s(self) -> FloatArray:
        """float64[n]: seconds of progress (switching excluded)."""
        return self.column("productive_s")

    @cached_property
    def running(self) -> BoolArray:
        """bool[n]: holds GPUs now."""
        return self.gpus > 0

    @cached_property
    def startable(self) -> BoolArray:
        """bool[n]: waits, and is not backing off after failed starts."""
        return np.asarray((self.gpus == 0) & (self.column("not_before_s") <= self.now_s))

    @cached_property
    def age_s(self) -> FloatArray:
        """float64[n]: seconds since submission."""
        return np.maximum(0.0, self.now_s - self.submitted_at_s)

    @cached_property
    def type_gpus(self) -> IntArray:
        """int64[T]: GPUs of ready nodes by type."""
        return self._by_type(self.nodes["node_gpus"])

    @cached_property
    def type_free(self) -> IntArray:
        """int64[T]: free GPUs of ready nodes by type."""
        return self._by_type(self.nodes["node_free"])

    def _by_type(self, values: IntArray) -> IntArray:
        ready = self.nodes["node_ready"]
        kinds = self.nodes["node_type"][ready]
        return np.bincount(kinds, weights=values[ready], minlength=len(self.speed.types)).astype(np.int64)

    @cached_property
    def total_gpus(self) -> int:
        """GPUs of ready nodes."""
        return int(self.type_gpus.sum())

    @cached_property
    def free_gpus(self) -> int:
        """Free GPUs of ready nodes."""
        return int(self.type_free.sum())

    def time_s(self, rows: IntArray, counts: IntArray, gpu_type: int = 0) -> FloatArray:
        """Return the estimated seconds to finish each row on each count, switching excluded.

        Parameters
        ----------
        rows, counts : int64[m]
        gpu_type : int

        Returns
        -------
        float64[m]
            inf where the count is impossible or the speed unknown.
        """
        return self._time(rows, counts, gpu_type, predicted=False)

    def predicted_time_s(self, rows: IntArray, counts: IntArray, gpu_type: int = 0) -> FloatArray:
        """Return what Titan's simulator predicts instead: too long, rounded to whole seconds."""
        return np.rint(self._time(rows, counts, gpu_type, predicted=True))

    def _time(self, rows: IntArray, counts: IntArray, gpu_type: int, *, predicted: bool) -> FloatArray:
        key, work = self.key[rows], self.remaining[rows]
        capped = np.minimum(counts, self.speed.counts)
        out = np.full(len(rows), np.inf)
        if len(self.speed.names):
            if predicted:
                out = work * self.speed.predicted[key, gpu_type, capped]
            else:
                rate = self.speed.rate[key, gpu_type, capped]
                known = rate > 0
                out[known] = work[known] / rate[known]
            out[counts > self.speed.counts] = np.inf
        rigid = key == RIGID
        if rigid.any():
            whole = counts[rigid] == self.requested_gpus[rows][rigid]
            out[rigid] = np.where(whole, work[rigid], np.inf)
        return out

    def start_s(self, gpu_type: int = 0) -> FloatArray:
        """float64[n]: seconds of a cold start of each job on a GPU type."""
        if not len(self.speed.names):
            return np.full(len(self), self.speed.rigid_start_s)
        return np.where(self.key == RIGID, self.speed.rigid_start_s, self.speed.cold_s[self.key, gpu_type])
