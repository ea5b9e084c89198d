"""Processes by identity: a number alone is used again, a number with its start time is not.

Works where ``/proc`` exists (Linux). Nothing here ends a process that does not carry the action's id.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

__all__ = ["ProcessId", "alive", "command_line", "find_by_argument", "identity", "rss_mib", "send"]

PROC = Path("/proc")


@dataclass(frozen=True, order=True)
class ProcessId:
    """A process: its number and when it started, in clock ticks since the machine booted."""

    pid: int
    started: int


def _stat(pid: int) -> list[str] | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # the name in brackets may hold spaces and brackets itself
    return text.rpartition(")")[2].split()


def identity(pid: int) -> ProcessId | None:
    """Return the identity of a running process, or None; a zombie does not run."""
    fields = _stat(pid)
    if fields is None or len(fields) < 20 or fields[0] in "ZXx":
        return None
    return ProcessId(pid, int(fields[19]))


def alive(process: ProcessId) -> bool:
    """Return whether exactly this process still runs."""
    return identity(process.pid) == process


def command_line(pid: int) -> tuple[str, ...]:
    """Return a process's arguments, empty where it is gone or not ours to see."""
    try:
        data = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode("utf-8", "replace") for part in data.split(b"\0")[:-1])


def find_by_argument(option: str, folder_option: str, folder: str) -> Iterator[tuple[str, ProcessId]]:
    """Yield (value of an option, process) of the processes whose other option names our folder.

    Parameters
    ----------
    option : str
        Such as ``--action``.
    folder_option, folder : str
        Such as ``--jobs-dir`` and its value; processes of other folders are not ours.
    """
    for name in os.listdir(PROC):
        if not name.isdigit():
            continue
        words = command_line(int(name))
        found = _values(words, option), _values(words, folder_option)
        if found[0] is None or found[1] != folder:
            continue
        process = identity(int(name))
        if process is not None:
            yield found[0], process


def _values(words: tuple[str, ...], option: str) -> str | None:
    for word, following in pairwise(words):
        if word == option:
            return following
    return None


def send(process: ProcessId, action: str, number: signal.Signals) -> bool:
    """Send a signal to a process, if it is that process and carries the action's id.

    Returns
    -------
    bool
        False where it is gone or another; then nothing was sent.
    """
    if not alive(process) or action not in command_line(process.pid):
        return False
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def rss_mib(process: ProcessId) -> float:
    """Return the resident memory of a process in MiB, 0 where it is gone."""
    try:
        pages = int((PROC / str(process.pid) / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
