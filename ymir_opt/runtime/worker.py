"""The worker: one foundation model kept warm, jobs that come and go, steps until they are done."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ymir_opt.domain.base import first_error
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.request import ModelSource, SubmittedJob
from ymir_opt.runtime.backbone import Backbone, BackboneSpec, load_backbone
from ymir_opt.runtime.crew import Crew
from ymir_opt.runtime.dataset import JobData, load_data
from ymir_opt.runtime.entering import load_weights, source_of, start_from
from ymir_opt.runtime.evaluation import METRICS, evaluate
from ymir_opt.runtime.events import EventLog
from ymir_opt.runtime.jobfolder import JobFolder
from ymir_opt.runtime.measuring import profile_rows
from ymir_opt.runtime.member import Member
from ymir_opt.runtime.memory import rss_mib
from ymir_opt.runtime.merging import end_joint, form_joint, probe_passes, refuse_joint
from ymir_opt.runtime.preparing import Preparer
from ymir_opt.runtime.stepping import Outcome, Stepper

__all__ = ["Worker"]

CHECKPOINT_EVERY = 1024
BAD_BATCHES = 3
LOCK_RETRY_S = 0.5


class Worker:
    """Trains the group of jobs that its assignment names; see ``docs/runtime.md`` for the folders.

    Parameters
    ----------
    folder : Path or None
        The worker's own folder, for its events; None: they are kept in memory.
    jobs_dir : Path
    loader : callable, optional
        Loads a foundation model from its specification and a device.
    started : float, optional
        When the process began, seconds since the epoch: what a cold start is counted from.
    """

    def __init__(
        self,
        folder: Path | None,
        jobs_dir: Path,
        *,
        loader: Callable[[BackboneSpec, str], Backbone] = load_backbone,
        started: float | None = None,
    ) -> None:
        self.events = EventLog(None if folder is None else Path(folder) / "events.jsonl")
        self.crew = Crew(Path(jobs_dir), self.events)
        self.started = time.time() if started is None else started
        self.version: int | None = None
        self.stopped = False
        self._loader = loader
        self._cold_s: float | None = None
        self._model: ModelSource | None = None
        self._model_fault = ""
        self._device = "cpu"
        self._every = CHECKPOINT_EVERY
        self._backbone: Backbone | None = None
        self._stepper: Stepper | None = None
        self._preparer = Preparer(self._load_data)
        self._profile: list[str] = []
        self._joined: list[str] = []

    # -- assignment ---------------------------------------------------------------------------------

    def assign(self, assignment: Mapping[str, Any]) -> None:
        """Take over the desired state; an older or the same version changes nothing.

        Raises
        ------
        InputError
            If it is not an assignment.
        """
        try:
            version = int(assignment["version"])
            fields = dict(assignment["foundation_model"])
            group = assignment.get("group")
            if group is not None:
                group = {**group, "id": str(group["id"]), "jobs": [str(key) for key in group["jobs"]]}
                if group["mode"] not in ("solo", "colocate", "joint", "sequence"):
                    raise InputError("group.mode", f"{group['mode']!r} is unknown", "use one of the modes")
        except (KeyError, TypeError, ValueError) as error:
            problem = f"is not an assignment ({type(error).__name__}: {error})"
            raise InputError("assignment.json", problem, "write it again") from None
        if self.version is not None and version <= self.version:
            return
        if assignment.get("stop"):
            self.version = version
            self.stop()
            return
        self._every = int(assignment.get("checkpoint_every_samples") or CHECKPOINT_EVERY)
        self._use_model(fields, str(assignment.get("device") or "cpu"))
        jobs = list(group["jobs"]) if group else []
        prepare = [str(key) for key in assignment.get("prepare") or ()]
        profile = [str(key) for key in assignment.get("profile") or ()]
        self._enter(group, jobs)
        self._preparer.keep([*jobs, *prepare, *profile])
        if self.crew.runtime is not None:
            ahead = jobs if group and group["mode"] == "sequence" else []
            for key in [*prepare, *(key for key in ahead if not self.crew.has_ended(key))]:
                self._preparer.prepare(key)
        self._profile = [key for key in profile if not self.events.said("profiled", key)]
        self.version = version

    def _use_model(self, fields: Mapping[str, Any], device: str) -> None:
        try:
            source = ModelSource.model_validate_json(json.dumps(fields))
        except ValidationError as error:
            raise first_error(error, ModelSource) from None
        if source == self._model and device == self._device and not self._model_fault:
            return
        for key in list(self.crew.members):
            self._leave(key)
        if self.crew.runtime is not None:
            self.crew.runtime.close()
        self._backbone = self.crew.runtime = self._stepper = None
        self._preparer.keep(())
        self._model, self._device, self._model_fault = source, device, ""
        self.crew.label = source.label
        spec = BackboneSpec(source.name_or_path, source.layers, dtype=source.dtype, revision=source.revision)
        try:
            self._backbone = self._loader(spec, device)
        except InputError as error:
            self._model_fault = error.one_line()
            return
        self.crew.runtime = self._backbone.runtime()
        self._stepper = Stepper(self.crew.runtime, self._out_of_memory)
        if self._cold_s is None:
            self._cold_s = max(0.0, time.time() - self.started)
        self.events.write("ready", foundation_model=self.crew.label, seconds=round(self._cold_s, 3))

    def _enter(self, group: Mapping[str, Any] | None, jobs: Sequence[str]) -> None:
        for key in [key for key in self.crew.members if key not in jobs]:
            self._leave(key)
        if self.crew.joint is not None and not (
            group and group["mode"] == "joint" and group["id"] == self.crew.joint.group
        ):
            end_joint(self.crew)
        if group and group["mode"] == "sequence":
            # only one member of a sequence holds the device
            for key in [k for k in list(self.crew.members) if k != self._current(group["jobs"])]:
                self._leave(key)
        self.crew.group = group
        self.crew.states = {key: self.crew.states.get(key, "waiting") for key in jobs}
        self.crew.next_try = 0.0
        for member in list(self.crew.members.values()):
            self._move(member)
        self._fill()

    def _move(self, member: Member) -> None:
        """Let a member that goes on forget another group's probe, and start anew where that is wanted."""
        if member.merge is not None and member.merge.group != self.crew.group_id:
            member.merge = None
            member.folder.forget_before_merge()
        named = (self.crew.group or {}).get("starts_from") or {}
        source = source_of(self.crew, member) if member.key in named else None
        if source is None or member.started_from == str(source) or member.adapter != member.key:
            return
        try:
            start_from(self.crew, member, source)
        except InputError as error:
            self.crew.fail(member, error.one_line())
            return
        member.folder.rewrite_curve(member.evaluations)

    def _current(self, jobs: Sequence[str]) -> str | None:
        return next((key for key in jobs if key in self.crew.members or not self.crew.has_ended(key)), None)

    # -- joining and leaving ------------------------------------------------------------------------

    def _fill(self) -> None:
        """Bring in the members that should train now and do not."""
        if self.crew.group is None:
            return
        jobs = self.crew.group["jobs"]
        if self.crew.group["mode"] == "sequence":
            current = self._current(jobs)
            due = [] if current is None or current in self.crew.members else [current]
        else:
            due = [key for key in jobs if key not in self.crew.members and not self.crew.has_ended(key)]
        if due and time.monotonic() >= self.crew.next_try:
            for key in due:
                self._join(key)
            self.crew.next_try = time.monotonic() + LOCK_RETRY_S
        if self.crew.group["mode"] == "joint":
            try:
                form_joint(self.crew)
            except InputError as error:
                refuse_joint(self.crew, error.one_line())

    def _join(self, key: str) -> None:
        folder = None
        try:
            folder = JobFolder(self.crew.jobs_dir, key)
            if not folder.lock():
                self.crew.states[key] = "locked"
                return
            if folder.result() is not None:
                folder.unlock()
                self.crew.report_end(key, folder)
                return
            request = self._checked(folder)
            began = time.perf_counter()
            member = Member(folder, request, self._preparer.get(key), str(self.crew.label))
            load_weights(self.crew, member)
            folder.rewrite_curve(member.evaluations)
        except InputError as error:
            if self.crew.runtime is not None:
                self.crew.runtime.remove(key)
            self.crew.end_failed(key, folder, error.one_line(), 0)
            return
        self.crew.members[key] = member
        order = self.crew.group["jobs"] if self.crew.group else [key]
        self.crew.members = {k: self.crew.members[k] for k in order if k in self.crew.members}
        self.crew.states[key] = "training"
        self._joined.append(key)
        seconds = round(time.perf_counter() - began, 4)
        self.events.write("started", key, self.crew.group_id, samples=member.samples, seconds=seconds)
        folder.log(f"trains in group {self.crew.group_id}, from sample {member.samples}")

    def _checked(self, folder: JobFolder) -> SubmittedJob:
        if self._model_fault or self._model is None:
            raise InputError("", self._model_fault or "no foundation model is loaded")
        request = folder.request()
        if request.model != self._model:
            raise InputError(
                f"job {folder.key}",
                f"its foundation model is {request.model.label}, this worker's {self.crew.label}",
                "run it on a worker of its own model",
            )
        return request

    def _load_data(self, key: str) -> JobData:
        if self._backbone is None:
            raise InputError(f"job {key}", "no foundation model is loaded", "load it first")
        request = JobFolder(self.crew.jobs_dir, key).request()
        return load_data(request.data, request.training.max_length, self._backbone)

    def _leave(self, key: str) -> None:
        member = self.crew.members[key]
        self.crew.take_out(member)
        self.crew.save(member, joint=False)
        self.crew.drop(key)
        self.crew.states.pop(key, None)
        self.events.write("left", key, self.crew.group_id, samples=member.samples)
        member.folder.log(f"left group {self.crew.group_id} at sample {member.samples}")
        member.folder.unlock()

    # -- training -----------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Take one step of the group; return False when there is nothing to do."""
        self.events.flush()
        for key in self._preparer.news():
            self.events.write("prepared", key, self.crew.group_id)
        if self.stopped:
            return False
        if self._profile:
            self._measure(self._profile.pop(0))
            return True
        self._fill()
        self._conclude_joined()
        if not self.crew.members:
            return False
        self._train()
        return True

    def _conclude_joined(self) -> None:
        """End who was at its end already when a process ended that could not say so."""
        for key in self._joined:
            member = self.crew.members.get(key)
            if member is not None and member.evaluations and member.points[-1][0] == member.samples:
                self._conclude(member)
        self._joined = []

    def _train(self) -> None:
        stepper = self._stepper
        if stepper is None:
            return
        members = list(self.crew.members.values())
        if self.crew.joint is not None:
            members = [self.crew.joint.next(members)]
            self.crew.joint.turn += 1
        outcomes = stepper.step(members)
        seconds = sum(outcome.seconds for outcome in outcomes.values())
        for member in self.crew.members.values():
            if member.merge is not None:
                member.merge.seconds += seconds / (1 if self.crew.joint else len(outcomes))
        for key, outcome in outcomes.items():
            if key in self.crew.members:
                self._after_step(self.crew.members[key], outcome)
        due = [m for m in self.crew.members.values() if m.samples - m.saved_samples >= self._every]
        if due:
            self.crew.checkpoint()

    def _after_step(self, member: Member, outcome: Outcome) -> None:
        if outcome.failure:
            self.crew.fail(member, outcome.failure)
            return
        due = member.stepped(outcome.loss, outcome.seconds, updated=outcome.updated)
        if not outcome.updated:
            member.folder.log(f"a batch before sample {member.samples} gave no finite gradient; left out")
        if member.bad >= BAD_BATCHES:
            problem = f"no finite gradient in {member.bad} batches in a row, before sample {member.samples}"
            self.crew.fail(member, f"{problem}; lower training.learning_rate, or see the data")
        elif due:
            self._evaluate(member)

    def _evaluate(self, member: Member) -> None:
        began = time.perf_counter()
        try:
            found = evaluate(self.crew.needed(), member.adapter, member.key, member.data.test)
        except (RuntimeError, MemoryError, ValueError, IndexError) as error:
            text = " ".join(str(error).split())[:160] or type(error).__name__
            self.crew.fail(member, f"the evaluation at sample {member.samples} failed ({text})")
            return
        metric = METRICS[member.settings.metric](found)
        if not math.isfinite(metric):
            problem = f"{member.settings.metric} is {metric} at sample {member.samples}"
            self.crew.fail(member, f"{problem}; lower training.learning_rate")
            return
        if member.merge is not None:
            member.merge.seconds += time.perf_counter() - began
        entry = member.evaluated(metric, found.loss, str(self.crew.group_id))
        member.folder.append_curve(entry)
        facts = {k: entry[k] for k in ("samples", "metric", "loss", "train_loss")}
        self.events.write("evaluated", member.key, self.crew.group_id, **facts)
        name = member.settings.metric
        member.folder.log(f"sample {member.samples}: {name} {metric:.4f}, loss {found.loss:.4f}")
        self._conclude(member)

    def _conclude(self, member: Member) -> None:
        """Draw the consequences of the last evaluation; the same ones if they are drawn again."""
        if member.settings.reached(member.metric):
            text = f"reached {member.settings.metric} {member.settings.target}"
            self.crew.finish(member, "reached", text)
            return
        if not probe_passes(self.crew, member):
            return
        if member.exhausted:
            self.crew.finish(member, "exhausted", "its epochs are done" + _short_of(member))
        elif member.settings.patience is not None and member.stale >= member.settings.patience:
            text = f"no improvement in {member.stale} evaluations"
            self.crew.finish(member, "exhausted", text + _short_of(member))

    def stop(self) -> None:
        """Checkpoint every member, give the jobs back, end."""
        if self.stopped:
            return
        self.crew.checkpoint()
        for key in list(self.crew.members):
            member = self.crew.members[key]
            self.crew.members.pop(key)
            member.folder.log(f"stopped at sample {member.samples}")
            member.folder.unlock()
        self.crew.joint = None
        self.crew.group = None
        self.crew.states = {}
        self._preparer.close()
        if self.crew.runtime is not None:
            self.crew.runtime.close()
        self.stopped = True
        self.events.write("stopped")

    # -- the rest -----------------------------------------------------------------------------------

    def _measure(self, key: str) -> None:
        try:
            folder = JobFolder(self.crew.jobs_dir, key)
            request = self._checked(folder)
            rows = profile_rows(
                self.crew.needed(), self._backbone, request, self._preparer.get(key), self._cold_s
            )
        except InputError as error:
            self.crew.end_failed(key, _folder_or_none(self.crew.jobs_dir, key), error.one_line(), 0)
            return
        self.events.write("profiled", key, self.crew.group_id, rows=rows)

    def _out_of_memory(self, key: str | None, text: str) -> None:
        self.events.write("out_of_memory", key, self.crew.group_id, reason=text)
        for member in self.crew.members.values():
            if key is None or member.key == key:
                member.folder.log(text)

    def status(self) -> dict[str, Any]:
        """Return the heartbeat's content."""
        members: dict[str, Any] = {}
        for key, state in self.crew.states.items():
            member = self.crew.members.get(key)
            entry: dict[str, Any] = {"state": state}
            if member is not None:
                entry |= {
                    "samples": member.samples,
                    "metric": member.metric,
                    "samples_per_s": member.samples_per_s,
                    "train_loss": member.train_loss,
                }
                if member.merge is not None:
                    entry["probe"] = "passed" if member.merge.passed else "running"
            members[key] = entry
        return {
            "pid": os.getpid(),
            "started": self.started,
            "version": self.version,
            "foundation_model": self.crew.label,
            "members": members,
            "rss_mib": rss_mib(),
            "ready": self.crew.runtime is not None and not self.stopped,
            "at_s": round(time.time(), 3),
        }


def _folder_or_none(jobs_dir: Path, key: str) -> JobFolder | None:
    try:
        return JobFolder(jobs_dir, key)
    except InputError:
        return None


def _short_of(member: Member) -> str:
    settings = member.settings
    return "" if settings.target is None else f"; {settings.metric} {settings.target} was not reached"
