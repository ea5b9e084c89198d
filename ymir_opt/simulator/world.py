"""The simulated world: active jobs, running groups, and how both move through time.

Two stores are kept apart. ``columns`` (:class:`~ymir_opt.policies.view.JobColumns`) holds observations and
estimates and is what views are made of. :class:`Truth` holds the true work and speed and never leaves here.
Progress is piecewise linear: between two changes of a group every member has one rate, so nothing is
advanced step by step and a finished job costs nothing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ymir_opt.policies.view import JobColumns
from ymir_opt.simulator.cluster import Cluster
from ymir_opt.simulator.estimates import Estimates
from ymir_opt.simulator.results import JobRecord, Recorder, Segment
from ymir_opt.simulator.workload import TraceJob, Workload

__all__ = ["Options", "Run", "Truth", "World"]

SHARING = ("none", "backbone", "tenant", "all")
Taken = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Options:
    """Constants of the world.

    Attributes
    ----------
    completion_rounding_s : float
        Completions are reported at multiples of this (0: exactly). Titan's simulator rounds to 1 s.
    checkpoint_s : float
        A node failure loses the progress since the last whole multiple of this much productive time.
    backoff_s, backoff_limit_s : float
        A job whose start failed waits ``backoff_s * 2^(failures - 1)``, at most the limit.
    """

    completion_rounding_s: float = 0.0
    checkpoint_s: float = 300.0
    backoff_s: float = 30.0
    backoff_limit_s: float = 1800.0


class Truth:
    """True state by slot.

    Attributes
    ----------
    work, done : float64
        Work in the present mode, and settled progress, samples (rigid: seconds).
    rate : float64
        True speed now, 0 while nothing runs.
    since : float64
        Progress counts from here; later than now while a start is going on.
    share : float64
        GPUs attributed to the job (a shared group's are divided among its holders).
    held_since : float64
        GPU time held counts from here.
    version : int64
        Raised at every change; events carry the version that they were made for.
    """

    def __init__(self, capacity: int) -> None:
        names = ("work", "done", "rate", "since", "share", "held_since")
        self.data: dict[str, NDArray[np.float64]] = {name: np.zeros(capacity) for name in names}
        self.version: NDArray[np.int64] = np.zeros(capacity, dtype=np.int64)

    def grow(self) -> None:
        """Double the capacity."""
        self.data = {name: np.concatenate([old, np.zeros_like(old)]) for name, old in self.data.items()}
        self.version = np.concatenate([self.version, np.zeros_like(self.version)])


@dataclass
class Run:
    """A group that holds GPUs.

    Attributes
    ----------
    slots : list of int
        Unfinished members, in order; of a sequence only the first holds the GPUs.
    before : dict
        Slot -> (true work, true progress, estimated total) to go back to if the probe fails.
    sources : dict
        Slot -> class whose weights the member starts from.
    probing : set
        Slots whose probe has not ended.
    """

    id: int
    mode: str
    slots: list[int]
    gpus: int
    gpu_type: int
    taken: Taken
    started_s: float
    ready_s: float
    probe_evaluations: int = 0
    before: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)
    probing: set[int] = field(default_factory=set)
    probe: str | None = None
    segment_s: float = 0.0

    @property
    def holders(self) -> list[int]:
        """Return the members that hold the GPUs."""
        return self.slots[:1] if self.mode == "sequence" else self.slots


class World:
    """Active jobs, groups, and the event heap."""

    def __init__(
        self, workload: Workload, estimates: Estimates, cluster: Cluster, recorder: Recorder, options: Options
    ) -> None:
        self.workload = workload
        self.estimates = estimates
        self.cluster = cluster
        self.recorder = recorder
        self.options = options
        self.columns = JobColumns()
        self.truth = Truth(self.columns.capacity)
        self.jobs: list[TraceJob | None] = [None] * self.columns.capacity
        self.fails_left: dict[int, int] = {}
        self.free_slots: list[int] = list(range(self.columns.capacity - 1, -1, -1))
        # slots of finished jobs; not used again before `order` has forgotten them
        self.retired: list[int] = []
        self.order: list[int] = []
        self.alive: NDArray[np.bool_] = np.zeros(self.columns.capacity, dtype=np.bool_)
        self.runs: dict[int, Run] = {}
        self.run_of: dict[int, int] = {}
        self.heap: list[tuple[float, int, str, int, int]] = []
        self.rejected: set[tuple[str, frozenset[int]]] = set()
        self.adapters: set[int] = set()
        self.counter = 0
        self.next_run = 0
        self.active = 0
        self.stats = {
            "merges_kept": 0,
            "merges_rolled_back": 0,
            "node_failures": 0,
            "failed_starts": 0,
            "unplaced": 0,
            "starts": 0,
            "preemptions": 0,
            "jobs_finished": 0,
        }
        self.jct_sum_s = 0.0
        self.first_submission_s = math.inf
        self.last_completion_s = -math.inf
        self._models: dict[str, int] = {}
        self._rates: dict[tuple[str, int, tuple[int, ...], int], float] = {}
        self._isolated: dict[tuple[str, int, int, int], tuple[float, float, float]] = {}

    # ------------------------------------------------------------------ jobs

    def model_index(self, model: str) -> int:
        """Return the index of a foundation model, -1 for none."""
        return self._models.setdefault(model, len(self._models)) if model else -1

    def arrive(self, job: TraceJob, serial: int) -> int:
        """Add a job; return its slot."""
        if not self.free_slots and self.retired:
            self.active_slots()
        if not self.free_slots:
            old = self.columns.capacity
            self.columns.grow()
            self.truth.grow()
            self.jobs.extend([None] * old)
            self.alive = np.concatenate([self.alive, np.zeros(old, dtype=np.bool_)])
            self.free_slots = list(range(2 * old - 1, old - 1, -1))
        self.first_submission_s = min(self.first_submission_s, job.submitted_at_s)
        slot = self.free_slots.pop()
        self.jobs[slot] = job
        self.alive[slot] = True
        self.order.append(slot)
        self.active += 1
        data, ids = self.columns.data, self.columns.ids
        for values in data.values():
            values[slot] = 0
        ids[slot] = job.id
        data["serial"][slot] = serial
        data["submitted_at_s"][slot] = job.submitted_at_s
        data["weight"][slot] = job.weight
        data["deadline_s"][slot] = job.deadline_s
        data["not_before_s"][slot] = -math.inf
        data["min_runtime_s"][slot] = job.min_runtime_s
        data["first_start_s"][slot] = data["last_start_s"][slot] = math.nan
        data["requested_gpus"][slot] = job.requested_gpus
        data["min_gpus"][slot] = job.min_gpus
        data["max_gpus"][slot] = job.max_gpus
        speed = self.estimates.speed
        data["key"][slot] = -1 if job.rigid else speed.key_of(job.model, job.batch_size)
        data["kind"][slot] = job.kind
        data["priority"][slot] = job.priority
        data["queue"][slot] = (
            self.workload.queues.index(job.queue) if job.queue in self.workload.queues else 0
        )
        types = self.cluster.types
        data["type_mask"][slot] = sum(
            1 << t for t, name in enumerate(types) if job.gpu_types is None or name in job.gpu_types
        )
        data["gpu_type"][slot] = data["group"][slot] = -1
        data["movable"][slot] = job.movable
        data["sharing"][slot] = SHARING.index(job.sharing)
        total = self.estimates.total(job)
        data["estimated_total"][slot] = data["remaining"][slot] = total
        truth = self.truth.data
        for values in truth.values():
            values[slot] = 0.0
        truth["held_since"][slot] = job.submitted_at_s
        truth["work"][slot] = job.work
        if job.failing_starts:
            self.fails_left[slot] = job.failing_starts
        return slot

    def active_slots(self) -> NDArray[np.int64]:
        """Return the slots of the active jobs in order of arrival."""
        slots = np.array(self.order, dtype=np.int64)
        if len(slots) != self.active:
            slots = slots[self.alive[slots]]
            self.order = slots.tolist()
            self.free_slots.extend(self.retired)
            self.retired.clear()
        return slots

    def true_job(self, slot: int) -> TraceJob:
        """Return the trace's job in a slot."""
        job = self.jobs[slot]
        if job is None:
            raise AssertionError(f"slot {slot} is empty")
        return job

    # ----------------------------------------------------------------- speed

    def rate(self, model: str, batch: int, placement: tuple[int, ...], gpu_type: int) -> float:
        """Return the true samples/s of a (model, batch) on a placement."""
        key = (model, batch, placement, gpu_type)
        found = self._rates.get(key)
        if found is None:
            found = self.workload.speeds.rate(model, batch, placement, self.cluster.types[gpu_type])
            self._rates[key] = found
        return found

    def isolated(self, job: TraceJob) -> tuple[float, float]:
        """Return true (time alone on the requested count, fastest time alone), a cold start included."""
        speeds, types = self.workload.speeds, self.cluster.types
        key = (job.model, job.batch_size, job.requested_gpus, job.max_gpus)
        if key not in self._isolated:
            node = int(self.cluster.size.max()) if len(self.cluster.size) else 1
            requested, best, start = 0.0, 0.0, math.inf
            for t, name in enumerate(types):
                if job.gpu_types is not None and name not in job.gpu_types:
                    continue
                start = min(start, speeds.start_s(job.model, name, False))
                for n in range(job.min_gpus, job.max_gpus + 1):
                    full, rest = divmod(n, node)
                    shape = (node,) * full + ((rest,) if rest else ())
                    speed = self.rate(job.model, job.batch_size, shape, t)
                    best = max(best, speed)
                    if n == job.requested_gpus:
                        requested = max(requested, speed)
                if not job.min_gpus <= job.requested_gpus <= job.max_gpus:
                    full, rest = divmod(job.requested_gpus, node)
                    shape = (node,) * full + ((rest,) if rest else ())
                    requested = max(requested, self.rate(job.model, job.batch_size, shape, t))
            self._isolated[key] = (requested, best, start)
        requested, best, start = self._isolated[key]
        return (
            start + job.work / requested if requested else math.inf,
            start + job.work / best if best else math.inf,
        )

    # ------------------------------------------------------------ settling

    def settle(self, slots: NDArray[np.int64], now: float) -> None:
        """Bring progress and attained service of the slots up to `now`."""
        truth, data = self.truth.data, self.columns.data
        since, share = truth["since"][slots], truth["share"][slots]
        passed = np.where(share > 0, np.maximum(0.0, now - since), 0.0)
        truth["done"][slots] = np.minimum(
            truth["work"][slots], truth["done"][slots] + passed * truth["rate"][slots]
        )
        truth["since"][slots] = np.maximum(since, now)
        data["productive_s"][slots] += passed
        data["attained_gpu_s"][slots] += passed * share
        data["held_gpu_s"][slots] += (now - truth["held_since"][slots]) * share
        truth["held_since"][slots] = now
        data["done"][slots] = truth["done"][slots]
        total = data["estimated_total"][slots]
        data["remaining"][slots] = np.maximum(total - data["done"][slots], 1e-3 * total)

    def settle_one(self, slot: int, now: float) -> None:
        """Bring one slot up to `now`."""
        truth, data = self.truth.data, self.columns.data
        since, share = truth["since"][slot], truth["share"][slot]
        if share > 0 and now > since:
            passed = now - since
            truth["done"][slot] = min(truth["work"][slot], truth["done"][slot] + passed * truth["rate"][slot])
            truth["since"][slot] = now
            data["productive_s"][slot] += passed
            data["attained_gpu_s"][slot] += passed * share
        data["held_gpu_s"][slot] += (now - truth["held_since"][slot]) * share
        truth["held_since"][slot] = now
        data["done"][slot] = truth["done"][slot]
        total = data["estimated_total"][slot]
        data["remaining"][slot] = max(total - data["done"][slot], 1e-3 * total)

    def push(self, at: float, kind: str, slot: int, version: int) -> None:
        """Add an event."""
        self.counter += 1
        heapq.heappush(self.heap, (at, self.counter, kind, slot, version))

    def set_rates(self, run: Run, now: float) -> None:
        """Recompute the members' rates after a change, and their completions.

        Speeds: solo and the head of a sequence at their own throughput; joint at throughput(B) x own batch
        / B with B the sum of the members' batches; gpu_share and colocate at speed ratio x alone.
        """
        truth = self.truth.data
        placement = tuple(mask.bit_count() for _, mask in sorted(run.taken))
        holders = run.holders
        jobs = [self.true_job(slot) for slot in holders]
        batch = sum(job.batch_size for job in jobs)
        for slot, job in zip(holders, jobs, strict=True):
            if run.mode == "joint" and len(holders) > 1:
                rate = self.rate(job.model, batch, placement, run.gpu_type) * job.batch_size / batch
            else:
                rate = self.rate(job.model, job.batch_size, placement, run.gpu_type)
                if run.mode in ("gpu_share", "colocate") and len(holders) > 1:
                    rate *= self.shared_ratio(job, [o for o in jobs if o is not job])
            truth["rate"][slot] = rate
            truth["share"][slot] = run.gpus / len(holders)
            truth["since"][slot] = max(now, run.ready_s)
            self.truth.version[slot] += 1
            left = truth["work"][slot] - truth["done"][slot]
            if slot in self.fails_left:
                self.push(run.ready_s, "fail", slot, int(self.truth.version[slot]))
            elif rate > 0:
                at = truth["since"][slot] + left / rate
                self.push(at, "finish", slot, int(self.truth.version[slot]))
                if slot in run.probing:
                    wanted = run.probe_evaluations * job.epoch_samples - truth["done"][slot]
                    at = truth["since"][slot] + max(0.0, wanted) / rate
                    self.push(at, "probe", slot, int(self.truth.version[slot]))

    def shared_ratio(self, job: TraceJob, others: list[TraceJob]) -> float:
        """Return a member's true speed on shared GPUs over alone; pairs multiply for larger groups."""
        table = self.workload.transfer.share
        ratio = 1.0
        for other in others:
            known = job.kind >= 0 and other.kind >= 0 and job.kind < len(table) and other.kind < len(table)
            pair = float(table[job.kind, other.kind]) if known else math.nan
            ratio *= 1.0 / (len(others) + 1) if math.isnan(pair) else pair
        return ratio

    # ----------------------------------------------------------- start, stop

    def start(
        self,
        mode: str,
        slots: list[int],
        gpus: int,
        gpu_type: int,
        where: tuple[tuple[int, int], ...],
        now: float,
        probe_evaluations: int = 0,
        sources: dict[int, int] | None = None,
    ) -> Run:
        """Start a group on given (node, count) pairs."""
        first = self.true_job(slots[0])
        taken, warm = self.cluster.take(where, self.model_index(first.model))
        switch = self.workload.speeds.start_s(first.model, self.cluster.types[gpu_type], warm)
        run = Run(self.next_run, mode, list(slots), gpus, gpu_type, taken, now, now + switch, segment_s=now)
        run.sources = dict(sources or {})
        self.next_run += 1
        self.runs[run.id] = run
        for slot in slots:
            self.run_of[slot] = run.id
            self.columns.data["group"][slot] = run.id
        if probe_evaluations and len(slots) > 1:
            run.probe_evaluations, run.probe = probe_evaluations, "running"
        if mode == "joint":
            self._apply_joint(run)
        for slot in run.holders:
            self._occupy(run, slot, now)
        self.set_rates(run, now)
        return run

    def _occupy(self, run: Run, slot: int, now: float) -> None:
        """Mark a member as holding the group's GPUs, after its weights are in place."""
        if slot in run.sources:
            self._apply_warm(run, slot)
        data = self.columns.data
        data["gpus"][slot] = run.gpus
        data["gpu_type"][slot] = run.gpu_type
        if math.isnan(data["first_start_s"][slot]):
            data["first_start_s"][slot] = now
        else:
            data["restarts"][slot] += 1
        data["last_start_s"][slot] = now
        self.truth.data["held_since"][slot] = now
        self.stats["starts"] += 1

    def _save(self, run: Run, slot: int) -> None:
        truth, data = self.truth.data, self.columns.data
        run.before[slot] = (truth["work"][slot], truth["done"][slot], data["estimated_total"][slot])

    def _scale(self, slot: int, true_ratio: float, ratio: float) -> None:
        """Begin anew with work = ratio x the total, for truth and estimate."""
        truth, data = self.truth.data, self.columns.data
        truth["work"][slot] *= true_ratio
        truth["done"][slot] = 0.0
        data["estimated_total"][slot] *= ratio
        data["done"][slot] = 0.0
        data["remaining"][slot] = data["estimated_total"][slot]

    def _apply_warm(self, run: Run, slot: int) -> None:
        """Start from other weights: own progress is discarded, work is ratio x (done + remaining)."""
        self._save(run, slot)
        kind, source = self.true_job(slot).kind, run.sources[slot]
        true = _ratio(self.workload.transfer.warm, kind, [source])
        self._scale(slot, true, _ratio(self.estimates.transfer.warm, kind, [source]))
        if run.probe_evaluations:
            run.probing.add(slot)

    def _apply_joint(self, run: Run) -> None:
        """Enter joint training: work is ratio(S) x remaining; no member may have progress."""
        kinds = {slot: self.true_job(slot).kind for slot in run.slots}
        for slot, kind in kinds.items():
            self._save(run, slot)
            others = [k for s, k in kinds.items() if s != slot]
            true = _ratio(self.workload.transfer.joint, kind, others)
            self._scale(slot, true, _ratio(self.estimates.transfer.joint, kind, others))
            if run.probe_evaluations:
                run.probing.add(slot)

    def stop(self, run: Run, now: float, ended_by: str, lose_since: float = 0.0) -> list[int]:
        """Take a group off its GPUs; return its members, now pending.

        A joint member leaves with its rest divided by ratio(S), so what it learnt is kept.

        Parameters
        ----------
        lose_since : float
            Productive seconds whose progress is lost (a node failure).
        """
        holders = list(run.holders)
        for slot in holders:
            self.settle_one(slot, now)
            if lose_since > 0:
                truth = self.truth.data
                lost = (self.columns.data["productive_s"][slot] % lose_since) * truth["rate"][slot]
                truth["done"][slot] = max(0.0, truth["done"][slot] - lost)
            if ended_by != "failed":
                self.columns.data["preemptions"][slot] += 1
                self.stats["preemptions"] += 1
        if run.mode == "joint" and len(run.before) > 1:
            for slot in holders:
                self._leave_joint(run, slot)
        self._segment(run, now, ended_by)
        for slot in run.slots:
            self._detach(slot)
        self.cluster.give(run.taken)
        del self.runs[run.id]
        if run.probe == "running" and ended_by == "preempted":
            run.probe = None
        return holders

    def _leave_joint(self, run: Run, slot: int) -> None:
        truth, data = self.truth.data, self.columns.data
        work, _, total = run.before[slot]
        true, ratio = truth["work"][slot] / work, data["estimated_total"][slot] / total
        if true > 0 and ratio > 0:
            left = (truth["work"][slot] - truth["done"][slot]) / true
            expected = max(total - truth["done"][slot] / ratio, 1e-3 * total)
            # Progress is re-expressed in the job's own samples, so that done + rest is its work alone.
            truth["work"][slot], truth["done"][slot] = work, work - left
            data["estimated_total"][slot] = (work - left) + expected
            self.settle_one(slot, truth["since"][slot])

    def _detach(self, slot: int) -> None:
        data, truth = self.columns.data, self.truth.data
        data["gpus"][slot] = 0
        data["gpu_type"][slot] = data["group"][slot] = -1
        truth["rate"][slot] = truth["share"][slot] = 0.0
        self.truth.version[slot] += 1
        self.run_of.pop(slot, None)

    def _segment(self, run: Run, now: float, ended_by: str) -> None:
        if self.recorder.want_segments and now > run.segment_s:
            ids = self.cluster.ids
            self.recorder.segments.append(
                Segment(
                    run.id,
                    run.mode,
                    tuple(self.columns.ids[slot] for slot in run.holders),
                    tuple((ids[node], mask) for node, mask in run.taken),
                    run.segment_s,
                    run.ready_s,
                    now,
                    ended_by,
                )
            )
        run.segment_s = now

    def finish(self, slot: int, now: float) -> None:
        """Complete a job; the rest of its group goes on, or the GPUs become free."""
        run = self.runs[self.run_of[slot]]
        holders = list(run.holders)
        for member in holders:
            self.settle_one(member, now)
        self._segment(run, now, "finished" if len(run.slots) == 1 else "member")
        run.slots.remove(slot)
        run.probing.discard(slot)
        if run.probe == "running" and not run.probing:
            run.probe = "passed"
        self._record(slot, now)
        if not run.slots:
            if len(run.before) > 1 or run.mode in ("gpu_share", "colocate", "sequence"):
                self.stats["merges_kept"] += run.mode != "solo"
            self.cluster.give(run.taken)
            del self.runs[run.id]
        else:
            if run.mode == "sequence":
                head = self.true_job(run.slots[0])
                warm = self.workload.speeds.start_s(head.model, self.cluster.types[run.gpu_type], True)
                run.ready_s = now + warm
                self._occupy(run, run.slots[0], now)
            self.set_rates(run, now)

    def _record(self, slot: int, now: float) -> None:
        data, job = self.columns.data, self.true_job(slot)
        step = self.options.completion_rounding_s
        at = round(now / step) * step if step else now
        exclusive, fastest = self.isolated(job)
        self.recorder.job(
            JobRecord(
                job.id,
                job.submitted_at_s,
                float(data["first_start_s"][slot]),
                at,
                job.requested_gpus,
                float(data["held_gpu_s"][slot]),
                max(0.0, float(data["held_gpu_s"][slot] - data["attained_gpu_s"][slot])),
                int(data["restarts"][slot]) + 1,
                int(data["preemptions"][slot]),
                job.model,
                job.task,
                job.queue,
                exclusive,
                fastest,
            )
        )
        self.stats["jobs_finished"] += 1
        self.jct_sum_s += at - job.submitted_at_s
        self.last_completion_s = max(self.last_completion_s, at)
        if job.kind >= 0:
            self.adapters.add(job.kind)
        self._detach(slot)
        self.alive[slot] = False
        self.jobs[slot] = None
        self.fails_left.pop(slot, None)
        self.retired.append(slot)
        self.active -= 1
        if len(self.order) > 2 * self.active + 64:
            self.active_slots()

    # -------------------------------------------------------- other events

    def fail_start(self, slot: int, now: float) -> None:
        """A start failed: the job backs off, its group is taken off."""
        data = self.columns.data
        left = self.fails_left[slot] - 1
        if left:
            self.fails_left[slot] = left
        else:
            del self.fails_left[slot]
        self.stop(self.runs[self.run_of[slot]], now, "failed")
        data["failed_starts"][slot] += 1
        wait = min(
            self.options.backoff_s * 2.0 ** min(60, int(data["failed_starts"][slot]) - 1),
            self.options.backoff_limit_s,
        )
        data["not_before_s"][slot] = now + wait
        self.stats["failed_starts"] += 1
        self.push(now + wait, "wake", slot, -1)

    def end_probe(self, slot: int, now: float) -> bool:
        """Judge a member's probe; a failure splits the group and takes the member back. Return success."""
        run = self.runs[self.run_of[slot]]
        run.probing.discard(slot)
        work, done, total = run.before[slot]
        if self.truth.data["work"][slot] < work:
            if not run.probing and run.probe == "running":
                run.probe = "passed"
            return True
        serials = self.columns.data["serial"]
        self.rejected.add((run.mode, frozenset(int(serials[s]) for s in run.before.keys() | set(run.slots))))
        self.stop(run, now, "split")
        self.truth.data["work"][slot], self.truth.data["done"][slot] = work, done
        self.columns.data["estimated_total"][slot] = total
        self.settle_one(slot, now)
        self.stats["merges_rolled_back"] += 1
        return False

    def node_down(self, node: int, now: float) -> None:
        """Stop everything on a node and take it out."""
        hit = [run for run in self.runs.values() if any(n == node for n, _ in run.taken)]
        for run in hit:
            self.stop(run, now, "failed", lose_since=self.options.checkpoint_s)
            self.stats["node_failures"] += 1
        self.cluster.set_ready(node, False)

    def used_gpus(self) -> int:
        """Return the GPUs held now."""
        return int((self.cluster.size[self.cluster.ready] - self.cluster.free[self.cluster.ready]).sum())

    def check(self, policy: str, runs: Iterable[Run] | None = None) -> None:
        """Assert that no GPU is used twice and that the books of free GPUs are right."""
        seen: dict[int, int] = {}
        for run in self.runs.values() if runs is None else runs:
            if sum(mask.bit_count() for _, mask in run.taken) != run.gpus:
                raise AssertionError(f"policy {policy}: group {run.id} does not hold its {run.gpus} GPUs")
            for node, mask in run.taken:
                if seen.get(node, 0) & mask or self.cluster.free_mask[node] & mask:
                    raise AssertionError(f"policy {policy}: a GPU of {self.cluster.ids[node]} is used twice")
                seen[node] = seen.get(node, 0) | mask


def _ratio(table: NDArray[np.float64], kind: int, others: list[int]) -> float:
    """Return the ratio of a class with others: geometric mean of the pairs, 1 where unknown."""
    if kind < 0 or not others:
        return 1.0
    pairs = [float(table[kind, other]) if other >= 0 else math.nan for other in others]
    if any(math.isnan(pair) for pair in pairs):
        return 1.0
    return float(np.exp(np.mean(np.log(pairs))))
