"""Decreasing best fit in bulk: all parts of one kind and size are placed in one pass over arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.parts import Resources, node_capacity, units_left
from ymir_opt.formulation.shapes import Shape

__all__ = ["Room", "Task"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_FINE_LEVELS = 4


@dataclass(frozen=True)
class Task:
    """What `Room.fill` must know of a part.

    Attributes
    ----------
    size : int
        GPUs on one node.
    passes : tuple of int64 arrays
        Kinds in the order in which they are opened to the part: first those that nobody else
        needs, then resident and larger-memory GPUs, then those that other demands ask for.
    nodes : bool[M]
        Nodes that can hold the part when empty.
    each : tuple of int
        CPU and host memory units for each GPU.
    """

    size: int
    passes: tuple[IntArray, ...]
    nodes: BoolArray
    each: tuple[int, int]


@dataclass
class Room:
    """Free GPUs of one type by node and kind (memory level, resident model); changes as parts are placed.

    Attributes
    ----------
    nodes : int64[M]
        Node rows with free GPUs.
    free : int64[M, K]
        Free GPUs.
    units : int64[M, 2]
        CPU and host memory units left.
    gpus : int64[]
        Free GPU rows by node, kind and row; ``start[m, k]`` is the next one to take.
    """

    nodes: IntArray
    free: IntArray
    units: IntArray
    gpus: IntArray
    start: IntArray

    def copy(self) -> Room:
        """Return a room that can be filled without changing this one."""
        return replace(self, free=self.free.copy(), units=self.units.copy(), start=self.start.copy())

    @classmethod
    def of(
        cls, instance: Instance, open_gpu: BoolArray, keeps: Sequence[int], parts: Sequence[Shape]
    ) -> tuple[Room, tuple[Task, ...]]:
        """Build the room of one type and the tasks of the parts.

        Parameters
        ----------
        instance : Instance
        open_gpu : bool[U]
            Free GPUs of the type.
        keeps : sequence of int
            Kept running groups, whose CPUs and host memory are taken.
        parts : sequence of Shape
        """
        rows = np.flatnonzero(open_gpu)
        nodes, node_of = np.unique(instance.gpu_node[rows], return_inverse=True)
        level = _levels(instance, rows, parts)
        wanted = sorted({p.resident for p in parts if p.resident >= 0})
        # codes: 0 nothing resident, 1 a model that nobody asks for, 2... the models asked for
        code = np.ones(len(instance.fms) + 1, np.int64)
        code[-1] = 0
        code[wanted] = np.arange(len(wanted)) + 2
        resident = code[instance.gpu_resident[rows]]
        width = len(wanted) + 2
        kinds, kind = np.unique(level * width + resident, return_inverse=True)
        order = np.lexsort((rows, kind, node_of))
        cell = node_of * len(kinds) + kind
        free = np.bincount(cell, minlength=len(nodes) * len(kinds)).astype(np.int64)
        start = np.cumsum(free) - free
        scales = (
            Resources.of(p.cpus_per_gpu for p in parts),
            Resources.of(p.host_gib_per_gpu for p in parts),
        )
        room = cls(
            nodes=nodes.astype(np.int64),
            free=free.reshape(len(nodes), len(kinds)),
            units=units_left(instance, scales, keeps)[nodes],
            gpus=rows[order],
            start=start.reshape(len(nodes), len(kinds)),
        )
        # the level that a part needs, on the scale of `level`
        floor = [_lowest(level, instance.gpu_level[rows], p.level) for p in parts]
        tasks = tuple(
            room._task(instance, part, lowest, kinds // width, kinds % width, parts, floor, wanted, scales)
            for part, lowest in zip(parts, floor, strict=True)
        )
        return room, tasks

    def _task(
        self,
        instance: Instance,
        part: Shape,
        lowest: int,
        level: IntArray,
        code: IntArray,
        parts: Sequence[Shape],
        floor: Sequence[int],
        wanted: Sequence[int],
        scales: tuple[Resources, Resources],
    ) -> Task:
        accepted = level >= lowest
        if part.resident >= 0:
            accepted &= code == wanted.index(part.resident) + 2
        scarce = np.zeros(len(level), np.bool_)
        for higher in {f for f in floor if f > lowest}:
            scarce |= level >= higher
        if part.resident < 0:
            scarce |= code >= 2
        plain = (code == 0) if part.resident < 0 else np.ones(len(level), np.bool_)
        if accepted.any():
            plain &= level == level[accepted].min()
        tier = np.where(scarce, 2, np.where(plain, 0, 1))
        order = np.lexsort((code, level, tier))
        order = order[accepted[order]]
        passes = [order[tier[order] <= last] for last in (0, 1, 2)]
        capacity = node_capacity(instance, part)[self.nodes]
        return Task(
            size=part.gpus,
            passes=tuple(p for i, p in enumerate(passes) if i == 0 or len(p) > len(passes[i - 1])),
            nodes=(capacity == part.gpus) if part.whole else (capacity >= part.gpus),
            each=(scales[0].need(part.cpus_per_gpu), scales[1].need(part.host_gib_per_gpu)),
        )

    def fits(self, task: Task) -> IntArray:
        """Return how many of a part each node can take now, int64[M]."""
        return self._fits(task, task.passes[-1])

    def _fits(self, task: Task, kinds: IntArray) -> IntArray:
        fit = self.free[:, kinds].sum(axis=1) // task.size
        fit[~task.nodes] = 0
        for i in (0, 1):
            if task.each[i]:
                fit = np.minimum(fit, self.units[:, i] // (task.each[i] * task.size))
        return np.asarray(fit, np.int64)

    def fill(self, task: Task, count: int, liked: IntArray | None = None) -> IntArray:
        """Place up to ``count`` parts by best fit and take their GPUs.

        Within a pass the node with the fewest free GPUs comes first, then one that some group used
        before (``liked``, positions of nodes), then the lowest row; GPUs are the lowest rows.

        Returns
        -------
        int64[placed, size]
            GPU rows of each part, ascending.
        """
        placed: list[IntArray] = []
        for kinds in task.passes:
            if count <= 0:
                break
            fit = self._fits(task, kinds)
            candidates = np.flatnonzero(fit)
            if not len(candidates):
                continue
            total = self.free[candidates].sum(axis=1)
            other = ~np.isin(candidates, liked) if liked is not None else np.zeros(len(candidates))
            candidates = candidates[np.lexsort((candidates, other, total))]
            filled = np.cumsum(fit[candidates])
            last = int(np.searchsorted(filled, count))
            candidates = candidates[: last + 1]
            take = fit[candidates]
            if last < len(filled):
                take[-1] -= filled[last] - count
            placed.append(self._take(task, candidates, take, kinds))
            count -= int(take.sum())
        if not placed:
            return np.zeros((0, task.size), np.int64)
        return np.concatenate(placed)

    def _take(self, task: Task, at: IntArray, parts: IntArray, kinds: IntArray) -> IntArray:
        left = parts * task.size
        owner: list[IntArray] = []
        rows: list[IntArray] = []
        for kind in kinds:
            used = np.minimum(left, self.free[at, kind])
            total = int(used.sum())
            if not total:
                continue
            begin = self.start[at, kind]
            where = np.repeat(np.arange(len(at)), used)
            offset = np.arange(total) - np.repeat(np.cumsum(used) - used, used)
            rows.append(self.gpus[begin[where] + offset])
            owner.append(where)
            self.free[at, kind] -= used
            self.start[at, kind] += used
            left = left - used
        for i in (0, 1):
            if task.each[i]:
                self.units[at, i] -= parts * task.size * task.each[i]
        joined = np.concatenate(rows)
        order = np.lexsort((joined, np.concatenate(owner)))
        return joined[order].reshape(-1, task.size)


def _levels(instance: Instance, rows: IntArray, parts: Sequence[Shape]) -> IntArray:
    """Memory levels of the GPUs: as they are if few, otherwise merged between the demanded ones."""
    level = instance.gpu_level[rows]
    if len(np.unique(level)) <= _FINE_LEVELS:
        return level
    return np.searchsorted(np.unique([p.level for p in parts]), level, side="right").astype(np.int64)


def _lowest(coded: IntArray, level: IntArray, needed: int) -> int:
    enough = coded[level >= needed]
    return int(enough.min()) if len(enough) else 1 << 40
