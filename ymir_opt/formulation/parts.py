"""From shapes to parts: what one node must give, on how many nodes, in which splits.

A *part* is what a group takes from one node; it is written as a `Shape` with that many GPUs and
no workers. A gang lies on the fewest nodes ``k`` that could hold it if all ready nodes were empty.
Two parts of one gang never fit on one node together: otherwise
``k - 1`` nodes could hold the gang. So the parts of a gang are placed independently of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import NodeState
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.shapes import Shape

__all__ = [
    "MAX_SPLITS",
    "Resources",
    "Split",
    "Splits",
    "fewest_blocks",
    "fewest_nodes",
    "group_use",
    "host_left",
    "node_capacity",
    "node_limits",
    "normalised",
    "part_of",
    "set_aside",
    "splits",
    "units_left",
]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Split = tuple[tuple[int, int], ...]

MAX_SPLITS = 200
"""Splits considered for one gang; nodes of up to 16 GPUs have at most 176 (partitions of 15)."""

_TOLERANCE = 1e-9
_MAX_SCALE = 100_000
_FALLBACK_SCALE = 10_000
_MAX_DENOMINATOR = 5_040


@dataclass(frozen=True)
class Splits:
    """The multisets of part sizes in which a shape may lie on nodes.

    Attributes
    ----------
    items : tuple of splits
        Each a tuple of (size, how many), sizes descending; the first fills its nodes most.
        Empty if no set of empty nodes can hold the shape.
    exact : bool
        False if there are more than `MAX_SPLITS` and the rest is left out: then a search over
        these splits may miss a placement (a heuristic), never invent one.
    """

    items: tuple[Split, ...]
    exact: bool = True


def _cache(instance: Instance) -> dict[Any, Any]:
    # the same store that functools.cached_property uses: lives and dies with the instance
    found: dict[Any, Any] = vars(instance).setdefault("_parts", {})
    return found


def node_limits(instance: Instance) -> tuple[FloatArray, FloatArray]:
    """Return CPUs and host memory (GiB) of each node, float64[N]; infinite where not given."""
    cache = _cache(instance)
    if "limits" not in cache:
        cache["limits"] = (
            np.array([math.inf if n.cpus is None else n.cpus for n in instance.nodes], np.float64),
            np.array(
                [math.inf if n.host_memory_gib is None else n.host_memory_gib for n in instance.nodes],
                np.float64,
            ),
        )
    found: tuple[FloatArray, FloatArray] = cache["limits"]
    return found


def normalised(instance: Instance, shape: Shape) -> Shape:
    """Return the shape without CPU and host figures that no ready node of its type limits."""
    cache = _cache(instance)
    key = ("limited", shape.type)
    if key not in cache:
        mine = np.array(
            [
                instance.node_type[i] == shape.type and n.state is NodeState.READY
                for i, n in enumerate(instance.nodes)
            ],
            np.bool_,
        )
        cache[key] = tuple(bool(np.isfinite(limit[mine]).any()) for limit in node_limits(instance))
    cpus, host = cache[key]
    if (cpus or not shape.cpus_per_gpu) and (host or not shape.host_gib_per_gpu):
        return shape
    return replace(
        shape,
        cpus_per_gpu=shape.cpus_per_gpu if cpus else 0.0,
        host_gib_per_gpu=shape.host_gib_per_gpu if host else 0.0,
    )


def part_of(shape: Shape, size: int) -> Shape:
    """Return the part of a shape that takes ``size`` GPUs of one node."""
    return replace(shape, gpus=size, worker=0)


def node_capacity(instance: Instance, shape: Shape) -> IntArray:
    """Return how many GPUs of each node the shape could use if the node were empty, int64[N].

    Ready GPUs of the type and of at least the level, on nodes that match the selector, as far as
    the node's CPUs and host memory allow; for whole-node shapes all GPUs of the node or none.
    Residency is ignored: it decides where a group starts warm, not on how many nodes it lies.
    """
    key = (
        "capacity",
        shape.type,
        shape.level,
        shape.selector,
        shape.whole,
        shape.cpus_per_gpu,
        shape.host_gib_per_gpu,
    )
    cache = _cache(instance)
    if key in cache:
        cached: IntArray = cache[key]
        return cached
    count = len(instance.nodes)
    usable = instance.gpu_ready & (instance.gpu_type == shape.type) & (instance.gpu_level >= shape.level)
    capacity = np.bincount(instance.gpu_node[usable], minlength=count).astype(np.int64)
    capacity[~instance.eligible_nodes(shape.selector)] = 0
    limited = np.full(count, math.inf)
    for limit, each in zip(node_limits(instance), (shape.cpus_per_gpu, shape.host_gib_per_gpu), strict=True):
        if each > 0:
            limited = np.minimum(limited, np.floor(limit / each * (1 + 1e-12) + _TOLERANCE))
    allowed: IntArray = np.minimum(capacity.astype(np.float64), limited).astype(np.int64)
    if shape.whole:
        whole = np.array([instance.whole_node(n) for n in range(count)], np.int64)
        allowed = np.where((capacity == whole) & (allowed == whole), whole, 0)
    cache[key] = allowed
    return allowed


def fewest_nodes(instance: Instance, shape: Shape) -> int:
    """Return the fewest nodes that could hold the shape if all ready nodes were empty; 0 if none can.

    A gang takes the largest nodes first; workers the nodes that hold most of them; whole nodes are
    a bounded coin-change problem (sizes sum to exactly ``gpus`` with the fewest nodes).
    """
    shape = normalised(instance, shape)
    cache = _cache(instance)
    key = ("fewest", replace(shape, resident=-1))
    if key not in cache:
        capacity = node_capacity(instance, shape)
        if shape.whole:
            cache[key] = _fewest_whole(capacity[capacity > 0], shape.gpus)
        else:
            unit = shape.worker or 1
            filled = np.cumsum(np.sort(capacity // unit)[::-1])
            k = int(np.searchsorted(filled, shape.gpus // unit)) + 1
            cache[key] = k if k <= len(filled) and shape.gpus % unit == 0 else 0
    found: int = cache[key]
    return found


def _fewest_whole(sizes: IntArray, gpus: int) -> int:
    never = gpus + 1
    best = np.full(gpus + 1, never, np.int64)
    best[0] = 0
    values, counts = np.unique(sizes, return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        left, bundle = min(count, gpus // value), 1
        while left > 0:  # bundles of 1, 2, 4, ... nodes make every count up to the limit
            used = min(bundle, left)
            step = used * value
            if step <= gpus:
                best[step:] = np.minimum(best[step:], best[: gpus + 1 - step] + used)
            left -= used
            bundle *= 2
    return int(best[gpus]) if best[gpus] < never else 0


def splits(instance: Instance, shape: Shape) -> Splits:
    """Return the splits of a shape over its fewest nodes (workers: their one split)."""
    shape = normalised(instance, shape)
    cache = _cache(instance)
    key = ("splits", replace(shape, resident=-1))
    if key not in cache:
        cache[key] = _splits(instance, shape)
    found: Splits = cache[key]
    return found


def _splits(instance: Instance, shape: Shape) -> Splits:
    k = fewest_nodes(instance, shape)
    if k == 0:
        return Splits(())
    if shape.worker:
        return Splits((((shape.worker, shape.gpus // shape.worker),),))
    if k == 1:
        return Splits((((shape.gpus, 1),),))
    capacity = node_capacity(instance, shape)
    capacity = capacity[capacity > 0]
    if shape.whole:
        values, counts = np.unique(capacity, return_counts=True)
        found = _whole_splits(values[::-1].tolist(), counts[::-1].tolist(), shape.gpus, k)
    else:
        found = _gang_splits(np.sort(capacity)[::-1][:k].tolist(), shape.gpus)
    if len(found) <= MAX_SPLITS:
        return Splits(tuple(found))
    return Splits(tuple(found[:MAX_SPLITS]), exact=False)


def _gang_splits(largest: list[int], gpus: int) -> list[Split]:
    """Descending part sizes, each at most the capacity of its rank: those that empty nodes can hold.

    Built as runs of equal sizes, so that the depth is the number of distinct sizes.
    """
    k = len(largest)
    found: list[Split] = []

    def extend(rank: int, left: int, below: int, chosen: Split) -> None:
        if rank == k:
            found.append(chosen)
            return
        for size in range(min(below - 1, largest[rank]), 0, -1):
            if sum(min(size, c) for c in largest[rank:]) < left:
                return  # smaller sizes cannot reach the sum either
            most = next((i for i in range(rank, k) if largest[i] < size), k) - rank
            for count in range(min(most, left // size), 0, -1):
                rest, after = left - count * size, k - rank - count
                if (after == 0) != (rest == 0) or rest < after:
                    continue
                extend(rank + count, rest, size, (*chosen, (size, count)))
                if len(found) > MAX_SPLITS:
                    return

    extend(0, gpus, largest[0] + 1, ())
    return found


def _whole_splits(values: list[int], counts: list[int], gpus: int, k: int) -> list[Split]:
    found: list[Split] = []

    def extend(i: int, left: int, nodes: int, chosen: Split) -> None:
        if len(found) > MAX_SPLITS:
            return
        if left == 0 and nodes == 0:
            found.append(chosen)
            return
        if i == len(values) or nodes == 0 or left <= 0:
            return
        if left > nodes * values[i] or left < nodes * values[-1]:
            return
        for count in range(min(counts[i], nodes, left // values[i]), -1, -1):
            extend(
                i + 1,
                left - count * values[i],
                nodes - count,
                (*chosen, (values[i], count)) if count else chosen,
            )

    extend(0, gpus, k, ())
    return found


def fewest_blocks(instance: Instance, shape: Shape, block: int) -> int:
    """Return how many blocks of ``block`` GPUs, each on one node, the shape takes at least.

    A part of ``p`` GPUs takes ``floor(p / block)`` blocks of its node; the least over the splits.
    Where splits are left out, ``k`` parts that sum to ``g`` still take at least
    ``ceil((g - k (block - 1)) / block)``.
    """
    options = splits(instance, shape)
    if not options.items:
        return 0
    if options.exact:
        return min(sum(size // block * count for size, count in split) for split in options.items)
    k = sum(count for _, count in options.items[0])
    return max(0, -(-(shape.gpus - k * (block - 1)) // block))


def group_use(instance: Instance, row: int) -> tuple[float, float]:
    """Return CPUs and host memory (GiB) that a running group takes on a node for each GPU there.

    CPUs are asked for each GPU, host memory for the whole job and spread over its GPUs; in a
    sequence only the member that runs counts.
    """
    group = instance.running[row]
    jobs = [instance.jobs[j] for j in group.holders]
    cpus = sum(job.cpus_per_gpu or 0.0 for job in jobs)
    host = sum(job.host_memory_gib or 0.0 for job in jobs)
    return cpus, host / max(len(group.gpus), 1)


@dataclass(frozen=True)
class Resources:
    """CPUs or host memory in whole units, so that rows have integer coefficients.

    ``scale`` units make one CPU or GiB. It is the least common denominator of the figures where
    that is small, and the arithmetic is then exact; otherwise figures are rounded up and limits
    down, which may refuse what would fit by less than 1/10000 a GPU, and never accepts too much.
    """

    scale: int

    @classmethod
    def of(cls, figures: Iterable[float]) -> Resources:
        """Choose the scale for these per-GPU figures."""
        scale = 1
        for figure in sorted(set(figures)):
            fraction = Fraction(figure).limit_denominator(_MAX_DENOMINATOR)
            if abs(float(fraction) - figure) > _TOLERANCE * max(1.0, figure):
                return cls(_FALLBACK_SCALE)
            scale = math.lcm(scale, fraction.denominator)
            if scale > _MAX_SCALE:
                return cls(_FALLBACK_SCALE)
        return cls(scale)

    def need(self, figure: float) -> int:
        """Return units taken for each GPU, rounded up."""
        return math.ceil(figure * self.scale - 1e-6)

    def limit(self, figures: FloatArray) -> IntArray:
        """Return units that nodes have, rounded down; infinite stays at a huge number."""
        finite = np.minimum(figures * self.scale + 1e-6, float(1 << 52))
        return np.floor(finite).astype(np.int64)


def units_left(instance: Instance, scales: tuple[Resources, Resources], kept: Iterable[int]) -> IntArray:
    """Return the units of CPU and host memory that are left on each node, int64[N, 2].

    Kept running groups and what is set aside take theirs; a node that they overuse has nothing left.
    """
    left = host_left(instance, kept)
    return np.stack([scale.limit(left[:, i]) for i, scale in enumerate(scales)], axis=1)


def host_left(instance: Instance, kept: Iterable[int]) -> FloatArray:
    """Return CPUs and host memory (GiB) that kept groups and what is set aside leave, float64[N, 2]."""
    taken: FloatArray = np.zeros((len(instance.nodes), 2)) + _cache(instance).get("aside", 0.0)
    for r in kept:
        use = group_use(instance, r)
        if use[0] or use[1]:
            np.add.at(taken, instance.gpu_node[instance.running[r].gpus], use)
    return np.maximum(np.stack(node_limits(instance), axis=1) - taken, 0.0)


def set_aside(instance: Instance, taken: FloatArray) -> None:
    """Set CPUs and host memory (GiB) aside, float64[N, 2]: what profile actions use is not given out again.

    Once an instance, before anything is stated or placed.
    """
    _cache(instance)["aside"] = taken
