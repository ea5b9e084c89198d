"""Options that several commands share, and the checks that a type cannot state."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import InputError, NotFoundError

__all__ = ["Backend", "Json", "Models", "SnapshotPath", "finite", "load_estimator"]

SnapshotPath = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="Snapshot file, or - for standard input.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and no tables.")]
Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="auto, highs, pulp-highs, cbc, cpsat, decompose, greedy or matching.",
    ),
]
Models = Annotated[
    str | None,
    typer.Option("--models", metavar="DIR", help="Folder with fitted models that answer where no row does."),
]


def finite(option: str, value: float | None, *, above_zero: bool) -> float | None:
    """Refuse NaN, infinities and numbers out of range for an option.

    Raises
    ------
    InputError
        Naming the option.
    """
    if value is None:
        return None
    if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
        wanted = "a number above 0" if above_zero else "a number of 0 or more"
        raise InputError(option, f"{value} is not {wanted}", f"give {wanted}")
    return value


def load_estimator(folder: str | None) -> Any:
    """Return the predictor fitted in a folder, from the entry-point group ``ymir_opt.estimators``.

    Raises
    ------
    InputError
        If the folder does not exist or no installed estimator reads it.
    """
    if folder is None:
        return None
    if not Path(folder).is_dir():
        raise NotFoundError(folder, "no such folder", "name a folder with fitted models")
    from importlib.metadata import entry_points

    loaders = {entry.name: entry for entry in entry_points(group="ymir_opt.estimators")}
    if "fitted" not in loaders:
        raise NotFoundError(
            "--models", "no installed package reads fitted models", nearest("fitted", set(loaders))
        )
    return loaders["fitted"].load()(Path(folder))
