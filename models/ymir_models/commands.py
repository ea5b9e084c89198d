"""``ymir-plan fit`` and ``ymir-plan evaluate``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import emit, read_bytes, write_text
from ymir_opt.cli.options import Json

if TYPE_CHECKING:
    from ymir_models.evaluation import Row

__all__ = ["register_evaluate", "register_fit"]


def register_fit(app: typer.Typer) -> None:
    """Add the command ``fit``."""
    app.command("fit")(fit)


def register_evaluate(app: typer.Typer) -> None:
    """Add the command ``evaluate``."""
    app.command("evaluate")(evaluate)


def evaluate(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="throughput, colocation, convergence, transfer.")
    ],
    data: Annotated[
        str, typer.Option(metavar="DIR", help="Folder of the data set, such as ../shared/data/titan.")
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="A small part of the data, to see that it works.")
    ] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    docs: Annotated[
        str | None, typer.Option(metavar="FILE.md", help="Put the tables between their marks in a document.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge a model on held-out data, beside simple baselines: one object per split and model."""
    from ymir_models.evaluation import as_json as row_json
    from ymir_models.evaluation import markdown, replace_block, summary
    from ymir_models.registry import find

    document = None if docs is None else read_bytes(docs).decode("utf-8", errors="replace")
    rows = find(kind).evaluate(Path(data), quick=quick)
    if docs is not None and document is not None:
        write_text(docs, replace_block(document, kind, markdown(summary(rows)), docs))
    out = Output(json=as_json or as_markdown)
    if as_markdown:
        emit(markdown(summary(rows)))
    elif out.wants_json:
        emit("".join(json.dumps(row_json(row)) + "\n" for row in rows))
    if out.wants_tables:
        _show(rows, out)


def _show(rows: Sequence[Row], out: Output) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ymir_models.evaluation import number

    console = out.console()
    for split in dict.fromkeys(row.split for row in rows):
        chosen = [row for row in rows if row.split == split]
        names = list(dict.fromkeys(name for row in chosen for name in row.metrics))
        table = Table(
            box=box.SIMPLE_HEAD, title=split, title_justify="left", title_style="bold", pad_edge=False
        )
        for name in ("case", "method", "n", *names):
            table.add_column(name, overflow="fold")
        for row in chosen:
            for method, metrics in [("ours", row.metrics), *row.baselines.items()]:
                figures = [number(metrics.get(name, float("nan"))) for name in names]
                table.add_row(Text(row.model), Text(method), str(row.cases), *figures)
        console.print(table)
        for note in dict.fromkeys(row.note for row in chosen if row.note):
            console.print(Text(note))


def fit(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND]...", help="Which models; all that have data by default."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder that holds titan, gavel, taskweb, ...")
    ] = None,
    profiles: Annotated[
        str | None, typer.Option(metavar="FILE", help="Own measurements: a snapshot, or its profiles alone.")
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="Where artefacts and cards are written.")
    ] = "fitted",
    as_json: Json = False,
) -> None:
    """Fit models and write each with a card; the same data give the same bytes."""
    from ymir_models.training import read_profiles, train

    written = train(
        tuple(kinds or ()),
        Path(data) if data is not None else None,
        read_profiles(read_bytes(profiles), profiles) if profiles is not None else None,
        Path(output),
    )
    out = Output(json=as_json)
    if out.wants_json:
        emit("".join(json.dumps(item) + "\n" for item in written))
    if out.wants_tables:
        from rich.text import Text

        console = out.console()
        for item in written:
            told = (
                f"skipped: {item['skipped']}"
                if "skipped" in item
                else f"{item['path']} ({item['sha256'][:12]})"
            )
            console.print(Text(f"{item['kind']}: {told}"), soft_wrap=True)
