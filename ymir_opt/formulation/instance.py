"""The snapshot as arrays, with every default resolved: what all later rooms index into.

Symbols: ``j`` job, ``n`` node, ``u`` GPU (one row of the GPU arrays), ``t`` GPU type,
``l`` memory level of a type (distinct usable memories, ascending). A *capacity class* is a pair
(type, level); classes of a type are nested: a group that needs level ``l`` may use every GPU of
the type whose level is at least ``l``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import (
    Job,
    JobState,
    Mode,
    Node,
    NodeState,
    Parallelism,
    Queue,
    RunningGroup,
    Snapshot,
)

__all__ = ["Instance", "Running", "group_id", "resolved_max", "resolved_min", "resolved_requested"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

MAX_CLASSES = 10


def resolved_min(job: Job) -> int:
    """Return the smallest allowed GPU count (workers: their sum; rigid: the requested count)."""
    if job.workers is not None:
        return job.workers.count * job.workers.gpus_each
    return job.min_gpus or 1


def resolved_requested(job: Job) -> int:
    """Return the requested GPU count; it defaults to the smallest allowed one."""
    return job.requested_gpus or resolved_min(job)


def resolved_max(job: Job) -> int:
    """Return the largest allowed GPU count; it defaults to the requested one."""
    if job.workers is not None:
        return job.workers.count * job.workers.gpus_each
    return job.max_gpus if job.max_gpus is not None else resolved_requested(job)


def is_rigid(job: Job) -> bool:
    """Say whether the job's work is seconds at its requested count instead of samples."""
    return job.remaining_s is not None


def group_id(mode: Mode, jobs: tuple[str, ...]) -> str:
    """Return the stable id of a group: the same members in the same mode get the same id."""
    import hashlib

    text = "\x1f".join((mode.value, *jobs))
    return f"g-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Running:
    """A group that holds GPUs now (a running job without an entry in ``groups`` is solo).

    Attributes
    ----------
    id : str
        The group's id in the snapshot, or the stable id of a solo group.
    mode : Mode
    members : tuple of int
        Job indices in the group's order, waiting sequence members included.
    holders : tuple of int
        The members that hold the GPUs (all but a sequence's waiting ones).
    gpus : int64[g]
        GPU rows held, ascending.
    type : int
        Index of the GPU type.
    keepable : bool
        False if a node or GPU it holds is down or unavailable.
    source : RunningGroup or None
        The snapshot's entry.
    """

    id: str
    mode: Mode
    members: tuple[int, ...]
    holders: tuple[int, ...]
    gpus: IntArray
    type: int
    keepable: bool
    source: RunningGroup | None = None


