"""Requests become jobs: validated, owned by whoever owns the file, kept under their key."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ymir_opt.domain.base import short
from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.errors import InputError, YmirError
from ymir_opt.domain.request import JobRequest, SubmittedJob, parse_request, parse_submitted
from ymir_opt.domain.yaml_text import MAX_TEXT_BYTES
from ymir_opt.executors.folder import JobsFolder, open_plain
from ymir_opt.executors.journal import LeaseLostError
from ymir_opt.executors.pool import WorkerPool
from ymir_opt.executors.records import JobRecord
from ymir_opt.runtime.files import READERS, read_file

__all__ = ["Intake", "checked", "owner_name", "submit", "training_rows"]

EVALUATION_SHARE = 5


def owner_name(uid: int) -> str:
    """Return the name of a user, or the number where the system has no name for it."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def training_rows(request: JobRequest) -> int:
    """Return how many rows an epoch has, as the training worker splits the data.

    Raises
    ------
    InputError
        The data is missing or cannot be read.
    """
    data, columns = Path(request.data.path), (request.data.text_column, request.data.label_column)
    if os.path.isdir(data):
        for ending in READERS:
            path = data / f"{request.data.train_split}{ending}"
            if path.is_file():
                return len(read_file(path, *columns))
        raise InputError(
            f"data.path {data}",
            f"has no file of the split {short(request.data.train_split)}",
            f"put one there: {', '.join(request.data.train_split + ending for ending in READERS)}",
        )
    unique: dict[str, str] = {}
    for text, label in read_file(data, *columns):
        unique.setdefault(text, label)
    return sum(count - count // EVALUATION_SHARE for count in Counter(unique.values()).values())


def _read(path: Path) -> tuple[bytes, os.stat_result]:
    """Return a request's bytes and facts of the very file they came from; links are refused."""
    try:
        with open_plain(path, links=False) as stream:
            return stream.read(MAX_TEXT_BYTES + 1), os.fstat(stream.fileno())
    except OSError as error:
        raise InputError(path.name, f"cannot be read ({error.strerror})", "give a plain file") from None


def checked(folder: JobsFolder, path: Path) -> JobRequest:
    """Return the request in a file, with whole paths: relative ones are taken from the file's folder.

    Raises
    ------
    InputError
        The request is wrong, its data cannot be read, or a job of its name was submitted before.
    """
    try:
        with open_plain(path) as stream:
            text = stream.read(MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        raise InputError(str(path), "no such file", "name an existing request") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "name a readable file") from None
    request = _absolute(parse_request(text, str(path)), path.resolve().parent)
    taken = (folder.requests / f"{request.key}.yaml", folder.job(request.key) / "request.json")
    if any(known.exists() for known in taken):
        raise InputError(
            f"{path}: name", f"{short(request.name)} was submitted before", "give the job another name"
        )
    training_rows(request)
    return request


def submit(folder: JobsFolder, path: Path) -> JobRequest:
    """Check a request and put it where the daemon takes it; raises `InputError`."""
    request = checked(folder, path)
    folder.make()
    # JSON is YAML
    text = request.model_dump_json(by_alias=True, indent=1)
    write_atomic(folder.requests / f"{request.key}.yaml", text + "\n")
    return request


def _absolute(request: JobRequest, base: Path) -> JobRequest:
    data = request.data.model_copy(update={"path": str((base / request.data.path).resolve())})
    model = request.model
    # unlike Path.is_dir, this calls a name that is too long no folder
    if os.path.isdir(base / model.name_or_path):
        model = model.model_copy(update={"name_or_path": str((base / model.name_or_path).resolve())})
    return request.model_copy(update={"data": data, "model": model})


def _submitted(path: Path) -> SubmittedJob:
    """Return the request in a file of the requests folder, with its owner and time."""
    text, facts = _read(path)
    request = parse_request(text, path.name)
    if not Path(request.data.path).is_absolute():
        raise InputError(
            f"{path.name}: data.path", f"{short(request.data.path)} is relative", "give the whole path"
        )
    added = {"id": request.name, "tenant": owner_name(facts.st_uid), "submitted_at_s": facts.st_mtime}
    fields = {**json.loads(request.model_dump_json(by_alias=True)), **added}
    return parse_submitted(json.dumps(fields).encode(), path.name)


class Intake:
    """Takes what users put into the requests folder.

    Parameters
    ----------
    pool : WorkerPool
        Whose jobs they become.
    folder : JobsFolder
    clock : callable
    """

    def __init__(self, pool: WorkerPool, folder: JobsFolder, clock: Callable[[], float]) -> None:
        self.pool, self.folder, self._clock = pool, folder, clock

    def take(self) -> list[str]:
        """Take every new request and wish to cancel; return the ids of the jobs that are new."""
        new = []
        for path in sorted(self.folder.requests.glob("*.yaml")):
            if path.name.startswith("."):
                continue
            try:
                job = self._take(path)
            except LeaseLostError:
                raise
            except YmirError as error:
                self._refuse(path, error.one_line())
                continue
            except Exception as error:
                # one user's file must not end what runs the jobs of all
                self._refuse(path, f"{path.name}: cannot be taken ({type(error).__name__}: {error})")
                continue
            if job is not None:
                new.append(job)
        for path in sorted(self.folder.requests.glob("*.cancel")):
            self._cancel(path)
        return new

    def peek(self) -> None:
        """Count waiting requests among the pool's jobs without taking them: for a trial in memory."""
        for path in sorted(self.folder.requests.glob("*.yaml")):
            try:
                request = _submitted(path)
            except YmirError as error:
                self.pool.state.tell("refused", file=path.name, reason=error.one_line())
                continue
            self.pool.state.remember(request)
            self._add(request)

    def _take(self, path: Path) -> str | None:
        request = _submitted(path)
        known = self.folder.request(request.key)
        if known is not None and request.key in self.pool.state.jobs:
            if known == request:
                # a crash came between taking the request and removing it
                path.unlink(missing_ok=True)
                return None
            raise InputError(
                f"{path.name}: name", f"{short(request.name)} was submitted before", "give it another name"
            )
        target = self.folder.job(request.key)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                str(target), f"cannot be made ({error.strerror})", "see the jobs folder"
            ) from None
        write_atomic(target / "request.json", request.model_dump_json(by_alias=True, indent=1) + "\n")
        self._add(request)
        path.unlink(missing_ok=True)
        return request.name

    def _add(self, request: SubmittedJob) -> None:
        job = JobRecord(
            key=request.key,
            id=request.id,
            tenant=request.tenant,
            submitted_at_s=request.submitted_at_s,
            max_samples=0.0,
        )
        try:
            job.max_samples = max(1.0, request.training.num_train_epochs * training_rows(request))
        except YmirError as error:
            self.pool.state.add_job(job)
            self.pool.end(job, "failed", error.one_line())
            return
        self.pool.state.add_job(job)
        self.pool.state.tell("submitted", job=job.id, tenant=job.tenant)

    def _refuse(self, path: Path, reason: str) -> None:
        refused = path.with_suffix(".refused")
        try:
            tenant = owner_name(path.lstat().st_uid)
            path.rename(refused)
        except OSError:
            return
        with self.pool.journal.transaction():
            self.pool.journal.put(
                "refused", refused.name, {"reason": reason, "tenant": tenant, "at_s": self._clock()}
            )
            self.pool.state.tell("refused", file=path.name, reason=reason)

    def _cancel(self, path: Path) -> None:
        job = self.pool.state.jobs.get(path.stem)
        try:
            uid = path.lstat().st_uid
            path.unlink()
        except OSError:
            return
        if job is None or job.over:
            return
        if owner_name(uid) != job.tenant and uid not in (0, os.getuid()):
            self.pool.state.tell("refused", job=job.id, reason="only its owner may cancel a job")
            return
        self.pool.cancel(job.id)
