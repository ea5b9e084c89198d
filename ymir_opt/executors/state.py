"""The pool's state: records in memory, each change written through to the journal."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from ymir_opt.domain.errors import NotFoundError
from ymir_opt.domain.request import SubmittedJob
from ymir_opt.executors.desired import ProfileWish
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.executors.journal import Journal
from ymir_opt.executors.records import GroupRecord, JobRecord, WorkerRecord

__all__ = ["State"]

# each token leaves room for this many assignments, so that those of an earlier writer are always older
VERSIONS = 1 << 24
# how much of what happened is kept
HAPPENINGS = 20_000


class State:
    """Jobs, groups and workers of one jobs folder.

    Attributes
    ----------
    jobs, groups, workers : dict
        Records by key, id and action id; ended workers are kept until `forget_ended`.
    wishes : list of ProfileWish
    """

    def __init__(self, folder: JobsFolder, journal: Journal, clock: Callable[[], float]) -> None:
        self.folder, self.journal, self.clock = folder, journal, clock
        self.jobs = journal.records("job", JobRecord.of)
        self.groups = journal.records("group", GroupRecord.of)
        self.workers = journal.records("worker", WorkerRecord.of)
        self.wishes = list(journal.records("wish", lambda value: ProfileWish(**value)).values())
        self.news: list[dict[str, Any]] = []
        self._requests: dict[str, SubmittedJob] = {}
        self._written: dict[tuple[str, str], dict[str, Any]] = {}

    @property
    def live(self) -> list[WorkerRecord]:
        """Workers that may still run."""
        return [worker for worker in self.workers.values() if worker.live]

    def new_action(self) -> str:
        """Return an id that no process or actor ever carried."""
        return f"w{uuid.uuid4().hex[:16]}"

    def next_version(self, worker: WorkerRecord) -> int:
        """Return a version above those of this worker and of every earlier writer."""
        return max(worker.version, self.journal.token * VERSIONS) + 1

    def request(self, key: str) -> SubmittedJob:
        """Return the request of a job, read once.

        Raises
        ------
        NotFoundError
            There is none.
        """
        if key not in self._requests:
            found = self.folder.request(key)
            if found is None:
                raise NotFoundError(f"job {key}", "has no request in the jobs folder", "submit it again")
            self._requests[key] = found
        return self._requests[key]

    def remember(self, request: SubmittedJob) -> None:
        """Know a request that is not in the jobs folder (yet)."""
        self._requests[request.key] = request

    def by_id(self, job: str) -> JobRecord | None:
        """Return a job by its id."""
        return next((record for record in self.jobs.values() if record.id == job), None)

    def keys(self) -> dict[str, str]:
        """Return each job's key by its id."""
        return {record.id: key for key, record in self.jobs.items()}

    def save(self, *records: JobRecord | GroupRecord | WorkerRecord) -> None:
        """Write records that changed."""
        with self.journal.transaction():
            for record in records:
                kind, key = _named(record)
                value = record.plain()
                if self._written.get((kind, key)) != value:
                    self.journal.put(kind, key, value)
                    self._written[kind, key] = _copied(value)

    def add_job(self, record: JobRecord) -> None:
        """Take a job."""
        self.jobs[record.key] = record
        self.save(record)

    def set_groups(self, groups: Iterable[GroupRecord]) -> None:
        """Replace the wanted groups."""
        new = {group.id: group for group in groups}
        with self.journal.transaction():
            for name in self.groups.keys() - new.keys():
                self._remove("group", name)
            self.groups = new
            self.save(*new.values())

    def drop_group(self, name: str) -> None:
        """Want a group no more."""
        if self.groups.pop(name, None) is not None:
            self._remove("group", name)

    def set_wishes(self, wishes: Iterable[ProfileWish]) -> None:
        """Replace the wanted measurements."""
        new = list(wishes)
        with self.journal.transaction():
            for wish in self.wishes:
                if wish not in new:
                    self._remove("wish", wish.job)
            for wish in new:
                self.journal.put("wish", wish.job, vars(wish))
        self.wishes = new

    def forget_ended(self, keep: int = 200) -> None:
        """Drop the oldest records of workers that ended."""
        ended = sorted((w for w in self.workers.values() if not w.live), key=lambda w: (w.started_at_s, w.id))
        for worker in ended[: max(0, len(ended) - keep)]:
            del self.workers[worker.id]
            self._remove("worker", worker.id)
            shutil.rmtree(self.folder.worker(worker.id), ignore_errors=True)
        self.journal.prune(HAPPENINGS)

    def tell(self, event: str, *, lasting: bool = True, **facts: Any) -> None:
        """Note that something happened; what is not lasting is told once and not kept."""
        value = {"event": event, **facts}
        self.news.append({"at_s": self.clock(), **value})
        if lasting:
            self.journal.happened(value)

    def _remove(self, kind: str, key: str) -> None:
        self._written.pop((kind, key), None)
        self.journal.remove(kind, key)


def _named(record: JobRecord | GroupRecord | WorkerRecord) -> tuple[str, str]:
    if isinstance(record, JobRecord):
        return "job", record.key
    return ("group" if isinstance(record, GroupRecord) else "worker"), record.id


def _copied(value: Any) -> Any:
    """Copy JSON values deeply, so that a later change in place is seen as one."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
