"""A job's folder: its request, the lock of who trains it, its checkpoint, its curve, its result."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.request import SubmittedJob, parse_submitted
from ymir_opt.runtime.events import read_lines

__all__ = ["JobFolder"]

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class JobFolder:
    """Files of one job below a jobs folder.

    Parameters
    ----------
    jobs_dir : Path
    key : str
        The job's key, never its id.

    Raises
    ------
    InputError
        If the key is not one that could have been made from an id.
    NotFoundError
        If there is no such job.
    """

    def __init__(self, jobs_dir: Path, key: str) -> None:
        if not _KEY.fullmatch(key):
            raise InputError(f"job {key[:60]!r}", "is not a job's key", "use the keys of the jobs folder")
        self.key = key
        self.path = Path(jobs_dir) / "jobs" / key
        self._lock: int | None = None
        if not self.path.is_dir():
            raise NotFoundError(f"job {key}", "has no folder in the jobs folder", "submit the job again")

    @property
    def checkpoint(self) -> Path:
        """Folder of the last state."""
        return self.path / "checkpoint"

    @property
    def before_merge(self) -> Path:
        """Folder of the state of before a merge that has not proved itself yet."""
        return self.path / "before-merge"

    def request(self) -> SubmittedJob:
        """Return the request as it was validated; raises `InputError`."""
        path = self.path / "request.json"
        try:
            return parse_submitted(path.read_bytes(), f"job {self.key}")
        except FileNotFoundError:
            raise NotFoundError(str(path), "no such file", "submit the job again") from None
        except OSError as error:
            raise InputError(
                str(path), f"cannot be read ({error.strerror})", "submit the job again"
            ) from None

    def lock(self) -> bool:
        """Take the job for this process; False if another holds it. The end of the process frees it."""
        if self._lock is not None:
            return True
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InputError(
                str(self.path), f"cannot be locked ({error.strerror})", "see its rights"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._lock = handle
        return True

    def unlock(self) -> None:
        """Give the job back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def result(self) -> Mapping[str, Any] | None:
        """Return how the job ended, or None."""
        try:
            found = json.loads((self.path / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def write_result(self, state: str, metric: float | None, samples: int, reason: str) -> None:
        """Write how the job ended; the first result stays."""
        if self.result() is None:
            content = {"state": state, "metric": metric, "samples": samples, "reason": reason}
            write_atomic(self.path / "result.json", json.dumps(content, indent=1) + "\n")

    def append_curve(self, entry: Mapping[str, Any]) -> None:
        """Add an evaluation to the curve, as far as the disk allows; checkpoints hold them too."""
        with contextlib.suppress(OSError), open(self.path / "curve.jsonl", "a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")

    def rewrite_curve(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Make the curve that of the state gone on from: what a crash undid is cut off."""
        if read_lines(self.path / "curve.jsonl") != list(entries):
            write_atomic(self.path / "curve.jsonl", "".join(json.dumps(e) + "\n" for e in entries))

    def log(self, text: str) -> None:
        """Add a line for people, as far as the disk allows."""
        line = "".join(ch if ch.isprintable() else " " for ch in text)
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with contextlib.suppress(OSError), open(self.path / "log.txt", "a", encoding="utf-8") as stream:
            stream.write(f"{stamp} {line}\n")

    def forget_before_merge(self) -> None:
        """Remove the state of before a merge."""
        shutil.rmtree(self.before_merge, ignore_errors=True)
