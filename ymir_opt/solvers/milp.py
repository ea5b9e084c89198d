"""HiGHS and CBC through PuLP: the same model, stated a second time by another library.

Slower to build than the arrays that `highs` passes, and there for comparison and for sites that
already trust PuLP. CBC runs as a program of its own and reads an MPS file, which PuLP writes
with 13 significant digits, enough for quanta. Both are floating-point solvers with the same
reservations about their bounds as `highs`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import SolverError
from ymir_opt.formulation.linear import UNBOUNDED, LinearModel
from ymir_opt.solvers.base import (
    UNLIMITED,
    Capabilities,
    Limits,
    Progress,
    SolveResult,
    StoppedBy,
    Verdict,
    conclude,
    trivial,
)
from ymir_opt.solvers.highs_core import Watch, unscaled, verdict_of
from ymir_opt.solvers.silence import silenced

__all__ = ["CbcBackend", "PulpHighsBackend", "cbc_path", "make_cbc", "make_highs"]

IntArray = NDArray[np.int64]
NODES_PER_WORK = 100
_LOWER_BOUND = re.compile(r"^(?:Lower bound:|.*\(best possible)\s*(-?[\d.]+(?:e[+-]?\d+)?)", re.MULTILINE)


class PulpHighsBackend:
    """HiGHS, stated by PuLP."""

    name = "pulp-highs"
    capabilities = Capabilities(exact=True, deterministic=True, work_limit=True, imports=("pulp", "highspy"))

    def solve(
        self,
        model: LinearModel,
        *,
        incumbent: IntArray | None = None,
        limits: Limits = UNLIMITED,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> SolveResult:
        """Minimise the model; see `Backend.solve`."""
        known = trivial(model, incumbent)
        if known is not None:
            return known
        import highspy
        import pulp

        class Solver(pulp.HiGHS):  # type: ignore[misc]
            def callSolver(self, lp: Any) -> None:  # noqa: N802 -- PuLP's name
                if incumbent is not None:
                    start = highspy.HighsSolution()
                    start.col_value = incumbent.astype(np.float64).tolist()
                    lp.solverModel.setSolution(start)
                Watch(model, 1.0, limits, progress).attach(lp.solverModel)
                lp.solverModel.run()

            def findSolutionValues(self, lp: Any) -> tuple[int, int]:  # noqa: N802 -- PuLP's name
                # read below from HiGHS itself; PuLP calls every interrupted run optimal
                return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound

        with silenced(), _quiet():
            problem, variables = _state(model)
            solver = Solver(
                msg=False,
                threads=1,
                gapRel=0.0,
                gapAbs=max(limits.gap_quanta, 0.5),
                timeLimit=None if limits.wall_s is None else max(limits.wall_s, 0.0),
                parallel="off",
                random_seed=seed % (2**31),
            )
            problem.solve(solver)
        inner = problem.solverModel
        info = inner.getInfo()
        point = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            values = np.asarray(inner.getSolution().col_value, dtype=np.float64)
            point = values[[variable.index for variable in variables]]
        verdict, stopped_by = verdict_of(inner.getModelStatus(), inner)
        return conclude(
            model,
            incumbent,
            limits,
            verdict=verdict,
            point=point,
            bound=unscaled(info.mip_dual_bound, 1.0, model.offset),
            stopped_by=stopped_by,
        )


class CbcBackend:
    """CBC, stated by PuLP; the program that PuLP brings along or the system's own."""

    name = "cbc"
    capabilities = Capabilities(exact=True, deterministic=True, work_limit=True, imports=("pulp",))

    def solve(
        self,
        model: LinearModel,
        *,
        incumbent: IntArray | None = None,
        limits: Limits = UNLIMITED,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> SolveResult:
        """Minimise the model; see `Backend.solve`. Its work limit counts nodes, not the root's effort."""
        del progress  # CBC is a program of its own and answers once
        known = trivial(model, incumbent)
        if known is not None:
            return known
        import pulp

        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ymir-cbc-") as name, silenced(), _quiet():
            problem, variables = _state(model)
            if incumbent is not None:
                for variable, value in zip(variables, incumbent.tolist(), strict=True):
                    variable.setInitialValue(value)
            log = Path(name) / "log"
            solver = pulp.COIN_CMD(
                path=cbc_path(),
                msg=False,
                threads=None,
                gapRel=0.0,
                gapAbs=max(limits.gap_quanta, 0.5),
                timeLimit=None if limits.wall_s is None else max(limits.wall_s, 0.01),
                maxNodes=None if limits.work is None else max(1, int(limits.work * NODES_PER_WORK)),
                warmStart=incumbent is not None,
                logPath=str(log),
                options=[f"randomSeed {seed % 2**31}", f"randomCbcSeed {seed % 2**31}"],
            )
            solver.tmpDir = name
            try:
                problem.solve(solver)
            except pulp.PulpSolverError as error:
                raise SolverError("cbc", str(error).splitlines()[0], "try the backend highs") from error
            text = log.read_text(encoding="utf-8", errors="replace")
        return self._answer(model, incumbent, limits, problem, variables, text, time.monotonic() - began)

    @staticmethod
    def _answer(
        model: LinearModel,
        incumbent: IntArray | None,
        limits: Limits,
        problem: Any,
        variables: list[Any],
        log: str,
        wall: float,
    ) -> SolveResult:
        import pulp

        verdict = Verdict.STOPPED
        if problem.sol_status == pulp.LpSolutionOptimal:
            verdict = Verdict.PROVEN
        elif problem.status == pulp.LpStatusInfeasible:
            verdict = Verdict.INFEASIBLE
        elif problem.status == pulp.LpStatusUnbounded:
            raise SolverError("cbc", "the model is unbounded", "bound its variables")
        point = None
        if problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            point = np.array([float(variable.varValue or 0.0) for variable in variables])
        found = _LOWER_BOUND.findall(log)
        timed = "Stopped on time" in log or "on time limit" in log
        if limits.wall_s is not None and wall >= limits.wall_s:
            timed = True
        return conclude(
            model,
            incumbent,
            limits,
            verdict=verdict,
            point=point,
            bound=float(found[-1]) + model.offset if found and verdict is Verdict.STOPPED else None,
            stopped_by=StoppedBy.WALL_CLOCK if timed else StoppedBy.NODE_LIMIT,
        )


def make_highs() -> PulpHighsBackend:
    """Return HiGHS through PuLP (entry point)."""
    return PulpHighsBackend()


def make_cbc() -> CbcBackend:
    """Return CBC through PuLP (entry point)."""
    return CbcBackend()


def cbc_path() -> str:
    """Return the CBC program: PuLP's own, else the system's.

    Raises
    ------
    SolverError
        There is none.
    """
    from pulp.apis import coin_api

    own = str(getattr(coin_api, "pulp_cbc_path", ""))
    if own and os.path.isfile(own) and os.access(own, os.X_OK):
        return own
    found = shutil.which("cbc")
    if found is None:
        raise SolverError("cbc", "the program cbc is not installed", "install coin-or-cbc, or use highs")
    return found


def _state(model: LinearModel) -> tuple[Any, list[Any]]:
    """Return the LpProblem, without the offset, and its variables in the model's order."""
    import pulp

    problem = pulp.LpProblem("round", pulp.LpMinimize)
    variables = [
        pulp.LpVariable(
            f"x{j:08d}",
            None if low <= -UNBOUNDED else low,
            None if high >= UNBOUNDED else high,
            pulp.LpInteger,
        )
        for j, (low, high) in enumerate(zip(model.lower.tolist(), model.upper.tolist(), strict=True))
    ]
    problem.addVariables(variables)
    costs = [(variables[j], c) for j, c in enumerate(model.cost.tolist()) if c]
    problem.setObjective(pulp.LpAffineExpression(costs))
    start, index, value = model.row_start.tolist(), model.index.tolist(), model.value.tolist()
    bounds = zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)
    for row, (low, high) in enumerate(bounds):
        entries = slice(start[row], start[row + 1])
        if entries.start == entries.stop:
            continue
        pairs = [(variables[j], a) for j, a in zip(index[entries], value[entries], strict=True)]
        for tag, sense, side in _senses(low, high):
            expression = pulp.LpAffineExpression(pairs)
            problem.addConstraint(pulp.LpConstraint(expression, sense, f"{tag}{row:08d}", side))
    return problem, variables


def _senses(low: int, high: int) -> list[tuple[str, int, int]]:
    """Return (name, PuLP's sense, right-hand side); a range takes two rows."""
    if low == high:
        return [("e", 0, low)]
    senses = []
    if low > -UNBOUNDED:
        senses.append(("l", 1, low))
    if high < UNBOUNDED:
        senses.append(("u", -1, high))
    return senses


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hush PuLP's notices about its coming version 4 (the dependency is capped below it)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
