"""The groups and the queue of a plan: one line each, which opens to predictions and alternatives."""

from __future__ import annotations

from collections import Counter

from ymir_opt.domain.plan import Action, ActionKind, DeltaKind, Explanation, ObjectiveDelta, Plan, Prediction
from ymir_opt.domain.snapshot import Job, Provenance, Snapshot, StartSource
from ymir_opt.report.html import Html, el, join
from ymir_opt.report.occupancy import Occupancy, PlannedGroup
from ymir_opt.report.plan_map import colour_class, finish_text
from ymir_opt.report.text import amount, count_of, duration, figure, placement_text, signed

__all__ = ["groups_section", "queue_section"]

_MEMBER = (
    "job",
    "model · task",
    "action",
    "samples/s",
    "finished in",
    "work ratio",
    "work, 80 % limits",
    "source",
)


def groups_section(snapshot: Snapshot, plan: Plan, occupancy: Occupancy) -> Html:
    """Return one line a group."""
    if not occupancy.groups and not occupancy.profiled:
        return el("p", "No job gets a GPU.", class_="empty")
    heads = ("", "mode", "jobs", "GPUs", "where", "finished in", "actions")
    return join(
        (
            el("div", [el("span", text) for text in heads], class_="row rowhead groups"),
            *(_group(planned, snapshot, plan, occupancy) for planned in occupancy.groups),
            *(_measured(job, plan, occupancy) for job in sorted(set(occupancy.profiled.values()))),
        )
    )


def _group(planned: PlannedGroup, snapshot: Snapshot, plan: Plan, occupancy: Occupancy) -> Html:
    group, now = planned.group, snapshot.taken_at_s
    kinds = list(dict.fromkeys(planned.kinds))
    summary = el(
        "summary",
        el(
            "span",
            el("a", planned.number, class_=f"swatch {colour_class(planned.number)}", data_g=planned.number),
        ),
        el("span", el("span", group.mode.value, class_="mode shared" if planned.shared else "mode")),
        el("span", [el("span", name, class_="id") for name in group.jobs[:6]], _more(len(group.jobs) - 6)),
        el("span", f"{group.gpus} × {group.gpu_type}", class_="num"),
        el("span", placement_text(group.placement), class_="where"),
        el("span", finish_text(planned, now), class_="num"),
        el("span", [_badge(kind) for kind in kinds]),
        class_="row groups",
    )
    members = [_member(name, planned, occupancy.jobs[name], now) for name in group.jobs]
    body = [
        el(
            "table",
            el("thead", el("tr", [el("th", head) for head in _MEMBER])),
            el("tbody", members),
            class_="grid members",
        )
    ]
    if group.probe is not None:
        probe = group.probe
        body.append(
            el(
                "p",
                f"The merge must prove itself within {count_of(probe.evaluations, 'evaluation')} ",
                f"({probe.rule}); otherwise {probe.on_fail}, at {duration(probe.cost_s)}.",
                class_="probe",
            )
        )
    body += [_explained(name, plan.explanations.get(name), len(group.jobs) > 1) for name in group.jobs]
    return el("details", summary, el("div", body, class_="body"), id=f"g{planned.number}", class_="item")


def _member(name: str, planned: PlannedGroup, job: Job, now: float) -> Html:
    group = planned.group
    kind = planned.kinds[group.jobs.index(name)]
    found = group.predicted.get(name, Prediction())
    finish = None if found.finish_at_s is None else found.finish_at_s - now
    limits = "–" if found.low is None or found.high is None else f"{amount(found.low)} – {amount(found.high)}"
    source = group.starts_from.get(name)
    cells = (
        (el("span", el("span", name, class_="id"), _starts(source)), None),
        (_what(job), None),
        (_badge(kind), None),
        (figure(found.samples_per_s), "num"),
        (duration(finish), "num"),
        (figure(found.work_ratio, 3), "num"),
        (limits, "num"),
        (found.source.value, "predicted" if found.source is Provenance.PREDICTED else None),
    )
    return el(
        "tr",
        [
            el("td", child, class_=kind_of, data_label=label)
            for label, (child, kind_of) in zip(_MEMBER, cells, strict=True)
        ],
    )


def _measured(name: str, plan: Plan, occupancy: Occupancy) -> Html:
    action = occupancy.actions[name]
    assert action.to is not None
    summary = el(
        "summary",
        el("span", el("span", "m", class_="swatch profile")),
        el("span", el("span", "profile", class_="mode")),
        el("span", el("span", name, class_="id")),
        el("span", f"{action.to.gpus} × {action.to.gpu_type}", class_="num"),
        el("span", placement_text(action.to.placement), class_="where"),
        el("span", "–", class_="num"),
        el("span", _badge(action.action)),
        class_="row groups",
    )
    body = [el("p", _what(occupancy.jobs[name]), class_="facts")]
    body.append(_explained(name, plan.explanations.get(name), False))
    return el("details", summary, el("div", body, class_="body"), class_="item")


