"""The array form of the checker, for simulations of very many rounds: only what changed is looked at.

Proves of the groups that start, grow or move in one round: a job is in one group (invariant 1), their
GPUs are free, ready and used once (2), gangs are whole, of an allowed size and on the fewest nodes (3),
and nobody is moved who must stay (5). Nodes, GPUs, types and jobs are row numbers; the GPUs that a
group has on a node are a bit mask, so nodes have at most 62 GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.verify.violation import Violation

__all__ = ["RoundColumns", "check_round"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

BITS = 62


@dataclass(frozen=True)
class RoundColumns:
    """One round's changes.

    Attributes
    ----------
    node_type, node_gpus : int64[N]
    node_ready : bool[N]
    node_busy : int64[N]
        GPUs held by groups that go on unchanged, as bits.
    group_type, group_gpus : int64[G]
        The groups that changed.
    group_joint, group_spread : bool[G]
        Joint groups may use the sum of their members' largest counts; workers may lie on any nodes.
    part_group, part_node, part_gpus : int64[P]
        What each group has on each node, as bits.
    member_group, member_job : int64[M]
    job_min, job_max : int64[J]
    job_types : int64[J]
        Allowed types, as bits.
    job_busy : bool[J]
        In a group that goes on unchanged.
    job_moved, job_protected : bool[J]
        Held GPUs and does not stay as it ran; must stay as it runs.
    """

    node_type: IntArray
    node_gpus: IntArray
    node_ready: BoolArray
    node_busy: IntArray
    group_type: IntArray
    group_gpus: IntArray
    group_joint: BoolArray
    group_spread: BoolArray
    part_group: IntArray
    part_node: IntArray
    part_gpus: IntArray
    member_group: IntArray
    member_job: IntArray
    job_min: IntArray
    job_max: IntArray
    job_types: IntArray
    job_busy: BoolArray
    job_moved: BoolArray
    job_protected: BoolArray


def check_round(columns: RoundColumns) -> list[Violation]:
    """Return what the changes of one round break, sorted by invariant; empty if they hold."""
    found = [*_jobs(columns), *_gpus(columns), *_gangs(columns), *_protection(columns)]
    return sorted(found, key=lambda violation: violation.invariant)


def _count(masks: IntArray) -> IntArray:
    """Return the number of set bits of non-negative masks."""
    bits = (masks[:, None] >> np.arange(BITS, dtype=np.int64)) & 1
    return np.asarray(bits.sum(axis=1), dtype=np.int64)


def _jobs(c: RoundColumns) -> Iterator[Violation]:
    times = np.bincount(c.member_job, minlength=len(c.job_min)) + c.job_busy
    for j in np.flatnonzero(times > 1).tolist():
        yield Violation(1, f"job {j}", f"is in {int(times[j])} groups")


def _gpus(c: RoundColumns) -> Iterator[Violation]:
    node, mask = c.part_node, c.part_gpus
    outside = (mask < 0) | (mask >> c.node_gpus[node] != 0)
    for p in np.flatnonzero(outside).tolist():
        yield Violation(2, f"group {c.part_group[p]}", f"uses a GPU that node {node[p]} does not have")
    if outside.any():
        return
    for p in np.flatnonzero(~c.node_ready[node]).tolist():
        yield Violation(2, f"group {c.part_group[p]}", f"node {node[p]} is not ready")
    for p in np.flatnonzero(c.node_type[node] != c.group_type[c.part_group]).tolist():
        yield Violation(
            2,
            f"group {c.part_group[p]}",
            f"node {node[p]} is of type {c.node_type[node[p]]}, not {c.group_type[c.part_group[p]]}",
        )
    for p in np.flatnonzero(mask & c.node_busy[node]).tolist():
        yield Violation(2, f"group {c.part_group[p]}", f"uses a GPU of node {node[p]} that is held")
    union = np.zeros(len(c.node_gpus), dtype=np.int64)
    np.bitwise_or.at(union, node, mask)
    used = np.bincount(node, weights=_count(mask), minlength=len(union))
    for n in np.flatnonzero(used > _count(union)).tolist():
        yield Violation(2, f"node {n}", "a GPU is used by two groups")


def _gangs(c: RoundColumns) -> Iterator[Violation]:
    groups = len(c.group_gpus)
    held = np.bincount(c.part_group, weights=_count(np.maximum(c.part_gpus, 0)), minlength=groups).astype(
        np.int64
    )
    for g in np.flatnonzero(held != c.group_gpus).tolist():
        yield Violation(3, f"group {g}", f"{held[g]} GPUs are named for a gang of {c.group_gpus[g]}")
    low = np.zeros(groups, dtype=np.int64)
    np.maximum.at(low, c.member_group, c.job_min[c.member_job])
    high = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(high, c.member_group, c.job_max[c.member_job])
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, c.member_group, c.job_max[c.member_job])
    high = np.where(c.group_joint, total, high)
    for g in np.flatnonzero((c.group_gpus < low) | (c.group_gpus > high)).tolist():
        yield Violation(
            3, f"group {g}", f"{c.group_gpus[g]} GPUs are outside its members' {low[g]} to {high[g]}"
        )
    allowed = c.job_types[c.member_job] >> c.group_type[c.member_group] & 1
    for m in np.flatnonzero(allowed == 0).tolist():
        g = int(c.member_group[m])
        yield Violation(3, f"group {g}", f"job {c.member_job[m]} may not run on type {c.group_type[g]}")
    nodes = np.bincount(c.part_group[c.part_gpus > 0], minlength=groups)
    fewest = _fewest(c)
    for g in np.flatnonzero(~c.group_spread & ((nodes > fewest) | (fewest == 0))).tolist():
        yield Violation(
            3,
            f"group {g}",
            f"{c.group_gpus[g]} GPUs lie on {nodes[g]} nodes, but {fewest[g]} could hold them",
        )


def _fewest(c: RoundColumns) -> IntArray:
    """Return the fewest empty ready nodes that hold each group, int64[G]; 0 where none do."""
    out = np.zeros(len(c.group_gpus), dtype=np.int64)
    for t in np.unique(c.group_type).tolist():
        sizes = np.sort(c.node_gpus[(c.node_type == t) & c.node_ready])[::-1]
        mine = c.group_type == t
        place = np.searchsorted(np.cumsum(sizes), c.group_gpus[mine], side="left")
        out[mine] = np.where(place < len(sizes), place + 1, 0)
    return out


def _protection(c: RoundColumns) -> Iterator[Violation]:
    for j in np.flatnonzero(c.job_moved & c.job_protected).tolist():
        yield Violation(5, f"job {j}", "must go on as it runs, but does not")
