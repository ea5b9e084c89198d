"""Plans side by side, as tables and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ymir_opt.cli.explained import loss_text
from ymir_opt.cli.formats import count_of, duration, figure, percent
from ymir_opt.cli.tables import MAX_ROWS, and_more, new_table
from ymir_opt.domain.plan import ActionKind
from ymir_opt.whatif.compare import Change, Comparison, Difference, Place, Scenario

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["comparison_json", "comparison_tables"]

_STYLE = {
    Change.STARTS: "green",
    Change.KEPT: "green",
    Change.SOONER: "green",
    Change.PREEMPTED: "red",
    Change.WAITS: "red",
    Change.LATER: "yellow",
    Change.MOVED: "yellow",
    Change.ADDED: "cyan",
}
_COUNTED = (
    ("start", (ActionKind.START, ActionKind.MERGE)),
    ("go on as they run", (ActionKind.KEEP,)),
    ("move, grow or shrink", (ActionKind.MIGRATE, ActionKind.RESIZE, ActionKind.SPLIT)),
    ("are stopped", (ActionKind.PREEMPT,)),
    ("are measured", (ActionKind.PROFILE,)),
    ("wait", (ActionKind.WAIT,)),
)


def comparison_tables(found: Comparison, notes: Sequence[str] = ()) -> list[RenderableType]:
    """Return the scenarios' figures side by side, then what changes from the first to each other one."""
    from rich.text import Text

    parts: list[RenderableType] = [_figures(found)]
    base = found.scenarios[0]
    for other, rows, same in zip(found.scenarios[1:], found.differences, found.comparable[1:], strict=True):
        title = f"{base.name} -> {other.name}"
        parts.append(_changes(title, rows, base, other) if rows else Text(f"{title}: nothing changes"))
        unchanged = len(other.plan.actions) - sum(d.after.action is not None for d in rows)
        parts.append(Text(f"{count_of(unchanged, 'job')} unchanged", style="dim"))
        if not same:
            text = "jobs, queues, figures or GPU types differ: the objectives do not mean the same"
            parts.append(Text(f"note: {text}"))
    parts += [Text(f"note: {note}") for note in notes]
    return parts


def _figures(found: Comparison) -> Table:
    from rich.text import Text

    table = new_table("side by side", "", *(scenario.name for scenario in found.scenarios))
    for label, cells in _rows(found):
        table.add_row(Text(label), *(Text(cell) for cell in cells))
    return table


def _rows(found: Comparison) -> list[tuple[str, list[str]]]:
    plans = [scenario.plan for scenario in found.scenarios]
    rows = [
        ("policy", [scenario.policy for scenario in found.scenarios]),
        ("GPUs in use", [f"{plan.metrics.gpus_used} of {plan.metrics.gpus_total}" for plan in plans]),
    ]
    kinds = [Counter(action.action for action in plan.actions) for plan in plans]
    for label, wanted in _COUNTED:
        counts = [sum(kind[name] for name in wanted) for kind in kinds]
        if any(counts):
            rows.append((f"jobs that {label}", [str(n) for n in counts]))
    rows.append(("placed jobs finish, on average in", [_mean(scenario) for scenario in found.scenarios]))
    if all(plan.solver.objective is None for plan in plans):
        return rows
    rows.append(("objective", [_number(plan.solver.objective) for plan in plans]))
    names = dict.fromkeys(name for plan in plans for name in plan.solver.objective_terms)
    for name in names:
        values = [plan.solver.objective_terms.get(name) for plan in plans]
        if any(values):
            rows.append((f"  {name}", [_number(value) for value in values]))
    gaps = [plan.solver.value_gap for plan in plans]
    rows.append(("value gap", ["-" if gap is None else percent(gap) for gap in gaps]))
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else figure(value)


def _mean(scenario: Scenario) -> str:
    at = scenario.plan.metrics.predicted_mean_finish_at_s
    return "-" if at is None else duration(at - scenario.snapshot.taken_at_s)


