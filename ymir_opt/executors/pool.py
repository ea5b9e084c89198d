"""A pool of warm workers: the executor that local processes and Ray actors share.

`WorkerPool.apply` makes a plan the wanted state; every `WorkerPool.tick` looks at the workers and takes one
step towards it. A job is handed from one worker to another only when the first has let go of it; the lock
in the job's folder stands behind that. Every action is an intent in the journal before its process or actor
exists, and that carries the action's id, so that after a crash nothing is lost and nothing started twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ymir_opt.domain.base import nearest, short
from ymir_opt.domain.documents import snapshot_sha256
from ymir_opt.domain.errors import InputError, NotFoundError, YmirError
from ymir_opt.domain.outcome import outcome, require_same_snapshot
from ymir_opt.domain.plan import ActionKind, Plan
from ymir_opt.domain.snapshot import Mode, Node, NodeState, Snapshot
from ymir_opt.executors.backend import Backend, Launch
from ymir_opt.executors.base import Happening, Options, StalePlanError
from ymir_opt.executors.desired import Want, carried_over, differences, groups_of, wants_of
from ymir_opt.executors.failures import note_failure
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.executors.journal import Journal
from ymir_opt.executors.records import JobPhase, JobRecord, WorkerRecord, WorkerState
from ymir_opt.executors.state import State
from ymir_opt.executors.watching import Watcher

__all__ = ["CHANGES", "WorkerPool"]

# after these a plan made before is stale
CHANGES = frozenset(
    ("ended", "failed_start", "worker_ended", "split", "profiled", "cancelling", "submitted", "node")
)
POLL_S = 0.05
# how often figures from heartbeats are written down
SAVE_EVERY_S = 1.0


class WorkerPool:
    """Keeps workers as the last plan wants them.

    Parameters
    ----------
    backend : Backend
        Where workers run.
    folder : JobsFolder
    journal : Journal
        Its lease is held by this process.
    options : Options
    clock, sleep : callable
    """

    def __init__(
        self,
        backend: Backend,
        folder: JobsFolder,
        journal: Journal,
        options: Options,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = backend.name
        self.backend, self.folder, self.journal, self.options = backend, folder, journal, options
        self.state = State(folder, journal, clock)
        self.watcher = Watcher(self.state, options)
        self._clock, self._sleep = clock, sleep
        self._last_tick_s: float | None = None
        self._saved_s = 0.0
        self._nodes: dict[str, Node] = {node.id: node for node in backend.nodes()}

    # -- recovery -----------------------------------------------------------------------------

    def recover(self) -> None:
        """Find what an earlier process left: first the workers that exist, then the journal.

        Workers that the journal knows are adopted; others are asked to end. Of those that the journal
        knows and that do not exist, the end is taken into account.
        """
        found = self.backend.find()
        for action, handle in found.items():
            record = self.state.workers.get(action)
            if record is None or not record.live:
                self._disown(action, dict(handle))
                continue
            record.handle = dict(handle)
            if record.state == WorkerState.INTENT:
                record.state = WorkerState.RUNNING
            self.state.save(record)
            if record.state == WorkerState.RUNNING:
                # the crash may have come between the journal and the file
                self.folder.write_assignment(action, record.assignment)
            self.state.tell("adopted", worker=action)
        for record in self.state.live:
            if record.id not in found:
                # a process that was just being made must not begin to work
                self.folder.write_assignment(record.id, self._stopping(record))
                self.watcher.ended(record, "it ended while nobody watched")
        for job in self.state.jobs.values():
            self.watcher.take_result(job)
        self.end_unreadable()

    def end_unreadable(self) -> None:
        """Let each job fail whose request is missing or damaged: nobody else has to wait for it."""
        for job in self.state.jobs.values():
            if job.over:
                continue
            try:
                self.state.request(job.key)
            except YmirError as error:
                self.end(job, "failed", error.one_line())

    def _disown(self, action: str, handle: dict[str, Any]) -> None:
        """Ask a worker to end that the journal does not know; its jobs count as held until it did."""
        from ymir_opt.executors.folder import read_json

        left = read_json(self.folder.worker(action) / "assignment.json") or {}
        group, model, version = (left.get(name) for name in ("group", "foundation_model", "version"))
        members = group.get("jobs") if isinstance(group, dict) else None
        record = WorkerRecord(
            id=action,
            node="",
            gpu=-1,
            lane=0,
            model=model if isinstance(model, dict) else {},
            label="",
            state=WorkerState.RUNNING,
            version=version if isinstance(version, int) else 0,
            assignment=left,
            holding=[key for key in self.state.jobs if isinstance(members, list) and key in members],
            handle=handle,
            started_at_s=self._clock(),
        )
        self.state.workers[action] = record
        self.state.tell("disowned", worker=action)
        self._ask(record)

    # -- the executor's protocol --------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes with the foundation model that each GPU's worker holds."""
        resident: dict[tuple[str, int], str] = {}
        for worker in self.state.live:
            if worker.ready and worker.lane == 0:
                resident[worker.node, worker.gpu] = worker.label
        return tuple(
            node.model_copy(
                update={"resident_fm": tuple(resident.get((node.id, gpu)) for gpu in range(node.gpus))}
            )
            for node in self._nodes.values()
        )

    def observed(self, snapshot: Snapshot) -> None:
        """Remember a snapshot as the present state: a plan for it may be applied until something happens."""
        self.journal.put("meta", "current", {"sha256": snapshot_sha256(snapshot)})

    def apply(self, plan: Plan, snapshot: Snapshot) -> tuple[str, ...]:
        """Make a plan the wanted state; see `Executor.apply`."""
        require_same_snapshot(snapshot, plan)
        current = (self.journal.get("meta", "current") or {}).get("sha256")
        if current != plan.snapshot_sha256:
            what = "something happened since" if current is None else "another snapshot is the present one"
            raise StalePlanError(
                "snapshot_sha256", f"the plan is stale: {what}", "plan again from a new snapshot"
            )
        now = self._clock()
        new, wishes = groups_of(plan, snapshot, self.state.keys(), now)
        groups = carried_over(new, self.state.groups, lambda key: self.state.jobs[key].over)
        after = snapshot_sha256(outcome(snapshot, plan))
        with self.journal.transaction():
            self._note_actions(plan)
            for group in groups:
                if self.state.groups.get(group.id) is group:
                    continue
                for number, key in enumerate(group.jobs):
                    job = self.state.jobs[key]
                    job.group = group.id
                    if number and group.mode == Mode.SEQUENCE:
                        continue
                    job.samples_at_start = 0.0 if key in group.starts_from else job.samples
                    if key in group.starts_from:
                        job.samples_at_failure = -1.0
                    job.work = group.predicted.get(key, {}).get("work")
            self.state.set_groups(groups)
            self.state.set_wishes(wishes)
            self.state.save(*self.state.jobs.values())
            self.journal.put("meta", "current", {"sha256": after})
            stated = plan.planner.estimates
            self.journal.put(
                "meta",
                "plan",
                {
                    "snapshot_sha256": plan.snapshot_sha256,
                    "outcome_sha256": after,
                    "estimator_version": None if stated is None else stated.version,
                    "at_s": now,
                },
            )
            self.state.tell("applied", policy=plan.planner.policy, groups=len(groups), profiles=len(wishes))
        return differences(self._wants(), self.held())

    def _note_actions(self, plan: Plan) -> None:
        for action in plan.actions:
            job = self.state.by_id(action.job)
            if job is None or job.over:
                continue
            if action.action is ActionKind.PREEMPT:
                job.preemptions += 1
            if action.action in (ActionKind.PREEMPT, ActionKind.WAIT, ActionKind.PROFILE):
                explained = plan.explanations.get(action.job)
                job.group = None
                if explained is not None and not (job.not_before_s or 0.0) > self._clock():
                    job.reason = f"{explained.reason.value}: {explained.message}"

    def held(self) -> dict[str, tuple[str, int]]:
        """Return the node and GPU of each job, by its key, that a worker may be training now."""
        return {key: (worker.node, worker.gpu) for worker in self.state.live for key in worker.holding}

    def tick(self) -> tuple[Happening, ...]:
        """Look at the workers and step towards the wanted state; return what happened since the last tick."""
        now = self._clock()
        self.journal.renew()
        self._look_at_nodes()
        for worker in self.state.live:
            self._look_at(worker, now)
        for job in self.state.jobs.values():
            if not JobPhase(job.phase).over:
                self.watcher.take_result(job)
        self._end_wished()
        self._reconcile(now)
        self._account(now)
        news = tuple(self.state.news)
        self.state.news = []
        if any(event["event"] in CHANGES for event in news):
            self.journal.put("meta", "current", {"sha256": None})
        return news

    def status(self) -> Mapping[str, JobRecord]:
        """Return the records of jobs, by key."""
        return self.state.jobs

    def cancel(self, job: str) -> None:
        """End a job by its id, as soon as its worker has let go of it.

        Raises
        ------
        NotFoundError
            There is no such job.
        """
        record = self.state.by_id(job)
        if record is None:
            ids = {found.id for found in self.state.jobs.values()}
            raise NotFoundError("job", f"{short(job)} is unknown", nearest(job, ids))
        self.end(record, "cancelled", "cancelled by its user")

    def end(self, job: JobRecord, state: str, reason: str) -> None:
        """Let a job end in a state, as soon as its worker has let go of it."""
        if job.over:
            return
        job.ending, job.ending_reason, job.reason = state, reason, reason
        self.state.save(job)
        self.state.tell("cancelling", job=job.id, reason=reason)
        self.journal.put("meta", "current", {"sha256": None})

    def events(self, since: int = 0) -> tuple[Happening, ...]:
        """Return what happened after a sequence number."""
        return tuple(self.journal.happenings(since))

    def stop(self) -> None:
        """Ask every worker to checkpoint and end; those that do not in time are ended."""
        for worker in self.state.live:
            self._ask(worker)
        while self.state.live:
            now = self._clock()
            self.journal.renew()
            for worker in self.state.live:
                self._look_at(worker, now)
            if self.state.live:
                self._sleep(POLL_S)
        for job in self.state.jobs.values():
            if not JobPhase(job.phase).over:
                job.phase, job.rate = JobPhase.PENDING, None
        self.state.save(*self.state.jobs.values())

    def close(self) -> None:
        """Let go; workers go on."""
        self.backend.close()

    # -- looking ------------------------------------------------------------------------------

    def _look_at_nodes(self) -> None:
        for node in self.backend.nodes():
            before = self._nodes.get(node.id)
            if before is None or before.state != node.state:
                self.state.tell("node", node=node.id, state=node.state.value)
            self._nodes[node.id] = node

    def _look_at(self, worker: WorkerRecord, now: float) -> None:
        self.watcher.read_events(worker)
        age = self.watcher.read_status(worker, now)
        why = self.backend.ended(worker.id, worker.handle)
        if why is not None:
            # it may have ended because its node did
            self._look_at_nodes()
            lost = self._node_state(worker.node) is NodeState.DOWN
            if lost and worker.stop_asked_s is None:
                worker.stop_asked_s = now
            self.watcher.ended(worker, "its node left" if lost else why)
            return
        if worker.stop_asked_s is not None:
            if now - worker.stop_asked_s > self.options.grace_s:
                self.backend.kill(worker.id, worker.handle)
            return
        if age > self.options.silent_s:
            self.state.tell("silent", worker=worker.id, reason=f"no heartbeat for {age:.0f} s")
            self.backend.kill(worker.id, worker.handle)
            return
        over = self.backend.over_limit(worker.id, worker.handle, (worker.node, worker.gpu))
        if over is not None:
            self._too_large(worker, over, now)
        self.state.save(worker)

    def _too_large(self, worker: WorkerRecord, over: str, now: float) -> None:
        """End a worker above its memory limit: a failed start of its jobs, however far they came."""
        self.state.tell("memory_limit", worker=worker.id, reason=over)
        at_work = [
            self.state.jobs[key]
            for key in worker.holding
            if key in self.state.jobs and not self.state.jobs[key].over
        ]
        for job in at_work:
            job.samples_at_failure = max(job.checkpoint_samples, job.samples)
            note_failure(job, over, now, self.options)
            self.state.save(job)
            self.state.tell("failed_start", job=job.id, reason=job.reason, worker=worker.id)
        self._ask(worker)

    def _node_state(self, node: str) -> NodeState:
        found = self._nodes.get(node)
        return NodeState.DOWN if found is None else found.state

    def _end_wished(self) -> None:
        held = self.held()
        for job in self.state.jobs.values():
            if not job.ending or job.key in held:
                continue
            try:
                finished = self.folder.finish(job.key, job.ending, job.ending_reason)
            except (OSError, InputError) as error:
                # nothing can be written there: the journal alone knows how it ended
                why = getattr(error, "strerror", None) or str(error)
                reason = f"{job.ending_reason} (no result was written: {why})"
                self.watcher.conclude(job, {"state": job.ending, "reason": reason})
                continue
            if finished:
                self.watcher.take_result(job)

    def _account(self, now: float) -> None:
        """Add up running time, and say which jobs run."""
        passed = 0.0 if self._last_tick_s is None else max(0.0, now - self._last_tick_s)
        self._last_tick_s = now
        held = self.held()
        for job in self.state.jobs.values():
            if JobPhase(job.phase).over:
                continue
            if job.phase == JobPhase.RUNNING and job.key not in held:
                job.phase, job.rate = JobPhase.PENDING, None
                self.state.save(job)
            elif job.phase == JobPhase.RUNNING:
                job.running_s += passed
                limit = self.state.request(job.key).resources.time_limit_s
                if limit is not None and job.running_s > limit:
                    self.end(job, "failed", f"ran for its time limit of {limit:g} s")
        if now - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = now
            self.state.save(*self.state.jobs.values(), *self.state.groups.values())

    # -- acting -------------------------------------------------------------------------------

    def _wants(self) -> list[Want]:
        wants = wants_of(
            list(self.state.groups.values()),
            self.state.wishes,
            self.state.jobs,
            self.state.request,
            lambda key: str(self.folder.job(key) / "checkpoint"),
        )
        return [replace(want, prepare=ahead) for want, ahead in zip(wants, self._ahead(wants), strict=True)]

    def _ahead(self, wants: Sequence[Want]) -> list[tuple[str, ...]]:
        """Return for each worker the waiting job whose data it should read ahead: each by another."""
        named = {key for want in wants for key in want.jobs}
        waiting: dict[str, list[str]] = {}
        for job in sorted(self.state.jobs.values(), key=lambda job: (job.submitted_at_s, job.id)):
            if not job.over and job.key not in named:
                waiting.setdefault(self.state.request(job.key).model.label, []).append(job.key)
        found: list[tuple[str, ...]] = []
        for want in wants:
            queue = waiting.get(want.label, [])
            found.append((queue.pop(0),) if queue and want.group is not None else ())
        return found

    def _reconcile(self, now: float) -> None:
        wants = self._wants()
        holder = {key: worker.id for worker in self.state.live for key in worker.holding}
        at = {worker.slot: worker for worker in self.state.live}
        wanted = set()
        for want in wants:
            wanted.add(want.slot)
            worker = at.get(want.slot)
            if worker is None:
                if not any(key in holder for key in want.jobs) and self._may_start(want, now):
                    self._start(want, now)
                continue
            if worker.stop_asked_s is not None:
                continue
            if worker.label != want.label:
                self._ask(worker)
                continue
            blocked = any(holder.get(key, worker.id) != worker.id for key in want.jobs)
            self._assign(worker, self._partly(worker, want) if blocked else want, now)
        for worker in self.state.live:
            if worker.slot not in wanted and worker.stop_asked_s is None:
                self._idle(worker, now)

    def _may_start(self, want: Want, now: float) -> bool:
        if self._node_state(want.node) is NodeState.DOWN:
            return False
        return all((self.state.jobs[key].not_before_s or 0.0) <= now for key in want.jobs)

    @staticmethod
    def _partly(worker: WorkerRecord, want: Want) -> Want:
        """Return what a worker can do while another still holds a job that it should have."""
        keep = [key for key in want.jobs if key in worker.holding]
        if want.group is None or not keep:
            return Want(want.node, want.gpu, want.lane, want.model, want.label, None)
        mode = want.group["mode"] if len(keep) > 1 else "solo"
        starts = {key: value for key, value in want.group["starts_from"].items() if key in keep}
        group = {**want.group, "mode": mode, "jobs": keep, "starts_from": starts, "probe": None}
        return Want(want.node, want.gpu, want.lane, want.model, want.label, group)

    def _content(self, action: str, want: Want | None, worker: WorkerRecord) -> dict[str, Any]:
        return {
            "schema": "ymir.assignment/1",
            "version": self.state.next_version(worker),
            "action": action,
            "device": self.backend.device(worker.node, worker.gpu),
            "foundation_model": dict(worker.model),
            "checkpoint_every_samples": self.options.checkpoint_every_samples,
            "stop": False,
            "group": None if want is None or want.group is None else dict(want.group),
            "prepare": [] if want is None else list(want.prepare),
            "profile": [] if want is None else list(want.profile),
        }

    def _meaning(self, assignment: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what of an assignment a running worker must be told: ended members are known to it."""
        group = assignment.get("group")
        profile = tuple(sorted(assignment.get("profile", ())))
        prepare = tuple(assignment.get("prepare", ()))
        if not group:
            return (None, profile, prepare)
        left = [key for key in group["jobs"] if not self.state.jobs[key].has_result]
        if not left:
            return (None, profile, prepare)
        mode = group["mode"] if len(left) > 1 else "solo"
        return (group["id"], mode, tuple(left), profile, prepare)

    def _assign(self, worker: WorkerRecord, want: Want | None, now: float) -> None:
        content = self._content(worker.id, want, worker)
        worker.idle_since_s = None if want is not None and want.jobs else worker.idle_since_s
        if self._meaning(content) == self._meaning(worker.assignment):
            return
        worker.version = content["version"]
        worker.assignment = content
        named = [] if want is None else list(want.jobs)
        worker.holding = sorted({*worker.holding, *named})
        self.state.save(worker)
        self.folder.write_assignment(worker.id, content)

    def _idle(self, worker: WorkerRecord, now: float) -> None:
        """Keep a worker that nobody wants warm for a while."""
        self._assign(worker, None, now)
        if worker.idle_since_s is None:
            worker.idle_since_s = now
        gone = self._node_state(worker.node) is NodeState.DOWN
        if worker.lane > 0 or gone or now - worker.idle_since_s > self.options.idle_s:
            self._ask(worker)

    def _start(self, want: Want, now: float) -> None:
        action = self.state.new_action()
        worker = WorkerRecord(
            id=action,
            node=want.node,
            gpu=want.gpu,
            lane=want.lane,
            model=dict(want.model),
            label=want.label,
            gpu_type=self._nodes[want.node].gpu_type,
            started_at_s=now,
            holding=sorted(set(want.jobs)),
        )
        worker.assignment = self._content(action, want, worker)
        worker.version = worker.assignment["version"]
        self.folder.write_assignment(action, worker.assignment)
        self.state.workers[action] = worker
        self.state.save(worker)
        launch = Launch(action, want.node, want.gpu, self.folder.worker(action), self.folder.root)
        try:
            worker.handle = dict(self.backend.start(launch))
        except YmirError as error:
            self._look_at_nodes()
            if self._node_state(want.node) is NodeState.DOWN:
                # that is no fault of the jobs
                worker.stop_asked_s = now
            self.watcher.ended(worker, error.one_line())
            return
        worker.state = WorkerState.RUNNING
        self.state.tell("worker_started", worker=action, node=want.node, gpu=want.gpu)
        self.state.save(worker)
        self.state.forget_ended()

    def _stopping(self, worker: WorkerRecord) -> dict[str, Any]:
        return {
            **worker.assignment,
            "version": self.state.next_version(worker),
            "action": worker.id,
            "stop": True,
        }

    def _ask(self, worker: WorkerRecord) -> None:
        if worker.stop_asked_s is not None and worker.state == WorkerState.STOPPING:
            return
        worker.stop_asked_s = self._clock()
        worker.state = WorkerState.STOPPING
        content = self._stopping(worker)
        worker.version = content["version"]
        self.state.save(worker)
        self.folder.write_assignment(worker.id, content)
        self.backend.ask(worker.id, worker.handle)

    def wanted_jobs(self) -> Iterable[JobRecord]:
        """Return the jobs of the wanted groups and measurements."""
        keys = {key for group in self.state.groups.values() for key in group.jobs}
        keys |= {wish.job for wish in self.state.wishes}
        return [self.state.jobs[key] for key in sorted(keys)]
