"""Everything that the report page shows, as plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ymir_profiler.analysis.skill import skills
from ymir_profiler.analysis.transfer import transfers
from ymir_profiler.store.store import Record

__all__ = ["summary"]


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def summary(records: Sequence[Record], fraction: float = 0.9) -> dict[str, Any]:
    """Return tables of throughput, co-location, switches, transfer and score skill, and the machines.

    Parameters
    ----------
    records : sequence of Record
    fraction : float
        Target of the work ratios.
    """
    measured = transfers(records, fraction)
    tables: dict[str, list[dict[str, Any]]] = {"throughput": [], "colocation": [], "switch": []}
    for record in records:
        if record.kind in tables:
            subject = {key: value for key, value in record.subject.items() if key != "machine"}
            row = {"foundation_model": record.foundation_model, "status": record.status}
            tables[record.kind].append(_finite({**row, **subject, **record.value}))
    machines = {str(sorted((r.machine or {}).items())): dict(r.machine or {}) for r in records if r.machine}
    return {
        **tables,
        "transfer": [_finite(asdict(t)) for t in measured],
        "skill": [_finite(asdict(s)) for s in skills(records, measured)],
        "machines": list(machines.values()),
        "measurements": len(records),
        "cpu_s": sum(record.cpu_s for record in records),
    }
