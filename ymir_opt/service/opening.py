"""Opening a jobs folder: as its one writer, or in memory to try something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ymir_opt.domain.errors import InputError, YmirError
from ymir_opt.executors.base import Options, load_executor
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.executors.journal import Journal
from ymir_opt.executors.pool import WorkerPool

__all__ = ["open_pool", "open_trial"]


def _pool(folder: JobsFolder, journal: Journal, executor: str, options: Options) -> WorkerPool:
    made = load_executor(executor)(folder, journal, options)
    if not isinstance(made, WorkerPool):
        raise InputError(f"--executor {executor}", "keeps no pool of workers", "use local or ray")
    return made


@contextmanager
def open_pool(folder: JobsFolder, executor: str, options: Options) -> Iterator[WorkerPool]:
    """Hold a jobs folder's lease and yield its pool, recovered.

    Raises
    ------
    LeaseHeldError
        Another process holds it.
    InputError
        The folder lies on a network file system, or there is no such executor.
    """
    load_executor(executor)
    journal = Journal(folder.journal)
    try:
        journal.acquire()
        pool = _pool(folder, journal, executor, options)
        try:
            pool.recover()
            yield pool
        finally:
            pool.close()
            with suppress(YmirError):
                journal.release()
    finally:
        journal.close()


@contextmanager
def open_trial(folder: JobsFolder, executor: str, options: Options) -> Iterator[WorkerPool]:
    """Yield a pool over a copy of the journal in memory: nothing is written, nothing started."""
    journal = Journal(":memory:")
    try:
        if folder.journal.is_file():
            journal.copy_of(folder.journal)
        journal.acquire()
        pool = _pool(folder, journal, executor, options)
        try:
            yield pool
        finally:
            pool.close()
    finally:
        journal.close()
