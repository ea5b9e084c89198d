"""Models and answers as files, for a solver in a process of its own.

Arrays travel as ``.npz`` and ``.npy`` without pickle, the rest as JSON. Every file appears under
its name only when it is complete, so that a reader never sees half of one, even after a kill.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers.base import SolveResult, Status, StoppedBy

__all__ = [
    "BEST",
    "BOUND",
    "ERROR",
    "INCUMBENT",
    "MODEL",
    "RESULT",
    "TASK",
    "read_json",
    "read_model",
    "read_point",
    "read_result",
    "write_json",
    "write_model",
    "write_point",
    "write_result",
]

IntArray = NDArray[np.int64]
MODEL, TASK, RESULT, ERROR = "model.npz", "task.json", "result.json", "error.json"
INCUMBENT, BEST, BOUND = "incumbent.npy", "best.npy", "bound.json"
_ARRAYS = (
    "cost",
    "lower",
    "upper",
    "relaxable",
    "row_start",
    "index",
    "value",
    "row_lower",
    "row_upper",
)


def write_model(folder: Path, model: LinearModel) -> None:
    """Write the arrays of a model; row families as their distinct names and a code a row."""
    families = sorted(set(model.row_family))
    code = {family: i for i, family in enumerate(families)}
    arrays = {name: getattr(model, name) for name in _ARRAYS}
    if model.guess is not None:
        arrays["guess"] = model.guess
    codes = np.array([code[family] for family in model.row_family], dtype=np.int64)
    with (folder / MODEL).open("wb") as stream:
        np.savez(
            stream,
            **arrays,
            offset=np.array(model.offset, np.int64),
            family=codes,
            families=np.array(families, dtype=np.str_),
        )


def read_model(folder: Path) -> LinearModel:
    """Read what `write_model` wrote."""
    with np.load(folder / MODEL, allow_pickle=False) as stored:
        families = [str(name) for name in stored["families"]]
        return LinearModel(
            **{name: stored[name] for name in _ARRAYS},
            row_family=tuple(families[i] for i in stored["family"]),
            offset=int(stored["offset"]),
            guess=stored.get("guess"),
        )


def write_point(path: Path, x: IntArray) -> None:
    """Write int64[n] in one step."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as stream:
        np.save(stream, x, allow_pickle=False)
    os.replace(part, path)


def read_point(path: Path) -> IntArray | None:
    """Read a point, None where there is none."""
    if not path.exists():
        return None
    return np.asarray(np.load(path, allow_pickle=False), dtype=np.int64)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON object in one step."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data), encoding="utf-8")
    os.replace(part, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, None where there is none."""
    if not path.exists():
        return None
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def write_result(folder: Path, result: SolveResult) -> None:
    """Write an answer; the point first, so that a result is complete once it is there."""
    if result.x is not None:
        write_point(folder / BEST, result.x)
    data = {
        "status": result.status.value,
        "objective": result.objective,
        "bound": result.bound,
        "stopped_by": result.stopped_by.value,
        "note": result.note,
    }
    write_json(folder / RESULT, data)


def read_result(folder: Path) -> SolveResult | None:
    """Read an answer, None where the solver did not come to one."""
    data = read_json(folder / RESULT)
    if data is None:
        return None
    status = Status(data["status"])
    solved = status in (Status.OPTIMAL, Status.FEASIBLE)
    return SolveResult(
        status=status,
        x=read_point(folder / BEST) if solved else None,
        objective=data["objective"],
        bound=data["bound"],
        stopped_by=StoppedBy(data["stopped_by"]),
        note=data["note"],
    )
