"""The kinds of fitted models, each with what fits and what judges it; loaded when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ymir_models.evaluation import Row
from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.snapshot import Profiles

__all__ = ["KINDS", "Fitted", "Kind", "TooLittleError", "find"]


class TooLittleError(InputError):
    """There is data, but less than a model of this kind needs (exit code 2)."""


@dataclass(frozen=True)
class Fitted:
    """What one fit gives.

    Attributes
    ----------
    kind : str
    version : int
    parameters, source : mapping
        As they are written to the artefact.
    purpose, method : str
        Paragraphs of the card.
    heldout : tuple of Row
        Figures on data left out while fitting.
    limits : tuple of str
        When not to trust it, and when it abstains.
    """

    kind: str
    version: int
    parameters: Mapping[str, Any]
    source: Mapping[str, Any]
    purpose: str
    method: str
    heldout: tuple[Row, ...] = ()
    limits: tuple[str, ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class Kind:
    """A kind of fitted model and the module that knows it.

    Attributes
    ----------
    name : str
    module : str
        Has ``fit(root, profiles) -> Fitted`` and ``evaluate(folder, quick=...) -> list[Row]``.
    data : str
        The data set that `evaluate` reads.
    """

    name: str
    module: str
    data: str

    def fit(self, root: Path | None, profiles: Profiles | None) -> Fitted:
        """Fit on the data sets under `root` and on own measurements."""
        function: Callable[[Path | None, Profiles | None], Fitted] = import_module(f"{self.module}.train").fit
        return function(root, profiles)

    def evaluate(self, folder: Path, *, quick: bool = False) -> Sequence[Row]:
        """Judge the model on one data folder."""
        return list(import_module(f"{self.module}.evaluate").evaluate(folder, quick=quick))


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("throughput", "ymir_models.throughput", "titan"),
        Kind("colocation", "ymir_models.colocation", "gavel"),
        Kind("convergence", "ymir_models.convergence", "titan"),
        Kind("transfer", "ymir_models.transfer", "taskweb"),
    )
}


def find(name: str) -> Kind:
    """Return a kind by name.

    Raises
    ------
    NotFoundError
        With the nearest known name.
    """
    if name not in KINDS:
        raise NotFoundError("KIND", f"{name[:60]!r} is unknown", nearest(name, set(KINDS)))
    return KINDS[name]