def _changes(title: str, rows: tuple[Difference, ...], base: Scenario, other: Scenario) -> Table:
    from rich.text import Text

    table = new_table(
        f"{title}: {_counts(rows)}", "job", "change", "before", "after", "finish in", "why", "loss"
    )
    for row in rows[:MAX_ROWS]:
        table.add_row(
            Text(row.job),
            Text(row.change.value, style=_STYLE.get(row.change, "")),
            Text(_place(row.before, base)),
            Text(_place(row.after, other)),
            Text(_finishes(row)),
            Text(row.why),
            Text(loss_text(row.loss)),
        )
    and_more(table, len(rows) - MAX_ROWS)
    return table


def _counts(rows: tuple[Difference, ...]) -> str:
    counts = Counter(row.change.value for row in rows)
    return ", ".join(f"{n} {name}" for name, n in counts.items())


def _place(place: Place, scenario: Scenario) -> str:
    """Return where a job is, and for one that waits when it would start."""
    if place.action is None or place.runs:
        return place.text
    if place.start_s is not None:
        return f"{place.text}, starts {_when(place.start_s, scenario)}"
    if not scenario.rounds:
        return place.text
    return f"{place.text}, no start in sight"


def _when(start_s: float, scenario: Scenario) -> str:
    number = int(start_s // scenario.snapshot.round_s) + 1
    return f"in {duration(start_s)} (round {number})"


def _finishes(row: Difference) -> str:
    before, after = duration(row.before.finish_s), duration(row.after.finish_s)
    return before if before == after else f"{before} -> {after}"


def comparison_json(found: Comparison, changes: Sequence[str], notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    return {
        "changes": list(changes),
        "notes": list(notes),
        "scenarios": [
            _scenario_json(s, same) for s, same in zip(found.scenarios, found.comparable, strict=True)
        ],
        "differences": [
            {
                "from": found.scenarios[0].name,
                "to": scenario.name,
                "jobs": [_difference_json(row, found.scenarios[0], scenario) for row in rows],
            }
            for scenario, rows in zip(found.scenarios[1:], found.differences, strict=True)
        ],
    }


def _scenario_json(scenario: Scenario, comparable: bool) -> dict[str, Any]:
    solver, metrics = scenario.plan.solver, scenario.plan.metrics
    kinds = Counter(action.action.value for action in scenario.plan.actions)
    return {
        "name": scenario.name,
        "policy": scenario.policy,
        "snapshot_sha256": scenario.plan.snapshot_sha256,
        "jobs": len(scenario.plan.actions),
        "gpus_used": metrics.gpus_used,
        "gpus_total": metrics.gpus_total,
        "actions": dict(kinds),
        "predicted_mean_finish_at_s": metrics.predicted_mean_finish_at_s,
        "objective": solver.objective,
        "objective_comparable": comparable,
        "bound": solver.bound,
        "value_gap": solver.value_gap,
        "objective_terms": dict(solver.objective_terms),
        "price_per_gpu_s": dict(solver.price_per_gpu_s),
        "rounds_ahead": scenario.rounds,
    }


def _difference_json(row: Difference, base: Scenario, other: Scenario) -> dict[str, Any]:
    return {
        "job": row.job,
        "change": row.change.value,
        "before": _place_json(row.before, base),
        "after": _place_json(row.after, other),
        "why": row.why,
        "objective_delta": None if row.loss is None else row.loss.model_dump(mode="json"),
    }


def _place_json(place: Place, scenario: Scenario) -> dict[str, Any] | None:
    if place.action is None:
        return None
    start = place.start_s
    return {
        "action": place.action.value,
        "place": place.text,
        "runs": place.runs,
        "start_s": start,
        "start_round": None if start is None else int(start // scenario.snapshot.round_s) + 1,
        "finish_s": place.finish_s,
        "reason": place.reason,
        "message": place.message,
    }
