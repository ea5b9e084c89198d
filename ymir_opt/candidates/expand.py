"""Sets of jobs become columns: every type, count, start and warm or cold start that is allowed."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import MAX_MEMBERS, MODES, ColumnTable
from ymir_opt.formulation.evaluate import Evaluation, Evaluator
from ymir_opt.formulation.numbering import unique_rows
from ymir_opt.formulation.rowwise import all_of, any_of, max_of, sum_of
from ymir_opt.formulation.shapes import Shape
from ymir_opt.placement.fewest import fewest_nodes

__all__ = ["Expander"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Expander:
    """Expands sets of jobs into evaluated columns of one instance."""

    def __init__(self, evaluator: Evaluator, rules: Rules, limits: PoolLimits) -> None:
        self.evaluator = evaluator
        self.rules = rules
        self.limits = limits
        self.exhaustive = evaluator.jobs.count < limits.exhaustive_below
        self.generated = 0
        self.dropped = 0
        self._fewest: dict[Shape, int] = {}

    # -- GPU counts -----------------------------------------------------------------------------

    @cached_property
    def _ready(self) -> IntArray:
        instance = self.evaluator.instance
        return np.bincount(instance.gpu_type[instance.gpu_ready], minlength=len(instance.types))

    @cached_property
    def menu(self) -> tuple[IntArray, ...]:
        """GPU counts worth trying on each type."""
        instance, jobs = self.evaluator.instance, self.evaluator.jobs
        out = []
        for t in range(len(instance.types)):
            top = int(self._ready[t])
            counts = np.arange(1, top + 1, dtype=np.int64)
            sizes = {instance.whole_node(int(n)) for n in np.flatnonzero(instance.node_type == t)} - {0}
            if not self.exhaustive:
                keep = counts <= self.limits.all_counts_to
                keep |= (counts & (counts - 1)) == 0
                for size in sizes:
                    keep |= counts % size == 0
                named = np.concatenate([jobs.min, jobs.max, jobs.requested, self._named])
                keep |= np.isin(counts, named)
                counts = counts[keep]
            out.append(counts)
        return tuple(out)

    @cached_property
    def _named(self) -> IntArray:
        """GPU counts that jobs list, and the ends of the counts whose speed is known."""
        instance, jobs = self.evaluator.instance, self.evaluator.jobs
        found: set[int] = set()
        seen: set[tuple[object, ...]] = set()
        for j, job in enumerate(instance.jobs):
            key = (int(jobs.profile[j]), int(jobs.min[j]), int(jobs.max[j]), job.gpu_counts, job.gpu_types)
            if key in seen:
                continue
            seen.add(key)
            found.update(job.gpu_counts or ())
            for t in range(len(instance.types)):
                counts = jobs.counts(j, t)
                found.update(counts[:1].tolist() + counts[-1:].tolist())
        return np.array(sorted(found), dtype=np.int64)

    @cached_property
    def _allowed(self) -> tuple[BoolArray, ...]:
        """bool[J, menu] for each type: the job may run alone on that count."""
        instance, jobs = self.evaluator.instance, self.evaluator.jobs
        out = []
        for t, menu in enumerate(self.menu):
            allowed = np.zeros((jobs.count, len(menu)), dtype=np.bool_)
            cache: dict[tuple[object, ...], BoolArray] = {}
            for j, job in enumerate(instance.jobs):
                key = (
                    int(jobs.profile[j]),
                    int(jobs.min[j]),
                    int(jobs.max[j]),
                    job.gpu_counts,
                    job.gpu_types,
                )
                if key not in cache:
                    counts = jobs.counts(j, t)
                    cache[key] = np.isin(menu, counts)
                    if not self.exhaustive:
                        self.dropped += int((~np.isin(counts[counts <= self._ready[t]], menu)).sum())
                allowed[j] = cache[key]
            out.append(allowed)
        return tuple(out)

    @cached_property
    def _used(self) -> tuple[tuple[IntArray, BoolArray], ...]:
        """Return the counts that some job may run alone on, and `_allowed` of these only."""
        some = [allowed.any(axis=0) for allowed in self._allowed]
        return tuple(
            (menu[s], allowed[:, s]) for menu, allowed, s in zip(self.menu, self._allowed, some, strict=True)
        )

    def _rows(self, mode: Mode, sets: IntArray, t: int) -> tuple[IntArray, IntArray]:
        """Return (set row, GPU count) of every allowed combination on type ``t``."""
        safe = np.where(sets >= 0, sets, sets[:, :1])
        if mode is Mode.JOINT:
            low, high, typed = self._joint_limits(sets, t)
            menu = self.menu[t][self.menu[t] <= high.max(initial=0)]
            ok = (menu[None, :] >= low[:, None]) & (menu[None, :] <= high[:, None]) & typed[:, None]
        else:
            menu, allowed = self._used[t]
            ok = allowed[safe[:, 0]]
            for k in range(1, sets.shape[1]):
                ok &= allowed[safe[:, k]]
        row, column = np.nonzero(ok)
        return row.astype(np.int64), menu[column]

    def _joint_counts_left_out(self, sets: IntArray, t: int) -> int:
        """Return how many counts between a joint group's limits the menu lacks, over all sets."""
        low, high, ok = self._joint_limits(sets, t)
        menu = self.menu[t]
        held = np.searchsorted(menu, high, side="right") - np.searchsorted(menu, low, side="left")
        return int(np.maximum(np.minimum(high, self._ready[t]) - low + 1 - held, 0)[ok].sum())

    def _joint_limits(self, sets: IntArray, t: int) -> tuple[IntArray, IntArray, BoolArray]:
        """Return the least and the largest count of each joint group, and whether the type is allowed."""
        jobs = self.evaluator.jobs
        present = sets >= 0
        safe = np.where(present, sets, sets[:, :1])
        low = max_of(jobs.min[safe])
        high = sum_of(np.where(present, jobs.max[safe], 0))
        return low, high, all_of(self._typed[safe, t])

    @cached_property
    def _typed(self) -> BoolArray:
        """Say which types each job allows, bool[J, T]."""
        jobs, types = self.evaluator.jobs, len(self.evaluator.instance.types)
        return np.array(jobs.allowed_types, dtype=np.bool_).reshape(jobs.count, types)

    # -- starts ---------------------------------------------------------------------------------

    @cached_property
    def start_options(self) -> tuple[tuple[int, ...], ...]:
        """For each job: -1 (own weights) and the adapters it may start from, best first."""
        works, jobs = self.evaluator.works, self.evaluator.jobs
        if not works.adapters:
            return tuple((-1,) for _ in range(jobs.count))
        cache: dict[tuple[int, int, int], list[int]] = {}
        out = []
        for j in range(jobs.count):
            key = (int(works.task[j]), int(self.rules.tenant[j]), int(self.rules.level[j]))
            if key not in cache:
                options = [a for a in range(len(works.adapters)) if works.start_allowed(j, a)]
                table = works._starts
                cache[key] = sorted(
                    options,
                    key=lambda a: (table["ratio"][works.task[j], a], -table["p"][works.task[j], a], a),
                )
            out.append((-1, *cache[key]))
        return tuple(out)

    @cached_property
    def _any_start(self) -> bool:
        """Some job may start from a completed adapter."""
        return any(len(options) > 1 for options in self.start_options)

    def _with_starts(self, mode: Mode, sets: IntArray) -> tuple[IntArray, IntArray]:
        """Return sets and starts [M', K], one row for every combination of starts."""
        options = self.start_options
        if not self._any_start:
            return sets, np.full(sets.shape, -1, dtype=np.int64)
        width = sets.shape[1]
        shared = mode is not Mode.SOLO
        rows, starts = [sets], [np.full(sets.shape, -1, dtype=np.int64)]
        for k in range(width):
            if mode is Mode.SEQUENCE and k > 0:
                break
            base_sets, base_starts = np.concatenate(rows), np.concatenate(starts)
            extra_rows, extra_starts = [], []
            limit = None if self.exhaustive or not shared else self.limits.starts
            for i, j in enumerate(base_sets[:, k]):
                if j < 0:
                    continue
                choices = options[j][1:]
                if limit is not None and len(choices) > limit:
                    self.dropped += len(choices) - limit
                    choices = choices[:limit]
                for a in choices:
                    changed = base_starts[i].copy()
                    changed[k] = a
                    extra_rows.append(base_sets[i])
                    extra_starts.append(changed)
            if extra_rows:
                rows.append(np.array(extra_rows, dtype=np.int64))
                starts.append(np.array(extra_starts, dtype=np.int64))
                rows, starts = [np.concatenate(rows)], [np.concatenate(starts)]
        return np.concatenate(rows), np.concatenate(starts)

    # -- columns --------------------------------------------------------------------------------

    def expand(self, mode: Mode, sets: IntArray) -> ColumnTable:
        """Return the admitted columns of these sets; ``sets`` int64[M, K], -1 pads."""
        sets, starts = self._with_starts(mode, sets)
        parts: list[tuple[IntArray, IntArray, IntArray, IntArray, BoolArray]] = []
        for t in range(len(self.evaluator.instance.types)):
            row, gpus = self._rows(mode, sets, t)
            if mode is Mode.JOINT and not self.exhaustive:
                self.dropped += self._joint_counts_left_out(sets, t)
            if not len(row):
                continue
            members, start = sets[row], starts[row]
            types = np.full(len(row), t, dtype=np.int64)
            parts.append((members, types, gpus, start, np.zeros(len(row), np.bool_)))
            warm = self._can_be_warm(members, t, gpus)
            if warm.any():
                parts.append(
                    (members[warm], types[warm], gpus[warm], start[warm], np.ones(int(warm.sum()), np.bool_))
                )
        if not parts:
            return self.empty()
        members, types, gpus, start, warm = (np.concatenate(p) for p in zip(*parts, strict=True))
        result = self.evaluator.evaluate(mode, members, types, gpus, start, warm)
        self.generated += len(members)
        ok = result.valid & np.isfinite(result.cost)
        rows = np.flatnonzero(ok)
        shape, shapes = self._shapes(
            mode, members[rows], types[rows], gpus[rows], warm[rows], result.memory[rows]
        )
        rows = rows[shape >= 0]
        shape = shape[shape >= 0]
        return self._table(
            mode,
            members[rows],
            types[rows],
            gpus[rows],
            start[rows],
            warm[rows],
            shape,
            shapes,
            result.finish_s[rows],
            result.cost[rows],
        )

    def _can_be_warm(self, members: IntArray, t: int, gpus: IntArray) -> BoolArray:
        """One model, resident on enough GPUs, and quicker to start there."""
        instance, jobs = self.evaluator.instance, self.evaluator.jobs
        resident = np.bincount(
            instance.gpu_resident[
                (instance.gpu_type == t) & instance.gpu_ready & (instance.gpu_resident >= 0)
            ],
            minlength=len(instance.fms) + 1,
        )
        present = members >= 0
        fm = jobs.fm[np.where(present, members, members[:, :1])]
        same = all_of(fm == fm[:, :1]) & (fm[:, 0] >= 0)
        lead = members[:, 0]
        quicker = jobs.warm[lead, t] < jobs.cold[lead, t]
        return np.asarray(same & quicker & (resident[fm[:, 0]] >= gpus))

    def _shapes(
        self,
        mode: Mode,
        members: IntArray,
        types: IntArray,
        gpus: IntArray,
        warm: BoolArray,
        memory: FloatArray,
    ) -> tuple[IntArray, tuple[Shape, ...]]:
        """Return each column's shape row (-1: fits on no nodes) and the shapes."""
        instance, jobs = self.evaluator.instance, self.evaluator.jobs
        present = members >= 0
        safe = np.where(present, members, members[:, :1])
        level = np.zeros(len(members), dtype=np.int64)
        for t in range(len(instance.types)):
            of_type = types == t
            values = instance.levels[t]
            needed = np.nan_to_num(memory[of_type], nan=0.0)
            found = np.searchsorted(values, needed * (1 - 1e-9), side="left")
            level[of_type] = np.where(found < len(values), found, -1)
        resident = np.where(warm, jobs.fm[safe[:, 0]], -1)
        selector = np.where(present, self.rules.selector_row[safe], 0)
        demand = self._demand
        kind = np.where(present, demand[0][safe], -1)
        # only those that hold the GPUs take CPUs and host memory
        kind = kind[:, :1] if mode is Mode.SEQUENCE else np.sort(kind, axis=1)
        key = np.column_stack(
            [
                types,
                gpus,
                level,
                resident,
                self.rules.workers[safe[:, 0]],
                any_of(jobs.pipeline[safe]),
                selector,
                kind if demand[1] else 0 * gpus,
            ]
        )
        unique, inverse = unique_rows(key)
        first = np.zeros(len(unique), dtype=np.int64)
        first[inverse[::-1]] = np.arange(len(inverse) - 1, -1, -1)
        shapes: list[Shape] = []
        row_of = np.full(len(unique), -1, dtype=np.int64)
        seen: dict[Shape, int] = {}
        for i, r in enumerate(first):
            if level[r] < 0:
                continue
            group = tuple(int(j) for j in members[r] if j >= 0)
            labels = instance.selector(group)
            if labels is None:
                continue
            lead = instance.jobs[group[0]]
            shape = Shape(
                type=int(types[r]),
                gpus=int(gpus[r]),
                level=int(level[r]),
                selector=labels,
                worker=lead.workers.gpus_each if lead.workers is not None else 0,
                whole=instance.pipeline(group),
                resident=int(resident[r]),
                cpus_per_gpu=self._cpus(mode, group),
                host_gib_per_gpu=self._host(mode, group) / int(gpus[r]),
            )
            if self.fewest(shape) <= 0:
                continue
            if shape not in seen:
                seen[shape] = len(shapes)
                shapes.append(shape)
            row_of[i] = seen[shape]
        return row_of[inverse], tuple(shapes)

    def fewest(self, shape: Shape) -> int:
        """Return the fewest nodes that could hold a shape if all were empty; 0 if none could."""
        if shape not in self._fewest:
            self._fewest[shape] = fewest_nodes(self.evaluator.instance, shape)
        return self._fewest[shape]

    @cached_property
    def _demand(self) -> tuple[IntArray, bool]:
        """Row of each job's (CPU, host memory) demand; whether any job has one."""
        rows: dict[tuple[float | None, float | None], int] = {(None, None): 0}
        kinds = np.array(
            [
                rows.setdefault((j.cpus_per_gpu, j.host_memory_gib), len(rows))
                for j in self.evaluator.instance.jobs
            ],
            dtype=np.int64,
        )
        return kinds, len(rows) > 1

    def _cpus(self, mode: Mode, group: tuple[int, ...]) -> float:
        """CPUs for each GPU, of the members that hold the GPUs."""
        holders = group[:1] if mode is Mode.SEQUENCE else group
        return sum(self.evaluator.instance.jobs[j].cpus_per_gpu or 0.0 for j in holders)

    def _host(self, mode: Mode, group: tuple[int, ...]) -> float:
        """Host memory of the members that hold the GPUs, GiB."""
        holders = group[:1] if mode is Mode.SEQUENCE else group
        return sum(self.evaluator.instance.jobs[j].host_memory_gib or 0.0 for j in holders)

    def _table(
        self,
        mode: Mode,
        members: IntArray,
        types: IntArray,
        gpus: IntArray,
        start: IntArray,
        warm: BoolArray,
        shape: IntArray,
        shapes: tuple[Shape, ...],
        finish: FloatArray,
        cost: FloatArray,
    ) -> ColumnTable:
        width = max(MAX_MEMBERS, members.shape[1])

        def padded(values: NDArray[np.generic], fill: float) -> NDArray[np.generic]:
            pad = np.full((len(values), width - values.shape[1]), fill, dtype=values.dtype)
            return np.hstack([values, pad])

        evaluator = self.evaluator
        # one extra quantum, so that keeping wins ties
        quanta = evaluator.quanta(cost) + 1
        return ColumnTable(
            jobs=padded(members, -1),  # type: ignore[arg-type]
            size=sum_of((members >= 0).astype(np.int64)),
            mode=np.full(len(members), MODES.index(mode), dtype=np.int64),
            type=types,
            gpus=gpus,
            shape=shape,
            keep=np.full(len(members), -1, dtype=np.int64),
            warm=warm,
            start=padded(start, -1),  # type: ignore[arg-type]
            finish_s=padded(finish, np.nan),  # type: ignore[arg-type]
            cost=quanta,
            shapes=shapes,
            queued_cost=evaluator.queued_quanta,
            quantum=evaluator.quantum,
        )

    def empty(self) -> ColumnTable:
        """Return a table without columns."""
        none = np.zeros((0, MAX_MEMBERS), dtype=np.int64)
        flat = np.zeros(0, dtype=np.int64)
        return self._table(
            Mode.SOLO,
            none,
            flat,
            flat,
            none,
            np.zeros(0, np.bool_),
            flat,
            (),
            np.zeros((0, MAX_MEMBERS)),
            np.zeros(0),
        )

    def keeps(self) -> ColumnTable:
        """Return one column for every running group that can stay exactly as it runs."""
        evaluator = self.evaluator
        groups = [(r, g) for r, g in enumerate(evaluator.instance.running) if g.keepable]
        if not groups:
            return self.empty()
        width = max(MAX_MEMBERS, *(len(g.members) for _, g in groups))
        jobs = np.full((len(groups), width), -1, dtype=np.int64)
        finish = np.full((len(groups), width), np.nan)
        cost = np.zeros(len(groups))
        for i, (r, group) in enumerate(groups):
            result: Evaluation = evaluator.keeps[r]
            jobs[i, : len(group.members)] = group.members
            finish[i, : len(group.members)] = result.finish_s[0]
            # a running group of unknown speed is never stopped for a gain nobody can compute
            cost[i] = result.cost[0] if result.known[0] else 0.0
        return ColumnTable(
            jobs=jobs,
            size=(jobs >= 0).sum(axis=1).astype(np.int64),
            mode=np.array([MODES.index(g.mode) for _, g in groups], dtype=np.int64),
            type=np.array([g.type for _, g in groups], dtype=np.int64),
            gpus=np.array([len(g.gpus) for _, g in groups], dtype=np.int64),
            shape=np.full(len(groups), -1, dtype=np.int64),
            keep=np.array([r for r, _ in groups], dtype=np.int64),
            warm=np.ones(len(groups), dtype=np.bool_),
            start=np.full(jobs.shape, -1, dtype=np.int64),
            finish_s=finish,
            cost=evaluator.quanta(cost),
            shapes=(),
            queued_cost=evaluator.queued_quanta,
            quantum=evaluator.quantum,
        )
