"""What a whole plan must respect: quotas, priority classes, placement; by trying, on concrete sets."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from oracle_jobs import Jobs
from oracle_options import Option

from ymir_opt.domain.snapshot import NodeState, Reclaim

UNLIMITED = Fraction(10**9)


class Rules:
    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.entries: list[dict] = []
        self.entry_of: dict[tuple[str, str], int] = {}
        for queue in jobs.snapshot.queues:
            named = {quota.gpu_type for quota in queue.quotas}
            for quota in queue.quotas:
                types = [
                    t for t in jobs.types if t == quota.gpu_type or (quota.gpu_type == "*" and t not in named)
                ]
                nominal = Fraction(quota.nominal_gpus)
                limit = nominal
                if queue.cohort is not None:
                    extra = quota.borrowing_limit_gpus
                    limit = UNLIMITED if extra is None else nominal + Fraction(extra)
                lend = quota.lending_limit_gpus
                for t in types:
                    self.entry_of[queue.name, t] = len(self.entries)
                self.entries.append(
                    {
                        "queue": queue.name,
                        "cohort": queue.cohort,
                        "types": set(types),
                        "nominal": nominal,
                        "limit": limit,
                        "own": Fraction(0) if lend is None else max(Fraction(0), nominal - Fraction(lend)),
                        "reclaim": queue.reclaim_within_cohort,
                    }
                )
        self.limited = {queue.name for queue in jobs.snapshot.queues if queue.quotas}
        self.before = [Fraction(0)] * len(self.entries)
        self.charged: dict[tuple[int, int], Fraction] = {}
        for run in jobs.runs:
            if run.stays:
                for j, entry, amount in self._charges(run.holders, run.gpu_type, len(run.gpus)):
                    self.before[entry] += amount
                    self.charged[j, entry] = amount
        everything = list(range(len(self.entries)))
        self.areas = self._parts(everything)
        cohorts = {e["cohort"] for e in self.entries} - {None}
        self.cohorts = [
            part
            for cohort in sorted(cohorts)
            for part in self._parts([i for i in everything if self.entries[i]["cohort"] == cohort])
        ]
        self.levels = {
            t: sorted(
                {
                    self.usable((n, g))
                    for n, node in enumerate(jobs.nodes)
                    for g in range(node.gpus)
                    if node.gpu_type == t and jobs.exists((n, g))
                }
            )
            for t in jobs.types
        }

    def _parts(self, entries: list[int]) -> list[list[int]]:
        """Entries connected through common GPU types."""
        left, parts = [i for i in entries if self.entries[i]["types"]], []
        while left:
            part, types = [left.pop(0)], set()
            types |= self.entries[part[0]]["types"]
            while more := [i for i in left if self.entries[i]["types"] & types]:
                part += more
                left = [i for i in left if i not in more]
                for i in more:
                    types |= self.entries[i]["types"]
            parts.append(part)
        return parts

    def _charges(self, holders, gpu_type, gpus) -> Iterator[tuple[int, int, Fraction]]:
        for j in holders:
            entry = self.entry_of.get((self.jobs.jobs[j].queue, gpu_type))
            if entry is not None:
                yield j, entry, Fraction(gpus, len(holders))

    # -- GPUs -----------------------------------------------------------------------------------

    def usable(self, gpu: tuple[int, int]) -> float:
        node = self.jobs.nodes[gpu[0]]
        return node.gpu_memory_gib - (node.external_used_gib[gpu[1]] if node.external_used_gib else 0.0)

    def ready(self, gpu: tuple[int, int]) -> bool:
        return self.jobs.nodes[gpu[0]].state is NodeState.READY and self.jobs.exists(gpu)

    def ready_gpus(self) -> list[tuple[int, int]]:
        return [
            (n, g) for n, node in enumerate(self.jobs.nodes) for g in range(node.gpus) if self.ready((n, g))
        ]

    # -- one option -----------------------------------------------------------------------------

    def type_allowed(self, option: Option) -> bool:
        return all(
            self.jobs.jobs[j].queue not in self.limited
            or (self.jobs.jobs[j].queue, option.gpu_type) in self.entry_of
            for j in option.holders
        )

    # -- a whole plan ---------------------------------------------------------------------------

    def hold(self, chosen: list[Option]) -> bool:
        """Quotas and priorities of a complete choice of options."""
        return self._quotas(chosen) and self._priorities(chosen)

    def _quotas(self, chosen: list[Option]) -> bool:
        if not self.entries:
            return True
        after = [Fraction(0)] * len(self.entries)
        grown = [False] * len(self.entries)
        for option in chosen:
            for j, entry, amount in self._charges(option.holders, option.gpu_type, option.gpus):
                after[entry] += amount
                if option.run < 0 and amount > self.charged.get((j, entry), 0):
                    grown[entry] = True
        for i, entry in enumerate(self.entries):
            if grown[i] and after[i] > entry["limit"]:
                return False
        for part in self.cohorts:
            shared = sum(max(Fraction(0), after[i] - self.entries[i]["own"]) for i in part)
            lent = sum(self.entries[i]["nominal"] - self.entries[i]["own"] for i in part)
            if any(grown[i] for i in part) and shared > lent:
                return False
        covered = {j for option in chosen for j in option.members}
        victims = [j for j, run in self.jobs.holds.items() if run.stays and j not in covered]
        for part in self.areas:
            if not any(after[i] > max(self.entries[i]["nominal"], self.before[i]) for i in part):
                continue
            for j in victims:
                i = self.entry_of.get((self.jobs.jobs[j].queue, self.jobs.holds[j].gpu_type))
                if i in part and after[i] < min(self.before[i], self.entries[i]["nominal"]):
                    return False
        return not victims or self._reclaims(chosen, victims)

    def _reclaims(self, chosen: list[Option], victims: list[int]) -> bool:
        kept = {option.run for option in chosen if option.run >= 0}
        busy = {gpu for run in self.jobs.runs if run.stays for gpu in run.gpus}
        for i, entry in enumerate(self.entries):
            if entry["cohort"] is None or entry["reclaim"] is Reclaim.ANY:
                continue
            for t in entry["types"]:
                got: dict[int, Fraction] = defaultdict(Fraction)
                for option in chosen:
                    if option.run < 0 and option.gpu_type == t:
                        k = max(self.jobs.rank[j] for j in option.holders)
                        for _, at, amount in self._charges(option.holders, t, option.gpus):
                            if at == i:
                                got[k] += amount
                never = entry["reclaim"] is Reclaim.NEVER
                for k in [max(got)] if never and got else list(got):
                    room = Fraction(
                        sum(
                            self.jobs.nodes[gpu[0]].gpu_type == t and gpu not in busy
                            for gpu in self.ready_gpus()
                        )
                    )
                    for r, run in enumerate(self.jobs.runs):
                        if not run.stays or r in kept or run.gpu_type != t:
                            continue
                        share = Fraction(sum(self.ready(gpu) for gpu in run.gpus), len(run.holders))
                        for j in run.holders:
                            queue = self.jobs.queues.get(self.jobs.jobs[j].queue)
                            if queue is not None and queue.name == entry["queue"]:
                                room += share
                            elif j not in victims:
                                # it goes on elsewhere: it gives up what it then has less of this type
                                now = next((o for o in chosen if j in o.holders and o.gpu_type == t), None)
                                has = Fraction(now.gpus, len(now.holders)) if now else 0
                                room += max(Fraction(0), share - has)
                            elif (
                                queue is None
                                or queue.cohort != entry["cohort"]
                                or (not never and self.jobs.rank[j] < k)
                            ):
                                room += share
                    if sum(amount for at, amount in got.items() if at <= k) > room:
                        return False
        return True

    def _priorities(self, chosen: list[Option]) -> bool:
        kept = {option.run for option in chosen if option.run >= 0}
        gone = [run for r, run in enumerate(self.jobs.runs) if run.stays and r not in kept]
        if not gone:
            return True
        busy = {gpu for run in self.jobs.runs if run.stays for gpu in run.gpus}
        new = [
            (max(self.jobs.rank[j] for j in option.holders), option) for option in chosen if option.run < 0
        ]
        for t in self.jobs.types:
            for k in {c for c, option in new if option.gpu_type == t}:
                mine = [option for c, option in new if c <= k and option.gpu_type == t]
                extra = self._reclaimable(mine, gone, t, k)
                for level in self.levels[t]:
                    # confined to this capacity class: no smaller GPU would do
                    taken = sum(
                        o.gpus
                        for o in mine
                        if not any(v >= o.need * (1 - 1e-9) for v in self.levels[t] if v < level)
                    )
                    had = 0
                    for gpu in self.ready_gpus():
                        if self.jobs.nodes[gpu[0]].gpu_type != t or self.usable(gpu) < level:
                            continue
                        owner = next((run for run in gone if gpu in run.gpus), None)
                        if gpu not in busy:
                            had += 1
                        elif owner is not None:
                            had += max(self.jobs.rank[j] for j in owner.holders) <= k
                    if taken > had + extra:
                        return False
        return True

    def _reclaimable(self, mine, gone, t, k) -> Fraction:
        """GPUs that queues below nominal reclaim under Any from higher classes of their cohort."""
        total = Fraction(0)
        for part in self.cohorts:
            lost = Fraction(0)
            for run in gone:
                if run.gpu_type != t or max(self.jobs.rank[j] for j in run.holders) <= k:
                    continue
                share = Fraction(sum(self.ready(gpu) for gpu in run.gpus), len(run.holders))
                for j in run.holders:
                    i = self.entry_of.get((self.jobs.jobs[j].queue, t))
                    if i in part and self.before[i] > self.entries[i]["nominal"]:
                        lost += share
            taken = Fraction(0)
            for i in part:
                lacking = self.entries[i]["nominal"] - self.before[i]
                if self.entries[i]["reclaim"] is not Reclaim.ANY or lacking <= 0:
                    continue
                got = sum(
                    amount
                    for option in mine
                    for _, at, amount in self._charges(option.holders, t, option.gpus)
                    if at == i
                )
                taken += min(lacking, got)
            total += min(taken, lost)
        return total


class Placement:
    """Can these options lie on the GPUs that the kept groups leave? By trying every way."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.jobs = rules.jobs
        self._fewest: dict[object, int] = {}
        self._known: dict[object, bool] = {}

    def fits(self, chosen: list[Option]) -> bool:
        kept = tuple(sorted(option.run for option in chosen if option.run >= 0))
        new = sorted((o for o in chosen if o.run < 0), key=lambda o: (-o.gpus, repr(o.demand)))
        key = (kept, tuple(o.demand for o in new))
        if key not in self._known:
            taken = {gpu for r in kept for gpu in self.jobs.runs[r].gpus}
            free = {gpu for gpu in self.rules.ready_gpus() if gpu not in taken}
            self._known[key] = self._search(new, free, self._left(kept))
        return self._known[key]

    def _left(self, kept) -> list[list[float]]:
        """CPUs and host memory that kept groups leave on each node."""
        out = [
            [math.inf if v is None else v for v in (node.cpus, node.host_memory_gib)]
            for node in self.jobs.nodes
        ]
        for r in kept:
            run = self.jobs.runs[r]
            cpus = sum(self.jobs.jobs[j].cpus_per_gpu or 0.0 for j in run.holders)
            host = sum(self.jobs.jobs[j].host_memory_gib or 0.0 for j in run.holders) / len(run.gpus)
            for n, _ in run.gpus:
                out[n][0] -= cpus
                out[n][1] -= host
        return [[max(0.0, value) for value in pair] for pair in out]

    def _search(self, new: list[Option], free: set, left: list[list[float]]) -> bool:
        if not new:
            return True
        option = new[0]
        for gpus in self._ways(option, free, left):
            rest = [list(pair) for pair in left]
            for n, _ in gpus:
                rest[n][0] -= option.cpus
                rest[n][1] -= option.host
            if self._search(new[1:], free - set(gpus), rest):
                return True
        return False

    def _ways(self, option: Option, free: set, left) -> Iterator[list[tuple[int, int]]]:
        """Every set of GPUs for one option, up to exchange of equal GPUs of a node."""
        kinds: dict[tuple, list[tuple[int, int]]] = defaultdict(list)
        for gpu in sorted(free):
            node = self.jobs.nodes[gpu[0]]
            resident = node.resident_fm[gpu[1]] if node.resident_fm else None
            if (
                node.gpu_type != option.gpu_type
                or self.rules.usable(gpu) < option.need * (1 - 1e-9)
                or not self._matches(gpu[0], option)
                or (option.warm is not None and resident != option.warm)
            ):
                continue
            kinds[gpu[0], self.rules.usable(gpu), resident].append(gpu)
        nodes = sorted({key[0] for key in kinds})
        least = 0 if option.workers is not None else self.fewest(option)
        if option.workers is None and least == 0:
            return
        room = {n: self._most(option, left[n]) for n in nodes}
        names = list(kinds)
        for counts in self._splits(option.gpus, [len(kinds[name]) for name in names]):
            on: dict[int, int] = defaultdict(int)
            for name, count in zip(names, counts, strict=True):
                if count:
                    on[name[0]] += count
            if any(count > room[n] for n, count in on.items()):
                continue
            if option.workers is not None:
                if any(count % option.workers.gpus_each for count in on.values()):
                    continue
            elif len(on) > least:
                continue
            if option.whole and any(count != self.jobs.nodes[n].gpus for n, count in on.items()):
                continue
            yield [gpu for name, count in zip(names, counts, strict=True) for gpu in kinds[name][:count]]

    def _splits(self, total: int, limits: list[int]) -> Iterator[list[int]]:
        if not limits:
            if total == 0:
                yield []
            return
        for count in range(min(total, limits[0]), -1, -1):
            if total - count <= sum(limits[1:]):
                for rest in self._splits(total - count, limits[1:]):
                    yield [count, *rest]

    @staticmethod
    def _most(option: Option, left: list[float]) -> float:
        """GPUs of the option that a node's CPUs and host memory allow."""
        return min(
            (math.floor(have / each + 1e-7) if each > 0 and have < math.inf else math.inf)
            for have, each in zip(left, (option.cpus, option.host), strict=True)
        )

    def _matches(self, n: int, option: Option) -> bool:
        node = self.jobs.nodes[n]
        own = {"rack": node.rack, "id": node.id, **node.labels}
        return all(str(own.get(key)) == value for key, value in option.selector)

    def fewest(self, option: Option) -> int:
        """Fewest nodes that could hold the option if every ready node were empty; 0 if none could."""
        key = (*option.demand[:6], option.cpus, option.host)
        if key not in self._fewest:
            sizes = []
            for n, node in enumerate(self.jobs.nodes):
                if node.gpu_type != option.gpu_type or not self._matches(n, option):
                    continue
                count = sum(
                    self.rules.ready((n, g)) and self.rules.usable((n, g)) >= option.need * (1 - 1e-9)
                    for g in range(node.gpus)
                )
                limits = [math.inf if v is None else v for v in (node.cpus, node.host_memory_gib)]
                count = min(count, self._most(option, limits))
                if count and (not option.whole or count == node.gpus):
                    sizes.append(count)
            self._fewest[key] = self._smallest(sizes, option)
        return self._fewest[key]

    @staticmethod
    def _smallest(sizes: list[int], option: Option) -> int:
        for k in range(1, len(sizes) + 1):
            for nodes in itertools.combinations(sizes, k):
                if sum(nodes) == option.gpus or (not option.whole and sum(nodes) > option.gpus):
                    return k
        return 0
