"""The executor protocol, what executors tell about jobs, and executors by name.

An executor is an entry point of the group ``ymir_opt.executors``: a factory that takes a jobs folder, a
journal and options, and returns an object with the methods of `Executor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Protocol

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Node, Snapshot
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.executors.journal import Journal
from ymir_opt.executors.records import JobRecord

__all__ = ["GROUP", "Executor", "Happening", "Options", "StalePlanError", "executor_names", "load_executor"]

GROUP = "ymir_opt.executors"
Happening = Mapping[str, Any]
"""Something that happened: ``seq``, ``at_s``, ``event`` and what belongs to it."""


class StalePlanError(InputError):
    """The plan was made for another state than the present one; plan again."""


@dataclass(frozen=True)
class Options:
    """How workers are kept.

    Attributes
    ----------
    nodes : tuple of Node
        Nodes to use; empty: what the machine or cluster has.
    address : str or None
        Of a running cluster (Ray).
    grace_s : float
        Seconds between asking a worker to stop and ending it.
    idle_s : float
        Seconds that a warm worker without work is kept.
    silent_s : float
        Seconds without a heartbeat after which a worker is ended.
    backoff_s, backoff_most_s : float
        First and longest wait after a failed start; it doubles each time.
    quarantine_after : int
        Failed starts in a row after which a job is not started any more.
    checkpoint_every_samples : int
        At most so much training is repeated after a crash.
    worker : sequence of str or None
        The command that starts a worker; None: this package's own.
    """

    nodes: tuple[Node, ...] = ()
    address: str | None = None
    grace_s: float = 60.0
    idle_s: float = 600.0
    silent_s: float = 900.0
    backoff_s: float = 10.0
    backoff_most_s: float = 900.0
    quarantine_after: int = 5
    checkpoint_every_samples: int = 512
    worker: Sequence[str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class Executor(Protocol):
    """Carries plans out; one process at a time, the holder of the journal's lease."""

    name: str

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes as a snapshot has them."""
        ...

    def apply(self, plan: Plan, snapshot: Snapshot) -> tuple[str, ...]:
        """Make the plan the wanted state; nothing runs before `tick`.

        Returns
        -------
        tuple of str
            Each difference between the plan and what runs, in words.

        Raises
        ------
        StalePlanError
            The plan was made for another snapshot than the last one seen, or something happened since.
        InputError
            The plan wants what this executor cannot do.
        """
        ...

    def tick(self) -> tuple[Happening, ...]:
        """Look at the workers, bring them closer to the wanted state, and return what happened."""
        ...

    def status(self) -> Mapping[str, JobRecord]:
        """Return what is known of each job, by its key."""
        ...

    def cancel(self, job: str) -> None:
        """End a job, by its id; its checkpoint stays."""
        ...

    def events(self, since: int = 0) -> tuple[Happening, ...]:
        """Return what happened after a sequence number."""
        ...

    def stop(self) -> None:
        """Ask every worker to checkpoint and end, and wait for it."""
        ...

    def close(self) -> None:
        """Let go without touching what runs."""
        ...


class Factory(Protocol):
    """Makes an executor."""

    def __call__(self, folder: JobsFolder, journal: Journal, options: Options) -> Executor:
        """Return the executor."""
        ...


def executor_names() -> tuple[str, ...]:
    """Return the installed executors' names, sorted."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def load_executor(name: str) -> Factory:
    """Return an executor's factory by its name.

    Raises
    ------
    NotFoundError
        There is no such executor.
    InputError
        It needs a package that is not installed.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise NotFoundError("--executor", f"{name[:60]!r} is not installed", nearest(name, set(found)))
    try:
        factory: Factory = found[name].load()
    except ModuleNotFoundError as error:
        raise InputError(
            f"--executor {name}", f"needs the package {error.name}", "install the extra that brings it"
        ) from None
    return factory
