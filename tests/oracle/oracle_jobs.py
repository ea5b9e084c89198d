"""What each job is worth: work, importance, cost of waiting, in plain arithmetic.

U = w sqrt(x + 50 GPU-s); w = weight x queue weight x 2^class x ((age + Tiso)/Tiso)^0.25.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from oracle_rates import Rows

from ymir_opt.domain.snapshot import Job, JobState, Mode, NodeState, Sharing, Snapshot

D0, X0, R, KAPPA, K = 30.0, 50.0, 0.25, 1.15, 0.25
LEVEL = {level: i for i, level in enumerate(Sharing)}


def mixed(point: float, high: float) -> float:
    return (1 - K) * point + K * high


@dataclass
class Run:
    """A group that runs now."""

    mode: Mode
    members: tuple[int, ...]
    holders: tuple[int, ...]
    gpus: frozenset[tuple[int, int]]
    gpu_type: str
    stays: bool
    starts: dict[str, object]


class Jobs:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.rows = Rows(snapshot)
        self.jobs = snapshot.jobs
        self.nodes = snapshot.cluster.nodes
        self.types = sorted({node.gpu_type for node in self.nodes})
        self.index = {job.id: i for i, job in enumerate(self.jobs)}
        self.queues = {queue.name: queue for queue in snapshot.queues}
        priorities = sorted({job.priority for job in self.jobs})[-10:]
        self.rank = [priorities.index(max(j.priority, priorities[0])) for j in self.jobs]
        self.runs = self._runs()
        self.run_of = {j: run for run in self.runs for j in run.members}
        self.holds = {j: run for run in self.runs for j in run.holders}
        self._works()
        self._weights()
        now = snapshot.taken_at_s
        self.protected = [
            j in self.holds
            and self.holds[j].stays
            and (
                not job.movable
                or (job.last_start_s is not None and now - job.last_start_s < job.min_runtime_s)
            )
            for j, job in enumerate(self.jobs)
        ]
        self.startable = [
            not self.protected[j]
            and not (
                job.state is JobState.PENDING and job.not_before_s is not None and job.not_before_s > now
            )
            for j, job in enumerate(self.jobs)
        ]
        self.keep_rates = [self._keep_rates(run) for run in self.runs]
        self._waiting_costs()

    # -- the cluster ----------------------------------------------------------------------------

    def exists(self, gpu: tuple[int, int]) -> bool:
        node = self.nodes[gpu[0]]
        return node.state is not NodeState.DOWN and gpu[1] not in node.unavailable_gpus

    def _runs(self) -> list[Run]:
        at = {node.id: n for n, node in enumerate(self.nodes)}
        entries = [
            (g.mode, tuple(self.index[name] for name in g.jobs), dict(g.starts_from))
            for g in self.snapshot.groups
        ]
        inside = {j for _, members, _ in entries for j in members}
        entries += [
            (Mode.SOLO, (j,), {})
            for j, job in enumerate(self.jobs)
            if job.state is JobState.RUNNING and j not in inside
        ]
        out = []
        for mode, members, starts in entries:
            allocation = self.jobs[members[0]].allocation
            gpus = frozenset((at[name], g) for name, held in allocation.items() for g in held)
            out.append(
                Run(
                    mode,
                    members,
                    members[:1] if mode is Mode.SEQUENCE else members,
                    gpus,
                    self.nodes[min(gpus)[0]].gpu_type,
                    all(self.exists(gpu) for gpu in gpus),
                    starts,
                )
            )
        return out

    # -- counts ---------------------------------------------------------------------------------

    def span(self, job: Job) -> tuple[int, int]:
        if job.workers is not None:
            total = job.workers.count * job.workers.gpus_each
            return total, total
        low = job.min_gpus or 1
        wanted = job.requested_gpus or low
        return low, wanted if job.max_gpus is None else job.max_gpus

    def counts(self, j: int, gpu_type: str) -> list[int]:
        """Allowed counts of a job alone with known speed."""
        job = self.jobs[j]
        if job.gpu_types is not None and gpu_type not in job.gpu_types:
            return []
        low, high = self.span(job)
        if job.remaining_s is not None:
            low = high = job.requested_gpus or low
        return [
            g
            for g in range(low, high + 1)
            if (job.gpu_counts is None or g in job.gpu_counts)
            and self.rows.rate(job, gpu_type, g) is not None
        ]

    # -- work -----------------------------------------------------------------------------------

    def _works(self) -> None:
        self.left: list[tuple[float, float]] = []  # (point, high) in the present mode
        self.rest: list[tuple[float, float]] = []  # alone from own weights
        self.whole: list[tuple[float, float]] = []  # from the beginning, at own pace
        self.own: list[float] = []
        for j, job in enumerate(self.jobs):
            if job.remaining_s is not None:
                point = high = job.remaining_s
            else:
                most = job.target.max_samples if job.target else None
                cap = math.inf if most is None else max(0.0, most - job.done_samples)
                point = cap if job.remaining_samples is None else job.remaining_samples
                high = point if job.remaining_samples_high is None else job.remaining_samples_high
                point, high = min(point, cap), min(high, cap)
            joint = start = 1.0
            run = self.holds.get(j)
            if run is not None and job.task is not None:
                if run.mode is Mode.JOINT and len(run.members) > 1:
                    others = [self.jobs[i].task for i in run.members if i != j]
                    found = self.rows.joint(job.foundation_model, others, job.task)
                    joint = found.ratio if found else 1.0
                source = run.starts.get(job.id)
                if source is not None:
                    found = self._source_ratio(job, source)
                    start = found.ratio if found else 1.0
            self.left.append((point, high))
            self.rest.append((point / joint, high / joint))
            done = job.done_samples
            self.whole.append(((done + point) / (joint * start), (done + high) / (joint * start)))
            self.own.append(point / (joint * start))

    def _source_ratio(self, job: Job, source):
        if source.adapter is not None:
            adapter = next((a for a in self.snapshot.adapters if a.id == source.adapter), None)
            if adapter is not None:
                return self.rows.adapter_start(job, adapter)
            return self.rows.warm_start(job.foundation_model, source.adapter, job.task)
        if source.job not in self.index:
            return None
        return self.rows.warm_start(job.foundation_model, self.jobs[self.index[source.job]].task, job.task)

    # -- importance -----------------------------------------------------------------------------

    def _weights(self) -> None:
        self.weight: list[float] = []
        self.importance: list[float] = []
        self.known: list[bool] = []
        for j, job in enumerate(self.jobs):
            cheapest, fastest = math.inf, math.inf
            for t in self.types:
                cold, _ = self.rows.switch(job, t)
                for g in self.counts(j, t):
                    rate = self.rows.rate(job, t, g)
                    cheapest = min(cheapest, g * self.own[j] / rate)
                    fastest = min(fastest, cold + self.whole[j][0] / rate)
            known = math.isfinite(cheapest)
            queue = self.queues.get(job.queue)
            w = job.weight * (queue.weight if queue else 1.0) * 2.0 ** self.rank[j]
            if known:
                age = max(0.0, self.snapshot.taken_at_s - job.submitted_at_s)
                w *= ((age + fastest) / max(fastest, 1e-9)) ** R
            self.known.append(known)
            self.weight.append(w)
            self.importance.append(w * math.sqrt((cheapest if known else 0.0) + X0))

    # -- running groups -------------------------------------------------------------------------

    def _realised(self, j: int) -> float | None:
        job = self.jobs[j]
        if job.remaining_s is not None:
            return 1.0
        if job.samples_at_last_start is None or job.last_start_s is None:
            return None
        seconds = self.snapshot.taken_at_s - job.last_start_s
        samples = job.done_samples - job.samples_at_last_start
        return samples / seconds if seconds > 0 and samples > 0 else None

    def _keep_rates(self, run: Run):
        mode = Mode.SOLO if run.mode is Mode.SEQUENCE else run.mode
        inner = self.group_rates(mode, run.holders, run.gpu_type, len(run.gpus))

        def rates(active, before):
            now = inner(active, before)
            return {j: self._realised(j) if rate is None else rate for j, rate in now.items()}

        return rates

    def group_rates(self, mode: Mode, members: tuple[int, ...], gpu_type: str, gpus: int):
        """Function (active members, their rates before someone left or None) -> rate of each."""

        def rates(active: tuple[int, ...], before: dict[int, float | None] | None):
            jobs = [self.jobs[j] for j in active]
            if len(active) == 1:
                now = {active[0]: self.rows.rate_or_largest(jobs[0], gpu_type, gpus)}
            elif mode is Mode.JOINT:
                batch = sum(job.batch_size for job in jobs)
                found = self.rows.speed(jobs[0], gpu_type, gpus, batch)
                now = {
                    j: found[0] * job.batch_size / batch if found else None
                    for j, job in zip(active, jobs, strict=True)
                }
            else:
                row = self.rows.sharing(mode, gpu_type, gpus, tuple(jobs))
                now = dict.fromkeys(active)
                if row is not None:
                    for j, job, ratio in zip(active, jobs, row[0], strict=True):
                        single = self.rows.rate_or_largest(job, gpu_type, gpus)
                        now[j] = None if single is None else ratio * single
            if before is not None:
                now = {j: before[j] if rate is None else rate for j, rate in now.items()}
            return now

        return rates

    @staticmethod
    def run_out(work: dict[int, float], rates) -> dict[int, float] | None:
        """Seconds until each member is done; None if a first rate is unknown."""
        left, clock, out = dict(work), 0.0, {}
        current = None
        while left:
            current = rates(tuple(left), current)
            if any(rate is None for rate in current.values()):
                return None
            eta = {
                j: (0.0 if left[j] <= 0 else left[j] / current[j] if current[j] > 0 else math.inf)
                for j in left
            }
            step = min(eta.values())
            if math.isinf(step):
                return None
            clock += step
            finished = [j for j in left if eta[j] <= step * (1 + 1e-12)]
            for j in left:
                left[j] -= current[j] * step
            for j in finished:
                out[j] = clock
                del left[j]
        return out

    def expected(self, point: dict[int, float], high: dict[int, float], rates) -> dict[int, float] | None:
        a, b = self.run_out(point, rates), self.run_out(high, rates)
        return None if a is None or b is None else {j: mixed(a[j], b[j]) for j in a}

    # -- cost of waiting ------------------------------------------------------------------------

    def _waiting_costs(self) -> None:
        self.lost = [0.0] * len(self.jobs)
        self.queued = [u * KAPPA / D0 for u in self.importance]
        for j, job in enumerate(self.jobs):
            if job.deadline_s is not None:
                self.queued[j] *= 2
        self.keep_finish: list[dict[int, float] | None] = []
        for run, rates in zip(self.runs, self.keep_rates, strict=True):
            finish = self.expected(
                {j: self.left[j][0] for j in run.holders}, {j: self.left[j][1] for j in run.holders}, rates
            )
            self.keep_finish.append(finish)
            first = rates(run.holders, None)
            for j in run.holders:
                job = self.jobs[j]
                if job.last_checkpoint_samples is not None and first[j]:
                    self.lost[j] = (job.done_samples - job.last_checkpoint_samples) / first[j]
            if finish is None or not run.stays:
                continue
            for j in run.holders:
                cold, _ = self.rows.switch(self.jobs[j], run.gpu_type)
                again = max(finish[j] + cold + self.lost[j], D0)
                self.queued[j] += self.importance[j] * (KAPPA / max(finish[j], D0) - 1 / again)

    def progress(self, j: int, finish: float, *, keep: bool = False) -> float:
        """Cost of a job that holds GPUs, the deadline term included."""
        u, job = self.importance[j], self.jobs[j]
        value = u * (KAPPA / D0 - (KAPPA if keep else 1.0) / max(finish, D0))
        if job.deadline_s is not None:
            late = max(0.0, self.snapshot.taken_at_s + finish - job.deadline_s)
            value += u * KAPPA / D0 * min(1.0, late / (30 * self.snapshot.round_s))
        return value

    def credit(self, j: int, with_s: float, without_s: float) -> float:
        return self.importance[j] * (1 / max(with_s, D0) - 1 / max(without_s, D0))

    def tenant(self, j: int) -> str:
        return self.jobs[j].tenant if self.jobs[j].tenant is not None else self.jobs[j].queue
