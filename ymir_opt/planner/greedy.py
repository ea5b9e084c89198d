"""Greedy filling: keep what runs, then add columns of waiting jobs, best saving per GPU first.

It gives the carried-over plan, which every solver must beat, and the ``greedy`` backend. It never
stops, moves or resizes anything, so only rows on GPUs and quotas can bind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.capacity import capacity_rows, resident_rows, resource_rows
from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import LinearModel, ModelBuilder
from ymir_opt.formulation.quota import QuotaTable
from ymir_opt.formulation.rungs import rung_rows
from ymir_opt.placement.pack import place

__all__ = ["fill"]

BATCH = 2000
"""Columns that are looked at together before one after the other."""

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def fill(
    instance: Instance,
    table: ColumnTable,
    quotas: QuotaTable,
    *,
    available: BoolArray,
    profiled: IntArray,
    chosen: IntArray,
    order: IntArray | None = None,
    first: BoolArray | None = None,
) -> tuple[IntArray, tuple[IntArray, ...]]:
    """Return chosen columns, enlarged by what still fits, and the GPUs of each.

    Parameters
    ----------
    instance, table, quotas
    available : bool[U]
        GPUs on which something may start if nothing is kept there.
    profiled : int64[R]
        Charges of profile actions, in units.
    chosen : int64[S]
        Columns to start from; they are placeable and within every row.
    order : int64[J], optional
        Rank of jobs for ties; by default earlier submission, then smaller id.
    first : bool[C], optional
        Columns to try before all others.

    Returns
    -------
    columns : int64[S']
    gpus : tuple of int64 arrays
    """
    filler = _Filler(instance, table, quotas, available, profiled, chosen)
    ranked = _best_first(instance, table, filler.candidates, order)
    if first is not None:
        ranked = np.concatenate([ranked[first[ranked]], ranked[~first[ranked]]])
    filler.add(ranked)
    filler.enlarge()
    return filler.place()


def _best_first(
    instance: Instance, table: ColumnTable, candidates: IntArray, order: IntArray | None
) -> IntArray:
    present = table.jobs[candidates] >= 0
    safe = np.where(present, table.jobs[candidates], 0)
    saving = np.where(present, table.queued_cost[safe], 0).sum(axis=1) - table.cost[candidates]
    keep = saving > 0
    candidates, saving, safe = candidates[keep], saving[keep], safe[keep]
    if order is None:
        order = submission_rank(instance)
    density = saving / table.gpus[candidates]
    first = order[safe[:, 0]]
    return candidates[np.lexsort((candidates, table.gpus[candidates], first, -density))]


def submission_rank(instance: Instance) -> IntArray:
    """Return the rank of every job by submission, then id, int64[J]."""
    key = sorted(
        range(len(instance.jobs)), key=lambda j: (instance.jobs[j].submitted_at_s, instance.jobs[j].id)
    )
    rank = np.zeros(len(key), dtype=np.int64)
    rank[key] = np.arange(len(key))
    return rank


class _Filler:
    def __init__(
        self,
        instance: Instance,
        table: ColumnTable,
        quotas: QuotaTable,
        available: BoolArray,
        profiled: IntArray,
        chosen: IntArray,
    ) -> None:
        self.instance, self.table, self.quotas, self.available = instance, table, quotas, available
        self.fixed = [int(c) for c in chosen]
        self.keeps = [int(r) for r in table.keep[chosen] if r >= 0]
        self.taken = np.zeros(len(table.queued_cost), dtype=np.bool_)
        members = table.jobs[chosen]
        self.taken[members[members >= 0]] = True
        # what a running group that is not kept did is not undone here: its jobs stay out
        running = np.zeros(len(self.taken), dtype=np.bool_)
        for group in instance.running:
            if group.keepable:
                running[list(group.holders)] = True
        barred = np.append(self.taken | running, False)
        self.candidates = np.flatnonzero((table.keep < 0) & ~barred[table.jobs].any(axis=1))
        held = np.zeros(len(instance.running) + 1, dtype=np.bool_)
        held[self.keeps] = True
        self.free = available & ~held[instance.gpu_held]
        self.added: dict[int, None] = {}
        self._rows()
        self.used = profiled.copy()
        for c in chosen:
            self._charge(int(c), 1)

    def _rows(self) -> None:
        """State the rows on GPUs over the candidates and the new columns already chosen."""
        self.new = [c for c in self.fixed if self.table.keep[c] < 0]
        local = np.concatenate([self.candidates, np.array(self.new, dtype=np.int64)])
        sub = self.table.take(local)
        builder = ModelBuilder()
        x = builder.variables(sub.cost)
        for family in (capacity_rows, resident_rows, rung_rows, resource_rows):
            family(builder, self.instance, self.free, sub, x)
        model = builder.build()
        self.slack: list[int] = model.row_upper.tolist()
        self.column_start, self.row, self.value = _columns(model, len(sub))
        self.position = np.full(len(self.table), -1, dtype=np.int64)
        self.position[local] = np.arange(len(local))
        self.charges = self.quotas.charges(self.table)
        self.charge_order = np.argsort(self.charges.column, kind="stable")
        self.charge_start = np.searchsorted(
            self.charges.column[self.charge_order], np.arange(len(self.table) + 1)
        )
        self.pool_of = {r: pool for pool in self.quotas.pools() for r in pool.rows}
        for c in self.new:
            self._use(c, 1)

    def _entries(self, c: int) -> tuple[list[int], list[int]]:
        i = self.position[c]
        span = slice(self.column_start[i], self.column_start[i + 1])
        return self.row[span].tolist(), self.value[span].tolist()

    def _use(self, c: int, sign: int) -> None:
        for row, value in zip(*self._entries(c), strict=True):
            self.slack[row] -= sign * value

    def _charged(self, c: int) -> tuple[IntArray, IntArray]:
        rows = self.charge_order[self.charge_start[c] : self.charge_start[c + 1]]
        return self.charges.row[rows], self.charges.value[rows]

    def _charge(self, c: int, sign: int) -> None:
        if len(self.charges.row):
            row, value = self._charged(c)
            self.used[row] += sign * value

    def fits(self, c: int) -> bool:
        """Say whether a column fits beside what is chosen."""
        if any(value > self.slack[row] for row, value in zip(*self._entries(c), strict=True)):
            return False
        if not len(self.charges.row):
            return True
        rows, charges = self._charged(c)
        for r, charge in zip(rows.tolist(), charges.tolist(), strict=True):
            rule = self.quotas.rows[r]
            if rule.limit is not None and self.used[r] + charge > rule.limit:
                return False
        if not len(rows):
            return True
        use = self.used.copy()
        use[rows] += charges
        for pool in {
            id(self.pool_of[r]): self.pool_of[r] for r in rows.tolist() if r in self.pool_of
        }.values():
            members = [self.quotas.rows[r] for r in pool.rows]
            lent = sum(
                max(0, int(use[r]) - rule.guaranteed) for r, rule in zip(pool.rows, members, strict=True)
            )
            if lent > sum(rule.lendable for rule in members):
                return False
        return True

    def _accept(self, c: int) -> None:
        self._use(c, 1)
        self._charge(c, 1)
        members = self.table.jobs[c]
        self.taken[members[members >= 0]] = True
        self.added[c] = None

    def _drop(self, c: int) -> None:
        self._use(c, -1)
        self._charge(c, -1)
        members = self.table.jobs[c]
        self.taken[members[members >= 0]] = False
        del self.added[c]

    def add(self, candidates: IntArray) -> None:
        """Add columns in this order where they fit."""
        for begin in range(0, len(candidates), BATCH):
            batch = candidates[begin : begin + BATCH]
            # nothing is given back meanwhile, so what cannot be added now never can
            for c in batch[self._open(batch)].tolist():
                members = self.table.jobs[c]
                if not self.taken[members[members >= 0]].any() and self.fits(c):
                    self._accept(c)

    def _open(self, columns: IntArray) -> BoolArray:
        """Say which columns have no member yet and find room in every row on GPUs."""
        ok = np.asarray(~np.append(self.taken, False)[self.table.jobs[columns]].any(axis=1))
        at = self.position[columns]
        length = self.column_start[at + 1] - self.column_start[at]
        end = np.cumsum(length)
        entry = np.arange(int(length.sum())) + np.repeat(self.column_start[at] - end + length, length)
        slack = np.array(self.slack, dtype=np.int64)
        tight = self.value[entry] > slack[self.row[entry]]
        ok[np.repeat(np.arange(len(columns)), length)[tight]] = False
        return ok

    def enlarge(self) -> None:
        """Give idle GPUs to chosen groups: the best saving per added GPU first."""
        others = self._variants()
        lead = self.table.jobs[others, 0]
        for _ in range(4):
            now = self._holder()[lead]
            gain = self.table.cost[now] - self.table.cost[others]
            better = np.flatnonzero(gain > 0)
            grown = np.maximum(self.table.gpus[others[better]] - self.table.gpus[now[better]], 1)
            order = better[np.lexsort((others[better], now[better], -gain[better] / grown))]
            changed = False
            for c, other in zip(now[order].tolist(), others[order].tolist(), strict=True):
                if c not in self.added:
                    continue
                self._drop(c)
                if self.fits(other):
                    self._accept(other)
                    changed = True
                else:
                    self._accept(c)
            if not changed:
                return

    def _holder(self) -> IntArray:
        """Return the added column of each job, -1 without."""
        holder = np.full(len(self.taken) + 1, -1, dtype=np.int64)
        added = np.fromiter(self.added, dtype=np.int64, count=len(self.added))
        holder[self.table.jobs[added]] = added[:, None]
        holder[-1] = -1
        return holder

    def _variants(self) -> IntArray:
        """Return the candidates with exactly the members of an added column."""
        holder = self._holder()
        of = np.where(self.table.jobs[self.candidates] >= 0, holder[self.table.jobs[self.candidates]], -1)
        same = of[:, 0] >= 0
        present = self.table.jobs[self.candidates] >= 0
        same &= (~present | (of == of[:, :1])).all(axis=1)
        same &= self.table.size[self.candidates] == self.table.size[of[:, 0]]
        return self.candidates[same]

    def place(self) -> tuple[IntArray, tuple[IntArray, ...]]:
        """Place everything; columns that the linear rows let through but no node can hold are dropped."""
        while True:
            new = [*self.new, *self.added]
            demands = [self.table.shapes[self.table.shape[c]] for c in new]
            placement = place(self.instance, self.available, self.keeps, demands)
            if placement.ok:
                break
            if placement.failed < len(self.new):
                return np.array(self.fixed, dtype=np.int64), ()
            self._drop(new[placement.failed])
        kept = [c for c in self.fixed if self.table.keep[c] >= 0]
        columns = np.array([*kept, *new], dtype=np.int64)
        gpus = (*(self.instance.running[self.table.keep[c]].gpus for c in kept), *placement.gpus)
        return columns, gpus


def _columns(model: LinearModel, count: int) -> tuple[IntArray, IntArray, IntArray]:
    """Return the first ``count`` columns of the matrix in CSC form (start, row, value)."""
    lengths = np.diff(model.row_start)
    row = np.repeat(np.arange(model.rows, dtype=np.int64), lengths)
    mine = model.index < count
    index, row, value = model.index[mine], row[mine], model.value[mine]
    order = np.argsort(index, kind="stable")
    start = np.searchsorted(index[order], np.arange(count + 1))
    return start.astype(np.int64), row[order], value[order]