@dataclass(frozen=True)
class Instance:
    """Arrays derived from one snapshot; build with :meth:`of`.

    Attributes
    ----------
    types : tuple of str
        GPU type names in order of first appearance among the nodes.
    gpu_node, gpu_index, gpu_type : int64[U]
        Node row, index on the node, and type of each GPU.
    gpu_usable : float64[U]
        GPU memory less what is used from outside, GiB.
    gpu_level : int64[U]
        Memory level within the type (see `levels`).
    gpu_exists : bool[U]
        The node is not down and the GPU is not listed as unavailable: what runs there may stay.
    gpu_ready : bool[U]
        In addition the node is ready: something may start there.
    gpu_resident : int64[U]
        Index into `fms` of the foundation model resident on the GPU, or -1.
    levels : tuple of float64 arrays
        For each type the distinct usable memories of its existing GPUs, ascending.
    gpu_held : int64[U]
        Index into `running` of the group that holds the GPU, or -1.
    """

    snapshot: Snapshot
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    types: tuple[str, ...]
    fms: tuple[str, ...]
    gpu_node: IntArray
    gpu_index: IntArray
    gpu_type: IntArray
    gpu_usable: FloatArray
    gpu_level: IntArray
    gpu_exists: BoolArray
    gpu_ready: BoolArray
    gpu_resident: IntArray
    levels: tuple[FloatArray, ...]
    gpu_held: IntArray
    running: tuple[Running, ...]
    running_of: IntArray
    job_class: IntArray
    queue_weight: FloatArray
    queues: dict[str, Queue]
    node_type: IntArray
    _eligible: dict[tuple[tuple[str, str], ...], BoolArray] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> Instance:
        """Build the arrays of a validated snapshot."""
        nodes, jobs = snapshot.cluster.nodes, snapshot.jobs
        types = tuple(dict.fromkeys(node.gpu_type for node in nodes))
        type_row = {name: i for i, name in enumerate(types)}
        fms = tuple(
            dict.fromkeys(
                [j.foundation_model for j in jobs if j.foundation_model is not None]
                + [fm for node in nodes for fm in node.resident_fm if fm is not None]
            )
        )
        fm_row = {name: i for i, name in enumerate(fms)}
        sizes = np.array([n.gpus for n in nodes], dtype=np.int64)
        gpu_node = np.repeat(np.arange(len(nodes), dtype=np.int64), sizes)
        gpu_index = (
            np.concatenate([np.arange(s, dtype=np.int64) for s in sizes])
            if len(nodes)
            else np.zeros(0, np.int64)
        )
        node_type = np.array([type_row[n.gpu_type] for n in nodes], dtype=np.int64)
        usable = np.array(
            [
                n.gpu_memory_gib - (n.external_used_gib[i] if n.external_used_gib else 0.0)
                for n in nodes
                for i in range(n.gpus)
            ],
            dtype=np.float64,
        )
        exists = np.array(
            [
                n.state is not NodeState.DOWN and i not in n.unavailable_gpus
                for n in nodes
                for i in range(n.gpus)
            ],
            dtype=np.bool_,
        )
        ready_node = np.array([n.state is NodeState.READY for n in nodes], dtype=np.bool_)
        ready = exists & ready_node[gpu_node] if len(gpu_node) else exists
        resident = np.array(
            [
                fm_row[n.resident_fm[i]] if n.resident_fm and n.resident_fm[i] is not None else -1  # type: ignore[index]
                for n in nodes
                for i in range(n.gpus)
            ],
            dtype=np.int64,
        )
        gpu_type = node_type[gpu_node] if len(gpu_node) else np.zeros(0, np.int64)
        levels = tuple(np.unique(usable[(gpu_type == t) & exists]) for t in range(len(types)))
        level = np.zeros(len(gpu_node), np.int64)
        for t, values in enumerate(levels):
            of_type = gpu_type == t
            level[of_type] = np.searchsorted(values, usable[of_type], side="right") - 1
        held, running, running_of = _running(snapshot, type_row, exists)
        priorities = sorted({j.priority for j in jobs}, reverse=True)
        # above ten distinct values the lowest share class 0
        count = min(len(priorities), MAX_CLASSES)
        rank = {p: max(count - 1 - i, 0) for i, p in enumerate(priorities)}
        queues = {q.name: q for q in snapshot.queues}
        return cls(
            snapshot=snapshot,
            nodes=nodes,
            jobs=jobs,
            types=types,
            fms=fms,
            gpu_node=gpu_node,
            gpu_index=gpu_index,
            gpu_type=gpu_type,
            gpu_usable=usable,
            gpu_level=level,
            gpu_exists=exists,
            gpu_ready=ready,
            gpu_resident=resident,
            levels=levels,
            gpu_held=held,
            running=running,
            running_of=running_of,
            job_class=np.array([rank[j.priority] for j in jobs], dtype=np.int64),
            queue_weight=np.array(
                [queues[j.queue].weight if j.queue in queues else 1.0 for j in jobs], dtype=np.float64
            ),
            queues=queues,
            node_type=node_type,
        )

    @cached_property
    def job_row(self) -> dict[str, int]:
        """Job id to row."""
        return {job.id: i for i, job in enumerate(self.jobs)}

    @cached_property
    def node_row(self) -> dict[str, int]:
        """Node id to row."""
        return {node.id: i for i, node in enumerate(self.nodes)}

    @cached_property
    def node_first_gpu(self) -> IntArray:
        """Row of the first GPU of each node, int64[N + 1]."""
        sizes = np.array([n.gpus for n in self.nodes], dtype=np.int64)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]).astype(np.int64)

    def tenant(self, j: int) -> str:
        """Return the owner of a job's data and weights (default: its queue)."""
        job = self.jobs[j]
        return job.tenant if job.tenant is not None else job.queue

    def selector(self, members: tuple[int, ...]) -> tuple[tuple[str, str], ...] | None:
        """Return the union of the members' node selectors, or None where they contradict."""
        merged: dict[str, str] = {}
        for j in members:
            for key, value in self.jobs[j].node_selector.items():
                if merged.setdefault(key, value) != value:
                    return None
        return tuple(sorted(merged.items()))

    def eligible_nodes(self, selector: tuple[tuple[str, str], ...]) -> BoolArray:
        """Return bool[N]: the node's labels (or its ``rack`` and ``id``) match the selector."""
        found = self._eligible.get(selector)
        if found is None:
            found = np.array(
                [all(_label(node, key) == value for key, value in selector) for node in self.nodes],
                dtype=np.bool_,
            )
            self._eligible[selector] = found
        return found

    def level_for(self, t: int, memory_gib: float | None) -> int:
        """Return the lowest level of a type whose GPUs hold this much, or -1 if none does.

        Unknown memory (None) fits everywhere.
        """
        values = self.levels[t]
        if memory_gib is None:
            return 0 if len(values) else -1
        level = int(np.searchsorted(values, memory_gib * (1 - 1e-9), side="left"))
        return level if level < len(values) else -1

    def whole_node(self, n: int) -> int:
        """Return the node's GPU count if it is ready and every GPU is available, else 0."""
        node = self.nodes[n]
        if node.state is not NodeState.READY or node.unavailable_gpus:
            return 0
        return node.gpus

    def pipeline(self, members: tuple[int, ...]) -> bool:
        """Say whether a member wants whole nodes."""
        return any(self.jobs[j].parallelism is Parallelism.PIPELINE for j in members)


