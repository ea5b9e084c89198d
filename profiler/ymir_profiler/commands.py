"""``ymir-plan profile``: measure what a recipe asks for, and give the figures away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import emit, read_bytes, require_writable, write_text
from ymir_opt.cli.options import Json
from ymir_opt.domain.errors import InputError

if TYPE_CHECKING:
    from ymir_profiler.measure.bench import Bench
    from ymir_profiler.runner import Order, Pending, Report
    from ymir_profiler.store.store import Store

__all__ = ["register"]

RecipePath = Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe in TOML.")]
Budget = Annotated[
    str, typer.Option(metavar="T", help="Start nothing that would end later, such as 60s, 10m, 4h.")
]
StoreUrl = Annotated[
    str, typer.Option("--store", metavar="URL", help="Profile store: sqlite:///FILE or postgresql://...")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what is left with its likely cost.")]
DEFAULT_STORE = "sqlite:///ymir.db"
ABOUT = {
    "throughput": "Measure samples per second and memory over PEFT type, batch, length and threads.",
    "switch": "Measure cold starts, warm swaps, loading, restoring and writing.",
    "convergence": "Train every task alone and keep its curve to the target.",
    "transfer": "Measure and score what one task gains from another, pair by pair.",
    "colocation": "Measure the speed of K members on one backbone, and as processes of their own.",
}


def register(app: typer.Typer) -> None:
    """Add the command and its subcommands."""
    group = typer.Typer(help="Measure real tasks on a real model, within a budget.", rich_markup_mode=None)
    for kind, text in ABOUT.items():
        group.command(kind, help=text)(_measure(kind))
    group.command("export")(export)
    group.command("import")(import_)
    group.command("report")(report)
    app.add_typer(group, name="profile")


def _measure(kind: str) -> Callable[..., None]:
    def command(
        recipe: RecipePath,
        budget: Budget = "10m",
        store: StoreUrl = DEFAULT_STORE,
        dry_run: DryRun = False,
        as_json: Json = False,
    ) -> None:
        from ymir_profiler.measure.bench import Bench
        from ymir_profiler.measure.plan import measurements
        from ymir_profiler.recipe import read_recipe
        from ymir_profiler.runner import parse_budget
        from ymir_profiler.store.store import Store

        seconds = parse_budget(budget)
        wanted = read_recipe(Path(recipe))
        todo = measurements(kind, wanted)
        with Store(store) as opened:
            bench = Bench(wanted, opened.artifacts)
            out = Output(json=as_json)
            if dry_run:
                _dry_run(bench, opened, todo, out)
            else:
                _take(kind, bench, opened, todo, seconds, out)

    return command


def _dry_run(bench: Bench, store: Store, todo: list[Any], out: Output) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ymir_profiler.runner import pending

    left = pending(todo, bench, store)
    total = sum(item.cost_s for item in left)
    if out.wants_json:
        rows = [
            {"measurement": i.measurement.title, "kind": i.measurement.kind, "cpu_s": i.cost_s} for i in left
        ]
        summary = {"foundation_model": bench.foundation_model, "in_store": len(todo) - len(left)}
        emit(json.dumps({**summary, "left": len(left), "cpu_s": total, "measurements": rows}) + "\n")
    if out.wants_tables:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("measurement", overflow="fold")
        table.add_column("CPU s, about", justify="right")
        for item in left:
            table.add_row(Text(item.measurement.title), f"{item.cost_s:.1f}")
        console = out.console()
        console.print(table)
        text = f"{len(left)} to measure, about {total:.0f} CPU s; {len(todo) - len(left)} in the store"
        console.print(Text(text), soft_wrap=True)


def _take(kind: str, bench: Bench, store: Store, todo: list[Any], seconds: float, out: Output) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    from ymir_profiler.ordering import ActiveOrder
    from ymir_profiler.runner import as_planned, run

    order: Order = ActiveOrder(bench, store) if kind == "transfer" else as_planned
    console = Output(json=True, to_stdout=True).console()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=as_quiet(out)) as progress:
        task = progress.add_task("looking what is there", total=len(todo))

        def show(item: Pending, report: Report) -> None:
            done = report.skipped + report.measured
            progress.update(task, description=item.measurement.title[:60], completed=done)

        found = run(todo, bench, store, seconds, order=order, progress=show)
        end = "the budget is used" if found.left else "done"
        progress.update(task, description=end, completed=found.skipped + found.measured)
    if out.wants_json:
        emit(json.dumps({"foundation_model": bench.foundation_model, **vars(found)}) + "\n")
    if out.wants_tables:
        text = (
            f"{found.measured} measured in {found.cpu_s:.0f} CPU s, {found.skipped} were in the store, "
            f"{found.left} left"
        )
        if found.failed:
            text += f"; {found.failed} recorded as failed"
        if found.left:
            text += "; the same command goes on"
        out.console().print(Text(text), soft_wrap=True)


def as_quiet(out: Output) -> bool:
    """Return whether progress is not wanted: JSON was asked for."""
    return out.json


def export(
    store: StoreUrl = DEFAULT_STORE,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help=".json: profiles; .csv, .parquet: every measurement."
        ),
    ] = "-",
    target_fraction: Annotated[
        float, typer.Option(metavar="F", help="Target of work ratios, as in a recipe.")
    ] = 0.9,
) -> None:
    """Write the store's figures: as a snapshot's profiles, or every measurement as a table."""
    from ymir_opt.domain.documents import dump_json
    from ymir_profiler.store.exports import flat_rows, profiles_of, to_csv, to_parquet
    from ymir_profiler.store.store import Store

    require_writable(output)
    if not 0 < target_fraction <= 1.5:
        raise InputError("--target-fraction", f"{target_fraction} is not in (0, 1.5]", "give one such as 0.9")
    with Store(store) as opened:
        records = opened.records()
    suffix = Path(output).suffix.lower()
    if suffix == ".csv":
        write_text(output, to_csv(flat_rows(records)))
    elif suffix == ".parquet":
        to_parquet(flat_rows(records), Path(output))
    else:
        write_text(output, dump_json(profiles_of(records, target_fraction), indent=1))


def import_(
    profiles: Annotated[str, typer.Argument(metavar="FILE", help="Snapshot, or its profiles; - for stdin.")],
    store: StoreUrl = DEFAULT_STORE,
    origin: Annotated[
        str, typer.Option(metavar="TEXT", help="Where the figures come from; kept with each row.")
    ] = "imported",
) -> None:
    """Put a snapshot's profiles into the store, such as those that `import titan` and `import gavel` make."""
    from rich.text import Text

    from ymir_profiler.store.exports import import_profiles
    from ymir_profiler.store.store import Store

    data = read_bytes(profiles)
    with Store(store) as opened:
        added = import_profiles(opened, data, profiles, origin)
    Output().console().print(Text(f"{added} rows added"), soft_wrap=True)


def report(
    store: StoreUrl = DEFAULT_STORE,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE")] = "profiles.html",
    target_fraction: Annotated[
        float, typer.Option(metavar="F", help="Target of work ratios, as in a recipe.")
    ] = 0.9,
) -> None:
    """Write a page: throughput, co-location, transfer with intervals, and how well scores guess it."""
    from ymir_opt.report.measured import measured_page
    from ymir_profiler.store.store import Store
    from ymir_profiler.summary import summary

    require_writable(output)
    with Store(store) as opened:
        records = opened.records()
    write_text(output, measured_page(summary(records, target_fraction)))
