"""A snapshot and a plan side by side: who held what before, who holds what after.

Only the domain is read here; every default is resolved anew, so that a mistake of the formulation
is not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ymir_opt.domain.plan import Action, ActionKind, Group, Plan
from ymir_opt.domain.snapshot import (
    CompletedAdapter,
    Job,
    JobState,
    Mode,
    Node,
    NodeState,
    Queue,
    RunningGroup,
    Snapshot,
)

__all__ = ["Facts", "Gpu", "Held", "Placed", "gpu_list"]

Gpu = tuple[str, int]
"""(node id, index on the node)."""

MAX_CLASSES = 10


def gpu_list(placement: Mapping[str, tuple[int, ...]]) -> list[Gpu]:
    """Return the GPUs of a placement, repeated ones repeated."""
    return [(node, gpu) for node, gpus in placement.items() for gpu in gpus]


@dataclass(frozen=True)
class Held:
    """A group that runs before the plan.

    Attributes
    ----------
    mode : Mode
    jobs, holders : tuple of str
        Members in the group's order; those of them that hold the GPUs.
    gpus : frozenset of Gpu
    gpu_type : str
    keepable : bool
        No node or GPU that it holds is down or unavailable.
    source : RunningGroup or None
    """

    mode: Mode
    jobs: tuple[str, ...]
    holders: tuple[str, ...]
    gpus: frozenset[Gpu]
    gpu_type: str
    keepable: bool
    source: RunningGroup | None


@dataclass(frozen=True)
class Placed:
    """A group of the plan.

    Attributes
    ----------
    index : int
        Its row in ``groups``.
    group : Group
    gpus : tuple of Gpu
    members : tuple of Job
        The members that the snapshot knows.
    holders : tuple of Job
        Those that hold the GPUs (all but a sequence's waiting ones).
    kept : Held or None
        The running group that it leaves exactly as it is.
    """

    index: int
    group: Group
    gpus: tuple[Gpu, ...]
    members: tuple[Job, ...]
    holders: tuple[Job, ...]
    kept: Held | None

    @property
    def place(self) -> str:
        """The group's place in the plan."""
        return f"groups[{self.index}]"


@dataclass
class Facts:
    """Everything the invariants ask about."""

    snapshot: Snapshot
    plan: Plan
    jobs: dict[str, Job] = field(init=False)
    nodes: dict[str, Node] = field(init=False)
    queues: dict[str, Queue] = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = {job.id: job for job in self.snapshot.jobs}
        self.nodes = {node.id: node for node in self.snapshot.cluster.nodes}
        self.queues = {queue.name: queue for queue in self.snapshot.queues}

    # -- before ---------------------------------------------------------------------------------

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """The running groups; a running job without an entry is solo."""
        entries: list[tuple[Mode, tuple[str, ...], RunningGroup | None]] = [
            (group.mode, group.jobs, group) for group in self.snapshot.groups
        ]
        grouped = {name for _, names, _ in entries for name in names}
        entries += [
            (Mode.SOLO, (job.id,), None)
            for job in self.snapshot.jobs
            if job.state is JobState.RUNNING and job.id not in grouped
        ]
        out = []
        for mode, names, source in entries:
            gpus = gpu_list(self.jobs[names[0]].allocation or {})
            out.append(
                Held(
                    mode=mode,
                    jobs=names,
                    holders=names[:1] if mode is Mode.SEQUENCE else names,
                    gpus=frozenset(gpus),
                    gpu_type=self.nodes[gpus[0][0]].gpu_type,
                    keepable=all(self.exists(gpu) for gpu in gpus),
                    source=source,
                )
            )
        return tuple(out)

    @cached_property
    def held_by(self) -> dict[str, Held]:
        """The running group of each of its members, waiting ones included."""
        return {name: held for held in self.held for name in held.jobs}

    @cached_property
    def holds(self) -> dict[str, Held]:
        """The running group of each job that holds GPUs."""
        return {name: held for held in self.held for name in held.holders}

    # -- GPUs -----------------------------------------------------------------------------------

    def exists(self, gpu: Gpu) -> bool:
        """Say whether what runs on a GPU may stay: the node is not down, the GPU available."""
        node = self.nodes[gpu[0]]
        return node.state is not NodeState.DOWN and gpu[1] not in node.unavailable_gpus

    def ready(self, gpu: Gpu) -> bool:
        """Say whether something may start on a GPU."""
        return self.nodes[gpu[0]].state is NodeState.READY and self.exists(gpu)

    def startable(self, gpu: Gpu) -> bool:
        """Say whether a group may start on a GPU: it is ready and not given to a profile action."""
        return self.ready(gpu) and gpu not in self.reserved

    @cached_property
    def reserved(self) -> frozenset[Gpu]:
        """GPUs of profile actions."""
        return frozenset(gpu for gpus in self.profiled.values() for gpu in gpus if self.known(gpu))

    def known(self, gpu: Gpu) -> bool:
        """Say whether the cluster has this GPU."""
        node = self.nodes.get(gpu[0])
        return node is not None and gpu[1] < node.gpus

    def usable_gib(self, gpu: Gpu) -> float:
        """Return a GPU's memory less what is used from outside."""
        node = self.nodes[gpu[0]]
        return node.gpu_memory_gib - (node.external_used_gib[gpu[1]] if node.external_used_gib else 0.0)

    def matches(self, node: Node, selector: Mapping[str, str]) -> bool:
        """Say whether a node has every label asked for (``rack`` and ``id`` count as labels)."""
        own = {"rack": node.rack, "id": node.id}
        found = {key: node.labels.get(key, own.get(key)) for key in selector}
        return all(found[key] is not None and str(found[key]) == value for key, value in selector.items())

    # -- after ----------------------------------------------------------------------------------

    @cached_property
    def placed(self) -> tuple[Placed, ...]:
        """The plan's groups."""
        return tuple(self._placed(i, group) for i, group in enumerate(self.plan.groups))

    def _placed(self, index: int, group: Group) -> Placed:
        members = tuple(self.jobs[name] for name in group.jobs if name in self.jobs)
        gpus = tuple(gpu_list(group.placement))
        return Placed(
            index=index,
            group=group,
            gpus=gpus,
            members=members,
            holders=members[:1] if group.mode is Mode.SEQUENCE else members,
            kept=self._kept(group, gpus),
        )

    def _kept(self, group: Group, gpus: tuple[Gpu, ...]) -> Held | None:
        held = self.held_by.get(group.jobs[0])
        if held is None or held.mode is not group.mode or held.gpus != set(gpus):
            return None
        same = held.jobs == group.jobs
        if group.mode is not Mode.SEQUENCE:
            same = len(held.jobs) == len(group.jobs) and set(held.jobs) == set(group.jobs)
        # a start from other weights on the same GPUs is a restart, not the run going on
        before = dict(held.source.starts_from) if held.source is not None else {}
        same = same and dict(group.starts_from) in ({}, before)
        return held if same and held.keepable else None

    @cached_property
    def placed_by(self) -> dict[str, Placed]:
        """The plan's group of each member (the first, where a faulty plan has several)."""
        out: dict[str, Placed] = {}
        for placed in self.placed:
            for job in placed.members:
                out.setdefault(job.id, placed)
        return out

    @cached_property
    def holding(self) -> dict[str, Placed]:
        """The plan's group of each job that holds GPUs."""
        out: dict[str, Placed] = {}
        for placed in self.placed:
            for job in placed.holders:
                out.setdefault(job.id, placed)
        return out

    @cached_property
    def kept(self) -> frozenset[int]:
        """``id()`` of the running groups that the plan leaves exactly as they are."""
        return frozenset(id(placed.kept) for placed in self.placed if placed.kept is not None)

    def stays(self, held: Held) -> bool:
        """Say whether the plan leaves a running group exactly as it is."""
        return id(held) in self.kept

    @cached_property
    def actions(self) -> dict[str, Action]:
        """The first action of each job that the snapshot knows."""
        out: dict[str, Action] = {}
        for action in self.plan.actions:
            if action.job in self.jobs:
                out.setdefault(action.job, action)
        return out

    @cached_property
    def profiled(self) -> dict[str, tuple[Gpu, ...]]:
        """GPUs of each profile action."""
        return {
            name: tuple(gpu_list(action.to.placement))
            for name, action in self.actions.items()
            if action.action is ActionKind.PROFILE and action.to is not None
        }

    @cached_property
    def adapters(self) -> dict[str, CompletedAdapter]:
        """Completed adapters by id."""
        return {adapter.id: adapter for adapter in self.snapshot.adapters}

    # -- priority -------------------------------------------------------------------------------

    @cached_property
    def rank(self) -> dict[int, int]:
        """Class of each priority value: 0 the lowest; above ten values the lowest share class 0."""
        values = sorted({job.priority for job in self.snapshot.jobs}, reverse=True)
        top = min(len(values), MAX_CLASSES) - 1
        return {value: max(top - i, 0) for i, value in enumerate(values)}

    def class_of(self, names: tuple[str, ...]) -> int:
        """Return the highest class among jobs."""
        return max((self.rank[self.jobs[name].priority] for name in names), default=0)
