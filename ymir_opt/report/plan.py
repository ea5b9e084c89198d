"""The page of one plan: who runs where, who waits and why, and how good the plan is proven to be."""

from __future__ import annotations

from collections import Counter

from ymir_opt.domain.documents import snapshot_sha256
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.plan import ActionKind, Plan, SolverStatus
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.report.charts import bars
from ymir_opt.report.html import Html, asset, el, join, page
from ymir_opt.report.occupancy import Occupancy, usable
from ymir_opt.report.plan_lists import groups_section, queue_section
from ymir_opt.report.plan_map import colour_styles, map_section
from ymir_opt.report.text import amount, count_of, duration, figure, percent

__all__ = ["plan_page"]


def plan_page(snapshot: Snapshot, plan: Plan) -> str:
    """Return a plan as one HTML page without remote parts.

    Everything is in the markup and readable without scripts; the page's script only adds a side panel,
    highlighting and filters.

    Parameters
    ----------
    snapshot : Snapshot
        The one that the plan was made for.
    plan : Plan

    Raises
    ------
    InputError
        The plan was made for another snapshot, or names a node, GPU or job that this one does not have.
    """
    if plan.snapshot_sha256 != snapshot_sha256(snapshot):
        raise InputError(
            "the plan", "was made for another snapshot", "give the snapshot that the plan was made for"
        )
    occupancy = Occupancy.of(snapshot, plan)
    waiting = occupancy.waiting(snapshot)
    body = join(
        (
            _header(snapshot, plan, occupancy, len(waiting)),
            el(
                "main",
                _tiles(snapshot, plan, occupancy, len(waiting)),
                el(
                    "section",
                    el("h2", "Cluster"),
                    _legend(),
                    el(
                        "div",
                        map_section(snapshot, occupancy),
                        el("aside", el("p", "Choose a GPU to see its group.", class_="empty"), id="panel"),
                        class_="split",
                    ),
                ),
                el(
                    "section",
                    el("h2", "Groups", el("span", amount(len(occupancy.groups)), class_="note")),
                    _search(),
                    el("div", groups_section(snapshot, plan, occupancy), class_="list"),
                ),
                el(
                    "section",
                    el("h2", "Queue", el("span", amount(len(waiting)), class_="note")),
                    el("div", queue_section(snapshot, plan, occupancy), class_="list"),
                ),
                el("div", _objective(plan), _proof(plan), class_="pair"),
            ),
        )
    )
    return page(
        f"Plan of {plan.planner.policy}",
        body,
        styles=(asset("base.css") + asset("plan.css") + colour_styles(),),
        scripts=(asset("plan.js"),),
    )


def _header(snapshot: Snapshot, plan: Plan, occupancy: Occupancy, waiting: int) -> Html:
    return el(
        "header",
        el(
            "div",
            el("h1", "Plan"),
            el("p", _sentence(snapshot, plan, occupancy, waiting), class_="lead"),
            el(
                "p",
                f"policy {plan.planner.policy} · {plan.planner.name} {plan.planner.version} · seed "
                f"{plan.planner.seed} · snapshot at {figure(snapshot.taken_at_s, 10)} s, ",
                el("code", plan.snapshot_sha256[:12]),
                class_="note",
            ),
        ),
    )


def _sentence(snapshot: Snapshot, plan: Plan, occupancy: Occupancy, waiting: int) -> str:
    kinds = Counter(action.action for action in plan.actions)
    words = [
        (ActionKind.START, "start"),
        (ActionKind.MERGE, "merge"),
        (ActionKind.SPLIT, "split"),
        (ActionKind.MIGRATE, "migrate"),
        (ActionKind.RESIZE, "resize"),
        (ActionKind.PREEMPT, "preempted"),
        (ActionKind.PROFILE, "measured"),
        (ActionKind.KEEP, "go on"),
    ]
    happens = ", ".join(f"{amount(kinds[kind])} {word}" for kind, word in words if kinds[kind])
    used = sum(occupancy.used(node) for node in snapshot.cluster.nodes)
    able = sum(usable(node) for node in snapshot.cluster.nodes)
    first = f"{used} of {count_of(able, 'GPU')} in use"
    total = count_of(len(snapshot.jobs), "job")
    rest = f"{amount(waiting)} without GPUs"
    return f"{first}. Of {total}: {happens + ', ' if happens else ''}{rest}."


def _tile(
    label: str, value: str, note: str = "", share: float | None = None, good: bool | None = None
) -> Html:
    bar = None
    if share is not None:
        width = f"{100 * min(1.0, max(0.0, share)):.1f}"
        bar = el(
            "svg",
            el("rect", width="100", height="4", class_="rail"),
            el("rect", width=width, height="4", class_="fill"),
            viewBox="0 0 100 4",
            preserveAspectRatio="none",
            aria_hidden="true",
        )
    tone = "" if good is None else " good" if good else " fair"
    return el(
        "div",
        el("div", label, class_="label"),
        el("div", value, class_="value" + tone),
        bar,
        el("div", note, class_="note"),
        class_="tile",
    )


