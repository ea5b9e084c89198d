"""What a solver is asked and what it answers; shared checks that no backend may skip.

Every backend states the same `LinearModel`. A point that a solver returns is rounded to
integers, checked against the integer model and re-evaluated with integers before it becomes
a result, so floating-point tolerances never reach a plan. A result is never worse than the
incumbent, and where an incumbent is given there is always a solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import SolverError
from ymir_opt.domain.plan import StoppedBy
from ymir_opt.formulation.linear import UNBOUNDED, LinearModel

__all__ = [
    "UNLIMITED",
    "Backend",
    "Capabilities",
    "Limits",
    "Progress",
    "SolveResult",
    "Status",
    "StoppedBy",
    "Verdict",
    "conclude",
    "float_bounds",
    "trivial",
]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Progress = Callable[[IntArray | None, float | None], None]
"""Called while the solver runs with an improvement, int64[n] or None, and its bound in quanta or None."""


class Status(StrEnum):
    """``optimal``: proven within the gap target; ``feasible``: verified, not proven."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    NO_SOLUTION = "no_solution"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Parameters
    ----------
    gap_quanta : int
        Stop once objective - bound is at most this many quanta; 0 asks for an optimum.
    work : float or None
        Deterministic budget, in units of roughly one second of one core: each backend
        translates it into its own deterministic measure, so the same inputs give the same
        answer on any machine. None is unlimited.
    wall_s : float or None
        Wall-clock guard in seconds on top; a plan that it stopped depends on the machine.
    """

    gap_quanta: int = 0
    work: float | None = None
    wall_s: float | None = None


UNLIMITED = Limits()


@dataclass(frozen=True)
class SolveResult:
    """A verified answer.

    Attributes
    ----------
    status : Status
    x : int64[n] or None
        The best point known; satisfies every row and bound of the integer model.
    objective : int or None
        ``model.objective(x)`` in quanta.
    bound : int or None
        Lower bound on every feasible objective in quanta, offset included; None where unknown.
    stopped_by : StoppedBy
        What ended the solve; ``heuristic`` where the solver failed and only a point is left.
    note : str
        What else a reader of the plan should know; empty in the ordinary case.
    row_duals : float64[m] or None
        Prices of the rows in the relaxation, in quanta per unit, where the solver knows them.
    """

    status: Status
    x: IntArray | None
    objective: int | None
    bound: int | None
    stopped_by: StoppedBy
    note: str = ""
    row_duals: FloatArray | None = None


@dataclass(frozen=True)
class Capabilities:
    """What a backend promises.

    Attributes
    ----------
    exact : bool
        Proves optimality when it is given enough work.
    deterministic : bool
        Equal inputs, seed and work limit give an equal point unless the wall clock strikes.
    work_limit : bool
        Honours ``Limits.work``.
    imports : tuple of str
        Packages that it loads beyond numpy, all on first use.
    """

    exact: bool
    deterministic: bool
    work_limit: bool
    imports: tuple[str, ...] = ()


@runtime_checkable
class Backend(Protocol):
    """A solver of the integer model."""

    @property
    def name(self) -> str:
        """Name in the registry and in plans."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What the backend promises."""
        ...

    def solve(
        self,
        model: LinearModel,
        *,
        incumbent: IntArray | None = None,
        limits: Limits = UNLIMITED,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> SolveResult:
        """Minimise the model.

        Parameters
        ----------
        model : LinearModel
        incumbent : int64[n] or None
            A feasible point to start from and never to lose.
        limits : Limits
        seed : int
            Seed of the solver's own randomness.
        progress : callable or None
            Called with improvements and bounds found on the way, where the backend can tell.

        Raises
        ------
        SolverError
            The model is unbounded, the incumbent is infeasible, or the solver failed.
        """
        ...


class Verdict(StrEnum):
    """How a solver's run ended, in terms common to all of them."""

    PROVEN = "proven"  # the returned point is optimal within the gap target
    INFEASIBLE = "infeasible"
    STOPPED = "stopped"  # a limit struck; a point may or may not be there


def conclude(
    model: LinearModel,
    incumbent: IntArray | None,
    limits: Limits,
    *,
    verdict: Verdict,
    point: FloatArray | IntArray | None,
    bound: float | int | None,
    stopped_by: StoppedBy | None = None,
    note: str = "",
) -> SolveResult:
    """Turn a solver's claim into a verified result.

    Parameters
    ----------
    model : LinearModel
    incumbent : int64[n] or None
        Feasible, see `check_incumbent`.
    limits : Limits
    verdict : Verdict
        What the solver claims.
    point : float64[n] or int64[n] or None
        The solver's point, rounded here and dropped (with a note) where it breaks the model.
    bound : float or int or None
        The solver's lower bound in quanta, offset included. A float is rounded up after an
        allowance for floating-point error of half a quantum plus 1e-9 of its size; an integer
        is taken as exact.
    stopped_by : StoppedBy or None
        The limit that struck, needed for ``Verdict.STOPPED``.
    note : str
    """
    x = incumbent
    if point is not None:
        rounded = np.rint(np.asarray(point)).astype(np.int64)
        if len(rounded) != model.variables or len(model.violated(rounded)):
            note = _join(note, "the solver's point breaks the integer model and was dropped")
            if verdict is Verdict.PROVEN:
                verdict, stopped_by = Verdict.STOPPED, StoppedBy.HEURISTIC
        elif x is None or model.objective(rounded) <= model.objective(x):
            x = rounded
    if verdict is Verdict.INFEASIBLE and x is None:
        return SolveResult(Status.INFEASIBLE, None, None, None, StoppedBy.OPTIMALITY, note)
    if verdict is Verdict.INFEASIBLE:
        # A verified point refutes the claim; numerical trouble, so nothing is proven.
        note = _join(note, "the solver claims infeasibility against a verified point")
        verdict, bound, stopped_by = Verdict.STOPPED, None, StoppedBy.HEURISTIC
    lowest = _integral_bound(bound)
    if x is None:
        return SolveResult(Status.NO_SOLUTION, None, None, lowest, stopped_by or StoppedBy.HEURISTIC, note)
    objective = model.objective(x)
    if verdict is Verdict.PROVEN:
        # a bound less than a quantum away proves as much as a run that asked for gap 0
        closed = bound is not None and bound > objective - 0.5
        proven = objective if closed else objective - limits.gap_quanta
        lowest = proven if lowest is None else max(lowest, proven)
    if lowest is not None:
        lowest = min(lowest, objective)
    if lowest is not None and objective - lowest <= limits.gap_quanta:
        by = StoppedBy.OPTIMALITY if lowest == objective else StoppedBy.GAP
        return SolveResult(Status.OPTIMAL, x, objective, lowest, by, note)
    return SolveResult(Status.FEASIBLE, x, objective, lowest, stopped_by or StoppedBy.HEURISTIC, note)


def trivial(model: LinearModel, incumbent: IntArray | None) -> SolveResult | None:
    """Answer models without variables, without rows or with an impossible empty row; else None.

    Raises
    ------
    SolverError
        The incumbent is infeasible, or the model without rows is unbounded.
    """
    if incumbent is not None:
        check_incumbent(model, incumbent)
    empty = np.diff(model.row_start) == 0
    broken_row = (model.row_lower > model.row_upper) | (
        empty & ((model.row_lower > 0) | (model.row_upper < 0))
    )
    if np.any(model.lower > model.upper) or np.any(broken_row):
        return SolveResult(Status.INFEASIBLE, None, None, None, StoppedBy.OPTIMALITY)
    if model.variables and model.rows:
        return None
    falling = model.cost < 0
    if np.any(falling & (model.upper >= UNBOUNDED)):
        raise SolverError("model", "the objective is unbounded below", "bound the variables")
    x = np.where(falling, model.upper, model.lower).astype(np.int64)
    if len(model.violated(x)):
        return SolveResult(Status.INFEASIBLE, None, None, None, StoppedBy.OPTIMALITY)
    objective = model.objective(x)
    return SolveResult(Status.OPTIMAL, x, objective, objective, StoppedBy.OPTIMALITY)


def check_incumbent(model: LinearModel, incumbent: IntArray) -> None:
    """Raise `SolverError` where the incumbent does not satisfy the model."""
    if len(incumbent) != model.variables:
        raise SolverError(
            "incumbent",
            f"it has {len(incumbent)} values",
            f"give one for each of {model.variables} variables",
        )
    broken = model.violated(np.asarray(incumbent, np.int64))
    if len(broken):
        row = int(broken[0])
        name = "a variable's bounds" if row < 0 else f"row {row} ({model.row_family[row]})"
        raise SolverError("incumbent", f"it breaks {name}", "give a feasible point or none")


def float_bounds(values: IntArray, infinity: float) -> FloatArray:
    """Return bounds as float64 with ``infinity`` in place of ``UNBOUNDED``."""
    result = values.astype(np.float64)
    result[values >= UNBOUNDED] = infinity
    result[values <= -UNBOUNDED] = -infinity
    return result


def _integral_bound(bound: float | int | None) -> int | None:
    if bound is None or isinstance(bound, int):
        return bound
    if not math.isfinite(bound):
        return None
    return math.ceil(bound - 0.5 - 1e-9 * abs(bound))


def _join(note: str, more: str) -> str:
    return f"{note}; {more}" if note else more
