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
        barred = self.taken | running
        present = table.jobs >= 0
        hit = (present & barred[np.where(present, table.jobs, 0)]).any(axis=1)
        self.candidates = np.flatnonzero((table.keep < 0) & ~hit)
        held = np.zeros(len(instance.running) + 1, dtype=np.bool_)
        held[self.keeps] = True
        self.free = available & ~held[instance.gpu_held]
        self.added: list[int] = []
        self._rows()
        self.used = profiled.copy()
        for c in chosen:
            self._charge(int(c), 1)

    def _rows(self) -> None:
        """State the rows on GPUs over the candidates and the new columns already chosen."""
        self.new = [c for c in self.fixed if self.table.keep[c] < 0]
        self.local = np.concatenate([self.candidates, np.array(self.new, dtype=np.int64)])
        sub = self.table.take(self.local)
        builder = ModelBuilder()
        x = builder.variables(sub.cost)
        for family in (capacity_rows, resident_rows, rung_rows, resource_rows):
            family(builder, self.instance, self.free, sub, x)
        model = builder.build()
        self.slack = model.row_upper.astype(np.int64)
        self.column_start, self.row, self.value = _columns(model, len(sub))
        self.position = {int(c): i for i, c in enumerate(self.local)}
        self.charges = self.quotas.charges(self.table)
        self.charge_order = np.argsort(self.charges.column, kind="stable")
        self.charge_start = np.searchsorted(
            self.charges.column[self.charge_order], np.arange(len(self.table) + 1)
        )
        self.pool_of = {r: pool for pool in self.quotas.pools() for r in pool.rows}
        for c in self.new:
            self._use(c, 1)

    def _entries(self, c: int) -> tuple[IntArray, IntArray]:
        i = self.position[c]
        span = slice(self.column_start[i], self.column_start[i + 1])
        return self.row[span], self.value[span]

    def _use(self, c: int, sign: int) -> None:
        row, value = self._entries(c)
        self.slack[row] -= sign * value

    def _charged(self, c: int) -> tuple[IntArray, IntArray]:
        rows = self.charge_order[self.charge_start[c] : self.charge_start[c + 1]]
        return self.charges.row[rows], self.charges.value[rows]

    def _charge(self, c: int, sign: int) -> None:
        row, value = self._charged(c)
        self.used[row] += sign * value

    def fits(self, c: int) -> bool:
        """Say whether a column fits beside what is chosen."""
        row, value = self._entries(c)
        if np.any(value > self.slack[row]):
            return False
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
        self.added.append(c)

    def _drop(self, c: int) -> None:
        self._use(c, -1)
        self._charge(c, -1)
        members = self.table.jobs[c]
        self.taken[members[members >= 0]] = False
        self.added.remove(c)

    def add(self, candidates: IntArray) -> None:
        """Add columns in this order where they fit."""
        jobs = self.table.jobs
        for c in candidates.tolist():
            members = jobs[c]
            if not self.taken[members[members >= 0]].any() and self.fits(c):
                self._accept(c)

    def enlarge(self) -> None:
        """Give idle GPUs to chosen groups: the best saving per added GPU first."""
        options: dict[tuple[int, ...], list[int]] = {}
        wanted = {self._set(c) for c in self.added}
        for c in self.candidates.tolist():
            key = self._set(c)
            if key in wanted:
                options.setdefault(key, []).append(c)
        for _ in range(4):
            moves = []
            for c in self.added:
                for other in options[self._set(c)]:
                    gain = int(self.table.cost[c] - self.table.cost[other])
                    if gain > 0:
                        grown = max(int(self.table.gpus[other] - self.table.gpus[c]), 1)
                        moves.append((-gain / grown, c, other))
            changed = False
            done: set[int] = set()
            for _, c, other in sorted(moves):
                if c in done or c not in self.added:
                    continue
                self._drop(c)
                if self.fits(other):
                    self._accept(other)
                    done.add(c)
                    changed = True
                else:
                    self._accept(c)
            if not changed:
                return

    def _set(self, c: int) -> tuple[int, ...]:
        return tuple(sorted(int(j) for j in self.table.jobs[c] if j >= 0))

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