def _label(node: Node, key: str) -> str | None:
    """Return a node's label as text; its rack and id count as labels."""
    found = node.labels.get(key, {"rack": node.rack, "id": node.id}.get(key))
    return None if found is None else str(found)


def _running(
    snapshot: Snapshot, type_row: dict[str, int], exists: BoolArray
) -> tuple[IntArray, tuple[Running, ...], IntArray]:
    nodes, jobs = snapshot.cluster.nodes, snapshot.jobs
    first = np.concatenate([[0], np.cumsum([n.gpus for n in nodes])]).astype(int)
    node_row = {n.id: i for i, n in enumerate(nodes)}
    job_row = {j.id: i for i, j in enumerate(jobs)}
    held = np.full(int(first[-1]), -1, dtype=np.int64)
    running_of = np.full(len(jobs), -1, dtype=np.int64)
    entries: list[tuple[str, Mode, tuple[int, ...], tuple[int, ...], RunningGroup | None]] = []
    for group in snapshot.groups:
        members = tuple(job_row[name] for name in group.jobs)
        holders = members[:1] if group.mode is Mode.SEQUENCE else members
        entries.append((group.id, group.mode, members, holders, group))
    grouped = {j for _, _, members, _, _ in entries for j in members}
    for j, job in enumerate(jobs):
        if job.state is JobState.RUNNING and j not in grouped:
            entries.append((group_id(Mode.SOLO, (job.id,)), Mode.SOLO, (j,), (j,), None))
    running: list[Running] = []
    for name, mode, members, holders, source in entries:
        allocation = jobs[holders[0]].allocation or {}
        rows = np.array(
            sorted(int(first[node_row[node]]) + gpu for node, gpus in allocation.items() for gpu in gpus),
            dtype=np.int64,
        )
        held[rows] = len(running)
        for j in members:
            running_of[j] = len(running)
        t = type_row[nodes[node_row[next(iter(allocation))]].gpu_type]
        running.append(Running(name, mode, members, holders, rows, t, bool(exists[rows].all()), source))
    return held, tuple(running), running_of
