"""Quotas as arrays: which row a queue's use of a type counts against, and what each column is charged.

A *quota row* is a queue's ``quotas`` entry: one GPU type, or with ``*`` every type that has no entry of
its own. A member of a shared group is charged ``gpus / |S|``, in a sequence the running member is charged
all of them. Charges are integers in units of ``1 / unit`` GPU, ``unit`` a multiple of 12 (groups of up to 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Quota, Reclaim
from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.instance import Instance

__all__ = ["Charges", "QuotaPool", "QuotaRow", "QuotaTable"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NO_QUOTA, NOT_ALLOWED = -2, -1
# groups with more members than this are charged a rounded-up share
LARGEST_UNIT = 27_720


@dataclass(frozen=True)
class QuotaRow:
    """One quota entry in units.

    Attributes
    ----------
    queue, cohort : str, str or None
    types : tuple of int
        GPU type rows that it covers.
    nominal : int
        Nominal quota.
    limit : int or None
        Most that the queue may use: nominal plus borrowing limit; without cohort nominal.
    guaranteed, lendable : int
        ``nominal = guaranteed + lendable``: what others may never and may borrow.
    reclaim : Reclaim
    """

    queue: str
    cohort: str | None
    types: tuple[int, ...]
    nominal: int
    limit: int | None
    guaranteed: int
    lendable: int
    reclaim: Reclaim


@dataclass(frozen=True)
class QuotaPool:
    """Quota rows that share GPUs: those of a cohort whose types are connected by common rows."""

    rows: tuple[int, ...]
    types: tuple[int, ...]


@dataclass(frozen=True)
class Charges:
    """Sparse charges, sorted by row: column ``column[i]`` is charged ``value[i]`` on quota row ``row[i]``.

    ``grows[i]`` says that it is new and charges one of its jobs more there than the job is charged now.
    """

    column: IntArray
    row: IntArray
    value: IntArray
    grows: BoolArray

    def of(self, row: int) -> tuple[IntArray, IntArray]:
        """Return the columns charged on a row, and how much."""
        span = self._span(row)
        return self.column[span], self.value[span]

    def growing(self, row: int) -> BoolArray:
        """Return which of the columns of `of` charge a job more on this row than it is charged now."""
        return self.grows[self._span(row)]

    def _span(self, row: int) -> slice:
        first, last = np.searchsorted(self.row, [row, row + 1])
        return slice(int(first), int(last))


class QuotaTable:
    """The quota rows of an instance.

    Attributes
    ----------
    unit : int
        Units in a GPU.
    rows : tuple of QuotaRow
    row_of : int64[Q + 1, T]
        Row of each queue (see `queue_of`) and type; -2 without quotas, -1 where the type is not allowed.
    queue_of : int64[J]
        Row of each job's queue in `row_of`.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        largest = max((len(g.holders) for g in instance.running), default=1)
        self.unit = 12
        for size in range(5, largest + 1):
            self.unit = min(lcm(self.unit, size), LARGEST_UNIT)
        names = list(instance.queues)
        self.names = tuple(names)
        position = {name: i for i, name in enumerate(names)}
        self.row_of = np.full((len(names) + 1, len(instance.types)), NO_QUOTA, dtype=np.int64)
        rows: list[QuotaRow] = []
        for q, queue in enumerate(instance.queues.values()):
            if not queue.quotas:
                continue
            own = {quota.gpu_type for quota in queue.quotas}
            self.row_of[q] = NOT_ALLOWED
            for quota in queue.quotas:
                types = tuple(
                    t
                    for t, name in enumerate(instance.types)
                    if name == quota.gpu_type or (quota.gpu_type == "*" and name not in own)
                )
                self.row_of[q, list(types)] = len(rows)
                rows.append(self._row(queue.name, queue.cohort, queue.reclaim_within_cohort, quota, types))
        self.rows = tuple(rows)
        self.queue_of = np.array([position.get(j.queue, len(names)) for j in instance.jobs], dtype=np.int64)

    def _row(
        self, queue: str, cohort: str | None, reclaim: Reclaim, quota: Quota, types: tuple[int, ...]
    ) -> QuotaRow:
        nominal = self.units(quota.nominal_gpus)
        limit: int | None = nominal
        if cohort is not None:
            limit = None
            if quota.borrowing_limit_gpus is not None:
                limit = nominal + self.units(quota.borrowing_limit_gpus)
        lendable = nominal
        if quota.lending_limit_gpus is not None:
            lendable = min(nominal, self.units(quota.lending_limit_gpus))
        return QuotaRow(queue, cohort, types, nominal, limit, nominal - lendable, lendable, reclaim)

    def units(self, gpus: float) -> int:
        """Return GPUs in whole units, rounded down."""
        return int(np.floor(min(gpus, 1e9) * self.unit + 1e-6))

    def pools(self) -> tuple[QuotaPool, ...]:
        """Return the pools within which rows of one cohort lend and borrow."""
        cohorts: dict[str, list[int]] = {}
        for i, row in enumerate(self.rows):
            if row.cohort is not None:
                cohorts.setdefault(row.cohort, []).append(i)
        return tuple(pool for rows in cohorts.values() for pool in self._connected(rows))

    def areas(self) -> tuple[QuotaPool, ...]:
        """Return the pools over all queues, whatever their cohort: where GPUs can change hands."""
        return tuple(self._connected(list(range(len(self.rows)))))

    def _connected(self, rows: list[int]) -> list[QuotaPool]:
        root = list(range(len(self.instance.types)))

        def find(t: int) -> int:
            while root[t] != t:
                t = root[t]
            return t

        for i in rows:
            for t in self.rows[i].types[1:]:
                root[find(t)] = find(self.rows[i].types[0])
        found: dict[int, list[int]] = {}
        for i in rows:
            if self.rows[i].types:
                found.setdefault(find(self.rows[i].types[0]), []).append(i)
        return [
            QuotaPool(tuple(members), tuple(t for t in range(len(root)) if find(t) == top))
            for top, members in found.items()
        ]

    # -- columns --------------------------------------------------------------------------------

    def share(self, gpus: IntArray, holders: IntArray) -> IntArray:
        """Return the charge of one holder among ``holders`` on ``gpus`` GPUs, in units."""
        return np.asarray(-((-self.unit * gpus) // holders))

    def allowed(self, table: ColumnTable) -> BoolArray:
        """Return bool[C]: kept, or every holder's queue may use the column's type."""
        holders = table.holders()
        safe = np.where(holders, table.jobs, 0)
        row = self.row_of[self.queue_of[safe], table.type[:, None]] if len(table) else holders
        return np.asarray((table.keep >= 0) | ~((row == NOT_ALLOWED) & holders).any(axis=1))

    def charges(self, table: ColumnTable) -> Charges:
        """Return what every column is charged on every quota row."""
        if not self.rows:
            none = np.zeros(0, dtype=np.int64)
            return Charges(none, none, none, np.zeros(0, dtype=np.bool_))
        holders = table.holders()
        column, position = np.nonzero(holders)
        row = self.row_of[self.queue_of[table.jobs[column, position]], table.type[column]]
        value = self.share(table.gpus, np.maximum(holders.sum(axis=1), 1))[column]
        mine = row >= 0
        key, inverse = np.unique(row[mine] * max(len(table), 1) + column[mine], return_inverse=True)
        total = np.zeros(len(key), dtype=np.int64)
        np.add.at(total, inverse, value[mine])
        job = table.jobs[column, position]
        before = np.where(self._now[0][job] == row, self._now[1][job], 0)
        more = (table.keep[column] < 0) & (value > before)
        grows = np.zeros(len(key), dtype=np.bool_)
        np.logical_or.at(grows, inverse, more[mine])
        return Charges(key % max(len(table), 1), key // max(len(table), 1), total, grows)

    @cached_property
    def _now(self) -> tuple[IntArray, IntArray]:
        """Quota row of each job that holds GPUs which it can keep (else -2), and its charge."""
        row = np.full(len(self.instance.jobs), NO_QUOTA, dtype=np.int64)
        charge = np.zeros(len(self.instance.jobs), dtype=np.int64)
        for group in self.instance.running:
            if group.keepable:
                holders = np.array(group.holders, dtype=np.int64)
                row[holders] = self.job_rows(holders, group.type)
                charge[holders] = self.share(np.array(len(group.gpus)), np.array(len(holders)))
        return row, charge

    def job_rows(self, jobs: IntArray, t: int) -> IntArray:
        """Return the quota row of each job on a type (-2 without quotas, -1 not allowed)."""
        return np.asarray(self.row_of[self.queue_of[jobs], t])
