"""Backends by name, from the entry points of the group ``ymir_opt.solvers``."""

from __future__ import annotations

import difflib
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from ymir_opt.domain.errors import NotFoundError, SolverError
from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers.base import Backend

__all__ = ["AUTO", "DECOMPOSE_FROM", "GROUP", "auto_name", "choose", "get", "load", "names", "reference"]

GROUP = "ymir_opt.solvers"
AUTO = "auto"
DECOMPOSE_FROM = 200


def names() -> tuple[str, ...]:
    """Return the registered names, sorted; ``auto`` is not among them."""
    return tuple(sorted(_registered()))


def get(name: str) -> Backend:
    """Return a backend by its registered name.

    A name may come from a plan or a request of somebody else, so a ``module:factory`` reference,
    which would run any function, is not a name.

    Raises
    ------
    NotFoundError
        No backend has this name; the nearest one is suggested.
    SolverError
        The entry point does not give a backend.
    """
    return load(_entry(name).value)


def reference(name: str) -> str:
    """Return ``module:factory`` of a registered name; a reference is returned as it is.

    Raises
    ------
    NotFoundError
        No backend has this name.
    """
    return name if ":" in name else _entry(name).value


def _entry(name: str) -> EntryPoint:
    registered = _registered()
    if name not in registered:
        near = difflib.get_close_matches(name, registered, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of " + ", ".join(sorted(registered))
        raise NotFoundError("backend", f"there is no solver {name!r}", hint)
    return registered[name]


def load(source: str) -> Backend:
    """Return the backend that ``module:factory`` makes.

    Raises
    ------
    SolverError
        It makes no backend.
    """
    backend = EntryPoint(name="", value=source, group=GROUP).load()()
    if not isinstance(backend, Backend):
        raise SolverError("backend", f"{source} does not make a backend", "see ymir_opt.solvers.base")
    return backend


def choose(model: LinearModel, jobs: int) -> Backend:
    """Return the backend that ``auto`` stands for; see `auto_name`."""
    del model
    return get(auto_name(jobs))


def auto_name(jobs: int) -> str:
    """Return the name of the backend that ``auto`` stands for in rounds of so many jobs.

    Below `DECOMPOSE_FROM` HiGHS solves the whole pool as one model; from there on prices come first.
    Both load no other heavy package, which matters more than their speed at small sizes.
    """
    return "decompose" if jobs >= DECOMPOSE_FROM else "highs"


@cache
def _registered() -> dict[str, EntryPoint]:
    # reading the metadata of every installed package takes longer than a small solve
    return {entry.name: entry for entry in entry_points(group=GROUP)}
