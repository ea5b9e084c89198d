"""What workers measured of jobs, as rows of a snapshot's profiles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ymir_opt.domain.snapshot import (
    PROFILE_ROWS,
    Profiles,
)
from ymir_opt.executors.journal import Journal

__all__ = ["measured_profiles", "merged_profiles"]


def measured_profiles(journal: Journal) -> Profiles:
    """Return the rows of every measurement in the journal, the newest last; damaged ones are left out."""
    found: dict[str, list[Any]] = {name: [] for name in PROFILE_ROWS}
    events = sorted(journal.all("profiled").values(), key=_time)
    for event in events:
        rows = event.get("rows")
        for name, model in PROFILE_ROWS.items():
            listed = rows.get(name) if isinstance(rows, dict) else None
            for row in listed if isinstance(listed, list) else ():
                try:
                    found[name].append(model.model_validate_json(json.dumps(_named(row, event))))
                except (ValidationError, TypeError, ValueError):
                    continue
    return Profiles(**{name: tuple(rows) for name, rows in found.items()})


def _time(event: Mapping[str, Any]) -> float:
    at = event.get("at_s")
    return float(at) if isinstance(at, int | float) else 0.0


def _named(row: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row under its node's GPU type, with a warm start that is not slower than a cold one."""
    named = dict(row)
    if "gpu_type" in named and event.get("gpu_type"):
        named["gpu_type"] = event["gpu_type"]
    if "warm_s" in named and "cold_s" in named:
        named["warm_s"] = min(named["warm_s"], named["cold_s"])
    return named


def _identity(row: Any) -> Any:
    figures = {"samples_per_s", "memory_gib", "cold_s", "warm_s", "gib", "speed_ratio", "work_ratio"}
    data = row.model_dump(mode="json", exclude=figures | {"low", "high", "p_benefit", "source", "provenance"})
    return json.dumps({**data, "of": str(getattr(row, "source", ""))}, sort_keys=True)


def merged_profiles(*several: Profiles) -> Profiles:
    """Return the rows of all; of two for the same thing, the later one."""
    return Profiles(
        **{
            name: tuple({_identity(row): row for given in several for row in getattr(given, name)}.values())
            for name in PROFILE_ROWS
        }
    )
