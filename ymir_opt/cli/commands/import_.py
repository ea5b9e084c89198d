"""``ymir-plan import``: other systems' files in, snapshots out.

Every importer of the entry-point group ``ymir_opt.importers`` is one subcommand; its arguments and
options follow from the importer's signature, their help from its docstring.
"""

from __future__ import annotations

import inspect
import re
from typing import Annotated, Any

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import STDIO, require_writable, write_text
from ymir_opt.domain.errors import InputError

__all__ = ["command_of", "register"]

OUTPUT = Annotated[
    str, typer.Option("-o", "--output", metavar="SNAPSHOT", help="Write the snapshot here; - for stdout.")
]


def register(app: typer.Typer) -> None:
    """Add the command and one subcommand for every importer."""
    from ymir_opt.importers import importer_names, load_importer

    group = typer.Typer(
        help="Make a snapshot from another system's files.", no_args_is_help=False, rich_markup_mode=None
    )
    for name in importer_names():
        try:
            importer = load_importer(name)
        except InputError:
            # an extra that is not installed must not break the others
            continue
        group.command(name)(command_of(importer))
    app.add_typer(group, name="import")


def command_of(importer: Any) -> Any:
    """Return a command whose parameters are the importer's, and an output.

    Positional parameters of the importer become arguments, keyword-only ones options.
    """
    help_of = _parameter_help(importer.__doc__ or "")
    given = list(inspect.signature(importer, eval_str=True).parameters.values())
    lists = {parameter.name for parameter in given if parameter.annotation == tuple[str, ...]}
    parameters = [_parameter(parameter, help_of.get(parameter.name, "")) for parameter in given]
    parameters.append(inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, annotation=OUTPUT))

    def command(**values: Any) -> None:
        output = values.pop("output")
        require_writable(output)
        values.update({name: tuple(values[name] or ()) for name in lists})
        _run(importer, values, output)

    command.__doc__ = (importer.__doc__ or "").strip().split("\n\n")[0]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(parameter: inspect.Parameter, text: str) -> inspect.Parameter:
    """Return an importer's parameter as one of a command."""
    annotation: Any = parameter.annotation
    default: Any = parameter.default
    if annotation == tuple[str, ...]:
        annotation, default = list[str] | None, None
    numeric = annotation in (int, float, int | None, float | None)
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        flag = "--" + parameter.name.replace("_", "-")
        info: Any = typer.Option(flag, metavar="NUMBER" if numeric else "TEXT", help=text)
    else:
        info = typer.Argument(metavar=parameter.name.upper(), help=text, show_default=False)
    return parameter.replace(
        kind=inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[annotation, info], default=default
    )


def _run(importer: Any, values: dict[str, Any], output: str) -> None:
    from rich.text import Text

    from ymir_opt.domain.documents import dump_json

    found = importer(**values)
    write_text(output, dump_json(found.document, exclude_defaults=True))
    console = Output(to_stdout=output == STDIO).console()
    console.print(Text(found.summary), soft_wrap=True)
    for note in found.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _parameter_help(doc: str) -> dict[str, str]:
    """Return the description of each parameter in a numpydoc *Parameters* section."""
    section = re.search(r"Parameters\n\s*-+\n(.*?)(?:\n\s*\n\s*\w+\n\s*-+\n|\Z)", inspect.cleandoc(doc), re.S)
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in (section[1] if section else "").splitlines():
        heading = re.match(r"([a-z_]\w*(?:, [a-z_]\w*)*) : ", line)
        if heading:
            names = [name.strip() for name in heading[1].split(",")]
        elif line.strip():
            for name in names:
                found.setdefault(name, []).append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}
