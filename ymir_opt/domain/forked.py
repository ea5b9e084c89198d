"""Work beside this process: a forked copy of it that answers questions, so that nothing is built twice.

Only where that is safe: on Linux, with no other thread at work (a fork copies the thread
that calls alone, and whatever locks the others hold at that moment), and with a second core. Who asks
must be able to answer alone.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from typing import Any, Generic, TypeVar

__all__ = ["Forked", "beside", "cores_at_hand", "may_fork", "run_until"]

Q = TypeVar("Q")
A = TypeVar("A")


def cores_at_hand() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_fork() -> bool:
    """Say whether a fork is possible and safe now; on macOS system libraries do not bear it."""
    return sys.platform == "linux" and threading.active_count() == 1


def _fork() -> int:
    with warnings.catch_warnings():
        # Python counts threads of numerical libraries, too, which wait for work and hold no locks
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class Forked(Generic[Q, A]):
    """A forked process that answers questions one after the other, and remembers what it has seen.

    Parameters
    ----------
    serve : callable
        Gives the answer to a question. What it raises ends the process.
    others : iterable of Forked
        Processes that live already; the new one lets go of their connections.

    Raises
    ------
    OSError
        There is no room for another process.
    """

    def __init__(self, serve: Callable[[Q], A], others: Iterable[Forked[Any, Any]] = ()) -> None:
        self._connection, theirs = Pipe()
        self.pid = _fork()
        if self.pid == 0:
            # nothing that the parent holds open may be closed, flushed or answered from here
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                for connection in (self._connection, *(other._connection for other in others)):
                    connection.close()
                while True:
                    theirs.send(serve(theirs.recv()))
            except EOFError:
                pass
            finally:
                os._exit(0)
        theirs.close()

    def ask(self, question: Q) -> None:
        """Send a question; raises OSError where the process has ended."""
        self._connection.send(question)

    def answer(self) -> A:
        """Wait for the answer; raises EOFError or OSError where the process has ended."""
        found: A = self._connection.recv()
        return found

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._connection.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@contextmanager
def beside(task: Callable[[], A], cores: int | None = None) -> Iterator[Callable[[], A]]:
    """Begin a task beside this process, if that is possible; give a function that returns its result.

    What is not asked for by the end of the context is given up.

    Parameters
    ----------
    task : callable
        Pure: it may be done here instead, when it is asked for.
    cores : int, optional
        By default those at hand; with 1 the task is done here.
    """
    process = _begun(task) if (cores_at_hand() if cores is None else cores) > 1 and may_fork() else None
    if process is None:
        yield task
        return

    def result() -> A:
        try:
            return process.answer()
        except (EOFError, OSError):
            return task()

    try:
        yield result
    finally:
        process.end()


def _begun(task: Callable[[], A]) -> Forked[None, A] | None:
    try:
        process: Forked[None, A] = Forked(lambda _: task())
    except OSError:
        return None
    try:
        process.ask(None)
    except OSError:
        process.end()
        return None
    return process


def run_until(task: Callable[[], int], deadline: float, scratch: str) -> int | None:
    """Run a task in a forked process of its own session; kill it and what it started at the deadline.

    Parameters
    ----------
    task : callable
        Returns an exit code. Its standard streams are closed to it.
    deadline : float
        Of ``time.monotonic()``.
    scratch : str
        Folder for its temporary files.

    Returns
    -------
    int or None
        The exit code, negative for a signal; None where the deadline struck.

    Raises
    ------
    OSError
        There is no room for another process.
    """
    pid = _fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            os.environ.update(dict.fromkeys(("TMPDIR", "TEMP", "TMP"), scratch))
            tempfile.tempdir = None
            code = task()
        finally:
            os._exit(code)
    pause = 0.0005
    try:
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                pid = 0
                return os.waitstatus_to_exitcode(status)
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            pause = min(2 * pause, left, 0.01)
            time.sleep(pause)
    finally:
        if pid:
            for kill in (os.killpg, os.kill):  # before its own session began there is no group
                with suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
