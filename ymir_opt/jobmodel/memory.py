"""Memory by local batch, measured pairs on one GPU, and context-switch times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import InputError
from ymir_opt.jobmodel.tables import count, positive, read_rows

__all__ = ["MemoryTable", "SharingTable", "read_switch_s"]


@dataclass(frozen=True)
class MemoryTable:
    """Memory per GPU over the local batch.

    Attributes
    ----------
    batch : float64[m]
        Local batches, ascending.
    gib : float64[m]
    """

    batch: NDArray[np.float64]
    gib: NDArray[np.float64]

    @classmethod
    def read(cls, path: Path) -> MemoryTable:
        """Read ``<model>_memory.csv``."""
        rows = sorted(
            {b: m for _, (b, m) in read_rows(path, {"local_bsz": count, "gpu_memory": positive})}.items()
        )
        if not rows:
            raise InputError(str(path), "has no rows", "give at least one measurement")
        values = np.array(rows, dtype=np.float64)
        return cls(values[:, 0], values[:, 1])

    def at(self, local_batch: float) -> float | None:
        """Return GiB, linear between measurements; None outside them."""
        if not self.batch[0] <= local_batch <= self.batch[-1]:
            return None
        return float(np.interp(local_batch, self.batch, self.gib))


@dataclass(frozen=True)
class SharingTable:
    """Two jobs of one model on one GPU: (left batch, right batch) -> seconds a step and GiB of each."""

    rows: dict[tuple[int, int], tuple[float, float, float, float]]

    @classmethod
    def read(cls, path: Path) -> SharingTable:
        """Read ``<model>_sharing.csv``."""
        columns = {
            "left_bsz": count,
            "right_bsz": count,
            "left_step_time": positive,
            "right_step_time": positive,
            "left_gpu_memory": positive,
            "right_gpu_memory": positive,
        }
        return cls({(r[0], r[1]): (r[2], r[3], r[4], r[5]) for _, r in read_rows(path, columns)})

    def step_s(self, left: int, right: int) -> tuple[float, float] | None:
        """Return the step seconds of the two jobs (in the order asked), or None if not measured."""
        row = self.rows.get((left, right))
        if row is not None:
            return row[0], row[1]
        row = self.rows.get((right, left))
        return None if row is None else (row[1], row[0])

    def memory_gib(self, left: int, right: int) -> float | None:
        """Return the memory of both together, or None if not measured."""
        row = self.rows.get((left, right)) or self.rows.get((right, left))
        return None if row is None else row[2] + row[3]


def read_switch_s(path: Path) -> float:
    """Return the largest measured context switch of ``<model>_context_switch.csv``, seconds."""
    values = [value for _, (value,) in read_rows(path, {"time_cost": positive})]
    if not values:
        raise InputError(str(path), "has no rows", "give at least one measurement")
    return float(max(values))
