"""Nodes and their GPUs: free counts, placement on the fewest nodes, resident models."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import InputError

__all__ = ["Cluster", "NodeEvent", "NodeSpec", "parse_cluster", "parse_drop"]

_PART = re.compile(r"^\s*(\d+)x(\d+)\s*:\s*([A-Za-z0-9_.-]+)\s*$")
MAX_NODES = 200_000
MAX_NODE_GPUS = 62


@dataclass(frozen=True)
class NodeSpec:
    """One node: its id, GPU type and GPU count."""

    id: str
    gpu_type: str
    gpus: int


@dataclass(frozen=True)
class NodeEvent:
    """A node leaves (``down``), returns (``up``) or is added (``add``) at a time."""

    at_s: float
    kind: str
    node: str
    spec: NodeSpec | None = None


def parse_cluster(text: str, prefix: str = "n", first: int = 0) -> tuple[NodeSpec, ...]:
    """Return the nodes of ``8x4:V100,4x8:A100`` (nodes x GPUs : type), named n0, n1, ...

    Raises
    ------
    InputError
        The text is not of that form.
    """
    nodes: list[NodeSpec] = []
    for part in text.split(","):
        match = _PART.match(part)
        if match is None:
            raise InputError(
                "--cluster", f"{part[:40]!r} is not NODESxGPUS:TYPE", "write it as 8x4:V100,4x8:A100"
            )
        count, gpus, kind = int(match[1]), int(match[2]), match[3]
        if not 0 < count <= MAX_NODES or not 0 < gpus <= MAX_NODE_GPUS:
            raise InputError(
                "--cluster",
                f"{part[:40]!r} has no nodes, no GPUs, or too many",
                f"use 1-{MAX_NODES} nodes of 1-{MAX_NODE_GPUS} GPUs",
            )
        nodes += [NodeSpec(f"{prefix}{first + len(nodes) + i}", kind, gpus) for i in range(count)]
    return tuple(nodes)


def parse_drop(text: str) -> NodeEvent:
    """Return the event of ``n3@3600``: the node goes down at that second."""
    node, at, when = text.rpartition("@")
    try:
        seconds = float(when)
    except ValueError:
        at = ""
        seconds = 0.0
    if not (node and at) or not np.isfinite(seconds):
        raise InputError("--drop-node", f"{text[:40]!r} is not ID@SECONDS", "write it as n3@3600")
    return NodeEvent(seconds, "down", node)


class Cluster:
    """The nodes' state.

    Attributes
    ----------
    ids : list of str
    types : tuple of str
        GPU type names; more may be appended by added nodes only if known from the start.
    type : int64[N]
    size, free : int64[N]
        GPUs, and free GPUs (0 on nodes that are not ready).
    ready : bool[N]
    free_mask : list of int
        Bit mask of the free GPUs of each node.
    resident : list of list of int
        Foundation model index that each GPU last held, -1 none.
    """

    def __init__(self, nodes: tuple[NodeSpec, ...], types: tuple[str, ...]) -> None:
        self.ids: list[str] = []
        self.types = types
        self.index: dict[str, int] = {}
        self.type: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.size: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.free: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.ready: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.free_mask: list[int] = []
        self.resident: list[list[int]] = []
        self._rows: list[NDArray[np.int64]] = []
        self._min_nodes: dict[tuple[int, int], int] = {}
        self.add(nodes)

    def add(self, nodes: tuple[NodeSpec, ...]) -> None:
        """Append nodes.

        Raises
        ------
        InputError
            An id occurs twice, or a GPU type was not announced.
        """
        for node in nodes:
            if node.id in self.index:
                raise InputError(f"node {node.id!r}", "occurs twice", "give every node its own id")
            if node.gpu_type not in self.types:
                raise InputError(
                    f"node {node.id!r}",
                    f"GPU type {node.gpu_type!r} has no speeds",
                    f"known: {', '.join(self.types)}",
                )
            self.index[node.id] = len(self.ids)
            self.ids.append(node.id)
            self.free_mask.append((1 << node.gpus) - 1)
            self.resident.append([-1] * node.gpus)
        size = np.array([node.gpus for node in nodes], dtype=np.int64)
        kind = np.array([self.types.index(node.gpu_type) for node in nodes], dtype=np.int64)
        self.type = np.concatenate([self.type, kind])
        self.size = np.concatenate([self.size, size])
        self.free = np.concatenate([self.free, size])
        self.ready = np.concatenate([self.ready, np.ones(len(nodes), dtype=np.bool_)])
        self._refresh()

    def _refresh(self) -> None:
        self._rows = [np.flatnonzero(self.type == t) for t in range(len(self.types))]
        self._min_nodes.clear()

    def set_ready(self, node: int, ready: bool) -> None:
        """Take a node out (its GPUs must be released) or bring it back empty."""
        self.ready[node] = ready
        size = int(self.size[node])
        self.free_mask[node] = (1 << size) - 1 if ready else 0
        self.free[node] = size if ready else 0
        self.resident[node] = [-1] * size
        self._min_nodes.clear()

    def fewest_nodes(self, gpus: int, gpu_type: int) -> int:
        """Return the fewest nodes of a type that could hold `gpus` if all were empty; 0: none could."""
        key = (gpus, gpu_type)
        if key not in self._min_nodes:
            rows = self._rows[gpu_type]
            sizes = np.sort(self.size[rows][self.ready[rows]])[::-1]
            total = np.cumsum(sizes)
            where = int(np.searchsorted(total, gpus))
            self._min_nodes[key] = where + 1 if where < len(sizes) else 0
        return self._min_nodes[key]

    def find(self, gpus: int, gpu_type: int) -> tuple[tuple[int, int], ...] | None:
        """Return (node, count) pairs for a gang: best fit on one node, else the fewest nodes, else None.

        On several nodes, those with most free GPUs are taken first; a gang that would need more nodes than
        on an empty cluster waits (Titan's consolidated placement).
        """
        nodes = self.fewest_nodes(gpus, gpu_type)
        if nodes == 0:
            return None
        rows = self._rows[gpu_type]
        free = self.free if len(rows) == len(self.free) else self.free[rows]
        if nodes == 1:
            score = np.where(free >= gpus, free, MAX_NODE_GPUS + 1)
            best = int(np.argmin(score))
            if free[best] < gpus:
                return None
            return ((int(rows[best]), gpus),)
        order = np.argsort(-free.astype(np.int16), kind="stable")[:nodes]
        left = gpus
        found = []
        for row in order:
            take = min(left, int(free[row]))
            if take == 0:
                break
            found.append((int(rows[row]), take))
            left -= take
        return tuple(found) if left == 0 else None

    def pick(self, where: tuple[tuple[int, int], ...], model: int) -> tuple[tuple[int, int], ...]:
        """Return free GPUs for (node, count) pairs as (node, bit mask), resident ones first."""
        picked = []
        for node, count in where:
            mask, chosen = self.free_mask[node], 0
            resident = self.resident[node]
            indices = [g for g in range(len(resident)) if mask >> g & 1]
            if model >= 0:
                indices.sort(key=lambda g: resident[g] != model)
            for g in indices[:count]:
                chosen |= 1 << g
            picked.append((node, chosen))
        return tuple(picked)

    def can_take(self, taken: tuple[tuple[int, int], ...]) -> bool:
        """Say whether all these GPUs are free and ready."""
        return all(self.ready[node] and not mask & ~self.free_mask[node] for node, mask in taken)

    def occupy(self, taken: tuple[tuple[int, int], ...], model: int) -> bool:
        """Occupy free GPUs; return whether all of them already held the model (-1: none)."""
        warm = model >= 0
        for node, mask in taken:
            resident = self.resident[node]
            self.free_mask[node] &= ~mask
            self.free[node] -= mask.bit_count()
            if model < 0:
                continue
            for g in range(len(resident)):
                if mask >> g & 1:
                    warm = warm and resident[g] == model
                    resident[g] = model
        return warm

    def give(self, taken: tuple[tuple[int, int], ...]) -> None:
        """Free GPUs."""
        for node, mask in taken:
            if self.ready[node]:
                self.free_mask[node] |= mask
                self.free[node] += mask.bit_count()
