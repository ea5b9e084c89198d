"""Step-time measurements as arrays: Titan's tables, or throughput rows of a profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_models.sources import require_folder
from ymir_opt.domain.snapshot import Provenance, ThroughputRow
from ymir_opt.jobmodel.memory import MemoryTable
from ymir_opt.jobmodel.tables import Converter, count, positive, read_rows, text

__all__ = ["StepRows", "profile_rows", "titan_memory", "titan_models", "titan_rows"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
NODE_GPUS = 4


@dataclass(frozen=True)
class StepRows:
    """Measured steps of one model on one GPU type.

    Attributes
    ----------
    nodes, gpus, local : int64[k]
        Nodes, GPUs and samples on each GPU.
    step_s, sync_s : float64[k]
        Seconds of a step and of its synchronisation; NaN where the latter was not measured.
    packed : bool[k]
        The GPUs are on the fewest nodes, all but the last full.
    """

    nodes: IntArray
    gpus: IntArray
    local: IntArray
    step_s: FloatArray
    sync_s: FloatArray
    packed: BoolArray

    def __len__(self) -> int:
        return len(self.local)

    def take(self, mask: NDArray[np.bool_] | IntArray) -> StepRows:
        """Return the rows chosen by a mask or by indices."""
        return StepRows(*(getattr(self, name)[mask] for name in self.__dataclass_fields__))

    def without_sync(self) -> StepRows:
        """Return the rows as a plain profile gives them: synchronisation is not measured apart."""
        unknown = np.full(len(self), np.nan)
        return StepRows(self.nodes, self.gpus, self.local, self.step_s, unknown, self.packed)

    @classmethod
    def build(cls, rows: Iterable[tuple[int, int, int, float, float, bool]]) -> StepRows:
        """Return the arrays of (nodes, gpus, local, step, sync, packed) tuples."""
        table = list(rows)
        whole = np.array([row[:3] for row in table], dtype=np.int64).reshape(-1, 3)
        seconds = np.array([row[3:5] for row in table], dtype=np.float64).reshape(-1, 2)
        packed = np.array([row[5] for row in table], dtype=np.bool_)
        return cls(whole[:, 0], whole[:, 1], whole[:, 2], seconds[:, 0], seconds[:, 1], packed)


def titan_models(folder: Path) -> list[tuple[str, str]]:
    """Return the (GPU type, foundation model) pairs with step times, sorted."""
    lut = require_folder(folder, "lut") / "lut"
    names = [(p.parent.name, p.name.removesuffix("_placements.csv")) for p in lut.glob("*/*_placements.csv")]
    return sorted(names)


def titan_rows(folder: Path, gpu_type: str, model: str, *, scaled: bool = False) -> StepRows:
    """Return the rows of at most four nodes, or (``scaled``) those of more.

    Raises
    ------
    InputError
        If a table is missing or broken; file, line and column are named.
    """
    columns: dict[str, Converter] = {"local_bsz": count, "step_time": positive, "sync_time": positive}
    path = folder / "lut" / gpu_type / model
    if scaled:
        columns = {"num_nodes": count, "num_replicas": count, **columns}
        found = read_rows(path.with_name(f"{model}_scalability.csv"), columns)
        return StepRows.build((n, g, b, step, sync, False) for _, (n, g, b, step, sync) in found)
    columns = {"placement": text, **columns}
    rows = []
    for _, (name, b, step, sync) in read_rows(path.with_name(f"{model}_placements.csv"), columns):
        used = [int(digit) for digit in name]
        packed = len(used) == -(-sum(used) // NODE_GPUS) and sorted(used)[1:] == [NODE_GPUS] * (len(used) - 1)
        rows.append((len(used), sum(used), b, step, sync, packed))
    return StepRows.build(rows)


def titan_memory(folder: Path, gpu_type: str, model: str) -> tuple[FloatArray, FloatArray]:
    """Return local batches and GiB per GPU; empty where they were not measured."""
    path = folder / "lut" / gpu_type / f"{model}_memory.csv"
    if not path.exists():
        return np.zeros(0), np.zeros(0)
    table = MemoryTable.read(path)
    return table.batch, table.gib


def profile_rows(
    rows: Iterable[ThroughputRow],
) -> dict[tuple[str, str | None, str, str], tuple[StepRows, FloatArray, FloatArray]]:
    """Return the measured rows of a profile by (foundation model, PEFT type, configuration, GPU type).

    A global batch that its GPUs do not divide evenly is left out: its local batch is not known. Beside
    the steps come the local batches and GiB of the rows that state memory.
    """
    grouped: dict[tuple[str, str | None, str, str], list[ThroughputRow]] = defaultdict(list)
    for row in rows:
        if row.source is Provenance.MEASURED and row.samples_per_s > 0 and row.batch_size % row.gpus == 0:
            grouped[row.foundation_model, row.peft_type, row.config, row.gpu_type].append(row)
    result = {}
    for key, members in grouped.items():
        steps = StepRows.build(
            (r.nodes or 1, r.gpus, r.batch_size // r.gpus, r.batch_size / r.samples_per_s, np.nan, True)
            for r in members
        )
        known = [(r.batch_size // r.gpus, r.memory_gib) for r in members if r.memory_gib is not None]
        memory = np.array(known, dtype=np.float64).reshape(-1, 2)
        result[key] = (steps, memory[:, 0], memory[:, 1])
    return result
