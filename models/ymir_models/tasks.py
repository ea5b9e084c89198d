"""Features of tasks that were never run, as the user gives them: ``tasks.json`` beside the fitted models.

::

    {"schema": "ymir.tasks/1",
     "tasks": {"my-task": {"language_model": {"boolq": -3.1, ...}, "retrieval": {"boolq": 0.31, ...}}}}

Every task needs a score for every source of the transfer model; how such scores are made is described in
docs/howto-models.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ymir_opt.domain.base import nearest, short
from ymir_opt.domain.errors import InputError

__all__ = ["FILE", "SCHEMA", "TaskScores", "read_tasks"]

FILE = "tasks.json"
SCHEMA = "ymir.tasks/1"
KINDS = ("language_model", "retrieval")
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class TaskScores:
    """Pair scores of one task as a target, by source."""

    language_model: Mapping[str, float]
    retrieval: Mapping[str, float]


def read_tasks(path: Path) -> dict[str, TaskScores]:
    """Read the file.

    Raises
    ------
    InputError
        Naming the task, the kind and the value that is wrong.
    """
    place = str(path)
    try:
        raw = path.read_bytes()
        body: Any = json.loads(raw) if len(raw) <= MAX_BYTES else None
    except OSError as error:
        raise InputError(place, f"cannot be read ({error.strerror})", "name a readable file") from None
    except (ValueError, RecursionError):
        raise InputError(place, "is cut off or not JSON", "write it again") from None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA or not isinstance(body.get("tasks"), dict):
        raise InputError(place, f"is not a document of schema {SCHEMA}", "see docs/howto-models.md")
    tasks = {}
    for name, scores in body["tasks"].items():
        here = f"{place}: tasks.{short(name)}"
        if not isinstance(scores, dict):
            raise InputError(here, "is not a group of scores", f"give {' and '.join(KINDS)}")
        unknown = sorted(set(scores) - set(KINDS))
        if unknown:
            raise InputError(here, f"unknown field {short(unknown[0])}", nearest(unknown[0], set(KINDS)))
        found = {kind: _numbers(f"{here}.{kind}", scores.get(kind)) for kind in KINDS}
        tasks[name] = TaskScores(found["language_model"], found["retrieval"])
    return tasks


def _numbers(place: str, values: Any) -> dict[str, float]:
    if not isinstance(values, dict):
        raise InputError(
            place, "is missing or not a mapping of sources to numbers", "give every source's score"
        )
    for source, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{place}.{short(source)}", f"{short(value)} is not a number", "give a number")
    return {source: float(value) for source, value in values.items()}
