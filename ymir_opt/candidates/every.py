"""Every set of jobs that may form a group of a mode: cliques of pairs that are allowed and known.

Each test on a set (levels, tenants, model, history) holds for a set only if it holds for its pairs,
and no row answers for a group of which some pair has none in the same role. So sets grow from pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.partners import PairFinder
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode

__all__ = ["every_set"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
BLOCK = 20_000


def every_set(
    rules: Rules, finder: PairFinder, mode: Mode, members: int, most: int
) -> tuple[IntArray, ...] | None:
    """Return the sets of 2 to ``members`` jobs, int64[M, K] each; in a sequence every order.

    Parameters
    ----------
    rules : Rules
    finder : PairFinder
    mode : Mode
    members : int
    most : int
        None is returned where there are more sets than this.
    """
    jobs = rules.evaluator.jobs
    linked = finder.linked(mode)
    rows = np.flatnonzero(jobs.startable & ~jobs.rigid)
    ordered = mode is Mode.SEQUENCE
    together = np.zeros(linked.shape, dtype=np.bool_)
    one, two = (a.ravel() for a in np.meshgrid(rows, rows, indexing="ij"))
    near = (one < two) & (linked[one, two] | linked[two, one] if ordered else linked[one, two])
    # members of a sequence that never follow each other must still be allowed together
    near |= (one < two) & ordered
    pairs = np.column_stack([one[near], two[near]])
    pairs = pairs[rules.allowed(mode, pairs)] if len(pairs) else pairs
    together[pairs[:, 0], pairs[:, 1]] = together[pairs[:, 1], pairs[:, 0]] = True
    step = together & linked if ordered else np.triu(together, 1)
    sets = np.argwhere(step).astype(np.int64)
    out, total = [], 0
    for size in range(2, members + 1):
        if size > 2:
            sets = _grown(sets, together, step, most - total)
        total += len(sets)
        if total > most:
            return None
        if len(sets):
            out.append(sets[rules.allowed(mode, sets)])
    return tuple(out)


def _grown(sets: IntArray, together: BoolArray, step: BoolArray, most: int) -> IntArray:
    """Return the sets with one more job that may follow the last and be with all; it ends beyond ``most``."""
    parts, total = [np.zeros((0, sets.shape[1] + 1), dtype=np.int64)], 0
    for begin in range(0, len(sets), BLOCK):
        block = sets[begin : begin + BLOCK]
        fits = step[block[:, -1]].copy()
        for k in range(block.shape[1] - 1):
            fits &= together[block[:, k]]
        row, added = np.nonzero(fits)
        parts.append(np.column_stack([block[row], added]))
        total += len(row)
        if total > most:
            break
    return np.concatenate(parts)
