"""``ymir-plan explain``: why each job is where it is, and what else could be done with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import emit, read_plan, read_snapshot, require_once
from ymir_opt.cli.options import Json, Models, load_estimator
from ymir_opt.domain.base import nearest, short
from ymir_opt.domain.errors import NotFoundError

if TYPE_CHECKING:
    from ymir_opt.domain.plan import Explanation, Plan
    from ymir_opt.domain.snapshot import Snapshot

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain)


def explain(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="Plan file, or - for standard input.")],
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="One job; without it an overview of all.")
    ] = None,
    exact: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT", help="The plan's snapshot: solve again with each alternative forced."
        ),
    ] = None,
    models: Models = None,
    as_json: Json = False,
) -> None:
    """Say why each job is where it is, and what every alternative would lose."""
    require_once(plan, exact or "")
    made = read_plan(plan)
    if job is not None and all(action.job != job for action in made.actions):
        known = {action.job for action in made.actions}
        raise NotFoundError("JOB", f"{short(job)} is not in the plan", nearest(job, known))
    out = Output(json=as_json)
    explanations: dict[str, Explanation] = dict(made.explanations)
    taken_at_s = None
    if exact is not None:
        source = read_snapshot(exact)
        taken_at_s = source.taken_at_s
        names = [job] if job is not None else [action.job for action in made.actions]
        explanations.update(_solved_again(source, made, names, load_estimator(models)))
    if job is None:
        _show_all(made, explanations, out)
    else:
        _show_one(made, job, explanations, taken_at_s, out)


def _solved_again(source: Snapshot, made: Plan, names: list[str], models: Any) -> dict[str, Explanation]:
    """Return the explanations of jobs with exact losses; a bar on standard error tells how far it is."""
    from rich.console import Console

    from ymir_opt.cli.runs import Tracker
    from ymir_opt.whatif.forced import ExactAlternatives

    asked = ExactAlternatives(source, made, models)
    found = {}
    with Tracker(Console(stderr=True), len(names), "solving again", "jobs") as tracker:
        for name in names:
            found[name] = asked.of(name)
            tracker.step("solving again")
    return found


def _show_all(made: Plan, explanations: dict[str, Explanation], out: Output) -> None:
    from ymir_opt.cli.explained import overview, overview_json

    if out.wants_json:
        emit(json.dumps(overview_json(made, explanations), ensure_ascii=False) + "\n")
    if out.wants_tables:
        console = out.console()
        for part in overview(made, explanations):
            console.print(part)


def _show_one(
    made: Plan, job: str, explanations: dict[str, Explanation], taken_at_s: float | None, out: Output
) -> None:
    from ymir_opt.cli.explained import job_json, job_page

    found = explanations.get(job)
    if found is None:
        raise NotFoundError("explanations", f"the plan does not explain job {short(job)}", "solve again")
    if out.wants_json:
        emit(json.dumps(job_json(made, job, found), ensure_ascii=False) + "\n")
    if out.wants_tables:
        console = out.console()
        for part in job_page(made, job, found, taken_at_s):
            console.print(part)
