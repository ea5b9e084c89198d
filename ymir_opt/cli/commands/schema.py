"""``ymir-plan schema``: the JSON Schema of a document."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ymir_opt.cli.files import emit

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("schema")(schema)


def schema(
    name: Annotated[str, typer.Argument(metavar="NAME", help="snapshot, plan, job or request.")],
) -> None:
    """Print the JSON Schema of a document."""
    from ymir_opt.domain.documents import schema as schema_of

    emit(json.dumps(schema_of(name), ensure_ascii=False, indent=2) + "\n")
