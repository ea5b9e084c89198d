"""``ymir-plan simulate``: one policy on one trace."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import emit
from ymir_opt.cli.options import Json, finite
from ymir_opt.cli.runs import (
    AddNodes,
    Against,
    Cluster,
    DropNode,
    Profiles,
    ScaleLoad,
    Tracker,
    figures_table,
    require_policies,
    show_notes,
    transfer_baseline,
    working_folder,
)
from ymir_opt.domain.errors import InputError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="Trace file.")],
    cluster: Cluster,
    policy: Annotated[str, typer.Option(metavar="NAME", help="Who decides, with variant.")] = "ymir",
    profiles: Profiles = None,
    round_s: Annotated[
        float | None, typer.Option("--round", metavar="S", help="Plan every S seconds instead.")
    ] = None,
    events: Annotated[bool, typer.Option("--events", help="Plan on events instead of in rounds.")] = False,
    min_spacing: Annotated[
        float, typer.Option(metavar="S", help="With --events: plans are at least S seconds apart.")
    ] = 10.0,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Keep result and checkpoint here; go on from them."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="0: the trace as it is; others: resampled.")] = 0,
    scale_load: ScaleLoad = 1.0,
    add_nodes: AddNodes = "",
    drop_node: DropNode = None,
    against: Against = "best-single",
    work_error: Annotated[
        float, typer.Option(metavar="SD", help="Error of work estimates (sd of the logarithm).")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Run a trace under a policy and print what came of it."""
    from ymir_opt.simulator.experiment import Experiment, bound_of, perform, prepare, row_of

    if round_s is not None and events:
        raise InputError("--events", "given together with --round", "choose one")
    finite("--round", round_s, above_zero=True)
    finite("--min-spacing", min_spacing, above_zero=False)
    finite("--work-error", work_error, above_zero=False)
    require_policies(policy)
    experiment = Experiment(
        trace=trace,
        policy=policy,
        cluster=cluster,
        seed=seed,
        profiles=profiles,
        scale_load=scale_load,
        add_nodes=add_nodes,
        drop_nodes=tuple(drop_node or ()),
        round_s=round_s,
        min_spacing_s=min_spacing if events else None,
        against=transfer_baseline(against),
        work_error=work_error,
        segments=output is not None,
    )
    out = Output(json=as_json)
    workload = prepare(experiment)
    show_notes(out, workload.notes)
    with (
        working_folder(output) as folder,
        Tracker(out.console(), workload.length or 0, "simulating", "jobs") as tracker,
    ):
        result = perform(experiment, folder if output is not None else None, tracker.jobs, workload)
        bound = bound_of(experiment, folder, quick=True, workload=workload)
    row = row_of(experiment, result, bound)
    if out.wants_json:
        emit(json.dumps(row) + "\n")
    if out.wants_tables:
        out.console().print(figures_table([row]))
