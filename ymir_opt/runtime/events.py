"""The worker's event log: one JSON object a line, appended and flushed, never rewritten."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["EventLog", "read_lines"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines; an unfinished last line is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    found = []
    for line in data.split(b"\n")[:-1]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


class EventLog:
    """Numbers, times and writes events; what cannot be written now (disk full) is written later.

    Parameters
    ----------
    path : Path or None
        None: events are kept in memory only.
    clock : callable
        Seconds since the epoch.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.clock = clock
        self.events: list[dict[str, Any]] = []
        self._pending: list[str] = []
        if path is not None:
            self.events = read_lines(path)
            _drop_unfinished_line(path)
        self._next = 1 + max((int(event.get("seq", 0)) for event in self.events), default=0)

    def write(self, event: str, job: str | None = None, group: str | None = None, **facts: Any) -> None:
        """Append an event."""
        entry = {
            "seq": self._next,
            "at_s": round(self.clock(), 3),
            "event": event,
            "job": job,
            "group": group,
        }
        entry.update(facts)
        self._next += 1
        self.events.append(entry)
        self._pending.append(json.dumps(entry))
        self.flush()

    def flush(self) -> None:
        """Write what is still pending, as far as the disk allows."""
        if self.path is None:
            self._pending.clear()
            return
        try:
            while self._pending:
                with open(self.path, "ab", buffering=0) as stream:
                    start = stream.tell()
                    data = self._pending[0].encode() + b"\n"
                    if stream.write(data) != len(data):
                        stream.truncate(start)
                        return
                self._pending.pop(0)
        except OSError:
            return

    def said(self, event: str, job: str) -> bool:
        """Return whether an event about a job was written before, also by an earlier process."""
        return any(e.get("event") == event and e.get("job") == job for e in self.events)


def _drop_unfinished_line(path: Path) -> None:
    """Cut off what a crash left of a line, so that the next one begins at a line's start."""
    try:
        with open(path, "rb+") as stream:
            data = stream.read()
            end = data.rfind(b"\n") + 1
            if end < len(data):
                stream.truncate(end)
                os.fsync(stream.fileno())
    except OSError:
        return
