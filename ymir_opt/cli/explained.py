"""Explanations as tables and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ymir_opt.cli.formats import count_of, duration, figure, placement_text
from ymir_opt.cli.tables import MAX_ROWS, action_text, and_more, new_table, summary_line
from ymir_opt.domain.plan import Action, Alternative, DeltaKind, Explanation, Group, ObjectiveDelta, Plan
from ymir_opt.domain.snapshot import Mode, Provenance

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["job_json", "job_page", "loss_text", "overview", "overview_json"]


def loss_text(delta: ObjectiveDelta | None) -> str:
    """Return a loss in objective: ``= 0.031`` where exact, ``>= 0.031`` where bounded, ``-`` without one."""
    if delta is None:
        return "-"
    return f"{'=' if delta.kind is DeltaKind.EXACT else '>='} {figure(delta.value, 4)}"


# -- all jobs ---------------------------------------------------------------------------------------


def overview(plan: Plan, explanations: Mapping[str, Explanation]) -> list[RenderableType]:
    """Return one line a job, what GPUs are worth, and the objective by term."""
    from rich.text import Text

    kinds = Counter(action.action.value for action in plan.actions)
    listed = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    table = new_table(
        f"{count_of(len(plan.actions), 'job')}: {listed}" if listed else "no jobs",
        "job",
        "action",
        "reason",
        "message",
        "next best",
    )
    for action in plan.actions[:MAX_ROWS]:
        found = explanations.get(action.job)
        table.add_row(
            Text(action.job),
            action_text(action),
            Text("-" if found is None else found.reason.value),
            Text("-" if found is None else found.message),
            Text("-" if found is None else _next_best(found.alternatives)),
        )
    and_more(table, len(plan.actions) - MAX_ROWS)
    parts: list[RenderableType] = [table]
    parts += [Text(line) for line in (_prices(plan), _terms(plan)) if line]
    parts.append(Text(summary_line(plan)))
    return parts


def _next_best(alternatives: tuple[Alternative, ...]) -> str:
    """Return the alternative that loses least, as far as is proven."""
    known = [(a.objective_delta.value, a) for a in alternatives if a.objective_delta is not None]
    if not known:
        return "-"
    best = min(known, key=lambda item: item[0])[1]
    return f"{best.option} ({loss_text(best.objective_delta)})"


def _prices(plan: Plan) -> str:
    prices = plan.solver.price_per_gpu_s
    if not prices:
        return ""
    each = ", ".join(f"{name} {figure(value, 3)}" for name, value in prices.items())
    return f"a GPU-second is worth, in units of the objective: {each}"


def _terms(plan: Plan) -> str:
    terms = {name: value for name, value in plan.solver.objective_terms.items() if value}
    if not terms:
        return ""
    return "objective by term: " + ", ".join(f"{name} {figure(value)}" for name, value in terms.items())


def overview_json(plan: Plan, explanations: Mapping[str, Explanation]) -> dict[str, Any]:
    """Return the overview as JSON values."""
    solver = plan.solver
    return {
        "policy": plan.planner.policy,
        "objective": solver.objective,
        "bound": solver.bound,
        "value_gap": solver.value_gap,
        "objective_terms": dict(solver.objective_terms),
        "price_per_gpu_s": dict(solver.price_per_gpu_s),
        "jobs": [
            {
                "job": action.job,
                "action": action.action.value,
                "gpu_type": None if action.to is None else action.to.gpu_type,
                "gpus": 0 if action.to is None else action.to.gpus,
                **_explanation_json(explanations.get(action.job)),
            }
            for action in plan.actions
        ],
    }


def _explanation_json(found: Explanation | None) -> dict[str, Any]:
    if found is None:
        return {"reason": None, "message": None, "alternatives": []}
    data = found.model_dump(mode="json", by_alias=True)
    return {name: data[name] for name in ("reason", "message", "alternatives")}


# -- one job ----------------------------------------------------------------------------------------


def job_page(plan: Plan, name: str, found: Explanation, taken_at_s: float | None) -> list[RenderableType]:
    """Return what a plan decides for a job, why, and what else could be done.

    Parameters
    ----------
    plan : Plan
    name : str
    found : Explanation
    taken_at_s : float or None
        The snapshot's clock, where it is known: finishes are then shown relative to it.
    """
    from rich.text import Text

    action = next(a for a in plan.actions if a.job == name)
    group = next((g for g in plan.groups if name in g.jobs), None)
    head = Text(name, style="bold")
    head.append("  ").append_text(action_text(action)).append(f"  {found.reason.value}", style="not bold")
    parts: list[RenderableType] = [
        head,
        Text(found.message),
        _facts(plan, action, group, name, taken_at_s),
        Text(),
    ]
    possible = [a for a in found.alternatives if a.objective_delta is not None or a.reason is None]
    ruled_out = [a for a in found.alternatives if a not in possible]
    if possible:
        parts.append(_alternatives("what else could be done", possible))
    if ruled_out:
        parts.append(_alternatives("what is ruled out", ruled_out, losses=False))
    if not found.alternatives:
        parts.append(
            Text("this plan tells no alternatives; --exact SNAPSHOT solves them again", style="dim")
            if plan.solver.objective is not None
            else Text(f"policy {plan.planner.policy} has no objective, so it tells no alternatives")
        )
    elif any(a.objective_delta is not None for a in found.alternatives):
        parts.append(
            Text("loss in units of the objective; = exact, >= at least (reduced costs)", style="dim")
        )
    return parts


def _facts(
    plan: Plan, action: Action, group: Group | None, name: str, taken_at_s: float | None
) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in _fact_lines(plan, action, group, name, taken_at_s):
        grid.add_row(Text(label), Text(text))
    return grid


def _fact_lines(
    plan: Plan, action: Action, group: Group | None, name: str, taken_at_s: float | None
) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if action.from_ is not None:
        was = action.from_
        lines.append(("was on", f"{was.gpus} x {was.gpu_type}, {placement_text(was.placement)}"))
    if group is None:
        if action.to is not None:
            to = action.to
            lines.append(("on", f"{to.gpus} x {to.gpu_type}, {placement_text(to.placement)}"))
        return lines
    order = " then " if group.mode is Mode.SEQUENCE else ", "
    lines.append(("group", f"{group.mode.value}: {order.join(group.jobs)}"))
    lines.append(("on", f"{group.gpus} x {group.gpu_type}, {placement_text(group.placement)}"))
    source = group.starts_from.get(name)
    if source is not None:
        lines.append(("starts from", f"adapter {source.adapter}" if source.adapter else f"job {source.job}"))
    told = group.predicted.get(name)
    if told is not None:
        guess = " (predicted)" if told.source is Provenance.PREDICTED else ""
        if told.samples_per_s is not None:
            lines.append(("speed", f"{figure(told.samples_per_s, 4)} samples/s{guess}"))
        if told.low is not None and told.high is not None:
            work = f"{told.low:,.0f} to {told.high:,.0f} samples (80 % limits)"
            if told.low == told.high:
                work = f"{told.low:,.0f} samples"
            work = work.replace(",", " ")
            ratio = "" if told.work_ratio in (None, 1.0) else f", {figure(told.work_ratio, 3)} x alone"
            lines.append(("work", work + ratio))
        if told.finish_at_s is not None:
            ahead = "" if taken_at_s is None else f" (in {duration(told.finish_at_s - taken_at_s)})"
            lines.append(("finishes", f"at second {told.finish_at_s:.0f}{ahead}"))
    if group.probe is not None:
        probe = group.probe
        lines.append(
            (
                "probe",
                f"{count_of(probe.evaluations, 'evaluation')}, else {probe.on_fail} "
                f"at {duration(probe.cost_s)}",
            )
        )
    price = plan.solver.price_per_gpu_s.get(group.gpu_type)
    if price is not None:
        lines.append(("GPU-second", f"worth {figure(price, 3)} of objective on {group.gpu_type}"))
    return lines


def _alternatives(title: str, items: list[Alternative], *, losses: bool = True) -> Table:
    from rich.text import Text

    heads = ("alternative", "loss", "reason", "why not") if losses else ("alternative", "reason", "why not")
    table = new_table(title, *heads)
    for item in items:
        cells = [Text(item.option)]
        if losses:
            cells.append(Text(loss_text(item.objective_delta)))
        cells += [Text("" if item.reason is None else item.reason.value), Text(item.why_not)]
        table.add_row(*cells)
    return table


def job_json(plan: Plan, name: str, found: Explanation) -> dict[str, Any]:
    """Return one job's page as JSON values."""
    action = next(a for a in plan.actions if a.job == name)
    group = next((g for g in plan.groups if name in g.jobs), None)
    return {
        "job": name,
        "action": action.model_dump(mode="json", by_alias=True),
        "group": None if group is None else group.model_dump(mode="json", by_alias=True),
        "explanation": found.model_dump(mode="json", by_alias=True),
        "price_per_gpu_s": dict(plan.solver.price_per_gpu_s),
        "value_gap": plan.solver.value_gap,
    }
