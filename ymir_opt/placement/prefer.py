"""Give groups the GPUs they used before, where that changes nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.instance import Instance

__all__ = ["hand_out", "swap_preferred"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def hand_out(instance: Instance, owners: IntArray, rows: IntArray, liked: Mapping[int, IntArray]) -> IntArray:
    """Return the owner of each placed part: who used its node before, others in their order.

    Parameters
    ----------
    instance : Instance
    owners : int64[m]
        Demands that each get one of these equal parts, ascending, with repetitions.
    rows : int64[m, size]
        GPU rows of the parts.
    liked : mapping
        Demand to the GPUs it used before.
    """
    if not liked:
        return owners
    node = instance.gpu_node[rows[:, 0]]
    spots: dict[int, list[int]] = {}
    for spot in range(len(rows) - 1, -1, -1):
        spots.setdefault(int(node[spot]), []).append(spot)
    given = np.full(len(rows), -1, np.int64)
    rest: list[int] = []
    for owner in owners.tolist():
        nodes, counts = np.unique(instance.gpu_node[liked.get(owner, rows[0][:0])], return_counts=True)
        for n in nodes[np.argsort(-counts, kind="stable")].tolist():
            if spots.get(n):
                given[spots[n].pop()] = owner
                break
        else:
            rest.append(owner)
    given[given < 0] = rest
    return given


def swap_preferred(
    instance: Instance, open_gpu: BoolArray, owner: IntArray, gpu: IntArray, liked: Mapping[int, IntArray]
) -> None:
    """Exchange GPUs of one kind on one node, in place, so that groups get back those they used.

    Parameters
    ----------
    instance : Instance
    open_gpu : bool[U]
        GPUs that may be used.
    owner, gpu : int64[g]
        Demand and GPU row of each placed GPU; ``gpu`` is changed.
    liked : mapping
        Demand to the GPUs it used before.
    """
    if not liked:
        return
    at = np.full(len(instance.gpu_node), -1, np.int64)
    at[gpu] = np.arange(len(gpu))
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], [sorted(liked), [i + 1 for i in sorted(liked)]])
    for which, demand in enumerate(sorted(liked)):
        wanted = set(liked[demand].tolist())
        mine = order[bounds[0][which] : bounds[1][which]]
        held = set(gpu[mine].tolist())
        for u in sorted(wanted - held):
            if not open_gpu[u]:
                continue
            other = int(at[u])
            if other >= 0 and u in liked.get(int(owner[other]), ()):
                continue
            for i in mine.tolist():
                v = int(gpu[i])
                if v not in wanted and _alike(instance, u, v):
                    gpu[i] = u
                    at[u], at[v] = i, other
                    if other >= 0:
                        gpu[other] = v
                    break


def _alike(instance: Instance, u: int, v: int) -> bool:
    return bool(
        instance.gpu_node[u] == instance.gpu_node[v]
        and instance.gpu_level[u] == instance.gpu_level[v]
        and instance.gpu_resident[u] == instance.gpu_resident[v]
    )
