"""The jobs folder: where requests, jobs and workers keep their files.

::

    requests/<key>.yaml     submitted requests      jobs/<key>/request.json, checkpoint/, curve.jsonl,
    requests/<key>.cancel   wishes to cancel                   log.txt, lock, result.json
    workers/<action>/       assignment.json, status.json, events.jsonl, stderr.txt
    journal.db              the executors' journal  realised.jsonl   predicted against realised

Whole files are written to a temporary file and renamed; lines are appended and flushed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.request import SubmittedJob, parse_submitted

__all__ = ["MAX_LINE", "RESULT_STATES", "JobsFolder", "open_plain", "read_json", "read_lines"]

MAX_LINE = 1 << 20
# how a job can end by its worker or its user
RESULT_STATES = ("completed", "failed", "cancelled")


@contextmanager
def open_plain(path: Path, *, links: bool = True) -> Iterator[BinaryIO]:
    """Open a plain file for reading, and nothing on which a read could wait for ever.

    Parameters
    ----------
    path : Path
    links : bool
        Whether to follow a link.

    Raises
    ------
    OSError
        It cannot be opened, or is a pipe, a device or a folder.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        yield stream


def read_json(path: Path) -> dict[str, Any] | None:
    """Return an object from a file, or None where there is none (yet) or it is damaged."""
    try:
        with open_plain(path) as stream:
            value = json.loads(stream.read())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_lines(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return the complete JSON lines of a file after an offset, and the offset after them.

    A last line without its end is left for the next time; one that is no JSON object is skipped.
    """
    try:
        with open_plain(path) as stream:
            stream.seek(offset)
            data = stream.read(MAX_LINE)
    except OSError:
        return [], offset
    end = data.rfind(b"\n") + 1
    if not end and len(data) == MAX_LINE:
        # no line is that long: skip what cannot be read
        return [], offset + MAX_LINE
    found = []
    for line in data[:end].splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found, offset + end


class JobsFolder:
    """The paths of one jobs folder; nothing else makes a path of a job's key or an action's id."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root).resolve()
        self.requests = self.root / "requests"
        self.jobs = self.root / "jobs"
        self.workers = self.root / "workers"
        self.journal = self.root / "journal.db"
        self.realised = self.root / "realised.jsonl"

    def make(self) -> None:
        """Make the folders.

        Raises
        ------
        InputError
            They cannot be made.
        """
        for folder in (self.root, self.requests, self.jobs, self.workers):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    str(folder), f"cannot be made ({error.strerror})", "name a writable folder"
                ) from None

    def require(self) -> None:
        """Refuse a folder that is not there.

        Raises
        ------
        NotFoundError
            Naming it.
        """
        if not self.root.is_dir():
            raise NotFoundError(str(self.root), "no such folder", "name the daemon's --jobs-dir")

    def job(self, key: str) -> Path:
        """Return the folder of a job."""
        return self.jobs / key

    def worker(self, action: str) -> Path:
        """Return the folder of a worker."""
        return self.workers / action

    def request(self, key: str) -> SubmittedJob | None:
        """Return the request of a job, or None where it has none; raises `InputError` if it is damaged."""
        path = self.job(key) / "request.json"
        try:
            with open_plain(path) as stream:
                return parse_submitted(stream.read(), str(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(str(path), f"cannot be read ({error.strerror})", "make it readable") from None

    def result(self, key: str) -> dict[str, Any] | None:
        """Return the result of a job, or None while it has none; a damaged one is none."""
        result = read_json(self.job(key) / "result.json")
        return result if result is not None and result.get("state") in RESULT_STATES else None

    @contextmanager
    def locked(self, key: str) -> Iterator[bool]:
        """Hold a job's lock; yields False, without waiting, where a worker holds it."""
        folder = self.job(key)
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True
        finally:
            os.close(handle)

    def finish(self, key: str, state: str, reason: str) -> bool:
        """Write the result of a job that no worker trains; False where one does or it has a result."""
        with self.locked(key) as free:
            if not free or self.result(key) is not None:
                return False
            result = {"state": state, "metric": None, "samples": None, "reason": reason}
            write_atomic(self.job(key) / "result.json", json.dumps(result) + "\n")
            return True

    def write_assignment(self, action: str, assignment: Mapping[str, Any]) -> None:
        """Replace a worker's assignment."""
        folder = self.worker(action)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "assignment.json", json.dumps(assignment, sort_keys=True) + "\n")

    def stderr_tail(self, action: str, length: int = 200) -> str:
        """Return the last words of a worker on its standard error, as one line."""
        try:
            with open(self.worker(action) / "stderr.txt", "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4096))
                text = stream.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return "".join(ch if ch.isprintable() else " " for ch in (lines[-1] if lines else ""))[:length]
