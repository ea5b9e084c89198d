"""Plans, checks and differences as tables. Ids are shown as plain text, never as markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ymir_opt.cli.formats import count_of, duration, figure, percent, placement_text
from ymir_opt.domain.plan import Action, ActionKind, Group, Plan, StoppedBy
from ymir_opt.domain.snapshot import StartSource

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "MAX_ROWS",
    "action_text",
    "and_more",
    "diff_table",
    "new_table",
    "plan_tables",
    "summary_line",
    "violations_table",
]

MAX_ROWS = 200
_SHORT = ("mode", "GPUs", "finish in", "action", "reason", "invariant", "loss")
_CUT = {
    StoppedBy.WALL_CLOCK: ", stopped by the clock",
    StoppedBy.NODE_LIMIT: ", stopped at its node limit",
    StoppedBy.ITERATION_LIMIT: ", stopped at its iteration limit",
    StoppedBy.DETERMINISTIC_LIMIT: ", stopped at its work limit",
}
_STYLE = {
    ActionKind.PREEMPT: "red",
    ActionKind.SPLIT: "yellow",
    ActionKind.MERGE: "magenta",
    ActionKind.MIGRATE: "yellow",
    ActionKind.RESIZE: "yellow",
    ActionKind.START: "green",
    ActionKind.PROFILE: "cyan",
    ActionKind.KEEP: "dim",
    ActionKind.WAIT: "",
}


def plan_tables(plan: Plan, taken_at_s: float) -> list[RenderableType]:
    """Return what ``solve`` shows: groups, waiting jobs and the line about the proof.

    Parameters
    ----------
    plan : Plan
    taken_at_s : float
        The snapshot's clock; predicted finishes are shown relative to it.
    """
    from rich.text import Text

    parts: list[RenderableType] = [_groups_table(plan, taken_at_s)]
    waiting = _waiting(plan)
    if waiting:
        parts.append(_waiting_table(plan, waiting))
    parts.append(Text(summary_line(plan)))
    return parts


def new_table(title: str, *columns: str) -> Table:
    """Return an empty table; columns of short words are never broken."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in _SHORT)
    return table


def action_text(action: Action | None) -> Text:
    """Return an action's word in its colour."""
    return _lines([_action(action)])


def _lines(items: Sequence[tuple[str, str]]) -> Text:
    """Return lines of (text, style)."""
    from rich.text import Text

    text = Text()
    for i, (line, style) in enumerate(items):
        text.append(("\n" if i else "") + line, style=style)
    return text


def _start(source: StartSource | None) -> str:
    if source is None:
        return ""
    return f"adapter {source.adapter}" if source.adapter is not None else f"job {source.job}"


def _groups_table(plan: Plan, taken_at_s: float) -> Table:
    from rich.text import Text

    metrics = plan.metrics
    title = f"{count_of(len(plan.groups), 'group')} on {metrics.gpus_used} of {metrics.gpus_total} GPUs"
    table = new_table(title, "mode", "jobs", "GPUs", "where", "starts from", "finish in", "action")
    actions = {action.job: action for action in plan.actions}
    for group in plan.groups[:MAX_ROWS]:
        table.add_row(
            Text(group.mode.value),
            _lines([(name, "") for name in group.jobs]),
            Text(f"{group.gpus} x {group.gpu_type}"),
            Text(placement_text(group.placement)),
            _lines([(_start(group.starts_from.get(name)), "") for name in group.jobs]),
            _lines([(_finish(group, name, taken_at_s), "") for name in group.jobs]),
            _lines([_action(actions.get(name)) for name in group.jobs]),
        )
    profiled = [a for a in plan.actions if a.action is ActionKind.PROFILE and a.to is not None]
    for action in profiled[:MAX_ROWS]:
        assert action.to is not None
        table.add_row(
            Text("profile"),
            Text(action.job),
            Text(f"{action.to.gpus} x {action.to.gpu_type}"),
            Text(placement_text(action.to.placement)),
            "",
            "-",
            _lines([_action(action)]),
        )
    and_more(table, len(plan.groups) - MAX_ROWS)
    return table


def _finish(group: Group, job: str, taken_at_s: float) -> str:
    prediction = group.predicted.get(job)
    if prediction is None or prediction.finish_at_s is None:
        return "-"
    return duration(prediction.finish_at_s - taken_at_s)


def _action(action: Action | None) -> tuple[str, str]:
    return ("-", "") if action is None else (action.action.value, _STYLE[action.action])


def and_more(table: Table, hidden: int) -> None:
    """Say below a table how many rows it does not show."""
    if hidden > 0:
        table.caption = f"... and {hidden} more rows; the plan's JSON has all of them"
        table.caption_justify = "left"


def _waiting(plan: Plan) -> list[Action]:
    placed = {name for group in plan.groups for name in group.jobs}
    return [a for a in plan.actions if a.job not in placed and a.action is not ActionKind.PROFILE]


def _waiting_table(plan: Plan, waiting: Sequence[Action]) -> Table:
    from rich.text import Text

    table = new_table(f"{count_of(len(waiting), 'job')} without GPUs", "job", "action", "reason", "message")
    for action in waiting[:MAX_ROWS]:
        explanation = plan.explanations.get(action.job)
        table.add_row(
            Text(action.job),
            _lines([_action(action)]),
            Text(explanation.reason.value if explanation else "-"),
            Text(explanation.message if explanation else "-"),
        )
    and_more(table, len(waiting) - MAX_ROWS)
    return table


def summary_line(plan: Plan) -> str:
    """Return the line about the proof: objective, bound, value gap and its scope, backend, time."""
    solver = plan.solver
    gap = percent(solver.value_gap)
    scope = f" ({solver.gap_scope.value})" if solver.value_gap is not None else ""
    cut = _CUT.get(solver.stopped_by, "")
    return "  ".join(
        (
            f"objective {figure(solver.objective)}",
            f"bound {figure(solver.bound)}",
            f"value gap {gap}{scope}",
            f"{solver.status.value} by {solver.backend}{cut}",
            count_of(solver.candidates.columns, "candidate"),
            f"{1000 * solver.wall_s:.0f} ms",
        )
    )


def violations_table(violations: Sequence[tuple[int, str, str]]) -> Table:
    """Return broken invariants as (number, place, message)."""
    from rich.text import Text

    table = new_table(f"{count_of(len(violations), 'violation')}", "invariant", "place", "message")
    for number, place, message in violations[:MAX_ROWS]:
        table.add_row(str(number), Text(place), Text(message))
    and_more(table, len(violations) - MAX_ROWS)
    return table


def diff_table(rows: Sequence[tuple[str, str, str]], names: tuple[str, str]) -> Table:
    """Return what changed between two plans as (job, before, after)."""
    from rich.text import Text

    table = new_table(f"{count_of(len(rows), 'difference')}", "job", names[0], names[1])
    for job, before, after in rows[:MAX_ROWS]:
        table.add_row(Text(job), Text(before), Text(after))
    and_more(table, len(rows) - MAX_ROWS)
    return table
