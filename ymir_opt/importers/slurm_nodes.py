"""Slurm's nodes as nodes of a snapshot: one for each GPU type of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ymir_opt.domain.errors import NotFoundError
from ymir_opt.domain.snapshot import Node, NodeState
from ymir_opt.importers.nodes import gpu_memory
from ymir_opt.importers.slurm_fields import Record
from ymir_opt.importers.slurm_text import Gres, gpus_of

__all__ = ["UNTYPED", "Machine", "Part", "machine_of", "node_of"]

UNTYPED = "gpu"
"""GPU type of a GRES without one."""
DOWN = frozenset({"DOWN", "ERROR", "FAIL", "FAILED", "FUTURE", "INVALID", "INVALID_REG", "UNKNOWN"}) | {
    *("NOT_RESPONDING", "NO_RESPOND", "POWERED_DOWN", "POWER_DOWN", "POWERING_DOWN", "EXTERNAL"),
}
CLOSED = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAILING", "MAINT", "MAINTENANCE", "RESERVED"}) | {
    *("REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT_CANCELED", "BLOCKED"),
}
OPEN = frozenset({"IDLE", "ALLOCATED", "ALLOC", "MIXED", "MIX", "COMPLETING", "COMP", "PLANNED", "CLOUD"}) | {
    *("POWERING_UP", "POWER_UP", "POWER_SAVING", "RESUME", "UNDRAIN", "DYNAMIC_NORM", "DYNAMIC_FUTURE"),
}


@dataclass
class Part:
    """The GPUs of one type on a machine.

    Attributes
    ----------
    node : str
        Id of the snapshot's node.
    kind : str
    first, count : int
        Slurm's numbers of these GPUs are ``first`` to ``first + count - 1``.
    used : set of int
        Slurm's numbers of GPUs that imported jobs hold.
    busy : set of int
        Slurm's numbers of GPUs that something else holds.
    """

    node: str
    kind: str
    first: int
    count: int
    used: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)

    @property
    def numbers(self) -> range:
        """Return Slurm's numbers of these GPUs."""
        return range(self.first, self.first + self.count)


@dataclass
class Machine:
    """A machine with GPUs."""

    name: str
    state: NodeState
    parts: list[Part]
    gres_used: tuple[Gres, ...]
    labels: dict[str, str]


def machine_of(record: Record) -> Machine | None:
    """Return a machine, or None if it has no GPUs."""
    name = record.text("name", "hostname")
    total = _gres(record, "gres")
    if not total or not name:
        return None
    parts: list[Part] = []
    first = 0
    merged: dict[str, int] = {}
    for each in total:
        merged[each.kind or UNTYPED] = merged.get(each.kind or UNTYPED, 0) + each.count
    for kind, count in merged.items():
        node = name if len(merged) == 1 else f"{name}:{kind}"
        parts.append(Part(node, kind, first, count))
        first += count
    labels = {f"partition/{word}": "true" for word in _names(record, "partitions")}
    labels |= {f"feature/{word}": "true" for word in _names(record, "active_features")}
    return Machine(name, _state(record), parts, _gres(record, "gres_used"), labels)


def _names(record: Record, name: str) -> list[str]:
    return [word for word in record.text(name).split(",") if word]


def _gres(record: Record, name: str) -> tuple[Gres, ...]:
    text = record.text(name)
    try:
        return gpus_of(text)
    except ValueError:
        record.unclear(name, text)
        return ()


def _state(record: Record) -> NodeState:
    words = record.words("state", "state_flags")
    unknown = words - DOWN - CLOSED - OPEN
    if unknown:
        record.notes.field(
            f"{record.place}.state", f"{', '.join(sorted(unknown))} is not known; the node starts nothing"
        )
    if words & DOWN:
        return NodeState.DOWN
    return NodeState.DRAINING if words & CLOSED or unknown or not words else NodeState.READY


def node_of(machine: Machine, part: Part, given: Mapping[str, float], unknown: set[str]) -> Node:
    """Return a part as a node; types of unknown memory are added to `unknown` and get 0 GiB."""
    try:
        memory = gpu_memory(part.kind, given)
    except NotFoundError:
        memory = 0.0
        unknown.add(part.kind)
    return Node(
        id=part.node,
        gpu_type=part.kind,
        gpus=part.count,
        gpu_memory_gib=memory,
        state=machine.state,
        unavailable_gpus=tuple(sorted(number - part.first for number in part.busy)),
        labels=machine.labels | ({"machine": machine.name} if len(machine.parts) > 1 else {}),
    )
