"""The columns of active jobs: observations and estimates, one slot a job."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["JobColumns"]


class JobColumns:
    """Growable columns of observations and estimates; a slot is one active job.

    Float columns are seconds, GPU-seconds or samples as their name says; ``remaining`` and its ``_total``
    are in samples (rigid jobs: seconds at the requested count).
    """

    FLOATS = (
        "submitted_at_s",
        "weight",
        "deadline_s",
        "not_before_s",
        "min_runtime_s",
        "estimated_total",
        "done",
        "remaining",
        "productive_s",
        "attained_gpu_s",
        "held_gpu_s",
        "first_start_s",
        "last_start_s",
    )
    INTS = (
        "serial",
        "requested_gpus",
        "min_gpus",
        "max_gpus",
        "key",
        "kind",
        "priority",
        "queue",
        "type_mask",
        "gpus",
        "gpu_type",
        "group",
        "restarts",
        "preemptions",
        "failed_starts",
        "movable",
        "sharing",
    )

    def __init__(self, capacity: int = 64) -> None:
        self.capacity = capacity
        self.data: dict[str, NDArray[Any]] = {
            **{name: np.zeros(capacity, dtype=np.float64) for name in self.FLOATS},
            **{name: np.zeros(capacity, dtype=np.int64) for name in self.INTS},
        }
        self.ids: list[str] = [""] * capacity

    def grow(self) -> None:
        """Double the capacity."""
        for name, old in self.data.items():
            new = np.zeros(2 * self.capacity, dtype=old.dtype)
            new[: self.capacity] = old
            self.data[name] = new
        self.ids.extend([""] * self.capacity)
        self.capacity *= 2
