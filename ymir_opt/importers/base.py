"""What an importer is, and importers by name.

An importer is a function whose positional parameters are the input files and whose keyword-only
parameters are its options; the command line derives its arguments from that signature and the help
texts from the docstring's *Parameters* section. It returns an :class:`Imported`. Names come from the
entry-point group ``ymir_opt.importers``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ymir_opt.domain.base import Model, nearest, short
from ymir_opt.domain.documents import MAX_BYTES
from ymir_opt.domain.errors import InputError, NotFoundError

__all__ = ["GROUP", "Imported", "Importer", "importer_names", "load_importer", "read_json", "some_of"]

GROUP = "ymir_opt.importers"


@dataclass(frozen=True)
class Imported:
    """What an importer found.

    Attributes
    ----------
    document : Model
        A validated document, usually a :class:`~ymir_opt.domain.snapshot.Snapshot`.
    summary : str
        One line: what is in it.
    notes : tuple of str
        What was censored, left out, assumed or not understood, one line each.
    """

    document: Model
    summary: str
    notes: tuple[str, ...] = ()


Importer = Callable[..., Imported]


def importer_names() -> tuple[str, ...]:
    """Return the names of the installed importers, sorted."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def load_importer(name: str) -> Importer:
    """Return an importer by name.

    Raises
    ------
    NotFoundError
        There is no such importer, or a package that it needs is not installed.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise NotFoundError("importer", f"{short(name)} is unknown", nearest(name, set(found)))
    try:
        importer: Importer = found[name].load()
    except ModuleNotFoundError as error:
        raise NotFoundError(
            f"importer {name}", f"needs the package {error.name}", "install the extra that brings it"
        ) from None
    return importer


def read_json(path: str | Path) -> Any:
    """Read a JSON document from a file, or from standard input for ``-``.

    Raises
    ------
    NotFoundError
        The file does not exist or cannot be read.
    InputError
        It is too large, not UTF-8, not JSON, or holds NaN or an infinity.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as stream:
                data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotFoundError(name, f"cannot be read ({error.strerror})", "check the path") from None
    if len(data) > MAX_BYTES:
        raise InputError(name, f"is larger than {MAX_BYTES >> 20} MiB", "split the document")

    def refuse(literal: str) -> float:
        raise InputError(name, f"contains {literal}, which JSON cannot hold", "write null instead")

    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise InputError(name, f"byte {error.start} is not UTF-8", "save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}: line {error.lineno}",
            f"is not valid JSON ({error.msg.lower()})",
            "give a complete JSON document",
        ) from None
    except RecursionError:
        raise InputError(name, "is nested too deeply", "give a flatter document") from None


def some_of(names: list[str], limit: int = 5) -> str:
    """Return the first few names and how many more there are, for a note."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
