"""``ymir-plan check``: prove a plan's invariants without any solver."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import emit, read_plan, read_snapshot, require_once
from ymir_opt.cli.options import Json, Models, SnapshotPath, load_estimator

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    snapshot: SnapshotPath,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="Plan file, or - for standard input.")],
    replan: Annotated[
        bool, typer.Option("--replan", help="Also plan again: same plan twice, and nothing moves afterwards.")
    ] = False,
    models: Models = None,
    as_json: Json = False,
) -> None:
    """Prove that a plan keeps its invariants.

    Exit code 0 if it does, 1 if not. No solver is involved.
    """
    require_once(snapshot, plan)
    from ymir_opt.cli.replan import replan_check
    from ymir_opt.domain.outcome import require_same_snapshot
    from ymir_opt.verify import check as violations_of

    source, made = read_snapshot(snapshot), read_plan(plan)
    require_same_snapshot(source, made)
    estimator = load_estimator(models)
    found = [(v.invariant, v.place, v.message) for v in violations_of(source, made, predictor=estimator)]
    tested = sorted({1, 2, 3, 4, 5} | {n for n in made.planner.declares if n in (6, 7, 8)})
    notes: list[str] = []
    if replan and not found:
        again = replan_check(source, made, estimator)
        found += again.violations
        tested += again.tested
        notes += again.notes
    answer: dict[str, Any] = {
        "ok": not found,
        "invariants": tested,
        "violations": [{"invariant": n, "place": p, "message": m} for n, p, m in found],
        "notes": notes,
    }
    out = Output(json=as_json)
    if out.wants_json:
        emit(json.dumps(answer, ensure_ascii=False) + "\n")
    if out.wants_tables:
        from rich.text import Text

        from ymir_opt.cli.tables import violations_table

        console = out.console()
        if found:
            console.print(violations_table(found))
        else:
            names = ", ".join(map(str, tested))
            console.print(Text(f"ok: invariants {names} hold for {len(source.jobs)} jobs"))
        for note in notes:
            console.print(Text(note))
    if found:
        raise typer.Exit(1)
