"""What the runner, the tables and the plots share: rows of results, and what they say at a CPU time.

A row's ``profile`` is a list of ``[cpu_s, objective, bound]``: the best plan and bound known from that CPU
time on, either of them None before there is one. CPU times count from the start of planning: interpreter and
imports are left out, candidates are in.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ymir_opt

Row = dict[str, Any]
Profile = list[list[float | None]]

OURS = "auto"
CLOCKED = ("gavel", "titan", "gavel-lp")
"""Methods with objectives of their own: only their times compare."""


def code_version(package: Path | None = None) -> str:
    """Return the package's version and a hash of its sources: what a result holds for."""
    folder = Path(ymir_opt.__file__).parent if package is None else package
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(path.read_bytes() + b"\0")
    return f"{version('ymir-opt')}+{digest.hexdigest()[:12]}"


def key(row: Row) -> tuple[Any, ...]:
    """Return what makes two runs the same run."""
    return (row["instance"], row["method"], row["times"], row["most_cpu_s"], row["code"])


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file, [] where there is none; a line that a kill cut short is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def append_row(path: Path, row: Row) -> None:
    """Add a row as one line, on a line of its own also after a line that was cut short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    old = path.read_bytes()[-1:] if path.exists() else b""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(("\n" if old not in (b"", b"\n") else "") + json.dumps(row) + "\n")


def of_last_code(rows: list[Row]) -> list[Row]:
    """Return the rows of the sources that ran last, the last of each run; small synthetic rounds first."""
    found = {key(row): row for row in rows if row["code"] == rows[-1]["code"]}
    return sorted(found.values(), key=lambda row: size_of(row) or (math.inf, math.inf))


def at(profile: Profile, cpu_s: float) -> tuple[float | None, float | None]:
    """Return the objective and the bound known after so many CPU seconds."""
    objective = bound = None
    for when, least, most in profile:
        if when is None or when > cpu_s:
            break
        objective, bound = least, most
    return objective, bound


def profile_of(events: Iterable[Row]) -> Profile:
    """Return what was known when, from the events of one planning process, its parts one after the other.

    A round is stated again where its solution has no placement; the points of the models before are no
    plans then, and are left out. Where a round was split, each part has the same share of the time: after
    t seconds of n parts each is as far as it was after t/n seconds of its own, until all have ended.
    """
    parts: dict[int, list[Row]] = {}
    for event in events:
        parts.setdefault(event["part"], []).append(event)
    if not parts or 0 not in parts:
        return []
    alone = [_of_part(found) for _, found in sorted(parts.items())]
    if parts[0][0]["parts"] == 1:
        return alone[0]
    if len(alone) < parts[0][0]["parts"] or any(found[-1]["kind"] != "plan" for found in parts.values()):
        return []
    total = sum(float(profile[-1][0] or 0) for profile in alone)
    moments = sorted({float(line[0] or 0) for profile in alone for line in profile})
    joined: Profile = []
    for moment in (m for m in moments if m * len(alone) < total):
        known = [at(profile, moment)[0] for profile in alone]
        if None not in known:
            joined.append([round(moment * len(alone), 4), sum(o for o in known if o is not None), None])
    return [*joined, [round(total, 4), sum(float(profile[-1][1] or 0) for profile in alone), None]]


def _of_part(events: list[Row]) -> Profile:
    last = max((event.get("attempt", 0) for event in events), default=0)
    objective: float | None = None
    bound: float | None = None
    profile: Profile = []
    for event in events:
        told, least = event.get("objective"), event.get("bound")
        counts = event["kind"] != "point" or event["attempt"] == last
        before = objective, bound
        better = told is not None and counts and (objective is None or told < objective)
        # the plan itself counts, whatever was known of its model
        if better or event["kind"] == "plan":
            objective = told
        if least is not None and (bound is None or least > bound):
            bound = least
        if (objective, bound) != before or event["kind"] == "plan":
            profile.append([event["cpu_s"], objective, bound])
    return profile


def best_bound(rows: Iterable[Row]) -> float | None:
    """Return the best bound that any run proved for a round's pool."""
    return max((row["bound"] for row in rows if row.get("bound") is not None), default=None)


def size_of(row: Row) -> tuple[int, int] | None:
    """Return (jobs, GPUs) of a synthetic round, None for others."""
    jobs, _, gpus = row["instance"].partition("/")[0].partition("x")
    return (int(jobs), int(gpus)) if jobs.isdecimal() and gpus.isdecimal() else None
