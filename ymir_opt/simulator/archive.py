"""Results of simulations as JSON files."""

from __future__ import annotations

import json
from array import array
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.errors import InputError
from ymir_opt.simulator.results import Recorder, SimulationResult

__all__ = ["read_result", "write_result"]

SCHEMA = "ymir.simulation-result/1"
_LARGE = ("jobs", "series", "segments")


def write_result(path: Path, result: SimulationResult, **more: Any) -> None:
    """Write a result, and whatever else is given as JSON values."""
    recorder = Recorder()
    recorder.jobs, recorder.segments = result.jobs, result.segments
    recorder.series = {name: array("d", values.tolist()) for name, values in result.series.items()}
    plain = {f.name: getattr(result, f.name) for f in fields(result) if f.name not in _LARGE}
    write_atomic(path, json.dumps({"schema": SCHEMA, "result": plain, "records": recorder.state(), **more}))


def read_result(path: Path) -> tuple[SimulationResult, dict[str, Any]]:
    """Return a result, and the rest of the document.

    Raises
    ------
    InputError
        The file is no result.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        recorder = Recorder()
        recorder.restore(document.pop("records"))
        plain = document.pop("result")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(str(path), f"is no result of a simulation ({error})", "remove the file") from None
    plain["unfinished"] = tuple(plain["unfinished"])
    series = {name: np.array(values) for name, values in recorder.series.items()}
    result = SimulationResult(**plain, jobs=recorder.jobs, segments=recorder.segments, series=series)
    return result, document
