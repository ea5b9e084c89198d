"""How far the enumeration goes before it becomes a heuristic."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PoolLimits"]


@dataclass(frozen=True)
class PoolLimits:
    """Limits of candidate generation; whatever they drop is counted as heuristic pruning.

    Attributes
    ----------
    exhaustive_below : int
        With fewer jobs nothing is dropped by heuristics.
    max_members : int
        Largest group.
    pairs_per_job : int
        Partners kept for each job and mode, best first.
    grown_per_job : int
        Groups of three (and of four) kept for each job and mode.
    all_counts_to : int
        Every GPU count up to here is tried; beyond, powers of two, multiples of the node size and
        the counts that jobs name.
    starts : int
        Completed adapters tried for each member of a shared group, best first.
    """

    exhaustive_below: int = 8
    max_members: int = 4
    pairs_per_job: int = 12
    grown_per_job: int = 6
    all_counts_to: int = 4
    starts: int = 1
