"""What ``jobs ps`` shows: every job of a jobs folder with its state and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ymir_opt.domain.errors import InputError, NotFoundError, YmirError
from ymir_opt.domain.request import key_of, parse_request
from ymir_opt.domain.yaml_text import MAX_TEXT_BYTES
from ymir_opt.executors.folder import JobsFolder, open_plain
from ymir_opt.executors.journal import read_only
from ymir_opt.executors.records import GroupRecord, JobRecord
from ymir_opt.service.intake import owner_name

__all__ = ["Listed", "ask_to_cancel", "list_jobs", "log_of"]


@dataclass(frozen=True)
class Listed:
    """One line of the list."""

    id: str
    tenant: str
    state: str
    samples: float | None
    max_samples: float | None
    metric: float | None
    samples_per_s: float | None
    where: str
    group: str | None
    mode: str | None
    failed_starts: int
    submitted_at_s: float | None
    finished_at_s: float | None
    reason: str

    def plain(self) -> dict[str, Any]:
        """Return the line as JSON values."""
        return dict(vars(self))


def list_jobs(folder: JobsFolder) -> list[Listed]:
    """Return the jobs in order of submission: those taken, those waiting to be taken, those refused.

    Raises
    ------
    InputError
        The folder does not exist or its journal is none.
    """
    folder.require()
    found: list[Listed] = []
    journal = read_only(folder.journal)
    known = set()
    if journal is not None:
        try:
            jobs = list(journal.records("job", JobRecord.of).values())
            groups = list(journal.records("group", GroupRecord.of).values())
            refused = journal.all("refused")
        finally:
            journal.close()
        known = {job.key for job in jobs}
        found += [listed(job, groups) for job in jobs]
        found += [
            _bare(name.removesuffix(".refused"), value["tenant"], "refused", value["reason"], value["at_s"])
            for name, value in refused.items()
        ]
    for path in sorted(folder.requests.glob("*.yaml")):
        if path.stem in known:
            continue
        try:
            facts = path.lstat()
            with open_plain(path, links=False) as stream:
                name = parse_request(stream.read(MAX_TEXT_BYTES + 1), path.name).name
        except (OSError, YmirError):
            continue
        reason = "waits for the daemon to take it"
        found.append(_bare(name, owner_name(facts.st_uid), "submitted", reason, facts.st_mtime))
    return sorted(found, key=lambda line: (line.submitted_at_s or 0.0, line.id))


def listed(job: JobRecord, groups: list[GroupRecord]) -> Listed:
    """Return the line of one job."""
    group = next((g for g in groups if job.key in g.jobs), None) if not job.over else None
    return Listed(
        id=job.id,
        tenant=job.tenant,
        state="cancelling" if job.ending == "cancelled" else job.phase,
        samples=job.samples,
        max_samples=job.max_samples,
        metric=job.metric,
        samples_per_s=job.rate,
        where="" if group is None else f"{group.node}:{group.gpu}",
        group=None if group is None else group.id,
        mode=None if group is None else group.mode,
        failed_starts=job.failed_starts,
        submitted_at_s=job.submitted_at_s,
        finished_at_s=job.finished_at_s,
        reason=job.reason,
    )


def _bare(name: str, tenant: str, state: str, reason: str, at_s: float) -> Listed:
    return Listed(name, tenant, state, None, None, None, None, "", None, None, 0, at_s, None, reason)


def _key(folder: JobsFolder, job: str) -> str:
    """Return the key of a job that was submitted; raises `NotFoundError`."""
    folder.require()
    key = key_of(job)
    if (folder.job(key) / "request.json").is_file() or (folder.requests / f"{key}.yaml").is_file():
        return key
    from ymir_opt.domain.base import nearest, short

    names = {line.id for line in list_jobs(folder)}
    raise NotFoundError("job", f"{short(job)} is unknown", nearest(job, names))


def log_of(folder: JobsFolder, job: str) -> str:
    """Return what a job's workers wrote into its log, empty before it starts.

    Raises
    ------
    NotFoundError
        There is no such job.
    """
    path = folder.job(_key(folder, job)) / "log.txt"
    try:
        with open_plain(path) as stream:
            return stream.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "see its rights") from None


def ask_to_cancel(folder: JobsFolder, job: str) -> bool:
    """Ask the daemon to cancel a job; a request that no daemon took yet is withdrawn at once.

    Returns
    -------
    bool
        Whether it is cancelled already.

    Raises
    ------
    NotFoundError
        There is no such job.
    InputError
        It has ended, or the wish cannot be written.
    """
    key = _key(folder, job)
    waiting = folder.requests / f"{key}.yaml"
    if not (folder.job(key) / "request.json").is_file():
        waiting.unlink(missing_ok=True)
        return True
    result = folder.result(key)
    if result is not None:
        raise InputError(f"job {job}", f"has ended ({result.get('state')})", "there is nothing to cancel")
    try:
        (folder.requests / f"{key}.cancel").touch()
    except OSError as error:
        raise InputError(
            str(folder.requests), f"cannot be written ({error.strerror})", "see its rights"
        ) from None
    return False
