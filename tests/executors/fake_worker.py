"""A worker that trains by counting: the training worker's folder protocol without torch.

Run as a program by the executors under test. A job's samples are ``num_train_epochs`` times 100. Names that
begin with ``broken`` end the process as soon as the job is theirs, ``nan`` fail alone. Every step is written
to ``trace/<pid>.jsonl`` of the jobs folder, with the times between which the job was trained.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

STEP_S = float(os.environ.get("YMIR_FAKE_STEP_S", "0.004"))


def write(path: Path, value: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value))
    os.replace(temporary, path)


def read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


class Member:
    def __init__(self, jobs_dir: Path, key: str) -> None:
        self.key, self.folder = key, jobs_dir / "jobs" / key
        self.request = read(self.folder / "request.json")
        self.name = self.request["id"]
        self.batch = self.request["training"]["global_batch_size"]
        self.total = int(self.request["training"]["num_train_epochs"] * 100)
        self.samples = self.saved = 0
        self.state = "waiting"
        self.handle: int | None = None

    def lock(self) -> bool:
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self.handle = handle
        return True

    def load(self, source: str | None) -> None:
        own = read(self.folder / "checkpoint" / "state.json")
        if own is not None and (source is None or own.get("from") == source):
            self.samples = self.saved = own["samples"]
        self.source = source if source is not None else (own or {}).get("from")

    def save(self) -> None:
        (self.folder / "checkpoint").mkdir(exist_ok=True)
        write(self.folder / "checkpoint" / "state.json", {"samples": self.samples, "from": self.source})
        self.saved = self.samples

    def unlock(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class FakeWorker:
    def __init__(self, folder: Path, jobs_dir: Path, action: str) -> None:
        self.folder, self.jobs_dir, self.action = folder, jobs_dir, action
        self.members: dict[str, Member] = {}
        self.assignment: dict[str, Any] = {"version": -1}
        self.asked_to_stop = False
        self.seen = 0.0
        self.last_beat = 0.0
        self.profiled: set[str] = set()
        self.seq = 0
        self.events = (folder / "events.jsonl").open("a")
        (jobs_dir / "trace").mkdir(exist_ok=True)
        self.trace = (jobs_dir / "trace" / f"{os.getpid()}.jsonl").open("a")

    def tell(self, event: str, job: str | None = None, **facts: Any) -> None:
        self.seq += 1
        group = (self.assignment.get("group") or {}).get("id")
        value = {"seq": self.seq, "at_s": time.time(), "event": event, "job": job, "group": group, **facts}
        self.events.write(json.dumps(value) + "\n")
        self.events.flush()

    def beat(self, *, force: bool = False) -> None:
        if not force and time.time() - self.last_beat < 0.05:
            return
        self.last_beat = time.time()
        members = {
            m.key: {
                "state": m.state,
                "samples": m.samples,
                "metric": m.samples / m.total,
                "samples_per_s": 100.0,
            }
            for m in self.members.values()
        }
        write(
            self.folder / "status.json",
            {
                "pid": os.getpid(),
                "version": self.assignment["version"],
                "members": members,
                "rss_mib": 10,
                "ready": True,
                "at_s": self.last_beat,
            },
        )

    def apply(self) -> None:
        found = read(self.folder / "assignment.json")
        if found is None or found["version"] <= self.assignment["version"]:
            return
        self.assignment = found
        group = found["group"] or {"jobs": []}
        for key in [key for key in self.members if key not in group["jobs"]]:
            self.leave(self.members.pop(key))
        for key in group["jobs"]:
            if key not in self.members and not (self.jobs_dir / "jobs" / key / "result.json").exists():
                self.members[key] = Member(self.jobs_dir, key)
        self.asked_to_stop |= found["stop"]
        self.beat(force=True)

    def leave(self, member: Member) -> None:
        if member.handle is not None:
            member.save()
            member.unlock()
            self.tell("left", member.key, samples=member.samples)

    def step(self) -> bool:
        group = self.assignment.get("group") or {}
        members = list(self.members.values())
        if group.get("mode") == "sequence":
            members = members[:1]
        for member in members:
            if member.state == "waiting" and not self.begin(member, group):
                continue
            if member.name.startswith("nan"):
                self.end(member, "failed", "the loss is not finite")
                continue
            began = time.monotonic()
            time.sleep(STEP_S)
            member.samples += member.batch
            line = {"job": member.name, "samples": member.samples, "began": began, "ended": time.monotonic()}
            self.trace.write(json.dumps(line) + "\n")
            self.trace.flush()
            if member.samples >= member.total:
                member.save()
                self.end(member, "completed", "exhausted")
            elif member.samples - member.saved >= self.assignment["checkpoint_every_samples"]:
                member.save()
                self.tell("checkpointed", member.key, samples=member.samples)
                self.tell(
                    "evaluated", member.key, samples=member.samples, metric=member.samples / member.total
                )
        for key in self.assignment.get("profile", ()):
            if key not in self.profiled:
                self.profiled.add(key)
                self.tell("profiled", key, rows={})
                return True
        return bool(members)

    def begin(self, member: Member, group: dict[str, Any]) -> bool:
        if not member.lock():
            return False
        if (member.folder / "result.json").exists():
            member.unlock()
            del self.members[member.key]
            return False
        if member.name.startswith("broken"):
            sys.stderr.write(f"{member.name} cannot be started\n")
            sys.stderr.flush()
            os._exit(3)
        member.load(group.get("starts_from", {}).get(member.key))
        member.state = "training"
        self.tell("started", member.key, samples=member.samples)
        return True

    def end(self, member: Member, state: str, reason: str) -> None:
        metric = member.samples / member.total
        write(
            member.folder / "result.json",
            {"state": state, "metric": metric, "samples": member.samples, "reason": reason},
        )
        if state == "completed":
            self.tell("finished", member.key, samples=member.samples, metric=metric, reason=reason)
        else:
            self.tell("failed", member.key, reason=reason)
        member.unlock()
        del self.members[member.key]

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "asked_to_stop", True))
        self.tell("ready")
        while True:
            self.apply()
            if self.asked_to_stop:
                break
            if not self.step():
                time.sleep(0.01)
            self.beat()
        for member in list(self.members.values()):
            self.leave(member)
        self.members.clear()
        self.beat(force=True)
        self.tell("stopped")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--worker", "--jobs-dir", "--action"):
        parser.add_argument(option, required=True)
    asked = parser.parse_args()
    FakeWorker(Path(asked.worker), Path(asked.jobs_dir), asked.action).run()
