"""Takes measurements within a budget: what is in the store is skipped, what is done is stored at once."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ymir_opt.domain.errors import InputError
from ymir_profiler.measure.base import Measurement
from ymir_profiler.measure.bench import Bench
from ymir_profiler.measure.machine import spending
from ymir_profiler.store.store import Record, Store, key_of

__all__ = ["Order", "Pending", "Report", "as_planned", "parse_budget", "pending", "run"]

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_budget(text: str) -> float:
    """Return seconds from ``90``, ``60s``, ``10m`` or ``4h``.

    Raises
    ------
    InputError
        If the text is none of these or not above zero.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    seconds = float(found.group(1)) * UNITS[found.group(2)] if found else math.nan
    if not seconds > 0:
        raise InputError("--budget", f"{text!r} is no duration above zero", "give one such as 60s, 10m or 4h")
    return seconds


@dataclass(frozen=True)
class Pending:
    """A measurement that is still to be taken.

    Attributes
    ----------
    measurement : Measurement
    key : str
    cost_s : float
        CPU seconds: the median of the same kind and mode in the store, else the measurement's own guess.
    """

    measurement: Measurement
    key: str
    cost_s: float


@dataclass
class Report:
    """What a call of `run` did."""

    measured: int = 0
    skipped: int = 0
    left: int = 0
    failed: int = 0
    cpu_s: float = 0.0


Order = Callable[[Sequence[Pending]], Pending]
"""Chooses the next measurement among those left."""


def as_planned(left: Sequence[Pending]) -> Pending:
    """Choose the first."""
    return left[0]


def pending(todo: Sequence[Measurement], bench: Bench, store: Store) -> list[Pending]:
    """Return what is not in the store yet, with its likely cost."""
    known = store.keys()
    costs: dict[tuple[str, str], list[float]] = {}
    for record in store.records(foundation_model=bench.foundation_model):
        costs.setdefault((record.kind, _mode(record.subject)), []).append(record.cpu_s)
    found = []
    for item in todo:
        subject = item.subject(bench)
        key = key_of(item.kind, bench.foundation_model, subject)
        if key not in known:
            alike = costs.get((item.kind, _mode(subject)))
            found.append(Pending(item, key, median(alike) if alike else item.estimate_cpu_s(bench)))
    return found


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _mode(subject: object) -> str:
    return str(subject.get("mode", "")) if isinstance(subject, dict) else ""


def run(
    todo: Sequence[Measurement],
    bench: Bench,
    store: Store,
    budget_s: float,
    *,
    order: Order = as_planned,
    progress: Callable[[Pending, Report], None] = lambda _next, _report: None,
) -> Report:
    """Take measurements until all are there or the budget is used.

    A measurement is started only if its likely cost fits into what is left of the budget (the first one
    always); each is written in one transaction when it is finished, so that a process that is killed
    loses at most the one under way.

    Parameters
    ----------
    todo : sequence of Measurement
    bench : Bench
    store : Store
    budget_s : float
        On the wall clock.
    order : callable
    progress : callable
        Called before each measurement.
    """
    started = time.monotonic()
    left = pending(todo, bench, store)
    report = Report(skipped=len(todo) - len(left), left=len(left))
    while left:
        chosen = order(left)
        used = time.monotonic() - started
        if report.measured and used + chosen.cost_s > budget_s:
            break
        progress(chosen, report)
        before = _children_cpu_s()
        with spending(bench.device) as spent:
            outcome = chosen.measurement.measure(bench)
        cost = spent.cpu_s + _children_cpu_s() - before
        record = Record(
            kind=chosen.measurement.kind,
            foundation_model=bench.foundation_model,
            subject=chosen.measurement.subject(bench),
            value=outcome.value,
            cpu_s=cost,
            wall_s=spent.wall_s,
            status=outcome.status,
            machine=bench.machine,
        )
        store.put(record)
        left.remove(chosen)
        report.measured += 1
        report.failed += outcome.status != "ok"
        report.left = len(left)
        report.cpu_s += cost
    return report
