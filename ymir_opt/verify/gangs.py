"""Invariant 3: gangs are whole, of an allowed size, and on the fewest nodes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from ymir_opt.domain.base import short
from ymir_opt.domain.snapshot import Job, Mode, NodeState, Parallelism
from ymir_opt.verify.devices import SLACK, host_use
from ymir_opt.verify.facts import Facts, Placed
from ymir_opt.verify.memory import MemoryNeeds
from ymir_opt.verify.violation import Violation

__all__ = ["allowed_counts", "gangs"]


def gangs(facts: Facts, needs: MemoryNeeds) -> Iterator[Violation]:
    """Yield every group with a wrong number of GPUs, or on more nodes than needed."""
    fewest: dict[object, Any] = {}
    for placed in facts.placed:
        group = placed.group
        if len(placed.gpus) != group.gpus:
            yield Violation(
                3,
                f"{placed.place}.placement",
                f"{len(placed.gpus)} GPUs are named for a gang of {group.gpus}",
            )
        if group.gpus < 1:
            yield Violation(3, f"{placed.place}.gpus", "a group without GPUs")
            continue
        if placed.kept is not None:
            continue
        for message in _counts(placed):
            yield Violation(3, f"{placed.place}.gpus", message)
        yield from _nodes(facts, placed, needs, fewest)


def allowed_counts(job: Job) -> tuple[int, int]:
    """Return the smallest and largest GPU count of a job alone.

    ``max_gpus`` defaults to ``requested_gpus``, that to ``min_gpus``, that to 1; workers have one
    count only, and so have rigid jobs: the requested one.
    """
    if job.workers is not None:
        only = job.workers.count * job.workers.gpus_each
        return only, only
    low = job.min_gpus or 1
    requested = job.requested_gpus or low
    if job.remaining_s is not None:
        return requested, requested
    return low, requested if job.max_gpus is None else job.max_gpus


def _counts(placed: Placed) -> Iterator[str]:
    gpus, mode = placed.group.gpus, placed.group.mode
    limits = [allowed_counts(job) for job in placed.members]
    if mode is Mode.JOINT and limits:
        low, high = max(low for low, _ in limits), sum(high for _, high in limits)
        if not low <= gpus <= high:
            yield f"{gpus} GPUs are outside the joint group's {low} to {high}"
    for job, (low, high) in zip(placed.members, limits, strict=True):
        if job.gpu_types is not None and placed.group.gpu_type not in job.gpu_types:
            yield f"job {short(job.id)} may not run on {short(placed.group.gpu_type)}"
        if mode is Mode.JOINT:
            continue
        if not low <= gpus <= high:
            yield f"{gpus} GPUs are outside the {low} to {high} of job {short(job.id)}"
        elif job.gpu_counts is not None and gpus not in job.gpu_counts:
            yield f"{gpus} GPUs are not among the gpu_counts of job {short(job.id)}"


def _nodes(
    facts: Facts, placed: Placed, needs: MemoryNeeds, fewest: dict[object, Any]
) -> Iterator[Violation]:
    place = f"{placed.place}.placement"
    used = Counter(node for node, _ in placed.gpus)
    workers = {job.workers for job in placed.members}
    whole = any(job.parallelism is Parallelism.PIPELINE for job in placed.members)
    if whole:
        for name, count in used.items():
            node = facts.nodes.get(name)
            if node is not None and count != node.gpus:
                yield Violation(
                    3, place, f"a pipeline job has {count} of the {node.gpus} GPUs of node {short(name)}"
                )
    spec = next(iter(workers)) if len(workers) == 1 else None
    if spec is not None:
        for name, count in used.items():
            if count % spec.gpus_each:
                yield Violation(
                    3,
                    place,
                    f"{count} GPUs on node {short(name)} are not whole workers of {spec.gpus_each} GPUs",
                )
        return
    least = _fewest(facts, placed, needs.of(placed), whole, fewest)
    if least == 0:
        yield Violation(
            3,
            place,
            f"no empty nodes of type {short(placed.group.gpu_type)} could hold {placed.group.gpus} GPUs",
        )
    elif len(used) > least:
        yield Violation(
            3, place, f"{placed.group.gpus} GPUs lie on {len(used)} nodes, but {least} could hold them"
        )


def _fewest(facts: Facts, placed: Placed, need: float | None, whole: bool, cache: dict[object, Any]) -> int:
    """Return the fewest nodes that could hold a gang if all were empty; 0 if none could."""
    selector: dict[str, str] = {}
    for job in placed.members:
        selector.update(job.node_selector)
    cpus, host = host_use(placed.holders, placed.group.gpus)
    gpus = placed.group.gpus
    key = (placed.group.gpu_type, gpus, need, whole, tuple(sorted(selector.items())), cpus, host)
    if key not in cache:
        sizes = Counter[int]()
        for kind, count in _node_kinds(facts, placed.group.gpu_type, selector, cache).items():
            sizes[_capacity(kind, need, whole, cpus, host)] += count
        del sizes[0]
        cache[key] = _fewest_whole(sizes, gpus) if whole else _fewest_any(sizes, gpus)
    found: int = cache[key]
    return found


def _node_kinds(
    facts: Facts, gpu_type: str, selector: dict[str, str], cache: dict[object, Any]
) -> Counter[_NodeKind]:
    """Return how many ready nodes of a type that match a selector there are of each kind."""
    key = ("nodes", gpu_type, tuple(sorted(selector.items())))
    if key not in cache:
        cache[key] = Counter(
            _NodeKind(
                tuple(
                    sorted(
                        facts.usable_gib((node.id, g))
                        for g in range(node.gpus)
                        if g not in node.unavailable_gpus
                    )
                ),
                node.gpus,
                node.cpus,
                node.host_memory_gib,
            )
            for node in facts.nodes.values()
            if node.gpu_type == gpu_type and node.state is NodeState.READY and facts.matches(node, selector)
        )
    found: Counter[_NodeKind] = cache[key]
    return found


class _NodeKind(NamedTuple):
    """Nodes that hold the same when empty: usable memory of the available GPUs, ascending, and the rest."""

    usable: tuple[float, ...]
    gpus: int
    cpus: float | None
    host_gib: float | None


def _capacity(node: _NodeKind, need: float | None, whole: bool, cpus: float, host: float) -> int:
    """Return the GPUs that a gang could use of an empty node."""
    count = len(node.usable)
    if need is not None:
        count -= bisect_left(node.usable, need * (1 - SLACK))
    for limit, each in ((node.cpus, cpus), (node.host_gib, host)):
        if limit is not None and each > 0:
            count = min(count, math.floor(limit / each * (1 + 1e-12) + SLACK))
    if whole:
        return node.gpus if count == node.gpus else 0
    return count


def _fewest_any(sizes: Counter[int], gpus: int) -> int:
    """Fewest of these nodes (size: how many) that together have ``gpus``; 0 if they do not suffice."""
    nodes, left = 0, gpus
    for size in sorted(sizes, reverse=True):
        used = min(sizes[size], -(-left // size))
        nodes, left = nodes + used, left - used * size
        if left <= 0:
            return nodes
    return 0


def _fewest_whole(sizes: Counter[int], gpus: int) -> int:
    """Fewest of these nodes whose sizes sum to exactly ``gpus``; 0 if none do."""
    best = {0: 0}
    for size, count in sizes.items():
        wider = dict(best)
        for total, nodes in best.items():
            for used in range(1, min(count, (gpus - total) // size) + 1):
                reached = total + used * size
                if nodes + used < wider.get(reached, gpus + 1):
                    wider[reached] = nodes + used
        best = wider
    return best.get(gpus, 0)
