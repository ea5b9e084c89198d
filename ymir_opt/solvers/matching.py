"""Pairs by maximum-weight matching: exact where groups hold at most two jobs.

For jobs of one foundation model at a fixed GPU count, choosing who runs alone and who shares is a
matching: a pair is worth what it gains over running its two members alone. Edmonds' blossom
algorithm solves it exactly in polynomial time (J. Edmonds, *Paths, trees, and flowers*, 1965;
Z. Galil, *Efficient algorithms for finding maximum matching in graphs*, 1986, which networkx
follows), so the total is a bound on, and the pairs are a start for, larger formulations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import InputError

__all__ = ["best_pairs"]

IntArray = NDArray[np.int64]


def best_pairs(
    jobs: int, solo_gain: IntArray, pair: IntArray, pair_gain: IntArray
) -> tuple[IntArray, IntArray, int]:
    """Choose disjoint pairs and single jobs of the largest total gain.

    Parameters
    ----------
    jobs : int
        Number of jobs.
    solo_gain : int64[jobs]
        Gain of running each job alone; a job is left out where it is not positive.
    pair : int64[m, 2]
        Pairs of different jobs; a pair may occur several times.
    pair_gain : int64[m]
        Gain of each pair.

    Returns
    -------
    chosen : int64[k]
        Rows of `pair`, ascending.
    singles : int64[s]
        Jobs that run alone, ascending.
    total : int
        Their gain; no selection of disjoint pairs and singles has more.

    Raises
    ------
    InputError
        The arrays do not fit together, or a pair is not two different jobs.
    """
    pair = np.asarray(pair, np.int64).reshape(-1, 2)
    if len(solo_gain) != jobs or len(pair_gain) != len(pair):
        raise InputError("pairs", "the arrays have different lengths", "give one gain a job and a pair")
    if np.any((pair < 0) | (pair >= jobs)) or np.any(pair[:, 0] == pair[:, 1]):
        raise InputError("pairs", "a pair is not two different jobs", "give rows of two job numbers")
    solo = np.maximum(np.asarray(solo_gain, np.int64), 0)
    extra = np.asarray(pair_gain, np.int64) - solo[pair[:, 0]] - solo[pair[:, 1]]
    rows = _matched(jobs, pair, extra)
    alone = np.ones(jobs, np.bool_)
    alone[pair[rows].ravel()] = False
    singles = np.flatnonzero(alone & (solo > 0)).astype(np.int64)
    total = int(solo.sum()) + int(extra[rows].sum())
    return rows, singles, total


def _matched(jobs: int, pair: IntArray, extra: IntArray) -> IntArray:
    """Return rows of `pair` of the largest total extra gain, ascending."""
    useful = np.flatnonzero(extra > 0)
    if len(useful) == 0:
        return useful.astype(np.int64)
    import networkx as nx

    graph: Any = nx.Graph()
    graph.add_nodes_from(range(jobs))
    best: dict[tuple[int, int], int] = {}
    for row in useful.tolist():
        low, high = sorted(pair[row].tolist())
        known = best.get((low, high))
        if known is None or extra[row] > extra[known]:
            best[low, high] = row
    for (low, high), row in best.items():
        graph.add_edge(low, high, weight=int(extra[row]))
    found = nx.max_weight_matching(graph)
    return np.array(sorted(best[min(edge), max(edge)] for edge in found), dtype=np.int64)
