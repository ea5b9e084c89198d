"""How far the enumeration goes before it becomes a heuristic."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["PoolLimits"]


@dataclass(frozen=True)
class PoolLimits:
    """Limits of candidate generation; whatever they drop is counted as heuristic pruning.

    Attributes
    ----------
    exhaustive_below : int
        With fewer jobs nothing is dropped by heuristics.
    most_sets : int
        If there are more sets of a mode, they are dropped by heuristics all the same.
    max_members : int
        Largest group.
    all_pairs_to : int
        Up to so many possible pairs of a mode every one is scored; beyond, partners of similar rank.
    partner_classes : int
        Beyond that: classes of partners (equal speed and transfer figures) tried for each job.
    partner_ranks : int
        Beyond that: partners of similar rank tried on either side in each class.
    pairs_per_job : int
        Pairs kept for each job and mode, highest reduced profit first.
    partners_per_job : int
        Partners by which groups grow.
    grown_per_job : int
        Groups of three (and of four) kept for each job and mode.
    counts_per_set : int
        (type, count) options kept for each shared set, highest reduced profit first.
    all_counts_to : int
        Every GPU count up to here is tried; beyond, powers of two, multiples of the node size and
        the counts that jobs name.
    starts : int
        Completed adapters tried for each member of a shared group, best first.
    passes : int
        How often the pool is priced again with the duals of its relaxation. With more than one the
        first pool is a `rough` one.
    shards : int
        Parts in which groups are looked for side by side.
    """

    exhaustive_below: int = 8
    most_sets: int = 3_000_000
    max_members: int = 4
    all_pairs_to: int = 60_000
    partner_classes: int = 8
    partner_ranks: int = 2
    pairs_per_job: int = 12
    partners_per_job: int = 6
    grown_per_job: int = 6
    counts_per_set: int = 8
    all_counts_to: int = 4
    starts: int = 1
    passes: int = 0
    shards: int = 1

    def rough(self) -> PoolLimits:
        """Return limits for a first look, at prices too rough to search widely with."""
        return replace(
            self,
            max_members=min(self.max_members, 3),
            pairs_per_job=min(self.pairs_per_job, 3),
            partners_per_job=min(self.partners_per_job, 2),
            grown_per_job=min(self.grown_per_job, 2),
            counts_per_set=min(self.counts_per_set, 3),
        )

    @classmethod
    def of_size(cls, jobs: int) -> PoolLimits:
        """Return limits that keep the pool in proportion to the number of jobs.

        Measured: pricing again with the duals gains more than wider beams (on 63 jobs of a published trace
        it finds what the proven global optimum has and the first pool lacks), and a rough first pool that
        is priced again twice more than a full one that is priced again once, in less time (above 400 jobs).
        """
        if jobs <= 100:
            return cls(passes=1)
        shards = 1 if jobs < 200 else 2 if jobs < 5000 else 4
        wide = cls(
            pairs_per_job=8, partners_per_job=4, grown_per_job=4, counts_per_set=4, passes=2, shards=shards
        )
        if jobs <= 400:
            return replace(wide, passes=1)
        if jobs <= 2000:
            return replace(wide, pairs_per_job=6, partners_per_job=3, grown_per_job=3, counts_per_set=3)
        return replace(
            wide,
            all_pairs_to=20_000,
            partner_classes=5,
            pairs_per_job=4,
            partners_per_job=2,
            grown_per_job=2,
            counts_per_set=3,
        )
