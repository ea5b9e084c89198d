"""Back-filling by GPU count: take jobs in order as long as they fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fill"]

IntArray = NDArray[np.int64]


def fill(order: IntArray, need: IntArray, gpus: int) -> list[int]:
    """Return the rows taken in `order` when each takes what it needs and those that do not fit are passed.

    Parameters
    ----------
    order : int64[m]
        Rows by priority.
    need : int64[n]
        GPUs by row.
    gpus : int
        GPUs to give.
    """
    taken: list[int] = []
    if not len(order):
        return taken
    counts = need[order]
    total = np.cumsum(counts)
    # everything up to the first job that does not fit is taken in one step
    head = int(np.searchsorted(total, gpus, side="right"))
    taken.extend(order[:head].tolist())
    left = gpus - (int(total[head - 1]) if head else 0)
    smallest = int(counts.min())
    for row, count in zip(order[head:].tolist(), counts[head:].tolist(), strict=True):
        if left < smallest:
            break
        if count <= left:
            left -= count
            taken.append(row)
    return taken
