"""Sites: nodes that are interchangeable for a set of parts, and what one of them holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.parts import Resources, group_use, node_capacity, units_left
from ymir_opt.formulation.shapes import Shape

__all__ = ["MAX_PATTERNS", "MAX_UNIONS", "Kinds", "Site", "find_sites", "patterns", "unions"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

MAX_UNIONS = 64
MAX_PATTERNS = 400
_MAX_STEPS = 20_000


@dataclass(frozen=True)
class Kinds:
    """Kinds of GPUs of a type: GPUs of one kind are accepted by the same parts.

    Attributes
    ----------
    of_gpu : int64[U]
        Kind of each GPU; meaningless for other types.
    accept : tuple of int
        For each part the bit set of kinds it may use.
    count : int
    """

    of_gpu: IntArray
    accept: tuple[int, ...]
    count: int

    @classmethod
    def of(cls, instance: Instance, parts: Sequence[Shape]) -> Kinds:
        """Merge levels between the demanded ones, and models that no part must find resident."""
        levels = np.array(sorted({p.level for p in parts}), np.int64)
        models = sorted({p.resident for p in parts if p.resident >= 0})
        step = np.searchsorted(levels, instance.gpu_level, side="right")
        code = np.zeros(len(instance.fms) + 1, np.int64)
        for i, fm in enumerate(models):
            code[fm] = i + 1
        code[-1] = 0  # no model resident
        width = len(models) + 1
        accept = []
        for part in parts:
            low = int(np.searchsorted(levels, part.level)) + 1
            wanted = [models.index(part.resident) + 1] if part.resident >= 0 else range(width)
            accept.append(sum(1 << (s * width + m) for s in range(low, len(levels) + 1) for m in wanted))
        return cls(step * width + code[instance.gpu_resident], tuple(accept), (len(levels) + 1) * width)


@dataclass(frozen=True)
class Site:
    """Interchangeable nodes.

    Attributes
    ----------
    nodes : tuple of int
        Node rows.
    free : tuple of int
        GPUs of each kind on one of the nodes if no keepable group is kept; only kinds that occur.
    accept : dict
        Part to the bit set of `free`'s kinds it may use; only parts that fit here alone.
    each : dict
        Part to units of CPU and host memory it takes for each GPU.
    limit : tuple
        Units of CPU and host memory for new parts, or None where they cannot bind.
    kept : dict
        Keepable group to its GPUs of each kind here.
    kept_use : dict
        Keepable group to units of CPU and host memory it takes here.
    """

    nodes: tuple[int, ...]
    free: tuple[int, ...]
    accept: dict[int, int]
    each: dict[int, tuple[int, int]]
    limit: tuple[int | None, int | None]
    kept: dict[int, tuple[int, ...]]
    kept_use: dict[int, tuple[int, int]]

    @property
    def total(self) -> int:
        """GPUs of a node."""
        return sum(self.free)

    def supply(self, chosen: int) -> int:
        """Return the GPUs of the kinds in a bit set."""
        return sum(g for k, g in enumerate(self.free) if chosen >> k & 1)

    def most(self, part: int, size: int) -> int:
        """Return how many of a part one node holds at most."""
        best = self.supply(self.accept[part]) // size
        for limit, each in zip(self.limit, self.each[part], strict=True):
            if limit is not None and each:
                best = min(best, limit // (each * size))
        return best


def find_sites(
    instance: Instance,
    open_gpu: BoolArray,
    parts: Sequence[Shape],
    keepable: Sequence[int],
    fixed: Sequence[int] = (),
) -> list[Site]:
    """Group the nodes on which some part fits; nodes of keepable groups stay by themselves.

    Parameters
    ----------
    instance : Instance
    open_gpu : bool[U]
        GPUs that new parts may use if no keepable group is kept.
    parts : sequence of Shape
        Parts of one type.
    keepable, fixed : sequences of int
        Running groups that may be kept, and those that are kept in any case.
    """
    if not parts:
        return []
    kinds = Kinds.of(instance, parts)
    count = len(instance.nodes)
    free = np.zeros((count, kinds.count), np.int64)
    np.add.at(free, (instance.gpu_node[open_gpu], kinds.of_gpu[open_gpu]), 1)
    fits = np.zeros((len(parts), count), np.bool_)
    for p, part in enumerate(parts):
        accepted = np.array([bool(kinds.accept[p] >> k & 1) for k in range(kinds.count)])
        capacity = node_capacity(instance, part)
        fits[p] = (free[:, accepted].sum(axis=1) >= part.gpus) & (
            (capacity == part.gpus) if part.whole else (capacity >= part.gpus)
        )
    hosts: dict[int, list[int]] = {}
    for r in keepable:
        for n in np.unique(instance.gpu_node[instance.running[r].gpus]).tolist():
            hosts.setdefault(n, []).append(r)
    scales, each = _scales(parts, [group_use(instance, r) for r in keepable])
    limits = units_left(instance, scales, fixed)
    uses = {r: group_use(instance, r) for r in keepable}
    grouped: dict[object, Site] = {}
    for n in np.flatnonzero(fits.any(axis=0)).tolist():
        kept: dict[int, IntArray] = {}
        kept_use: dict[int, tuple[int, int]] = {}
        for r in hosts.get(n, ()):
            gpus = instance.running[r].gpus
            gpus = gpus[instance.gpu_node[gpus] == n]
            kept[r] = np.bincount(kinds.of_gpu[gpus[open_gpu[gpus]]], minlength=kinds.count)
            kept_use[r] = (
                scales[0].need(uses[r][0]) * len(gpus),
                scales[1].need(uses[r][1]) * len(gpus),
            )
        site = _site(n, free[n], fits[:, n], parts, kinds, each, limits[n], kept, kept_use)
        if not site.accept:
            continue
        if kept:
            grouped[n] = site
            continue
        key = (site.free, tuple(site.accept.items()), site.limit)
        known = grouped.get(key)
        grouped[key] = site if known is None else replace(known, nodes=(*known.nodes, n))
    return list(grouped.values())


def _scales(
    parts: Sequence[Shape], kept: Sequence[tuple[float, float]]
) -> tuple[tuple[Resources, Resources], tuple[tuple[int, int], ...]]:
    cpus = Resources.of([p.cpus_per_gpu for p in parts] + [use[0] for use in kept])
    host = Resources.of([p.host_gib_per_gpu for p in parts] + [use[1] for use in kept])
    return (cpus, host), tuple((cpus.need(p.cpus_per_gpu), host.need(p.host_gib_per_gpu)) for p in parts)


def _site(
    n: int,
    free: IntArray,
    fits: BoolArray,
    parts: Sequence[Shape],
    kinds: Kinds,
    each: tuple[tuple[int, int], ...],
    limit: IntArray,
    kept: dict[int, IntArray],
    kept_use: dict[int, tuple[int, int]],
) -> Site:
    present = np.flatnonzero(free).tolist()
    members = [
        p
        for p in np.flatnonzero(fits).tolist()
        if all(parts[p].gpus * each[p][i] <= limit[i] for i in (0, 1))
    ]
    accept = {p: sum(1 << i for i, k in enumerate(present) if kinds.accept[p] >> k & 1) for p in members}
    total = int(free.sum())
    bound: list[int | None] = []
    for i in (0, 1):
        held = sum(use[i] for use in kept_use.values())
        largest = max((each[p][i] for p in members), default=0)
        bound.append(int(limit[i]) if largest and largest * total + held > limit[i] else None)
    return Site(
        nodes=(n,),
        free=tuple(free[present].tolist()),
        accept=accept,
        each={p: each[p] for p in members},
        limit=(bound[0], bound[1]),
        kept={r: tuple(by_kind[present].tolist()) for r, by_kind in kept.items()},
        kept_use=kept_use,
    )


def unions(sets: Iterable[int]) -> tuple[int, ...] | None:
    """Return the bit sets closed under union of overlapping ones, or None above `MAX_UNIONS`.

    Hall's condition for parts that accept these sets of kinds need only be stated for them: a
    violated union of disjoint sets has a violated member.
    """
    closed = set(sets)
    todo = list(closed)
    while todo:
        one = todo.pop()
        for other in list(closed):
            union = one | other
            if one & other and union not in closed:
                closed.add(union)
                todo.append(union)
        if len(closed) > MAX_UNIONS:
            return None
    return tuple(sorted(closed))


def patterns(
    site: Site, parts: Sequence[Shape]
) -> tuple[dict[int, int], tuple[tuple[tuple[int, int], ...], ...]] | None:
    """Return each part's local kind and all maximal patterns of one node, or None if too many.

    Parts of the same size that accept the same GPUs of the node and take the same CPUs and host
    memory (where these bind) are of one local kind. A pattern is a list of (local kind, how many).
    """
    sets = unions(site.accept.values())
    if sets is None:
        return None
    kinds: dict[tuple[int, int, int, int], int] = {}
    local: dict[int, int] = {}
    for p in sorted(site.accept, key=lambda p: (-parts[p].gpus, p)):
        size = parts[p].gpus
        use = [
            size * each if limit is not None else 0
            for each, limit in zip(site.each[p], site.limit, strict=True)
        ]
        local[p] = kinds.setdefault((size, site.accept[p], use[0], use[1]), len(kinds))
    needs = np.array(
        [
            [size if accept & ~chosen == 0 else 0 for chosen in sets] + [cpus, host]
            for size, accept, cpus, host in kinds
        ],
        np.int64,
    )
    room = np.array([site.supply(chosen) for chosen in sets] + [limit or 0 for limit in site.limit], np.int64)
    found: list[tuple[tuple[int, int], ...]] = []
    steps = 0

    def extend(i: int, left: IntArray, chosen: tuple[tuple[int, int], ...]) -> bool:
        nonlocal steps
        steps += 1
        if steps > _MAX_STEPS or len(found) > MAX_PATTERNS:
            return False
        if i == len(needs):
            if not (needs <= left).all(axis=1).any():
                found.append(chosen)
            return True
        uses = needs[i] > 0
        most = int((left[uses] // needs[i][uses]).min())
        return all(
            extend(i + 1, left - count * needs[i], (*chosen, (i, count)) if count else chosen)
            for count in range(most, -1, -1)
        )

    if not extend(0, room, ()) or len(found) > MAX_PATTERNS:
        return None
    return local, tuple(found)
