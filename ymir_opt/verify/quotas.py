"""Invariant 5, quotas: queue limits, cohorts with lending, protection within nominal, reclaim.

Per GPU type (``*`` pools the types without an entry of their own) a queue uses at most nominal plus
borrowing limit, without cohort at most nominal; a cohort at most the sum of its nominal quotas. These
bind what starts or grows: kept use may exceed a lowered quota. Use within nominal is never preempted by
borrowing; what a queue may take from others of its cohort by stopping them is ``reclaim_within_cohort``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ymir_opt.domain.base import short
from ymir_opt.domain.snapshot import Queue, Quota, Reclaim
from ymir_opt.verify.facts import Facts, Held, Placed
from ymir_opt.verify.violation import Violation

__all__ = ["QuotaUse", "quotas"]

EPS = 1e-6


@dataclass(frozen=True)
class _Row:
    """One quota entry and the cluster's GPU types that it covers."""

    queue: str
    cohort: str | None
    name: str
    types: tuple[str, ...]
    nominal: float
    limit: float
    guaranteed: float
    reclaim: Reclaim

    @property
    def place(self) -> str:
        return f"queue {short(self.queue)}, {short(self.name)}"


class QuotaUse:
    """Use of every quota entry before and after the plan, in GPUs.

    Attributes
    ----------
    rows : list of _Row
    before, after, profiled : list of float
        By entry: what runs and can stay; what the groups use; what profile actions use.
    grown : list of bool
        By entry: a job is charged more than before.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.rows: list[_Row] = []
        self._row_of: dict[tuple[str, str], int] = {}
        self._limited: set[str] = set()
        types = tuple(dict.fromkeys(node.gpu_type for node in facts.nodes.values()))
        for queue in facts.queues.values():
            own = {quota.gpu_type for quota in queue.quotas}
            if queue.quotas:
                self._limited.add(queue.name)
            for quota in queue.quotas:
                covered = tuple(
                    t for t in types if t == quota.gpu_type or (quota.gpu_type == "*" and t not in own)
                )
                for t in covered:
                    self._row_of[queue.name, t] = len(self.rows)
                self.rows.append(_entry(queue, quota, covered))
        count = len(self.rows)
        self.before, self.after, self.profiled = [0.0] * count, [0.0] * count, [0.0] * count
        self.grown = [False] * count
        charged: dict[tuple[str, int], float] = {}
        for held in facts.held:
            if held.keepable:
                for name, row, amount in self.charges(held.holders, held.gpu_type, len(held.gpus)):
                    self.before[row] += amount
                    charged[name, row] = amount
        for placed in facts.placed:
            for name, row, amount in self.of(placed):
                self.after[row] += amount
                if placed.kept is None and amount > charged.get((name, row), 0.0) + EPS:
                    self.grown[row] = True
        for name, gpus in facts.profiled.items():
            to = facts.actions[name].to
            found = self.row(name, to.gpu_type if to is not None else "")
            if found is not None and gpus:
                self.profiled[found] += len(gpus)
                self.grown[found] = True

    def row(self, job: str, gpu_type: str) -> int | None:
        """Return the quota entry that a job on a type is charged to; None without one."""
        return self._row_of.get((self.facts.jobs[job].queue, gpu_type))

    def allowed(self, job: str, gpu_type: str) -> bool:
        """Say whether a job's queue may use a type at all."""
        queue = self.facts.jobs[job].queue
        return queue not in self._limited or (queue, gpu_type) in self._row_of

    def charges(self, holders: tuple[str, ...], gpu_type: str, gpus: int) -> Iterator[tuple[str, int, float]]:
        """Yield (job, entry, GPUs) of a group: every holder is charged its equal share."""
        for name in holders:
            row = self.row(name, gpu_type)
            if row is not None:
                yield name, row, gpus / len(holders)

    def of(self, placed: Placed) -> Iterator[tuple[str, int, float]]:
        """Yield the charges of a planned group."""
        names = tuple(job.id for job in placed.holders)
        yield from self.charges(names, placed.group.gpu_type, placed.group.gpus)

    def connected(self, rows: list[int]) -> list[list[int]]:
        """Return the entries in parts that share GPU types, directly or through others."""
        parts: list[tuple[set[str], list[int]]] = []
        for row in rows:
            types, members = set(self.rows[row].types), [row]
            if not types:
                continue
            apart = []
            for other_types, other in parts:
                if types & other_types:
                    types |= other_types
                    members = other + members
                else:
                    apart.append((other_types, other))
            parts = [*apart, (types, members)]
        return [members for _, members in parts]


def _entry(queue: Queue, quota: Quota, types: tuple[str, ...]) -> _Row:
    nominal = quota.nominal_gpus
    limit = nominal
    if queue.cohort is not None:
        borrowing = quota.borrowing_limit_gpus
        limit = float("inf") if borrowing is None else nominal + borrowing
    lendable = nominal if quota.lending_limit_gpus is None else min(nominal, quota.lending_limit_gpus)
    return _Row(
        queue.name,
        queue.cohort,
        quota.gpu_type,
        types,
        nominal,
        limit,
        nominal - lendable,
        queue.reclaim_within_cohort,
    )


def quotas(facts: Facts) -> Iterator[Violation]:
    """Yield every broken quota rule."""
    if not any(queue.quotas for queue in facts.queues.values()):
        return
    use = QuotaUse(facts)
    yield from _types(use)
    yield from _queues(use)
    yield from _cohorts(use)
    yield from _within_nominal(use)
    yield from _reclaimed(use)


