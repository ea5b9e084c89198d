"""The policy protocol, planning cadences, and policies by name.

A policy is either

* *columnar*: ``decide(view: SnapshotView) -> Decision`` (fast, for simulations), or
* *snapshot*: ``plan(snapshot, previous=None) -> Plan``.

A policy that keeps state has ``reset()``, and ``state()``/``restore(state)`` (JSON values) if a run with it
must be resumable. Names come from the entry-point group ``ymir_opt.policies``; an entry is a factory that
takes the variant (the text after the colon, or ``""``) and keyword options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from ymir_opt.domain.errors import NotFoundError
from ymir_opt.policies.view import Decision, SnapshotView

__all__ = ["Cadence", "ColumnarPolicy", "SnapshotPolicy", "load_policy", "policy_names", "variant"]

GROUP = "ymir_opt.policies"


@dataclass(frozen=True)
class Cadence:
    """When a policy plans.

    Attributes
    ----------
    round_s : float or None
        Fixed rounds: plans at whole multiples of `round_s`; None: on events.
    min_spacing_s : float
        On events (arrival, completion, node change, probe end): at least this far apart.
    """

    round_s: float | None = None
    min_spacing_s: float = 10.0

    @classmethod
    def rounds(cls, seconds: float) -> Cadence:
        """Return fixed rounds."""
        return cls(round_s=seconds)

    @classmethod
    def events(cls, min_spacing_s: float = 10.0) -> Cadence:
        """Return planning on events."""
        return cls(round_s=None, min_spacing_s=min_spacing_s)


@runtime_checkable
class ColumnarPolicy(Protocol):
    """Plans from columns."""

    name: str
    cadence: Cadence

    def decide(self, view: SnapshotView) -> Decision:
        """Return what should run."""
        ...

    def reset(self) -> None:
        """Forget everything kept between rounds."""
        ...


@runtime_checkable
class SnapshotPolicy(Protocol):
    """Plans from a snapshot document."""

    def plan(self, snapshot: Any, previous: Any = None) -> Any:
        """Return the plan."""
        ...


def variant(policy: str, text: str, known: tuple[str, ...]) -> frozenset[str]:
    """Return the parts of a variant (separated by ``:``), checked against those a policy knows.

    ``faithful`` and ``fixed`` are known to every baseline; a bare name is ``faithful``.

    Raises
    ------
    NotFoundError
        A part is unknown.
    """
    parts = [part for part in text.split(":") if part]
    allowed = {"faithful", "fixed", *known}
    for part in parts:
        if part not in allowed:
            raise NotFoundError(
                f"policy {policy}:{text}", f"has no variant {part!r}", f"known: {', '.join(sorted(allowed))}"
            )
    if "faithful" in parts and "fixed" in parts:
        raise NotFoundError(f"policy {policy}:{text}", "is both faithful and fixed", "choose one")
    return frozenset(parts)


def policy_names() -> tuple[str, ...]:
    """Return the names of the installed policies, sorted."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def load_policy(name: str, **options: Any) -> Any:
    """Return a new policy by name, such as ``tiresias`` or ``optimus:fixed``.

    Raises
    ------
    NotFoundError
        There is no such policy or variant.
    """
    base, _, rest = name.partition(":")
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if base not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        raise NotFoundError(f"policy {base[:60]!r}", "is not installed", f"known: {known}")
    factory: Callable[..., Any] = found[base].load()
    return factory(rest, **options)
