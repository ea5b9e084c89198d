"""``ymir-plan compare``: policies on traces, in parallel processes, resumable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import emit, require_writable, write_text
from ymir_opt.cli.options import Json
from ymir_opt.cli.runs import (
    AddNodes,
    Against,
    Cluster,
    DropNode,
    Profiles,
    ScaleLoad,
    Task,
    Tracker,
    figures_table,
    require_policies,
    run_all,
    show_notes,
    transfer_baseline,
    working_folder,
)
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.simulator.experiment import Experiment, bound_of, finished, row_of

__all__ = ["register"]

MAX_SEEDS = 1000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    traces: Annotated[list[str], typer.Argument(metavar="TRACE...", help="Trace files.")],
    cluster: Cluster,
    policies: Annotated[str, typer.Option(metavar="A,B,C", help="Policies, with variants after a colon.")],
    profiles: Profiles = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Also run N - 1 traces resampled in blocks, for intervals.")
    ] = 1,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Processes at a time (default: all cores).")
    ] = None,
    engine: Annotated[str, typer.Option(metavar="NAME", help="local processes or ray.")] = "local",
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="DIR", help="Keep results here and go on from them."),
    ] = None,
    scale_load: ScaleLoad = 1.0,
    add_nodes: AddNodes = "",
    drop_node: DropNode = None,
    against: Against = "best-single",
    quick_bound: Annotated[
        bool, typer.Option("--quick-bound", help="Leave out the tight, slow lower bound.")
    ] = False,
    report: Annotated[
        str | None, typer.Option(metavar="FILE.html", help="Write a page that shows the runs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run policies on traces and print their figures side by side, with a clairvoyant lower bound."""
    if not 1 <= seeds <= MAX_SEEDS:
        raise InputError("--seeds", f"{seeds} is out of range", f"give 1 to {MAX_SEEDS}")
    if jobs is not None and jobs < 1:
        raise InputError("--jobs", f"{jobs} is less than 1", "give a number of processes")
    require_writable(report)
    page = _page_renderer() if report is not None else None
    names = require_policies(policies)
    runs = [
        Experiment(
            trace=trace,
            policy=name,
            cluster=cluster,
            seed=seed,
            profiles=profiles,
            scale_load=scale_load,
            add_nodes=add_nodes,
            drop_nodes=tuple(drop_node or ()),
            against=transfer_baseline(against),
            segments=report is not None,
        )
        for trace in traces
        for seed in range(seeds)
        for name in names
    ]
    out = Output(json=as_json)
    _check_early(runs, out)
    with working_folder(output) as folder:
        _perform(runs, folder, jobs or os.cpu_count() or 1, engine, quick_bound, out)
        rows, results, bounds = [], [], []
        for run in runs:
            result = finished(run, folder)
            if result is None:
                raise NotFoundError(run.policy, "left no result", "run it again")
            bounds.append(bound_of(run, folder, quick=quick_bound))
            results.append(result)
            rows.append(row_of(run, result, bounds[-1]))
    if report is not None and page is not None:
        write_text(report, page(rows, results, bounds))
    if out.wants_json:
        emit(json.dumps(rows) + "\n")
    if out.wants_tables:
        shown = [row for row in rows if row["seed"] == 0]
        out.console().print(figures_table(shown, _spreads(rows)))


def _check_early(runs: list[Experiment], out: Output) -> None:
    """Let a wrong trace, cluster or option fail before any process is started."""
    from ymir_opt.simulator.experiment import prepare

    seen = set()
    for run in runs:
        run.events()
        if run.trace not in seen:
            seen.add(run.trace)
            show_notes(out, prepare(run).notes)


def _perform(
    runs: list[Experiment], folder: Path, workers: int, engine: str, quick: bool, out: Output
) -> None:
    tasks: list[Task] = [("run", run.as_json(), str(folder), quick) for run in runs]
    first = {(run.trace, run.seed): run for run in reversed(runs)}
    # the bounds take longest: they begin first
    tasks = [("bound", run.as_json(), str(folder), quick) for run in reversed(first.values())] + tasks
    with Tracker(out.console(), len(tasks), "starting", "runs") as tracker:

        def done(task: Task) -> None:
            run = Experiment.of_json(task[1])
            tracker.step(f"{run.policy if task[0] == 'run' else 'bound'} done")

        run_all(tasks, workers, engine, done)


def _spreads(rows: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return half the width of the 95 % interval of the mean JCT by (trace, policy), as text in hours."""
    import numpy as np

    from ymir_opt.simulator.bootstrap import interval

    found: dict[tuple[str, str], list[float]] = {}
    for row in sorted(rows, key=lambda each: int(each["seed"])):
        if row["mean_jct_s"] is not None:
            found.setdefault((row["trace"], row["policy"]), []).append(row["mean_jct_s"])
    out = {}
    for key, values in found.items():
        limits = interval(np.array(values))
        if limits is not None:
            out[key] = f" ±{(limits[1] - limits[0]) / 7200:.3f}"
    return out


def _page_renderer() -> Callable[..., str]:
    """Return the function that renders a comparison as a page, or refuse before any work is done."""
    from importlib import import_module

    try:
        render: Callable[..., str] = import_module("ymir_opt.report").comparison_page
    except (ModuleNotFoundError, AttributeError):
        raise NotFoundError("--report", "this installation has no report renderer", "leave it out") from None
    return render
