"""Where workers run: what a worker pool asks of processes or actors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ymir_opt.domain.snapshot import Node

__all__ = ["Backend", "Handle", "Launch"]

Handle = Mapping[str, Any]
"""What finds a worker again, as JSON values: a process id and its start time, say."""


@dataclass(frozen=True)
class Launch:
    """A worker to start.

    Attributes
    ----------
    action : str
        The id that the process or actor carries from the moment it exists.
    node, gpu : str, int
    folder, jobs_dir : Path
    """

    action: str
    node: str
    gpu: int
    folder: Path
    jobs_dir: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """What every worker's command ends with."""
        return (
            "--worker",
            str(self.folder),
            "--jobs-dir",
            str(self.jobs_dir),
            "--action",
            self.action,
        )


class Backend(Protocol):
    """Starts, finds and ends workers."""

    name: str

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes, those that left as ``down``."""
        ...

    def device(self, node: str, gpu: int) -> str:
        """Return the torch device that a worker there uses: ``cpu``, ``cuda:0``."""
        ...

    def start(self, launch: Launch) -> Handle:
        """Start a worker that carries its action's id; raises `YmirError` if it cannot."""
        ...

    def find(self) -> Mapping[str, Handle]:
        """Return every worker of this jobs folder that exists now, by its action's id."""
        ...

    def ended(self, action: str, handle: Handle) -> str | None:
        """Return how a worker ended, in words, or None while it runs."""
        ...

    def ask(self, action: str, handle: Handle) -> None:
        """Ask a worker to checkpoint and end."""
        ...

    def kill(self, action: str, handle: Handle) -> None:
        """End a worker now."""
        ...

    def over_limit(self, action: str, handle: Handle, launch_at: tuple[str, int]) -> str | None:
        """Return in words by how much a worker is above its memory limit, or None."""
        ...

    def close(self) -> None:
        """Let go; workers go on."""
        ...
