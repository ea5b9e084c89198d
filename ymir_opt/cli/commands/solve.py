"""``ymir-plan solve``: a snapshot in, a proven plan out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import (
    STDIO,
    emit,
    read_plan,
    read_snapshot,
    require_distinct,
    require_once,
    require_writable,
    write_text,
)
from ymir_opt.cli.options import Backend, Json, Models, SnapshotPath, finite, load_estimator

if TYPE_CHECKING:
    from ymir_opt.domain.plan import Plan
    from ymir_opt.domain.snapshot import Snapshot

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("solve")(solve)


def solve(
    snapshot: SnapshotPath,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="PLAN", help="Write the plan here; - for stdout.")
    ] = None,
    policy: Annotated[str, typer.Option(metavar="NAME", help="Who decides.")] = "ymir",
    backend: Backend = "auto",
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="S", help="Wall-clock guard in seconds; the plan says if it struck."),
    ] = None,
    gap: Annotated[
        float | None, typer.Option(metavar="G", help="Stop at this value gap, a fraction such as 0.001.")
    ] = None,
    prove_global: Annotated[
        bool, typer.Option("--prove-global", help="Prove the gap against every group of at most four.")
    ] = False,
    previous: Annotated[
        str | None,
        typer.Option(metavar="PLAN", help="The previous round's plan: kept unless a better one exists."),
    ] = None,
    models: Models = None,
    measured_only: Annotated[bool, typer.Option("--measured-only", help="Refuse predicted figures.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of every random choice.")] = 0,
    report: Annotated[
        str | None, typer.Option(metavar="FILE.html", help="Write a page that shows the plan.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan one round, and prove how good the plan is."""
    require_once(snapshot, previous or "")
    require_writable(output)
    require_writable(report)
    require_distinct((output, report), (snapshot,))
    time_limit = finite("--time-limit", time_limit, above_zero=True)
    gap = finite("--gap", gap, above_zero=False)
    render = _page_renderer() if report is not None else None
    from ymir_opt.api import solve as plan_round
    from ymir_opt.domain.documents import dump_json
    from ymir_opt.planner.state import SolverMemory, read_state, state_path, write_state

    source = read_snapshot(snapshot)
    earlier = read_plan(previous) if previous is not None else None
    memory = SolverMemory()
    if earlier is not None and previous not in (None, STDIO):
        memory.before = read_state(state_path(str(previous)), earlier)
    keeps_state = output not in (None, STDIO)
    plan = plan_round(
        source,
        policy=policy,
        backend=backend,
        time_limit_s=time_limit,
        gap=gap,
        previous=earlier,
        estimates=load_estimator(models),
        measured_only=measured_only,
        prove_global=prove_global,
        seed=seed,
        # the round's state is asked for only where there is a file to keep it beside
        **({"memory": memory} if keeps_state or memory.before is not None else {}),
    )
    text = dump_json(plan)
    if report is not None and render is not None:
        write_text(report, render(source, plan))
    if output is not None:
        write_text(output, text)
        if keeps_state and memory.after is not None:
            write_state(state_path(output), memory.after)
    out = Output(json=as_json, to_stdout=output == STDIO)
    # with -o - the document is on standard output already
    if output != STDIO and (as_json or (output is None and out.wants_json)):
        emit(text)
    if out.wants_tables:
        from ymir_opt.cli.tables import plan_tables

        console = out.console()
        for part in plan_tables(plan, source.taken_at_s):
            console.print(part)


def _page_renderer() -> Callable[[Snapshot, Plan], str]:
    """Return the function that renders a plan as a page, or refuse before any work is done."""
    from importlib import import_module

    from ymir_opt.domain.errors import NotFoundError

    try:
        render: Callable[[Snapshot, Plan], str] = import_module("ymir_opt.report").plan_page
    except (ModuleNotFoundError, AttributeError):
        raise NotFoundError("--report", "this installation has no report renderer", "leave it out") from None
    return render
