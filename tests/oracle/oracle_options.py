"""Every group that could exist, with its cost: all sets, modes, types, counts, starts; warm and cold."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from oracle_jobs import LEVEL, Jobs, mixed

from ymir_opt.domain.snapshot import Mode, Parallelism, Sharing, Workers

LARGEST = 4


@dataclass(frozen=True)
class Option:
    """One column: members in order, what it needs of the nodes, and its cost."""

    cost: float
    mode: Mode
    members: tuple[int, ...]
    holders: tuple[int, ...]
    gpu_type: str
    gpus: int
    need: float  # GiB per GPU
    selector: tuple[tuple[str, str], ...] = ()
    workers: Workers | None = None
    whole: bool = False
    warm: str | None = None
    cpus: float = 0.0
    host: float = 0.0
    starts: tuple[str | None, ...] = ()
    run: int = -1  # the running group that is kept

    @property
    def mask(self) -> int:
        return sum(1 << j for j in self.members)

    @property
    def demand(self):
        """What placement asks."""
        return (
            self.gpu_type,
            self.gpus,
            self.need,
            self.selector,
            self.workers,
            self.whole,
            self.warm,
            self.cpus,
            self.host,
        )

    @property
    def footprint(self):
        """What every constraint sees: options that differ in cost only are interchangeable."""
        head = self.members[0] if self.mode is Mode.SEQUENCE else -1
        return (self.mask, head, self.demand)


class Options:
    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.rows = jobs.rows
        self.total = {
            t: sum(
                node.gpus - len(set(node.unavailable_gpus))
                for node in jobs.nodes
                if node.gpu_type == t and node.state.value == "ready"
            )
            for t in jobs.types
        }

    # -- running groups -------------------------------------------------------------------------

    def keeps(self) -> list[tuple[Option, bool]]:
        """Keep options, and whether they are priced (an unpriced one must stay)."""
        out = []
        for r, run in enumerate(self.jobs.runs):
            if not run.stays:
                continue
            finish = self.jobs.keep_finish[r]
            cost = None
            if finish is not None:
                cost = sum(self.jobs.progress(j, finish[j], keep=True) for j in run.holders)
                if run.mode is Mode.SEQUENCE:
                    tail = self._tail(run.members, run.gpu_type, len(run.gpus), finish[run.members[0]])
                    cost = None if tail is None else cost + tail
            option = Option(
                cost=0.0 if cost is None else cost,
                mode=run.mode,
                members=run.members,
                holders=run.holders,
                gpu_type=run.gpu_type,
                gpus=len(run.gpus),
                need=0.0,
                run=r,
            )
            out.append((option, cost is not None))
        return out

    # -- new groups -----------------------------------------------------------------------------

    def new(self) -> list[Option]:
        """The cheapest option of every footprint."""
        best: dict[object, Option] = {}
        for option in self._all():
            old = best.get(option.footprint)
            if old is None or option.cost < old.cost:
                best[option.footprint] = option
        return list(best.values())

    def every(self) -> list[Option]:
        """All options, dominated ones too."""
        return list(self._all())

    def _all(self) -> Iterator[Option]:
        able = [j for j in range(len(self.jobs.jobs)) if self.jobs.startable[j]]
        for j in able:
            yield from self._expand(Mode.SOLO, (j,))
        for size in range(2, LARGEST + 1):
            for members in itertools.combinations(able, size):
                for mode in (Mode.GPU_SHARE, Mode.COLOCATE, Mode.JOINT):
                    if self._may(mode, members):
                        yield from self._expand(mode, members)
            for members in itertools.permutations(able, size):
                if self._may(Mode.SEQUENCE, members):
                    yield from self._expand(Mode.SEQUENCE, members)

    def _may(self, mode: Mode, members: tuple[int, ...]) -> bool:
        jobs = [self.jobs.jobs[j] for j in members]
        if any(job.remaining_s is not None for job in jobs) or len({job.workers for job in jobs}) > 1:
            return False
        lowest = min(LEVEL[job.sharing] for job in jobs)
        if mode in (Mode.GPU_SHARE, Mode.COLOCATE):
            needed = Sharing.BACKBONE
        else:
            needed = Sharing.TENANT if len({self.jobs.tenant(j) for j in members}) == 1 else Sharing.ALL
        if lowest < LEVEL[needed]:
            return False
        models = {job.foundation_model for job in jobs}
        if mode is not Mode.GPU_SHARE and (len(models) > 1 or None in models):
            return False
        if mode is Mode.JOINT:
            if len({(job.peft_type, job.config) for job in jobs}) > 1 or any(
                job.task is None for job in jobs
            ):
                return False
            fresh = all(job.done_samples == 0 for job in jobs)
            together = any(
                run.mode is Mode.JOINT and set(members) <= set(run.holders) for run in self.jobs.runs
            )
            if not fresh and not together:
                return False
        names = {job.id for job in jobs}
        return not any(
            merge.mode is mode and set(merge.jobs) <= names and merge.estimator_version in (None, "1")
            for merge in self.jobs.snapshot.rejected_merges
        )

    def _sources(self, j: int) -> list[str | None]:
        job = self.jobs.jobs[j]
        out: list[str | None] = [None]
        for adapter in self.jobs.snapshot.adapters:
            if self.rows.adapter_start(job, adapter) is None:
                continue
            needed = Sharing.TENANT if adapter.tenant == self.jobs.tenant(j) else Sharing.ALL
            if min(LEVEL[job.sharing], LEVEL[adapter.sharing]) >= LEVEL[needed]:
                out.append(adapter.id)
        return out

    def _expand(self, mode: Mode, members: tuple[int, ...]) -> Iterator[Option]:
        jobs = [self.jobs.jobs[j] for j in members]
        labels: dict[str, str] = {}
        for job in jobs:
            for key, value in job.node_selector.items():
                if labels.setdefault(key, value) != value:
                    return
        holders = members[:1] if mode is Mode.SEQUENCE else members
        models = {job.foundation_model for job in jobs}
        model = next(iter(models)) if len(models) == 1 else None
        sources = [self._sources(j) for j in members]
        if mode is Mode.SEQUENCE:
            sources[1:] = [[None]] * (len(members) - 1)
        for t in self.jobs.types:
            for gpus in self._counts(mode, members, t):
                need = self._need(mode, members, t, gpus)
                if need is None:
                    continue
                base = Option(
                    cost=0.0,
                    mode=mode,
                    members=members,
                    holders=holders,
                    gpu_type=t,
                    gpus=gpus,
                    need=need,
                    selector=tuple(sorted(labels.items())),
                    workers=jobs[0].workers,
                    whole=any(job.parallelism is Parallelism.PIPELINE for job in jobs),
                    cpus=sum(self.jobs.jobs[j].cpus_per_gpu or 0.0 for j in holders),
                    host=sum(self.jobs.jobs[j].host_memory_gib or 0.0 for j in holders) / gpus,
                )
                for starts in itertools.product(*sources):
                    for warm in (None, model) if model else (None,):
                        cost = self.price(mode, members, t, gpus, starts, warm=warm is not None)
                        if cost is not None:
                            yield replace(base, cost=cost, warm=warm, starts=starts)

    def _counts(self, mode: Mode, members: tuple[int, ...], t: str) -> list[int]:
        jobs = [self.jobs.jobs[j] for j in members]
        if mode is Mode.JOINT:
            if any(job.gpu_types is not None and t not in job.gpu_types for job in jobs):
                return []
            spans = [self.jobs.span(job) for job in jobs]
            counts = range(max(s[0] for s in spans), sum(s[1] for s in spans) + 1)
        else:
            counts = sorted(set.intersection(*(set(self.jobs.counts(j, t)) for j in members)))
        return [g for g in counts if g <= self.total[t]]

    def _need(self, mode: Mode, members: tuple[int, ...], t: str, gpus: int) -> float | None:
        jobs = [self.jobs.jobs[j] for j in members]
        if mode is Mode.JOINT:
            found = self.rows.speed(jobs[0], t, gpus, sum(job.batch_size for job in jobs))
            return found[1] if found else None
        each = [self.rows.memory(job, t, gpus) for job in jobs]
        if mode is Mode.SOLO:
            return each[0] or 0.0
        if mode is Mode.COLOCATE:
            row = self.rows.sharing(mode, t, gpus, tuple(jobs))
            if row is not None and row[1] is not None:
                return row[1]
        if None in each:
            return None
        if mode is Mode.SEQUENCE:
            return max(each)
        if mode is Mode.GPU_SHARE:
            return sum(each)
        backbone = self.rows.backbone(jobs[0].foundation_model)
        return None if backbone is None else sum(each) - (len(jobs) - 1) * backbone

    # -- cost -----------------------------------------------------------------------------------

    def price(
        self,
        mode: Mode,
        members: tuple[int, ...],
        t: str,
        gpus: int,
        starts: tuple[str | None, ...],
        *,
        warm: bool,
    ) -> float | None:
        """Cost of a new group, or None if something is unknown or it is not admitted."""
        if mode is Mode.SEQUENCE:
            return self._price_sequence(members, t, gpus, starts[0], warm=warm)
        adapters = {a.id: a for a in self.jobs.snapshot.adapters}
        begin, point, high, alone, gate = {}, {}, {}, {}, {}
        for j, source in zip(members, starts, strict=True):
            job = self.jobs.jobs[j]
            begin[j] = self.rows.switch(job, t)[1 if warm else 0] + self.jobs.lost[j]
            base = self.jobs.rest[j] if source is None else self.jobs.whole[j]
            ratio = top = p = 1.0
            predicted = False
            if source is not None:
                found = self.rows.adapter_start(job, adapters[source])
                ratio, top, p, predicted = found.ratio, found.high, found.p, found.predicted
            alone[j] = (base[0] * ratio, base[1] * (top if predicted else ratio))
            if mode is Mode.JOINT:
                others = [self.jobs.jobs[i].task for i in members if i != j]
                found = self.rows.joint(job.foundation_model, others, job.task)
                if found is None:
                    return None
                ratio, top, p = ratio * found.ratio, top * found.high, p * found.p
                predicted = predicted or found.predicted
            point[j] = base[0] * ratio
            high[j] = base[1] * (top if predicted else ratio)
            gate[j] = 1 - p if source is not None or mode is Mode.JOINT else 0.0
        rates = self.jobs.group_rates(mode, members, t, gpus)
        first = rates(members, None)
        run = self.jobs.expected(point, high, rates) if None not in first.values() else None
        if run is None:
            return None
        finish = {
            j: begin[j] + run[j] + gate[j] * (0.1 * run[j] + self.rows.switch(self.jobs.jobs[j], t)[0])
            for j in members
        }
        if mode is not Mode.SOLO and not self._admitted(members, t, gpus, finish, alone, begin):
            return None
        return sum(self.jobs.progress(j, finish[j]) for j in members)

    def _admitted(self, members, t, gpus, finish, alone, begin) -> bool:
        weight, seconds = self.jobs.weight, {}
        for j in members:
            rate = self.rows.rate_or_largest(self.jobs.jobs[j], t, gpus)
            if rate is None:
                return False
            seconds[j] = mixed(alone[j][0] / rate, alone[j][1] / rate)
        clock = serial = 0.0
        for j in sorted(members, key=lambda j: seconds[j] / weight[j]):
            clock += begin[j] + seconds[j]
            serial += weight[j] * clock
        return sum(weight[j] * finish[j] for j in members) < serial * (1 - 1e-12)

    def _price_sequence(self, members, t, gpus, source, *, warm) -> float | None:
        j = members[0]
        job = self.jobs.jobs[j]
        cold, warm_s = self.rows.switch(job, t)
        base, ratio, top, p = self.jobs.rest[j], 1.0, 1.0, 1.0
        if source is not None:
            adapter = next(a for a in self.jobs.snapshot.adapters if a.id == source)
            found = self.rows.adapter_start(job, adapter)
            base, ratio, p = self.jobs.whole[j], found.ratio, found.p
            top = found.high if found.predicted else found.ratio
        rate = self.rows.rate(job, t, gpus)
        run = mixed(base[0] * ratio / rate, base[1] * top / rate)
        finish = (warm_s if warm else cold) + self.jobs.lost[j] + run
        if source is not None:
            finish += (1 - p) * (0.1 * run + cold)
        tail = self._tail(members, t, gpus, finish, must_save=True)
        return None if tail is None else self.jobs.progress(j, finish) + tail

    def _tail(self, members, t, gpus, finish, *, must_save=False) -> float | None:
        """Cost of a sequence's waiting members: queueing less the credit for the transfer."""
        cost = 0.0
        for before, j in itertools.pairwise(members):
            job, other = self.jobs.jobs[j], self.jobs.jobs[before]
            if job.task is None or other.task is None:
                return None
            found = self.rows.warm_start(job.foundation_model, other.task, job.task)
            rate = self.rows.rate(job, t, gpus)
            if found is None or rate is None:
                return None
            point = found.ratio * self.jobs.whole[j][0]
            high = (found.high if found.predicted else found.ratio) * self.jobs.whole[j][1]
            if must_save and not point < self.jobs.rest[j][0]:
                return None
            cold, warm = self.rows.switch(job, t)
            run = mixed(point / rate, high / rate)
            plain = mixed(self.jobs.rest[j][0] / rate, self.jobs.rest[j][1] / rate)
            with_s = finish + warm + run + (1 - found.p) * (0.1 * run + cold)
            cost += self.jobs.queued[j] - self.jobs.credit(j, with_s, finish + warm + plain)
            finish = with_s
        return cost
