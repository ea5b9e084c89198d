"""Invariant 5, priority classes: no class gives GPUs to a lower one.

For every class ``k`` and capacity class (GPU type and usable memory): GPUs given to started, grown or
moved groups whose highest class is at most ``k`` do not exceed those free before plus those released
by jobs of class at most ``k``; exempt is only reclaim under ``Any``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ymir_opt.domain.base import short
from ymir_opt.domain.snapshot import Reclaim
from ymir_opt.verify.devices import SLACK
from ymir_opt.verify.facts import Facts, Placed
from ymir_opt.verify.memory import MemoryNeeds
from ymir_opt.verify.quotas import EPS, QuotaUse
from ymir_opt.verify.violation import Violation

__all__ = ["priorities"]


def priorities(facts: Facts, needs: MemoryNeeds) -> Iterator[Violation]:
    """Yield every class whose groups get more than was free or released by its own class and lower."""
    if len(facts.rank) < 2:
        return
    new: dict[str, list[tuple[Placed, int, float]]] = defaultdict(list)
    exempt = _reclaiming(facts)
    for placed in facts.placed:
        if placed.kept is None and placed.index not in exempt:
            highest = facts.class_of(tuple(job.id for job in placed.holders))
            new[placed.group.gpu_type].append((placed, highest, needs.of(placed) or 0.0))
    if not new:
        return
    busy = {gpu for held in facts.held if held.keepable for gpu in held.gpus}
    reserved = {gpu for gpus in facts.profiled.values() for gpu in gpus}
    for t, groups in new.items():
        free, released = [], []
        for node in facts.nodes.values():
            if node.gpu_type == t:
                own = ((node.id, i) for i in range(node.gpus))
                free += [
                    facts.usable_gib(gpu)
                    for gpu in own
                    if gpu not in busy and gpu not in reserved and facts.ready(gpu)
                ]
        for held in facts.held:
            if held.gpu_type == t and held.keepable and not facts.stays(held):
                k = facts.class_of(held.holders)
                released += [(k, facts.usable_gib(g)) for g in held.gpus if facts.ready(g)]
        for k in sorted({highest for _, highest, _ in groups}):
            for need in sorted({need for _, highest, need in groups if highest <= k}):
                least = need * (1 - SLACK)
                taken = sum(p.group.gpus for p, c, n in groups if c <= k and n >= need)
                had = sum(usable >= least for usable in free)
                had += sum(c <= k and usable >= least for c, usable in released)
                if taken > had:
                    yield Violation(
                        5,
                        f"priority class {k}",
                        f"groups that start get {taken} {short(t)} GPUs of at least {need:.6g} GiB, but only "
                        f"{had} were free or released by jobs of this class or lower",
                    )


def _reclaiming(facts: Facts) -> set[int]:
    """Return the groups whose holders all belong to queues that reclaim under Any within nominal."""
    if not any(
        q.quotas and q.cohort and q.reclaim_within_cohort is Reclaim.ANY for q in facts.queues.values()
    ):
        return set()
    use = QuotaUse(facts)
    out = set()
    for placed in facts.placed:
        rows = [row for _, row, _ in use.of(placed)]
        if len(rows) == len(placed.holders) and all(
            use.rows[r].cohort is not None
            and use.rows[r].reclaim is Reclaim.ANY
            and use.after[r] + use.profiled[r] <= use.rows[r].nominal + EPS
            for r in rows
        ):
            out.add(placed.index)
    return out
