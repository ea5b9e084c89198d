"""What a worker holds while it trains: the group, its members, and how their ends are written down."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ymir_opt.domain.errors import InputError
from ymir_opt.runtime.events import EventLog
from ymir_opt.runtime.jobfolder import JobFolder
from ymir_opt.runtime.joint import Joint
from ymir_opt.runtime.member import Member
from ymir_opt.runtime.session import Runtime

__all__ = ["Crew"]

WRITE_TRIES = 3


@dataclass
class Crew:
    """The jobs of a worker.

    Attributes
    ----------
    jobs_dir : Path
    events : EventLog
    label : str or None
        Id of the foundation model.
    runtime : Runtime or None
    group : mapping or None
        As assigned.
    members : dict of str to Member
        Who trains now, in the group's order.
    joint : Joint or None
        The shared adapter of a joint group.
    states : dict of str to str
        State of every job of the group, for the heartbeat.
    ended : set of str
        Jobs with a result.
    next_try : float
        When jobs that could not be had are tried again, on the monotonic clock.
    """

    jobs_dir: Path
    events: EventLog
    label: str | None = None
    runtime: Runtime | None = None
    group: Mapping[str, Any] | None = None
    members: dict[str, Member] = field(default_factory=dict)
    joint: Joint | None = None
    states: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    next_try: float = 0.0

    @property
    def group_id(self) -> str | None:
        """Id of the group."""
        return None if self.group is None else str(self.group["id"])

    def needed(self) -> Runtime:
        """Return the runtime; raises `InputError` where no model is loaded."""
        if self.runtime is None:
            raise InputError("worker", "no foundation model is loaded", "assign one")
        return self.runtime

    def expected(self, key: str) -> Mapping[str, Any]:
        """Return what the probe expects of a member."""
        probe = (self.group or {}).get("probe") or {}
        found = (probe.get("expected") or {}).get(key) or {}
        return found if isinstance(found, Mapping) else {}

    def has_ended(self, key: str) -> bool:
        """Return whether a job has a result: such a job is never trained again."""
        if key not in self.ended:
            try:
                folder = JobFolder(self.jobs_dir, key)
            except InputError:
                return False
            if folder.result() is not None:
                self.report_end(key, folder)
        return key in self.ended

    def report_end(self, key: str, folder: JobFolder) -> None:
        """Say once more how a job ended, in case the process that ended it could not."""
        result = folder.result() or {}
        self.ended.add(key)
        state = str(result.get("state"))
        self.states[key] = state
        event = {"completed": "finished", "failed": "failed"}.get(state)
        if event is not None and not self.events.said(event, key):
            reason = str(result.get("reason", ""))
            outcome = "reached" if reason.startswith("reached") else "exhausted"
            facts = {"metric": result.get("metric"), "samples": result.get("samples"), "reason": reason}
            self.events.write(event, key, self.group_id, outcome=outcome, **facts)

    def drop(self, key: str) -> None:
        """Forget a member and its adapter."""
        self.members.pop(key, None)
        if self.runtime is not None:
            self.runtime.remove(key)
            if self.joint is not None and not self.members:
                self.runtime.remove(self.joint.adapter)
                self.joint = None

    def take_out(self, member: Member) -> None:
        """Give a member of a joint group its own copy of the shared adapter."""
        if self.joint is not None and member.adapter == self.joint.adapter:
            self.joint.export(member, self.needed())

    def checkpoint(self) -> None:
        """Write every member's state."""
        for member in list(self.members.values()):
            if not self.save(member) and member.unsaved >= WRITE_TRIES:
                self.fail(member, f"no checkpoint could be written {member.unsaved} times; see its log")

    def save(self, member: Member, *, joint: bool = True) -> bool:
        """Write a member's checkpoint; return False, with a line in its log, if that fails.

        In a joint group it holds the whole shared adapter and every member's state, so that the group can
        go on from any one of its members' checkpoints.
        """
        more: dict[str, Any] = {}
        if joint and self.joint is not None and member.adapter == self.joint.adapter:
            states = {key: other.state() for key, other in self.members.items()}
            more = {"joint": self.joint.state(), "members": states}
        member.saved_samples = member.samples
        try:
            member.save(self.needed().adapters[member.adapter], member.folder.checkpoint, **more)
        except InputError as error:
            member.unsaved += 1
            member.folder.log(error.one_line())
            return False
        member.unsaved = 0
        self.events.write("checkpointed", member.key, self.group_id, samples=member.samples)
        return True

    def finish(self, member: Member, outcome: str, reason: str) -> None:
        """End a member with its last weights; what cannot be written makes it fail."""
        self.take_out(member)
        member.merge = None
        member.unsaved = 0
        while not self.save(member, joint=False):
            if member.unsaved >= WRITE_TRIES:
                self.fail(member, "its last checkpoint cannot be written; free space on the disk")
                return
            time.sleep(0.1)
        try:
            member.folder.write_result("completed", member.metric, member.samples, reason)
        except InputError as error:
            self.fail(member, error.one_line())
            return
        member.folder.forget_before_merge()
        self.ended.add(member.key)
        self.states[member.key] = "completed"
        facts = {"metric": member.metric, "samples": member.samples, "outcome": outcome, "reason": reason}
        self.events.write("finished", member.key, self.group_id, **facts)
        member.folder.log(f"completed at sample {member.samples}: {reason}")
        self.drop(member.key)
        member.folder.unlock()
        self.next_try = 0.0

    def fail(self, member: Member, reason: str) -> None:
        """End a member alone, with a reason; the others go on."""
        member.folder.forget_before_merge()
        self.drop(member.key)
        self.end_failed(member.key, member.folder, reason, member.samples, member.metric)
        self.next_try = 0.0

    def end_failed(
        self, key: str, folder: JobFolder | None, reason: str, samples: int, metric: float | None = None
    ) -> None:
        """Write down that a job failed; its folder may be missing."""
        self.ended.add(key)
        self.states[key] = "failed"
        if folder is not None:
            try:
                folder.write_result("failed", metric, samples, reason)
            except InputError as error:
                reason = f"{reason} (and its result cannot be written: {error.problem})"
            folder.log(f"failed: {reason}")
            folder.unlock()
        self.events.write("failed", key, self.group_id, reason=reason, samples=samples)
