"""Microsoft's Philly trace (Jeon et al., ATC'19): the file ``cluster_job_log``, as rigid jobs.

A JSON list; each entry has `jobid`, `vc` (virtual cluster), `user`, `status`, `submitted_time`, `attempts`,
each with `start_time`, `end_time` and `detail`, a list of machines with their `gpus`. Times are local,
``2017-10-07 01:12:09``, or ``None``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ymir_opt.domain.base import short
from ymir_opt.domain.errors import InputError
from ymir_opt.importers.base import Imported
from ymir_opt.importers.traces import TraceDocument, TraceEntry, read_text

__all__ = ["import_philly"]

FORMAT = "%Y-%m-%d %H:%M:%S"


def import_philly(trace: str, *, vc: tuple[str, ...] = ()) -> Imported:
    """Make a trace of rigid jobs from Philly's cluster_job_log.

    A job's GPUs are those of its first attempt that had any; its work is the GPU time of all attempts.

    Parameters
    ----------
    trace : str
        The JSON file.
    vc : tuple of str
        Only jobs of these virtual clusters.

    Raises
    ------
    InputError
        An entry is wrong; file, line and field are named.
    """
    text = read_text(trace)
    jobs: list[TraceEntry] = []
    seen: dict[str, int] = {}
    left_out: Counter[str] = Counter()
    clusters: Counter[str] = Counter()
    for line, entry in _entries(trace, text):
        place = f"{trace}: line {line}"
        job = _job(place, entry)
        clusters[_text(place, entry, "vc") or "default"] += 1
        if vc and entry.get("vc") not in vc:
            continue
        if isinstance(job, str):
            left_out[job] += 1
            continue
        if job.id in seen:
            raise InputError(
                f"{place}, field jobid",
                f"{short(job.id)} is already on line {seen[job.id]}",
                "keep one of them",
            )
        seen[job.id] = line
        jobs.append(job)
    missing = sorted(set(vc) - set(clusters))
    if missing:
        known = ", ".join(name for name, _ in clusters.most_common(8))
        raise InputError("--vc", f"{short(missing[0])} is not in the trace", f"known: {known}")
    jobs.sort(key=lambda job: job.submitted_at_s)
    notes = [f"{count} jobs left out: {why}" for why, count in sorted(left_out.items())]
    notes.append("times are local: twice a year an hour is missing or doubled; jobs are rigid")
    return Imported(
        TraceDocument(name="philly", clock="seconds since 1970, local time", jobs=tuple(jobs)),
        f"{len(jobs)} jobs of {len(set(vc) or clusters)} virtual clusters, up to "
        f"{max((job.gpus for job in jobs), default=0)} GPUs",
        tuple(notes),
    )


def _entries(name: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each entry of the list with the line on which it begins."""
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise InputError(f"{name}: line 1", "is not a JSON list", "give Philly's cluster_job_log")
    line, counted = 1, 0
    at = _skip(text, at + 1)
    first = True
    while text[at : at + 1] != "]":
        if not first:
            if text[at : at + 1] != ",":
                raise _broken(name, text, at, "expected , or ]")
            at = _skip(text, at + 1)
        first = False
        line += text.count("\n", counted, at)
        counted = at
        try:
            entry, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise _broken(name, text, error.pos, error.msg.lower()) from None
        except RecursionError:
            raise _broken(name, text, at, "nested too deeply") from None
        if not isinstance(entry, dict):
            raise InputError(f"{name}: line {line}", "is not an object", "an entry is an object with a jobid")
        yield line, entry
        at = _skip(text, end)
    if text[at + 1 :].strip():
        raise _broken(name, text, at + 1, "text after the list")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _broken(name: str, text: str, at: int, what: str) -> InputError:
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return InputError(
        f"{name}: line {line}, column {column}", f"is not valid JSON ({what})", "correct the file"
    )


def _text(place: str, entry: dict[str, Any], field: str) -> str | None:
    value = entry.get(field)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable() or set(value) & set("<>"):
        raise InputError(f"{place}, field {field}", f"{short(value)} is not a name", "correct the value")
    return value.strip()


def _time(place: str, entry: dict[str, Any], field: str) -> float | None:
    value = entry.get(field)
    if value is None or value in ("None", ""):
        return None
    try:
        return datetime.strptime(value, FORMAT).replace(tzinfo=UTC).timestamp()
    except (TypeError, ValueError):
        raise InputError(
            f"{place}, field {field}", f"{short(value)} is not a time", "write it as 2017-10-07 01:12:09"
        ) from None


def _job(place: str, entry: dict[str, Any]) -> TraceEntry | str:
    """Return an entry's job, or why it is left out."""
    identity = _text(place, entry, "jobid")
    if identity is None:
        raise InputError(f"{place}, field jobid", "is missing", "every entry needs a jobid")
    submitted = _time(place, entry, "submitted_time")
    if submitted is None:
        return "the time of submission is unknown"
    attempts = entry.get("attempts")
    if not isinstance(attempts, list):
        raise InputError(f"{place}, field attempts", f"{short(attempts)} is not a list", "give the attempts")
    gpus, work, unfinished = 0, 0.0, False
    for number, attempt in enumerate(attempts):
        where = f"{place}, field attempts[{number}]"
        if not isinstance(attempt, dict):
            raise InputError(where, f"{short(attempt)} is not an object", "correct the entry")
        count = _gpus(where, attempt)
        start, end = _time(where, attempt, "start_time"), _time(where, attempt, "end_time")
        if start is not None and end is None:
            unfinished = True
        if start is None or end is None or count == 0:
            continue
        if end < start:
            raise InputError(where, "ends before it starts", "correct the times")
        gpus = gpus or count
        work += count * (end - start)
    if not gpus:
        return "no attempt has GPUs and both times"
    if work <= 0:
        return "it ran for less than a second"
    if unfinished:
        return "an attempt has no end (still running when the log was taken)"
    return TraceEntry(
        id=identity,
        submitted_at_s=submitted,
        gpus=gpus,
        run_s=work / gpus,
        queue=_text(place, entry, "vc") or "default",
        user=_text(place, entry, "user"),
    )


def _gpus(place: str, attempt: dict[str, Any]) -> int:
    detail = attempt.get("detail")
    total = 0
    for number, machine in enumerate(detail if isinstance(detail, list) else []):
        held = machine.get("gpus") if isinstance(machine, dict) else None
        if not isinstance(held, list):
            raise InputError(
                f"{place}.detail[{number}]", f"{short(held)} is no list of GPUs", "correct the entry"
            )
        total += len(held)
    return total
