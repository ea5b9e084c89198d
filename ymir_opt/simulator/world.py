"""The simulated world: groups that hold GPUs, and how they begin, change and end."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np

from ymir_opt.simulator.cluster import Cluster
from ymir_opt.simulator.estimates import Estimates
from ymir_opt.simulator.rates import Rates, work_ratio
from ymir_opt.simulator.results import JobRecord, Recorder, Segment
from ymir_opt.simulator.state import Options, Run, Taken
from ymir_opt.simulator.store import JobStore
from ymir_opt.simulator.workload import TraceJob, Workload

__all__ = ["World"]

STATS = (
    "merges_kept",
    "merges_rolled_back",
    "node_failures",
    "failed_starts",
    "unplaced",
    "starts",
    "preemptions",
    "jobs_finished",
)


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
        self.store = JobStore(workload, estimates, cluster.types)
        self.rates = Rates(workload, cluster)
        self.runs: dict[int, Run] = {}
        self.shared: dict[int, Run] = {}
        self.run_of: dict[int, int] = {}
        self.heap: list[tuple[float, int, str, int, int]] = []
        self.rejected: set[tuple[str, frozenset[int]]] = set()
        self.adapters: set[int] = set()
        self.counter = 0
        self.next_run = 0
        self.stats = dict.fromkeys(STATS, 0)
        self.jct_sum_s = 0.0
        self.last_completion_s = -np.inf
        self._models: dict[str, int] = {}

    @property
    def active(self) -> int:
        """Return the number of active jobs."""
        return self.store.active

    def model_index(self, model: str) -> int:
        """Return the index of a foundation model, -1 for none."""
        return self._models.setdefault(model, len(self._models)) if model else -1

    def models(self) -> tuple[str, ...]:
        """Return the foundation models seen so far, by index."""
        return tuple(self._models)

    def push(self, at: float, kind: str, slot: int, version: int) -> None:
        """Add an event; version -1 never goes stale."""
        self.counter += 1
        heapq.heappush(self.heap, (at, self.counter, kind, slot, version))

    def arrive(self, job: TraceJob, serial: int) -> None:
        """Add a job."""
        self.store.arrive(job, serial)

    # ----------------------------------------------------------- start, stop

    def start(
        self,
        mode: str,
        slots: list[int],
        gpu_type: int,
        taken: Taken,
        now: float,
        probe_evaluations: int = 0,
        sources: dict[int, int] | None = None,
        limits: dict[int, float] | None = None,
        why: str = "",
    ) -> Run:
        """Start a group on given GPUs.

        Parameters
        ----------
        taken : tuple of (int, int)
            (node, bit mask of GPUs).
        sources : dict or None
            Slot -> class whose weights a member starts from, its own progress discarded.
        limits : dict or None
            Slot -> most work with which its probe is passed.
        why : str
            The policy's reasons, for the record.
        """
        store = self.store
        first = store.job(slots[0])
        warm = self.cluster.occupy(taken, self.model_index(first.model))
        switch = self.workload.speeds.start_s(first.model, self.cluster.types[gpu_type], warm)
        gpus = sum(mask.bit_count() for _, mask in taken)
        run = Run(self.next_run, mode, list(slots), gpus, gpu_type, taken, now, now + switch, segment_s=now)
        run.why = why
        run.sources, run.limits = dict(sources or {}), dict(limits or {})
        run.began_as, run.merged = mode, len(slots) > 1
        run.serials = tuple(int(store.columns.data["serial"][slot]) for slot in slots)
        self.next_run += 1
        self.runs[run.id] = run
        if mode != "solo":
            self.shared[run.id] = run
        for slot in slots:
            self.run_of[slot] = run.id
            store.columns.data["group"][slot] = run.id
        if probe_evaluations and run.merged:
            run.probe_evaluations, run.probe = probe_evaluations, "running"
        if mode == "joint":
            self._enter_joint(run)
        for slot in run.holders:
            self._occupy(run, slot, now)
        self._set_rates(run, now)
        return run

    def _occupy(self, run: Run, slot: int, now: float) -> None:
        """Mark a member as holding the group's GPUs, after its weights are in place."""
        data = self.store.columns.data
        if slot in run.sources:
            self._warm(run, slot)
        data["gpus"][slot] = run.gpus
        data["gpu_type"][slot] = run.gpu_type
        if np.isnan(data["first_start_s"][slot]):
            data["first_start_s"][slot] = now
        else:
            data["restarts"][slot] += 1
        data["last_start_s"][slot] = now
        self.store.truth.data["held_since"][slot] = now
        self.stats["starts"] += 1
        protected = data["min_runtime_s"][slot]
        if protected > 0:
            self.push(now + float(protected), "wake", slot, -1)

    def _warm(self, run: Run, slot: int) -> None:
        """Start from other weights."""
        run.before.setdefault(slot, self.store.amounts(slot))
        kind, source = self.store.job(slot).kind, run.sources[slot]
        true = work_ratio(self.workload.transfer.warm, kind, [source])
        self.store.begin_anew(slot, true, work_ratio(self.estimates.transfer.warm, kind, [source]))
        if run.probe_evaluations:
            run.probing.add(slot)

    def _enter_joint(self, run: Run) -> None:
        kinds = {slot: self.store.job(slot).kind for slot in run.slots}
        for slot, kind in kinds.items():
            run.before.setdefault(slot, self.store.amounts(slot))
            others = [k for s, k in kinds.items() if s != slot]
            true = work_ratio(self.workload.transfer.joint, kind, others)
            estimated = work_ratio(self.estimates.transfer.joint, kind, others)
            run.ratio[slot] = (true, estimated)
            self.store.scale_left(slot, true, estimated)
            if run.probe_evaluations:
                run.probing.add(slot)

    def _set_rates(self, run: Run, now: float) -> None:
        """Recompute the members' rates after a change, and the events that follow from them."""
        store = self.store
        truth = store.truth.data
        holders = run.holders
        placement = tuple(mask.bit_count() for _, mask in run.taken)
        jobs = [store.job(slot) for slot in holders]
        rates = self.rates.of_group(run.mode, jobs, placement, run.gpu_type)
        for slot, job, rate in zip(holders, jobs, rates, strict=True):
            truth["rate"][slot] = rate
            truth["share"][slot] = run.gpus / len(holders)
            since = truth["since"][slot] = max(now, run.ready_s)
            store.truth.version[slot] += 1
            version = int(store.truth.version[slot])
            if slot in store.fails_left:
                self.push(run.ready_s, "fail", slot, version)
            elif rate > 0:
                done = truth["done"][slot]
                self.push(float(since + (truth["work"][slot] - done) / rate), "finish", slot, version)
                if slot in run.probing:
                    wanted = max(0.0, run.probe_evaluations * job.epoch_samples - done)
                    self.push(float(since + wanted / rate), "probe", slot, version)

    def stop(self, run: Run, now: float, ended_by: str, lose_since: float = 0.0, why: str = "") -> list[int]:
        """Take a group off its GPUs; return its members that held them, now pending.

        A joint member leaves with its rest divided by ratio(S), so what it learnt is kept.

        Parameters
        ----------
        lose_since : float
            Progress since the last whole multiple of this much productive time is lost (a node failure).
        why : str
            The policy's reasons, for the record.
        """
        store = self.store
        holders = list(run.holders)
        for slot in holders:
            store.settle_one(slot, now)
            if lose_since > 0:
                truth = store.truth.data
                lost = (store.columns.data["productive_s"][slot] % lose_since) * truth["rate"][slot]
                truth["done"][slot] = max(0.0, truth["done"][slot] - lost)
                store.settle_one(slot, now)
            if slot in run.ratio:
                true, estimated = run.ratio[slot]
                store.scale_left(slot, 1.0 / true, 1.0 / estimated)
        self._segment(run, now, ended_by, why)
        for slot in run.slots:
            self._detach(slot)
        self.cluster.give(run.taken)
        self._remove(run)
        return holders

    def _remove(self, run: Run) -> None:
        del self.runs[run.id]
        self.shared.pop(run.id, None)

    def _detach(self, slot: int) -> None:
        data, truth = self.store.columns.data, self.store.truth
        data["gpus"][slot] = 0
        data["gpu_type"][slot] = data["group"][slot] = -1
        truth.data["rate"][slot] = truth.data["share"][slot] = 0.0
        truth.version[slot] += 1
        self.run_of.pop(slot, None)

    def drop_waiting(self, run: Run) -> None:
        """Let the members of a sequence that wait go; its head goes on alone."""
        for slot in run.slots[1:]:
            self.store.columns.data["group"][slot] = -1
            self.run_of.pop(slot, None)
            run.sources.pop(slot, None)
        del run.slots[1:]
        self._alone(run)

    def _alone(self, run: Run) -> None:
        """Turn a shared group with one member left into a solo run, its work unchanged."""
        run.mode = "solo"
        run.ratio.clear()
        self.shared.pop(run.id, None)

    def count_preempted(self, slots: Iterable[int]) -> None:
        """Count jobs that lost their GPUs and got none in the same round."""
        for slot in slots:
            if slot not in self.run_of:
                self.store.columns.data["preemptions"][slot] += 1
                self.stats["preemptions"] += 1

    def _segment(self, run: Run, now: float, ended_by: str, ended_why: str = "") -> None:
        if self.recorder.want_segments and now > run.segment_s:
            ids, names = self.cluster.ids, self.store.columns.ids
            self.recorder.segments.append(
                Segment(
                    run.id,
                    run.mode,
                    tuple(names[slot] for slot in run.holders),
                    tuple((ids[node], mask) for node, mask in run.taken),
                    run.segment_s,
                    run.ready_s,
                    now,
                    ended_by,
                    run.why if run.segment_s == run.started_s else "",
                    ended_why,
                )
            )
        run.segment_s = now

    # --------------------------------------------------------------- events

    def finish(self, slot: int, now: float) -> None:
        """Complete a job; the rest of its group goes on, or the GPUs become free."""
        run = self.runs[self.run_of[slot]]
        for member in run.holders:
            self.store.settle_one(member, now)
        self._segment(run, now, "finished" if len(run.slots) == 1 else "member")
        if run.merged:
            run.merged = False
            self.stats["merges_kept"] += 1
        run.slots.remove(slot)
        run.probing.discard(slot)
        # the slot will be another job's
        for kept in (run.sources, run.limits, run.ratio):
            kept.pop(slot, None)
        self._pass_probe(run)
        self._record(slot, now)
        if not run.slots:
            self.cluster.give(run.taken)
            self._remove(run)
            return
        if run.mode == "sequence":
            head = self.store.job(run.slots[0])
            run.ready_s = now + self.workload.speeds.start_s(
                head.model, self.cluster.types[run.gpu_type], True
            )
            self._occupy(run, run.slots[0], now)
        if len(run.slots) == 1:
            self._alone(run)
        self._set_rates(run, now)

    def _pass_probe(self, run: Run) -> None:
        if run.probe == "running" and not run.probing:
            run.probe = "passed"

    def _record(self, slot: int, now: float) -> None:
        store = self.store
        data, job = store.columns.data, store.job(slot)
        step = self.options.completion_rounding_s
        at = round(now / step) * step if step else now
        exclusive, fastest = self.rates.isolated(job)
        held, attained = float(data["held_gpu_s"][slot]), float(data["attained_gpu_s"][slot])
        self.recorder.job(
            JobRecord(
                job.id,
                job.submitted_at_s,
                float(data["first_start_s"][slot]),
                at,
                job.requested_gpus,
                held,
                max(0.0, held - attained),
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
        store.forget(slot)

    def fail_start(self, slot: int, now: float) -> None:
        """Let a start fail: the job backs off, its group is taken off."""
        data, fails = self.store.columns.data, self.store.fails_left
        fails[slot] -= 1
        if not fails[slot]:
            del fails[slot]
        self.stop(self.runs[self.run_of[slot]], now, "failed")
        data["failed_starts"][slot] += 1
        doublings = min(60, int(data["failed_starts"][slot]) - 1)
        wait = min(self.options.backoff_s * 2.0**doublings, self.options.backoff_limit_s)
        data["not_before_s"][slot] = now + wait
        self.stats["failed_starts"] += 1
        self.push(now + wait, "wake", slot, -1)

    def end_probe(self, slot: int, now: float) -> None:
        """Judge a member's probe; a failure splits the group and takes the member back."""
        run = self.runs[self.run_of[slot]]
        run.probing.discard(slot)
        needs, alone = float(self.store.truth.data["work"][slot]), run.before[slot][0]
        # as predicted (to rounding), or at least a gain
        if needs <= run.limits.get(slot, 0.0) * (1 + 1e-9) or needs < alone:
            self._pass_probe(run)
            return
        self.rejected.add((run.began_as, frozenset(run.serials)))
        earlier = run.before[slot]
        run.ratio.pop(slot, None)
        self.stop(run, now, "split")
        self.store.reset_amounts(slot, earlier)
        self.stats["merges_rolled_back"] += 1

    def node_down(self, node: int, now: float) -> None:
        """Stop everything on a node and take it out."""
        for run in [run for run in self.runs.values() if any(n == node for n, _ in run.taken)]:
            self.stop(run, now, "failed", lose_since=self.options.checkpoint_s)
            self.stats["node_failures"] += 1
        self.cluster.set_ready(node, False)