def queue_section(snapshot: Snapshot, plan: Plan, occupancy: Occupancy) -> Html:
    """Return the jobs without GPUs, each with its reason; a button a reason filters them."""
    waiting = occupancy.waiting(snapshot)
    if not waiting:
        return el("p", "No job waits.", class_="empty")
    reasons = Counter(_reason(plan.explanations.get(job.id)) for job in waiting)
    chips = [
        el(
            "button",
            reason,
            el("b", count),
            class_="chip",
            type="button",
            data_reason=reason,
            aria_pressed="false",
        )
        for reason, count in reasons.most_common()
    ]
    heads = ("job", "model · task", "queue", "waiting", "reason", "why")
    return join(
        (
            el("div", chips, class_="chips", role="group", aria_label="Filter by reason"),
            el("div", [el("span", text) for text in heads], class_="row rowhead queue"),
            *(_queued(job, snapshot, plan, occupancy.actions.get(job.id)) for job in waiting),
        )
    )


def _queued(job: Job, snapshot: Snapshot, plan: Plan, action: Action | None) -> Html:
    explanation = plan.explanations.get(job.id)
    reason = _reason(explanation)
    kind = action.action if action is not None else ActionKind.WAIT
    summary = el(
        "summary",
        el("span", el("span", job.id, class_="id")),
        el("span", _what(job)),
        el("span", job.queue),
        el("span", duration(max(0.0, snapshot.taken_at_s - job.submitted_at_s)), class_="num"),
        el(
            "span", _badge(kind) if kind is not ActionKind.WAIT else None, el("span", reason, class_="reason")
        ),
        el("span", explanation.message if explanation else "", class_="why"),
        class_="row queue",
    )
    body = [el("p", _facts(job), class_="facts")]
    if action is not None and action.from_ is not None:
        was = action.from_
        body.append(
            el("p", f"Ran on {was.gpus} × {was.gpu_type} ({placement_text(was.placement)}).", class_="facts")
        )
    body.append(_explained(job.id, explanation, False))
    return el("details", summary, el("div", body, class_="body"), class_="item", data_reason=reason)


def _explained(name: str, explanation: Explanation | None, titled: bool) -> Html:
    """Return a job's message and its alternatives with what they would lose."""
    if explanation is None:
        return el("p", "No explanation was given.", class_="facts")
    parts: list[Html] = []
    if titled:
        parts.append(el("h4", el("span", name, class_="id")))
    parts.append(
        el(
            "p",
            el("span", explanation.reason.value, class_="reason"),
            " ",
            explanation.message,
            class_="message",
        )
    )
    if explanation.alternatives:
        rows = [
            el(
                "tr",
                el("td", item.option),
                el(
                    "td",
                    el("span", item.reason.value, class_="reason") if item.reason else None,
                    " ",
                    item.why_not,
                ),
                el("td", _loss(item.objective_delta), class_="num"),
            )
            for item in explanation.alternatives
        ]
        parts.append(
            el(
                "table",
                el(
                    "thead",
                    el("tr", el("th", "alternative"), el("th", "why not"), el("th", "loss in objective")),
                ),
                el("tbody", rows),
                class_="grid alternatives",
            )
        )
    return el("div", parts, class_="explained")


def _loss(delta: ObjectiveDelta | None) -> Html:
    if delta is None:
        return el("span", "–")
    if delta.kind is DeltaKind.EXACT:
        return el("span", signed(delta.value), title="exact: re-solved with this option forced")
    return el("span", f"≥ {signed(delta.value)}", title="a lower bound by reduced costs")


def _reason(explanation: Explanation | None) -> str:
    return explanation.reason.value if explanation is not None else "no reason given"


def _badge(kind: ActionKind) -> Html:
    return el("span", kind.value, class_=f"badge {kind.value}")


def _starts(source: StartSource | None) -> Html | None:
    if source is None:
        return None
    text = f"adapter {source.adapter}" if source.adapter is not None else f"job {source.job}"
    return el("span", f"from {text}", class_="from")


def _more(hidden: int) -> Html | None:
    return el("span", f"and {hidden} more", class_="note") if hidden > 0 else None


def _what(job: Job) -> str:
    if job.foundation_model is None:
        return "rigid job"
    return job.foundation_model if job.task is None else f"{job.foundation_model} · {job.task}"


def _facts(job: Job) -> str:
    counts = (
        ""
        if job.min_gpus is None and job.max_gpus is None
        else (f"{job.min_gpus or 1}–{job.max_gpus or job.requested_gpus or job.min_gpus or 1} GPUs")
    )
    work = (
        f"{amount(job.remaining_samples)} samples left"
        if job.remaining_samples is not None
        else f"{duration(job.remaining_s)} left"
        if job.remaining_s is not None
        else ""
    )
    parts = [
        counts,
        f"types {', '.join(job.gpu_types)}" if job.gpu_types else "",
        work,
        f"priority {job.priority}" if job.priority else "",
        f"weight {job.weight:g}" if job.weight != 1 else "",
        f"sharing {job.sharing.value}",
        f"tenant {job.tenant}" if job.tenant else "",
    ]
    return " · ".join(part for part in parts if part)