def _types(use: QuotaUse) -> Iterator[Violation]:
    for placed in use.facts.placed:
        if placed.kept is not None:
            continue
        for job in placed.holders:
            if not use.allowed(job.id, placed.group.gpu_type):
                yield Violation(
                    5,
                    placed.place,
                    f"queue {short(job.queue)} of job {short(job.id)} has no quota of "
                    f"{short(placed.group.gpu_type)}",
                )
    for name in use.facts.profiled:
        to = use.facts.actions[name].to
        if to is not None and not use.allowed(name, to.gpu_type):
            yield Violation(
                5,
                f"job {short(name)}",
                f"is profiled on {short(to.gpu_type)}, of which its queue has no quota",
            )


def _queues(use: QuotaUse) -> Iterator[Violation]:
    for i, row in enumerate(use.rows):
        total = use.after[i] + use.profiled[i]
        if use.grown[i] and total > row.limit + EPS:
            yield Violation(
                5,
                row.place,
                f"{total:.6g} GPUs are used and something starts or grows, but the limit is {row.limit:.6g}",
            )


def _cohorts(use: QuotaUse) -> Iterator[Violation]:
    members: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(use.rows):
        if row.cohort is not None:
            members[row.cohort].append(i)
    for cohort, entries in members.items():
        for part in use.connected(entries):
            limit = sum(use.rows[i].nominal - use.rows[i].guaranteed for i in part)
            taken = sum(max(0.0, use.after[i] + use.profiled[i] - use.rows[i].guaranteed) for i in part)
            if taken > limit + EPS and any(use.grown[i] for i in part):
                names = ", ".join(sorted({t for i in part for t in use.rows[i].types}))
                yield Violation(
                    5,
                    f"cohort {short(cohort)}",
                    f"{taken:.6g} GPUs ({names}) are used beyond what is never lent and something starts or "
                    f"grows, but {limit:.6g} may be",
                )


def _victims(use: QuotaUse) -> Iterator[tuple[str, Held]]:
    """Yield the jobs that run, could stay, and are left out."""
    for name, held in use.facts.holds.items():
        if held.keepable and name not in use.facts.placed_by:
            yield name, held


def _within_nominal(use: QuotaUse) -> Iterator[Violation]:
    for part in use.connected(list(range(len(use.rows)))):
        borrowing = [i for i in part if use.after[i] > max(use.rows[i].nominal, use.before[i]) + EPS]
        if not borrowing:
            continue
        for name, held in _victims(use):
            row = use.row(name, held.gpu_type)
            if row is None or row not in part:
                continue
            level = min(use.before[row], use.rows[row].nominal)
            if use.after[row] < level - EPS:
                yield Violation(
                    5,
                    f"job {short(name)}",
                    f"is preempted and its queue falls from {level:.6g} GPUs within nominal to "
                    f"{use.after[row]:.6g}, while {use.rows[borrowing[0]].place} borrows more than before",
                )


def _reclaimed(use: QuotaUse) -> Iterator[Violation]:
    facts = use.facts
    victims = dict(_victims(use))
    if not victims:
        return
    free: dict[str, int] = defaultdict(int)
    busy = {gpu for held in facts.held if held.keepable for gpu in held.gpus}
    for node in facts.nodes.values():
        for i in range(node.gpus):
            gpu = (node.id, i)
            if gpu not in busy and facts.startable(gpu):
                free[node.gpu_type] += 1
    released = [held for held in facts.held if held.keepable and not facts.stays(held)]
    for i, row in enumerate(use.rows):
        if row.cohort is None or row.reclaim is Reclaim.ANY:
            continue
        for t in row.types:
            yield from _taken(use, i, t, free[t], released, victims)


def _taken(
    use: QuotaUse, i: int, t: str, free: int, released: list[Held], victims: dict[str, Held]
) -> Iterator[Violation]:
    """Compare what an entry's groups of each class get on a type with what they may take."""
    facts, row = use.facts, use.rows[i]
    got: dict[int, float] = defaultdict(float)
    for placed in facts.placed:
        if placed.kept is None and placed.group.gpu_type == t:
            k = facts.class_of(tuple(job.id for job in placed.holders))
            got[k] += sum(amount for _, at, amount in use.of(placed) if at == i)
    never = row.reclaim is Reclaim.NEVER
    for k in [max(got)] if never and got else sorted(got):
        total = sum(amount for at, amount in got.items() if at <= k)
        covered = float(free)
        for held in released:
            if held.gpu_type != t:
                continue
            usable = sum(facts.startable(gpu) for gpu in held.gpus)
            share = usable / len(held.holders)
            for name in held.holders:
                job = facts.jobs[name]
                queue = facts.queues.get(job.queue)
                inside = queue is not None and queue.cohort == row.cohort
                if job.queue == row.queue:
                    covered += share
                elif name not in victims:
                    # it gives up what it then has less; its own move takes the rest
                    covered += max(0.0, share - _charge(facts, name, t))
                elif not inside or not (never or facts.rank[job.priority] >= k):
                    covered += share
        if total > covered + EPS:
            yield Violation(
                5,
                row.place,
                f"groups that start get {total:.6g} {short(t)} GPUs, but without reclaiming from the cohort "
                f"({row.reclaim.value}) only {covered:.6g} are to be had",
            )


def _charge(facts: Facts, name: str, t: str) -> float:
    """Return a job's share of its group's GPUs of a type after the plan."""
    placed = facts.holding.get(name)
    if placed is None or placed.group.gpu_type != t:
        return 0.0
    return placed.group.gpus / len(placed.holders)
