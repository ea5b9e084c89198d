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
from ymir_opt.verify.facts import Facts, Held, Placed
from ymir_opt.verify.memory import MemoryNeeds
from ymir_opt.verify.quotas import EPS, QuotaUse
from ymir_opt.verify.violation import Violation

__all__ = ["priorities"]


def priorities(facts: Facts, needs: MemoryNeeds) -> Iterator[Violation]:
    """Yield every class whose groups get more than was free or released by its own class and lower."""
    if len(facts.rank) < 2:
        return
    new: dict[str, list[tuple[Placed, int, float]]] = defaultdict(list)
    for placed in facts.placed:
        if placed.kept is None:
            highest = facts.class_of(tuple(job.id for job in placed.holders))
            new[placed.group.gpu_type].append((placed, highest, needs.of(placed) or 0.0))
    released = [held for held in facts.held if held.keepable and not facts.stays(held)]
    if not new or not released:
        return
    use = QuotaUse(facts)
    busy = {gpu for held in facts.held if held.keepable for gpu in held.gpus}
    for t, groups in new.items():
        free = [
            facts.usable_gib(gpu)
            for node in facts.nodes.values()
            if node.gpu_type == t
            for gpu in ((node.id, i) for i in range(node.gpus))
            if gpu not in busy and facts.startable(gpu)
        ]
        given = [
            (facts.class_of(held.holders), facts.usable_gib(gpu))
            for held in released
            if held.gpu_type == t
            for gpu in held.gpus
            if facts.startable(gpu)
        ]
        for k in sorted({highest for _, highest, _ in groups}):
            mine = [(placed, need) for placed, highest, need in groups if highest <= k]
            exempt = _reclaimed(use, t, k, [placed for placed, _ in mine], released)
            for need in sorted({need for _, need in mine}):
                least = need * (1 - SLACK)
                taken = sum(placed.group.gpus for placed, n in mine if n >= need)
                had = sum(usable >= least for usable in free)
                had += sum(c <= k and usable >= least for c, usable in given)
                if taken > had + exempt + EPS:
                    yield Violation(
                        5,
                        f"priority class {k}",
                        f"groups that start get {taken} {short(t)} GPUs of {need:.6g} GiB or more, but {had} "
                        f"were free or released by jobs of this class or lower"
                        + (f", and {exempt:.6g} may be reclaimed" if exempt else ""),
                    )


def _reclaimed(use: QuotaUse, t: str, k: int, new: list[Placed], released: list[Held]) -> float:
    """Return how many GPUs queues below nominal reclaim under ``Any`` from classes above ``k``.

    At most what each lacked of its nominal quota and now gets, and at most what the released groups of
    higher classes were charged to queues of the cohort that were above nominal.
    """
    facts = use.facts
    lacking = [
        i
        for i, row in enumerate(use.rows)
        if row.cohort is not None and row.reclaim is Reclaim.ANY and use.before[i] < row.nominal - EPS
    ]
    if not lacking:
        return 0.0
    got: dict[int, float] = defaultdict(float)
    for placed in new:
        for _, row, amount in use.of(placed):
            got[row] += amount
    cohorts: dict[str, list[int]] = defaultdict(list)
    for i, entry in enumerate(use.rows):
        if entry.cohort is not None:
            cohorts[entry.cohort].append(i)
    total = 0.0
    for entries in cohorts.values():
        for part in use.connected(entries):
            taken = sum(
                min(use.rows[i].nominal - use.before[i], got[i]) for i in part if i in lacking and i in got
            )
            lost = 0.0
            for held in released:
                if held.gpu_type != t or facts.class_of(held.holders) <= k:
                    continue
                share = sum(facts.startable(gpu) for gpu in held.gpus) / len(held.holders)
                rows = [use.row(name, t) for name in held.holders]
                lost += share * sum(
                    r is not None and r in part and use.before[r] > use.rows[r].nominal + EPS for r in rows
                )
            total += min(taken, lost)
    return total
