"""What `evaluate` reports: one row for every split and model, with baselines and targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ymir_opt.domain.errors import InputError

__all__ = ["Row", "Target", "as_json", "markdown", "number", "replace_block", "summary"]

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Target:
    """A limit that a metric should keep.

    Attributes
    ----------
    metric : str
        Name in the row's metrics.
    limit : float
    at_least : bool
        The metric should be at least the limit instead of at most.
    """

    metric: str
    limit: float
    at_least: bool = False

    def reached(self, metrics: Metrics) -> bool | None:
        """Say whether the limit is kept; None where the metric is missing or undefined."""
        value = metrics.get(self.metric, math.nan)
        if math.isnan(value):
            return None
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Row:
    """Figures of one model on one split.

    Attributes
    ----------
    evaluation : str
        ``throughput``, ``convergence``, ``colocation`` or ``transfer``.
    split : str
        What was held out.
    model : str
        Which model, such as a foundation model on a GPU type, or ``all``.
    cases : int
        Held-out cases that were scored.
    metrics : mapping
    baselines : mapping
        Name of a simpler method to its metrics on the same cases.
    targets : tuple of Target
    note : str
    """

    evaluation: str
    split: str
    model: str
    cases: int
    metrics: Metrics
    baselines: Mapping[str, Metrics] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    note: str = ""


def _finite(metrics: Metrics) -> dict[str, float | None]:
    return {k: (float(f"{v:.6g}") if math.isfinite(v) else None) for k, v in metrics.items()}


def as_json(row: Row) -> dict[str, Any]:
    """Return the row as JSON types; undefined figures are null."""
    return {
        "evaluate": row.evaluation,
        "split": row.split,
        "model": row.model,
        "cases": row.cases,
        "metrics": _finite(row.metrics),
        "baselines": {name: _finite(metrics) for name, metrics in row.baselines.items()},
        "targets": [
            {
                "metric": t.metric,
                "limit": t.limit,
                "at_least": t.at_least,
                "reached": t.reached(row.metrics),
            }
            for t in row.targets
        ],
        "note": row.note,
    }


def number(value: float) -> str:
    """Return a figure as three significant digits, ``-`` where it is undefined."""
    if not math.isfinite(value):
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _target_text(row: Row) -> str:
    parts = []
    for target in row.targets:
        sign = ">=" if target.at_least else "<="
        kept = {True: "reached", False: "**missed**", None: "undefined"}[target.reached(row.metrics)]
        parts.append(f"{target.metric} {sign} {number(target.limit)}: {kept}")
    return "; ".join(parts)


def markdown(rows: Sequence[Row]) -> str:
    """Return Markdown tables, one for each split, with every baseline as a line of its own."""
    lines: list[str] = []
    for split in dict.fromkeys(row.split for row in rows):
        chosen = [row for row in rows if row.split == split]
        names = list(dict.fromkeys(name for row in chosen for name in row.metrics))
        lines += [f"#### {split}", ""]
        lines.append("| case | method | n | " + " | ".join(names) + " | target |")
        lines.append("|---|---|---|" + "---|" * (len(names) + 1))
        for row in chosen:
            bodies = [("ours", row.metrics, _target_text(row))]
            bodies += [(name, metrics, "") for name, metrics in row.baselines.items()]
            for method, metrics, target in bodies:
                figures = " | ".join(number(metrics.get(name, math.nan)) for name in names)
                lines.append(f"| {row.model} | {method} | {row.cases} | {figures} | {target} |")
        notes = dict.fromkeys(row.note for row in chosen if row.note)
        lines += ["", *(f"{note}\n" for note in notes)]
    return "\n".join(lines).rstrip() + "\n"


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without the parts of those splits that have a row over everything (``all``)."""
    whole = {row.split for row in rows if row.model == "all"}
    return [row for row in rows if row.split not in whole or row.model == "all"]


def replace_block(text: str, kind: str, block: str, place: str) -> str:
    """Return a document with the tables of one evaluation put between its marks.

    The marks are ``<!-- begin evaluate KIND -->`` and ``<!-- end evaluate KIND -->``, a line each.

    Raises
    ------
    InputError
        If a mark is missing or the two are in the wrong order.
    """
    begin, end = f"<!-- begin evaluate {kind} -->\n", f"<!-- end evaluate {kind} -->"
    first, last = text.find(begin), text.find(end)
    if first < 0 or last < first:
        raise InputError(place, f"has no marks for {kind}", f"write {begin.strip()} and {end} into it")
    return f"{text[: first + len(begin)]}\n{block}\n{text[last:]}"
