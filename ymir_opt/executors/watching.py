"""What workers tell, taken into the records: events, heartbeats, results, and how they end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ymir_opt.domain.base import MAX_MAGNITUDE
from ymir_opt.domain.snapshot import Mode
from ymir_opt.executors.base import Options
from ymir_opt.executors.failures import note_failure
from ymir_opt.executors.folder import read_json, read_lines
from ymir_opt.executors.records import GroupRecord, JobPhase, JobRecord, WorkerRecord, WorkerState
from ymir_opt.executors.state import State

__all__ = ["Watcher"]

# what a handler raises of a line that is JSON and yet not what a worker writes
MALFORMED = (TypeError, ValueError, AttributeError, KeyError, OverflowError)


class Watcher:
    """Takes what workers wrote into the state, each event exactly once.

    The offset up to which a worker's events were read is written in one transaction with what they changed.
    """

    def __init__(self, state: State, options: Options) -> None:
        self.state, self.options = state, options
        self._handlers: Mapping[str, Callable[[WorkerRecord, Mapping[str, Any]], None]] = {
            "ready": self._ready,
            "started": self._started,
            "evaluated": self._evaluated,
            "checkpointed": self._checkpointed,
            "finished": self._ended_job,
            "failed": self._ended_job,
            "left": self._left,
            "split": self._split,
            "profiled": self._profiled,
            "out_of_memory": self._told,
            "stopped": self._told,
        }

    def read_events(self, worker: WorkerRecord) -> None:
        """Take the events that a worker wrote since the last time."""
        path = self.state.folder.worker(worker.id) / "events.jsonl"
        while True:
            events, offset = read_lines(path, worker.offset)
            if offset == worker.offset:
                return
            with self.state.journal.transaction():
                for event in events:
                    handler = self._handlers.get(str(event.get("event")))
                    if handler is None:
                        continue
                    try:
                        handler(worker, event)
                    except MALFORMED as error:
                        # one line of one worker; its heartbeats and results still count
                        reason = f"a line of {path} means nothing ({type(error).__name__}: {error})"
                        self.state.tell("unreadable", worker=worker.id, reason=reason)
                worker.offset = offset
                self.state.save(worker, *self.state.jobs.values(), *self.state.groups.values())

    def read_status(self, worker: WorkerRecord, now: float) -> float:
        """Take a worker's heartbeat; return its age in seconds."""
        status = read_json(self.state.folder.worker(worker.id) / "status.json")
        if status is None:
            return now - worker.started_at_s
        worker.ready = bool(status.get("ready"))
        probes = set()
        members = status.get("members")
        for key, member in members.items() if isinstance(members, dict) else ():
            job = self.state.jobs.get(key)
            if job is None or key not in worker.holding or job.over or not isinstance(member, dict):
                continue
            _take_figures(job, member)
            probes.add(str(member.get("probe")))
        if "passed" in probes and "running" not in probes:
            self._passed(worker)
        if status.get("version") == worker.version:
            # what the last assignment does not name was let go when it was applied
            group = worker.assignment.get("group") or {}
            worker.holding = [
                key
                for key in [*group.get("jobs", ()), *worker.assignment.get("profile", ())]
                if key in self.state.jobs and not self.state.jobs[key].has_result
            ]
        # the heartbeat goes on in a process whose training hangs; `tick_s` does not
        return now - _number(status.get("tick_s"), _number(status.get("at_s"), worker.started_at_s))

    def _passed(self, worker: WorkerRecord) -> None:
        group = self.state.groups.get(str((worker.assignment.get("group") or {}).get("id")))
        if group is not None and group.probe == "running":
            group.probe = "passed"
            self.state.save(group)

    def take_result(self, job: JobRecord) -> bool:
        """Take a job's result, if it has one."""
        result = self.state.folder.result(job.key)
        if result is None:
            return False
        if not JobPhase(job.phase).over:
            self.conclude(job, result)
        return True

    def conclude(self, job: JobRecord, result: Mapping[str, Any]) -> None:
        """End a job as a result says, whose state is one of `RESULT_STATES`."""
        phase = JobPhase(result["state"])
        job.phase = phase
        job.ending = ""
        job.reason = str(result.get("reason") or "")
        job.rate = None
        job.finished_at_s = self.state.clock()
        _take_figures(job, {name: result.get(name) for name in ("metric", "samples")})
        self.state.save(job)
        self.state.tell("ended", job=job.id, state=str(phase), reason=job.reason, group=job.group)

    def ended(self, worker: WorkerRecord, why: str) -> None:
        """Take the end of a worker: what it still wrote, and what became of its jobs."""
        self.read_events(worker)
        self.read_status(worker, self.state.clock())
        asked = worker.state == WorkerState.STOPPING or worker.stop_asked_s is not None
        with self.state.journal.transaction():
            worker.state = WorkerState.ENDED
            tail = "" if asked else self.state.folder.stderr_tail(worker.id)
            worker.reason = f"{why}: {tail}" if tail else why
            held, worker.holding = worker.holding, []
            failed = []
            for key in held:
                job = self.state.jobs[key]
                if self.take_result(job) or job.over:
                    continue
                if not asked and self._was_at_work(worker, key):
                    failed += (
                        [job] if note_failure(job, worker.reason, self.state.clock(), self.options) else []
                    )
                self.state.save(job)
            for job in failed:
                self.state.tell("failed_start", job=job.id, reason=job.reason, worker=worker.id)
            if failed:
                self._undo_merge(worker)
            self.state.tell("worker_ended", worker=worker.id, reason=worker.reason, asked=asked)
            self.state.save(worker)

    def _was_at_work(self, worker: WorkerRecord, key: str) -> bool:
        """Say whether the worker was training or measuring a job, and not only to train it later."""
        group = worker.assignment.get("group") or {}
        if group.get("mode") != "sequence" or key in worker.assignment.get("profile", ()):
            return True
        waiting = [k for k in group["jobs"] if not self.state.jobs[k].has_result]
        return not waiting or waiting[0] == key

    def _undo_merge(self, worker: WorkerRecord) -> None:
        """Want a group of several no more that could not start: alone, each shows which one it was."""
        group = self.state.groups.get(str((worker.assignment.get("group") or {}).get("id")))
        if group is None:
            return
        left = [key for key in group.jobs if not self.state.jobs[key].over]
        if len(left) > 1:
            self.reject(group, 0.0)
            self.state.drop_group(group.id)

    def reject(self, group: GroupRecord, gain: float | None) -> None:
        """Remember that a merge did not help, so that it is not proposed again."""
        ids = sorted(self.state.jobs[key].id for key in group.jobs)
        plan = self.state.journal.get("meta", "plan") or {}
        self.state.journal.put(
            "rejected",
            f"{group.mode}:{'|'.join(ids)}",
            {
                "jobs": ids,
                "mode": group.mode,
                "at_s": self.state.clock(),
                "realised_gain": gain,
                "estimator_version": plan.get("estimator_version"),
            },
        )

    # -- events -------------------------------------------------------------------------------

    def _job(self, event: Mapping[str, Any]) -> JobRecord | None:
        return self.state.jobs.get(str(event.get("job")))

    def _ready(self, worker: WorkerRecord, event: Mapping[str, Any]) -> None:
        worker.ready = True
        self.state.tell("ready", lasting=False, worker=worker.id)

    def _started(self, worker: WorkerRecord, event: Mapping[str, Any]) -> None:
        job = self._job(event)
        if job is None or job.over:
            return
        at = _number(event.get("at_s"), self.state.clock())
        job.restarts += job.first_start_s is not None
        job.first_start_s = at if job.first_start_s is None else job.first_start_s
        job.last_start_s = at
        job.phase = JobPhase.RUNNING
        job.reason = ""
        group = self.state.groups.get(str(event.get("group")))
        follows = group is not None and group.mode == Mode.SEQUENCE and job.key in group.jobs[1:]
        if group is not None and follows and not event.get("samples"):
            # what was predicted of a follower holds from now on
            job.work, job.samples_at_start = group.predicted.get(job.key, {}).get("work"), 0.0
        job.samples = _count(event, job.samples)
        self.state.tell("started", job=job.id, worker=worker.id, group=event.get("group"))

    def _evaluated(self, worker: WorkerRecord, event: Mapping[str, Any]) -> None:
        job = self._job(event)
        if job is None:
            return
        _take_figures(job, event)
        group = self.state.groups.get(str(event.get("group")))
        if group is None or job.key not in group.jobs:
            return
        group.seen[job.key] = group.seen.get(job.key, 0) + 1
        left = [key for key in group.jobs if not self.state.jobs[key].over]
        if group.probe == "running" and all(group.seen.get(key, 0) >= group.evaluations for key in left):
            group.probe = "passed"

    def _checkpointed(self, worker: WorkerRecord, event: Mapping[str, Any]) -> None:
        job = self._job(event)
        if job is None:
            return
        samples = _count(event, job.samples)
        job.checkpoint_samples = job.samples = samples
        # its own weights are newer now than those it started from
        for group in self.state.groups.values():
            if event.get("group") in (None, group.id):
                group.starts_from.pop(job.key, None)

    def _ended_job(self, worker: WorkerRecord, event: Mapping[str, Any]) -> None:
        job = self._job(event)
        if job is not None:
            self.take_result(job)

    def _left(self, worker: WorkerRecord, event: Mapping[str, Any]) -> None:
        job = self._job(event)
        if job is None or job.over:
            return
        job.checkpoint_samples = job.samples = _count(event, job.samples)
        job.rate = None

    def _split(self, worker: WorkerRecord, event: Mapping[str, Any]) -> None:
        group = self.state.groups.get(str(event.get("group")))
        if group is None:
            return
        named = [str(key) for key in event.get("jobs") or group.jobs]
        affected = [self.state.jobs[key] for key in named if key in self.state.jobs]
        if group.mode == Mode.JOINT:
            self.reject(group, None)
            # the members go on beside each other until the next plan
            group.mode = Mode.COLOCATE.value
        else:
            for job in affected:
                job.no_transfer = True
        group.probe = "none"
        for job in affected:
            group.starts_from.pop(job.key, None)
        self.state.tell(
            "split",
            group=group.id,
            jobs=[job.id for job in affected],
            mode=group.mode,
            cost_s=event.get("cost_s"),
            rule=event.get("rule"),
            predicted=event.get("predicted"),
            realised=event.get("realised"),
        )

    def _profiled(self, worker: WorkerRecord, event: Mapping[str, Any]) -> None:
        key = str(event.get("job"))
        kept = {**event, "gpu_type": worker.gpu_type}
        self.state.journal.put("profiled", f"{worker.id}:{event.get('seq')}", kept)
        self.state.set_wishes(wish for wish in self.state.wishes if wish.job != key)
        job = self.state.jobs.get(key)
        if job is not None:
            job.failed_starts, job.not_before_s = 0, None
        self.state.tell("profiled", job=job.id if job is not None else key, rows=event.get("rows"))

    def _told(self, worker: WorkerRecord, event: Mapping[str, Any]) -> None:
        job = self._job(event)
        name = str(event.get("event"))
        if name == "stopped" and worker.stop_asked_s is None:
            # somebody else asked it to: that is no failure of its jobs
            worker.stop_asked_s = self.state.clock()
        self.state.tell(
            name, job=None if job is None else job.id, worker=worker.id, reason=event.get("reason")
        )


def _number(value: Any, otherwise: float) -> float:
    """Return a number that a worker wrote, if it is one that can be calculated with."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_MAGNITUDE:
        return otherwise
    return float(value)


def _count(event: Mapping[str, Any], otherwise: float) -> float:
    """Return how many samples an event says."""
    return max(0.0, _number(event.get("samples"), otherwise))


def _take_figures(job: JobRecord, facts: Mapping[str, Any]) -> None:
    for field, name in (
        ("samples", "samples"),
        ("metric", "metric"),
        ("train_loss", "train_loss"),
        ("rate", "samples_per_s"),
    ):
        value = _number(facts.get(name), math.nan)
        if math.isfinite(value) and (value >= 0 or field in ("metric", "train_loss")):
            setattr(job, field, value)