def _tiles(snapshot: Snapshot, plan: Plan, occupancy: Occupancy, waiting: int) -> Html:
    able = sum(usable(node) for node in snapshot.cluster.nodes)
    used = sum(occupancy.used(node) for node in snapshot.cluster.nodes)
    shared = sum(planned.shared for planned in occupancy.groups)
    jobs = len(snapshot.jobs)
    solver, metrics = plan.solver, plan.metrics
    mean = metrics.predicted_mean_finish_at_s
    proven = None if solver.value_gap is None else solver.status is SolverStatus.OPTIMAL
    gap = percent(solver.value_gap) if solver.value_gap is not None else "not stated"
    return el(
        "div",
        _tile(
            "GPUs in use",
            f"{used} / {able}",
            percent(used / able) if able else "",
            used / able if able else 0,
        ),
        _tile(
            "Jobs with GPUs or in a group",
            f"{jobs - waiting} / {jobs}",
            f"{count_of(waiting, 'job')} without",
            (jobs - waiting) / jobs if jobs else 0,
        ),
        _tile("Groups", str(len(occupancy.groups)), f"{shared} shared by several jobs"),
        _tile("Value gap", gap, f"{solver.status.value}, against the {solver.gap_scope.value}", None, proven),
        _tile(
            "Mean predicted finish",
            "–" if mean is None else f"in {duration(mean - snapshot.taken_at_s)}",
            "of the jobs with a prediction",
        ),
        _tile(
            "Fairness",
            figure(metrics.fairness.max_rho, 3),
            f"largest rho; Jain {figure(metrics.fairness.jain, 3)}",
        ),
        class_="tiles",
    )


def _legend() -> Html:
    items = (
        ("gpu held c0", "1", "held by group 1"),
        ("gpu held c0 shared", "1", "shared by several jobs"),
        ("gpu held c0 changes", "1", "changes now"),
        ("gpu profile", "m", "measures a job"),
        ("gpu free", "", "free"),
        ("gpu out", "×", "unavailable"),
    )
    return el(
        "div",
        [el("span", el("span", text, class_=kind), label) for kind, text, label in items],
        class_="legend",
        aria_hidden="true",
    )


def _search() -> Html:
    return el(
        "label",
        el("span", "Search groups and queue", class_="unseen"),
        el("input", type="search", id="search", placeholder="Search jobs, models, nodes, reasons …"),
        class_="search",
    )


def _objective(plan: Plan) -> Html:
    terms = sorted(plan.solver.objective_terms.items(), key=lambda item: (-abs(item[1]), item[0]))
    objective = plan.planner.objective
    name = "" if objective is None else f"{objective.name}, version {objective.version}"
    return el(
        "section",
        el("h2", "Objective by term", el("span", name, class_="note")),
        bars([(label, value, figure(value, 5)) for label, value in terms])
        if terms
        else el("p", "This policy states no objective.", class_="empty"),
        el("p", f"Total {figure(plan.solver.objective, 7)}; smaller is better.", class_="note")
        if terms
        else None,
        _constants(plan),
    )


def _constants(plan: Plan) -> Html | None:
    objective = plan.planner.objective
    if objective is None or not objective.parameters:
        return None
    rows = [
        el("tr", el("td", key), el("td", figure(value) if _number(value) else str(value), class_="num"))
        for key, value in objective.parameters.items()
    ]
    return el(
        "details",
        el("summary", f"{count_of(len(rows), 'constant')}"),
        el("table", el("tbody", rows), class_="grid"),
        class_="plain",
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _proof(plan: Plan) -> Html:
    solver, candidates = plan.solver, plan.solver.candidates
    dropped = (
        "all of them were considered"
        if candidates.exhaustive
        else f"{amount(candidates.heuristically_pruned)} left out without a guarantee"
    )
    modes = ", ".join(f"{mode} {amount(count)}" for mode, count in candidates.by_mode.items())
    estimates = plan.planner.estimates
    rows = (
        ("status", solver.status.value),
        ("backend", solver.backend),
        ("stopped by", solver.stopped_by.value.replace("_", " ")),
        ("objective", figure(solver.objective, 9)),
        ("bound", figure(solver.bound, 9)),
        ("gap of the objective", percent(solver.gap)),
        ("value gap", percent(solver.value_gap)),
        (
            "proven against",
            "every group of at most four" if solver.gap_scope == "global" else "the candidates",
        ),
        ("candidates", f"{amount(candidates.columns)}; {dropped}"),
        ("by mode", modes or "–"),
        ("planning time", f"{figure(1000 * solver.wall_s, 3)} ms"),
        ("estimates", "–" if estimates is None else f"{estimates.name} {estimates.version}"),
        ("declared invariants", ", ".join(map(str, plan.planner.declares))),
        ("fragmentation", figure(plan.metrics.fragmentation, 3)),
    )
    return el(
        "section",
        el("h2", "Proof"),
        el(
            "table",
            el("tbody", [el("tr", el("th", key), el("td", value)) for key, value in rows]),
            class_="facts",
        ),
    )
