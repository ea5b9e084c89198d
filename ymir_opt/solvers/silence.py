"""Keep what solvers print away from standard output and standard error.

Solvers write through C, below Python's streams, and some print a banner even when told to be
quiet. Standard output belongs to the plan, so both descriptors point to the null device meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator

__all__ = ["silenced"]

_LOCK = threading.Lock()
_DEPTH = 0
_SAVED: list[tuple[int, int]] = []


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Point descriptors 1 and 2 to the null device; nests, and may be entered from several threads."""
    global _DEPTH  # noqa: PLW0603 -- descriptors are the process's own, so is their state
    with _LOCK:
        if _DEPTH == 0:
            _redirect()
        _DEPTH += 1
    try:
        yield
    finally:
        with _LOCK:
            _DEPTH -= 1
            if _DEPTH == 0:
                _restore()


def _redirect() -> None:
    _flush()
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        for descriptor in (1, 2):
            try:
                saved = os.dup(descriptor)
            except OSError:  # closed by the caller
                continue
            _SAVED.append((descriptor, saved))
            os.dup2(null, descriptor)
    finally:
        os.close(null)


def _restore() -> None:
    _flush()
    while _SAVED:
        descriptor, saved = _SAVED.pop()
        os.dup2(saved, descriptor)
        os.close(saved)


def _flush() -> None:
    """Empty Python's and C's buffers, or their text would appear after the descriptors return."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).fflush(None)
