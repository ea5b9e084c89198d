"""Views made by hand, for tests of single decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ymir_opt.policies.view import JobColumns, SnapshotView, SpeedTable, TransferTable

COUNTS = 32


def speeds(
    power: Sequence[float] = (1.0,), types: Sequence[str] = ("V100",), cold: float = 30.0
) -> SpeedTable:
    """Return a table in which key k runs at n ** power[k] samples/s on every type."""
    counts = np.arange(COUNTS + 1, dtype=np.float64)
    rate = np.stack([np.tile(np.where(counts > 0, counts**p, 0.0), (len(types), 1)) for p in power])
    with np.errstate(divide="ignore"):
        seconds = np.where(rate > 0, 1.0 / np.maximum(rate, 1e-300), np.inf)
    start = np.full(rate.shape[:2], cold)
    names = tuple((f"m{k}", 8) for k in range(len(power)))
    memory = np.full_like(rate, np.nan)
    return SpeedTable(tuple(types), names, rate, seconds, start, start, memory, np.full(len(types), 32.0))


def view_of(
    jobs: Sequence[dict[str, Any]],
    nodes: Sequence[tuple[str, int]] = (("V100", 4),) * 8,
    now_s: float = 1000.0,
    table: SpeedTable | None = None,
    transfer: TransferTable | None = None,
) -> SnapshotView:
    """Return a view of jobs given by columns; what is not given has a plain default."""
    table = table or speeds()
    columns = JobColumns(max(1, len(jobs)))
    data = columns.data
    for slot, given in enumerate(jobs):
        fields = {
            "serial": slot, "requested_gpus": 1, "min_gpus": 1, "max_gpus": COUNTS, "key": 0, "kind": -1,
            "gpu_type": -1, "group": -1, "movable": 1, "sharing": 2, "type_mask": (1 << len(table.types)) - 1,
            "submitted_at_s": float(slot), "weight": 1.0, "deadline_s": np.inf, "not_before_s": -np.inf,
            "first_start_s": np.nan, "last_start_s": np.nan, **given,
        }  # fmt: skip
        columns.ids[slot] = str(fields.pop("id", f"j{slot}"))
        if fields.get("gpus"):
            fields["gpu_type"] = given.get("gpu_type", 0)
            fields["last_start_s"] = given.get("last_start_s", 0.0)
        fields.setdefault("estimated_total", fields.get("remaining", 0.0) + fields.get("done", 0.0))
        for name, value in fields.items():
            data[name][slot] = value
    sizes = np.array([size for _, size in nodes], dtype=np.int64)
    kinds = np.array([table.types.index(kind) for kind, _ in nodes], dtype=np.int64)
    free = sizes.copy()
    for slot in range(len(jobs)):
        left = int(data["gpus"][slot])
        for n in np.flatnonzero(kinds == max(0, data["gpu_type"][slot])):
            take = min(left, int(free[n]))
            free[n] -= take
            left -= take
    return SnapshotView(
        now_s,
        columns,
        np.arange(len(jobs), dtype=np.int64),
        table,
        transfer or TransferTable(),
        {
            "node_id": tuple(f"n{i}" for i in range(len(nodes))),
            "node_type": kinds,
            "node_gpus": sizes,
            "node_free": free,
            "node_ready": np.ones(len(nodes), dtype=np.bool_),
        },
        queues=("default",),
    )
