"""The journal: what an executor intended and did, in SQLite on a local disk, written by one process.

The writer holds a lease with a fencing token that only grows. Every transaction first makes sure that the
token is still the journal's; a process that lost its lease (stopped for too long, say) can write no more.
A lease whose holder no longer runs is taken over at once.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ymir_opt.domain.errors import InputError, YmirError
from ymir_opt.executors.filesystem import require_local
from ymir_opt.executors.processes import ProcessId, alive, identity

__all__ = ["LEASE_S", "Journal", "LeaseHeldError", "LeaseLostError", "read_only"]

R = TypeVar("R")
LEASE_S = 30.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), token INTEGER NOT NULL, host TEXT NOT NULL,
    pid INTEGER NOT NULL, started INTEGER NOT NULL, expires_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS documents (
    kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, key));
CREATE TABLE IF NOT EXISTS happenings (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at_s REAL NOT NULL, value TEXT NOT NULL);
"""


class LeaseHeldError(InputError):
    """Another process writes this journal (exit code 2)."""


class LeaseLostError(YmirError):
    """The journal has another writer now; this process must stop without acting (exit code 1)."""

    exit_code = 1


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{os.uname().nodename}/{boot}"


class Journal:
    """One open journal.

    Parameters
    ----------
    path : Path or str
        ``:memory:`` for a trial that leaves nothing behind.
    lease_s : float
        How long a lease holds without renewal.
    clock : callable
        Seconds since the epoch.
    """

    def __init__(
        self, path: Path | str, *, lease_s: float = LEASE_S, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = path
        self.token = 0
        self._renewed_s = -math.inf
        self._lease_s, self._clock = lease_s, clock
        if isinstance(path, Path):
            require_local(path.parent)
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=20)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
            _require_whole(self._db, str(path))
        except sqlite3.Error as error:
            raise InputError(
                str(path), f"is no journal that can be written ({error})", "name another jobs folder"
            ) from None
        self._me = identity(os.getpid()) or ProcessId(os.getpid(), 0)

    def acquire(self) -> int:
        """Become the journal's writer and return the new fencing token.

        Raises
        ------
        LeaseHeldError
            Another process that still runs holds the lease.
        """
        now, host = self._clock(), _boot()
        with self._immediate():
            row = self._db.execute("SELECT token, host, pid, started, expires_s FROM lease").fetchone()
            if row is not None and row[4] > now:
                other = ProcessId(row[2], row[3])
                if row[1] != host or alive(other):
                    where = "" if row[1] == host else f" on {row[1].partition('/')[0]}"
                    raise LeaseHeldError(
                        str(self.path),
                        f"is written by process {row[2]}{where}",
                        "stop that one first, or name another jobs folder",
                    )
            self.token = 1 if row is None else row[0] + 1
            self._db.execute(
                "INSERT INTO lease VALUES (1, ?, ?, ?, ?, ?) ON CONFLICT (one) DO UPDATE SET"
                " token = excluded.token, host = excluded.host, pid = excluded.pid,"
                " started = excluded.started, expires_s = excluded.expires_s",
                (self.token, host, self._me.pid, self._me.started, now + self._lease_s),
            )
        return self.token

    def renew(self) -> None:
        """Hold the lease on, where a sixth of it has passed; raises `LeaseLostError` if another took it."""
        now = self._clock()
        if 0 <= now - self._renewed_s < self._lease_s / 6:
            return
        with self.transaction():
            self._db.execute("UPDATE lease SET expires_s = ?", (now + self._lease_s,))
        self._renewed_s = now

    def release(self) -> None:
        """Give the lease back, so that another process need not wait."""
        if not self.token:
            return
        with self._immediate():
            self._db.execute("UPDATE lease SET expires_s = 0 WHERE token = ?", (self.token,))

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _immediate(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._failed(error) from None
        try:
            yield
        except sqlite3.Error as error:
            self._undo()
            raise self._failed(error) from None
        except BaseException:
            self._undo()
            raise
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo()
            raise self._failed(error) from None

    def _undo(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _failed(self, error: sqlite3.Error) -> InputError:
        return InputError(str(self.path), f"cannot be written ({error})", "free space on its disk")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all or nothing, as long as the lease is this process's; may be nested.

        Raises
        ------
        LeaseLostError
            The fencing token is no longer the journal's; nothing was written.
        """
        if self._db.in_transaction:
            yield
            return
        with self._immediate():
            row = self._db.execute("SELECT token FROM lease").fetchone()
            if row is None or row[0] != self.token:
                raise LeaseLostError(
                    str(self.path), "is written by another process now", "let that one go on"
                )
            yield

    def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Write a document."""
        text = json.dumps(value, sort_keys=True)
        with self.transaction():
            self._db.execute(
                "INSERT INTO documents VALUES (?, ?, ?)"
                " ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value",
                (kind, key, text),
            )

    def remove(self, kind: str, key: str) -> None:
        """Forget a document."""
        with self.transaction():
            self._db.execute("DELETE FROM documents WHERE kind = ? AND key = ?", (kind, key))

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return a document, or None."""
        with self._reading():
            row = self._db.execute(
                "SELECT value FROM documents WHERE kind = ? AND key = ?", (kind, key)
            ).fetchone()
            return None if row is None else dict(json.loads(row[0]))

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the documents of a kind by key, sorted."""
        with self._reading():
            rows = self._db.execute("SELECT key, value FROM documents WHERE kind = ? ORDER BY key", (kind,))
            return {key: dict(json.loads(value)) for key, value in rows}

    def records(self, kind: str, of: Callable[[Mapping[str, Any]], R]) -> dict[str, R]:
        """Return the documents of a kind as records, by key; raises `InputError` where one is damaged."""
        with self._reading():
            return {key: of(value) for key, value in self.all(kind).items()}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise _damaged(str(self.path), str(error)) from None

    def happened(self, value: Mapping[str, Any]) -> None:
        """Append to the log of what happened."""
        with self.transaction():
            self._db.execute(
                "INSERT INTO happenings (at_s, value) VALUES (?, ?)", (self._clock(), json.dumps(value))
            )

    def happenings(self, since: int = 0) -> list[dict[str, Any]]:
        """Return what happened after a sequence number, each with ``seq`` and ``at_s``."""
        with self._reading():
            rows = self._db.execute(
                "SELECT seq, at_s, value FROM happenings WHERE seq > ? ORDER BY seq", (since,)
            )
            return [{"seq": seq, "at_s": at_s, **json.loads(value)} for seq, at_s, value in rows]

    def prune(self, keep: int) -> None:
        """Forget all but the newest happenings."""
        with self.transaction():
            self._db.execute(
                "DELETE FROM happenings WHERE seq <= (SELECT max(seq) FROM happenings) - ?", (keep,)
            )

    def copy_of(self, path: Path) -> None:
        """Take over everything in another journal, for a trial in memory.

        Raises
        ------
        InputError
            The file is no journal, or a damaged one.
        """
        source = None
        try:
            source = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=20)
            source.backup(self._db)
            # the copy is nobody's yet
            self._db.execute("DELETE FROM lease")
            self._db.execute("SELECT kind, key, value FROM documents LIMIT 1")
            _require_whole(self._db, str(path))
        except sqlite3.Error as error:
            raise InputError(str(path), f"is no journal ({error})", "name the daemon's --jobs-dir") from None
        finally:
            if source is not None:
                source.close()


def read_only(path: Path) -> Journal | None:
    """Return a copy of a journal in memory, or None where there is none; the writer is not disturbed.

    Raises
    ------
    InputError
        The file is no journal.
    """
    if not path.is_file():
        return None
    found = Journal(":memory:")
    try:
        found.copy_of(path)
    except InputError:
        found.close()
        raise
    return found


def _require_whole(db: sqlite3.Connection, path: str) -> None:
    """Refuse a file of which pages are missing or contradict each other; one pass over the file."""
    said = db.execute("PRAGMA quick_check(1)").fetchone()
    if said is not None and said[0] != "ok":
        raise _damaged(path, str(said[0]))


def _damaged(path: str, why: str) -> InputError:
    short = " ".join(why.split())[:120]
    return InputError(path, f"is damaged ({short})", "put back a copy of it, or name another jobs folder")
