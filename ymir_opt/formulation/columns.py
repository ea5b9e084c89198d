"""The column table: every candidate group as a row of arrays.

A *column* is (set of jobs, mode, capacity class, GPU count and node shape, keep or new start).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.shapes import Shape

__all__ = ["MAX_MEMBERS", "MODES", "ColumnTable", "concatenate"]

MAX_MEMBERS = 4
MODES: tuple[Mode, ...] = tuple(Mode)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnTable:
    """Columns as arrays; ``C`` columns, ``K`` members at most (4, or more where a running group has more).

    Attributes
    ----------
    jobs : int64[C, K]
        Job rows; -1 pads. In a sequence the order of execution; the first member holds the GPUs.
    size : int64[C]
        Number of members.
    mode : int64[C]
        Index into `MODES`.
    type : int64[C]
        GPU type row.
    gpus : int64[C]
        GPU count.
    shape : int64[C]
        Index into `shapes`; -1 for keep columns, which are pinned to their GPUs.
    keep : int64[C]
        Row of the running group that the column keeps exactly as it runs, or -1.
    warm : bool[C]
        The start is warm: every GPU must hold the foundation model.
    start : int64[C, K]
        Where each member starts from: -1 own weights, ``a >= 0`` completed adapter ``a``. In a
        sequence the members after the first start from their predecessor, which this does not show.
    finish_s : float64[C, K]
        Expected seconds from ``taken_at_s`` to the member's completion; NaN pads.
    cost : int64[C]
        Objective coefficient in quanta.
    shapes : tuple of Shape
    queued_cost : int64[J]
        Cost of leaving each job out, in quanta.
    quantum : float
        Value of one quantum in units of the objective.
    """

    jobs: IntArray
    size: IntArray
    mode: IntArray
    type: IntArray
    gpus: IntArray
    shape: IntArray
    keep: IntArray
    warm: NDArray[np.bool_]
    start: IntArray
    finish_s: FloatArray
    cost: IntArray
    shapes: tuple[Shape, ...]
    queued_cost: IntArray
    quantum: float
    notes: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.cost)

    def take(self, rows: IntArray) -> ColumnTable:
        """Return the table with these columns only, in this order."""
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in _PER_COLUMN},
        )

    def holders(self) -> NDArray[np.bool_]:
        """Return bool[C, K]: members that hold the GPUs (all but a sequence's waiting ones)."""
        present = self.jobs >= 0
        sequence = self.mode == MODES.index(Mode.SEQUENCE)
        present[:, 1:] &= ~sequence[:, None]
        return present


_PER_COLUMN = ("jobs", "size", "mode", "type", "gpus", "shape", "keep", "warm", "start", "finish_s", "cost")


def concatenate(tables: list[ColumnTable]) -> ColumnTable:
    """Join tables of the same instance; equal shapes are merged."""
    first = tables[0]
    shapes = sorted({shape for table in tables for shape in table.shapes})
    row = {shape: i for i, shape in enumerate(shapes)}
    width = max(table.jobs.shape[1] for table in tables)
    joined: dict[str, NDArray[np.generic]] = {}
    for name in _PER_COLUMN:
        parts = []
        for table in tables:
            values = getattr(table, name)
            if name == "shape":
                remap = np.array([*(row[s] for s in table.shapes), -1], dtype=np.int64)
                values = remap[values]
            elif values.ndim == 2 and values.shape[1] < width:
                fill = np.nan if values.dtype == np.float64 else -1
                pad = np.full((len(values), width - values.shape[1]), fill, dtype=values.dtype)
                values = np.hstack([values, pad])
            parts.append(values)
        joined[name] = np.concatenate(parts)
    notes: dict[str, int] = {}
    for table in tables:
        for key, count in table.notes.items():
            notes[key] = notes.get(key, 0) + count
    return replace(first, **joined, shapes=tuple(shapes), notes=notes)  # type: ignore[arg-type]
