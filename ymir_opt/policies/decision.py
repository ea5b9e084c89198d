"""What a columnar policy answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Decision", "GroupDecision"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class GroupDecision:
    """One group of a decision (solo runs are given by the arrays of :class:`Decision`).

    A running group with the same mode, members, count and type is kept as it is.

    Attributes
    ----------
    mode : str
    rows : tuple of int
        Members; for ``sequence`` in running order.
    gpus : int
    gpu_type : int
        -1: the first allowed type with room.
    starts_from : mapping
        Row -> class index whose weights the job starts from (a completed job's or a predecessor's).
    probe_evaluations : int
        Epochs after which the merge must have proven itself; 0: no probe.
    probe_limits : mapping
        Row -> most work in samples with which its probe is passed. Without one it must need less than alone.
    nodes : tuple of (int, int) or None
        (node index, bit mask of its GPUs); None: the engine places it.
    """

    mode: str
    rows: tuple[int, ...]
    gpus: int
    gpu_type: int = -1
    starts_from: Mapping[int, int] = field(default_factory=dict)
    probe_evaluations: int = 0
    probe_limits: Mapping[int, float] = field(default_factory=dict)
    nodes: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Decision:
    """What a policy wants: GPU counts by row, and groups.

    A running job whose count (and type, if given) is unchanged keeps its GPUs; any other change frees them
    and starts the job anew. New starts are placed by decreasing count, ties in `order`; what cannot be
    placed on the fewest possible nodes stays pending.

    Attributes
    ----------
    gpus : int64[n]
        GPUs of each row's solo run; 0: waits (or is a member of a group).
    gpu_type : int64[n] or None
        Wanted type, -1: any allowed.
    order : int64[m] or None
        Rows in order of placement among equal counts; rows left out come last in row order.
    groups : tuple of GroupDecision
    large_first : bool
        False: place strictly in `order`.
    stop_at_first : bool
        True: the first start that finds no room holds back all later ones (strict first in, first out).
    waived : frozenset of str
        Checks that the faithful reproduction of a faulty reference has to do without: ``"capacity"`` (the
        counts may add up to more than there is; what finds no room stays pending) and ``"max_gpus"``.
    nodes : mapping
        Row -> (node index, bit mask of its GPUs) pairs, for policies that place themselves.
    moved : frozenset of int
        Running rows that are started anew although their count is the same (a migration).
    objective, bound, value_gap : float or None
        What the policy's solver proved, for the record.
    why : callable or None
        Row -> the policy's own reason for what it does with the job, one line, plain text. It is asked only
        about rows whose GPUs change, and only where a record of them is kept.
    """

    gpus: IntArray
    gpu_type: IntArray | None = None
    order: IntArray | None = None
    groups: tuple[GroupDecision, ...] = ()
    large_first: bool = True
    stop_at_first: bool = False
    waived: frozenset[str] = frozenset()
    nodes: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    moved: frozenset[int] = frozenset()
    objective: float | None = None
    bound: float | None = None
    value_gap: float | None = None
    why: Callable[[int], str] | None = None
