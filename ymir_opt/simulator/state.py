"""What the world consists of: constants, the true state of jobs, and groups that hold GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Options", "Run", "Taken", "Truth"]

Taken = tuple[tuple[int, int], ...]
"""(node index, bit mask of its GPUs) pairs."""


@dataclass(frozen=True)
class Options:
    """Constants of the world.

    Attributes
    ----------
    completion_rounding_s : float
        Completions are reported at multiples of this (0: exactly). Titan's simulator rounds to 1 s.
    checkpoint_s : float
        A node failure loses the progress since the last whole multiple of this much productive time.
    backoff_s, backoff_limit_s : float
        A job whose start failed waits ``backoff_s * 2^(failures - 1)``, at most the limit.
    """

    completion_rounding_s: float = 0.0
    checkpoint_s: float = 300.0
    backoff_s: float = 30.0
    backoff_limit_s: float = 1800.0


class Truth:
    """True state by slot.

    Attributes
    ----------
    work, done : float64
        Work in the present mode, counted from the weights that the job started from, and settled progress;
        samples (rigid: seconds).
    rate : float64
        True speed now, 0 while nothing runs.
    since : float64
        Progress counts from here; later than now while a start is going on.
    share : float64
        GPUs attributed to the job (a shared group's are divided among its holders).
    held_since : float64
        GPU time held counts from here.
    version : int64
        Raised at every change; events carry the version that they were made for.
    """

    NAMES = ("work", "done", "rate", "since", "share", "held_since")

    def __init__(self, capacity: int) -> None:
        self.data: dict[str, NDArray[np.float64]] = {name: np.zeros(capacity) for name in self.NAMES}
        self.version: NDArray[np.int64] = np.zeros(capacity, dtype=np.int64)

    def grow(self) -> None:
        """Double the capacity."""
        self.data = {name: np.concatenate([old, np.zeros_like(old)]) for name, old in self.data.items()}
        self.version = np.concatenate([self.version, np.zeros_like(self.version)])


@dataclass
class Run:
    """A group that holds GPUs.

    Attributes
    ----------
    slots : list of int
        Unfinished members, in order; of a sequence only the first holds the GPUs.
    began_as : str
        Mode at the start; a group with one member left is ``solo``.
    serials : tuple of int
        Serial numbers of the members at the start.
    merged : bool
        Began with more than one member, none of whom has finished.
    before : dict
        Slot -> (true work, true progress, estimated total) to go back to if the probe fails.
    ratio : dict
        Slot -> (true, estimated) joint work ratio by which the rest is divided on leaving.
    sources : dict
        Slot -> class whose weights the member starts from.
    probing : set
        Slots whose probe has not ended.
    limits : dict
        Slot -> most work, samples, with which its probe is passed.
    why : str
        The policy's own reasons for the start, a line a member; kept only where segments are recorded.
    """

    id: int
    mode: str
    slots: list[int]
    gpus: int
    gpu_type: int
    taken: Taken
    started_s: float
    ready_s: float
    began_as: str = ""
    serials: tuple[int, ...] = ()
    merged: bool = False
    probe_evaluations: int = 0
    before: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    ratio: dict[int, tuple[float, float]] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)
    probing: set[int] = field(default_factory=set)
    limits: dict[int, float] = field(default_factory=dict)
    probe: str | None = None
    segment_s: float = 0.0
    why: str = ""

    @property
    def holders(self) -> list[int]:
        """Return the members that hold the GPUs."""
        return self.slots[:1] if self.mode == "sequence" else self.slots
