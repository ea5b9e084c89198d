"""A solver where it can be stopped: in a child process that is killed at the deadline.

Solvers overrun their own time limits, HiGHS up to threefold, and inside this process nothing can
end them. The child writes every improvement to a file; what it found before the kill is verified
and returned with ``stopped_by="wall_clock"``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import SolverError
from ymir_opt.domain.forked import may_fork, run_until
from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers import child, exchange
from ymir_opt.solvers.base import (
    UNLIMITED,
    Limits,
    SolveResult,
    Status,
    StoppedBy,
    Verdict,
    conclude,
    trivial,
)
from ymir_opt.solvers.registry import load, reference

__all__ = ["solve_guarded"]

IntArray = NDArray[np.int64]
OWN_SHARE = 0.9
"""Share of the remaining time that the solver's own limit gets, before the kill."""


def solve_guarded(
    backend: str,
    model: LinearModel,
    *,
    incumbent: IntArray | None = None,
    limits: Limits = UNLIMITED,
    seed: int = 0,
) -> SolveResult:
    """Solve with a backend such that the wall-clock limit holds whatever the solver does.

    Without ``limits.wall_s`` the backend runs in this process.

    Parameters
    ----------
    backend : str
        A registered name, or ``module:factory`` of a backend that is not registered.
    model : LinearModel
    incumbent : int64[n] or None
        Feasible; never lost.
    limits : Limits
        ``wall_s`` counts from the call and includes the child's start.
    seed : int

    Raises
    ------
    NotFoundError
        No backend has this name.
    SolverError
        The solver refused the model, or crashed before it found anything and no incumbent was given.
    """
    source = reference(backend)
    if limits.wall_s is None:
        return load(source).solve(model, incumbent=incumbent, limits=limits, seed=seed)
    known = trivial(model, incumbent)
    if known is not None:
        return known
    deadline = time.monotonic() + limits.wall_s
    with tempfile.TemporaryDirectory(prefix="ymir-solve-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        exchange.write_model(folder, model)
        if incumbent is not None:
            exchange.write_point(folder / exchange.INCUMBENT, np.asarray(incumbent, np.int64))
        task = {
            "backend": source,
            "gap_quanta": limits.gap_quanta,
            "work": limits.work,
            "deadline": deadline,
            "share": OWN_SHARE,
            "seed": seed,
        }
        exchange.write_json(folder / exchange.TASK, task)
        code = _run(folder, deadline)
        return _collect(folder, code, model, incumbent, limits)


def _run(folder: Path, deadline: float) -> int | None:
    """Run the child; returns its exit code, None where the deadline killed it.

    A fork begins at once, where a new interpreter first has to import everything again.
    """
    # what the solver leaves behind lies in the folder, which vanishes
    scratch = folder / "scratch"
    scratch.mkdir()
    if may_fork():
        with contextlib.suppress(OSError):
            return run_until(partial(child.main, folder), deadline, str(scratch))
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    process = subprocess.Popen(
        [sys.executable, "-m", "ymir_opt.solvers.child", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the child with what it started (CBC is a program of its own)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _collect(
    folder: Path, code: int | None, model: LinearModel, incumbent: IntArray | None, limits: Limits
) -> SolveResult:
    """Read what the child left and verify it again."""
    result = exchange.read_result(folder)
    if result is not None:
        return _reverified(result, model, incumbent, limits)
    error = exchange.read_json(folder / exchange.ERROR)
    if error is not None and incumbent is None:
        raise SolverError(error["place"], error["problem"], error["remedy"])
    point = exchange.read_point(folder / exchange.BEST)
    bound = (exchange.read_json(folder / exchange.BOUND) or {}).get("bound")
    note = ""
    if code is not None:
        note = error["problem"] if error else f"the solver's process ended with exit code {code}"
        if point is None and incumbent is None:
            raise SolverError("solver", note, "try another backend")
    return conclude(
        model,
        incumbent,
        limits,
        verdict=Verdict.STOPPED,
        point=point,
        bound=bound,
        stopped_by=StoppedBy.WALL_CLOCK if code is None else StoppedBy.HEURISTIC,
        note=note,
    )


def _reverified(
    result: SolveResult, model: LinearModel, incumbent: IntArray | None, limits: Limits
) -> SolveResult:
    """Check an answer that came through files as strictly as one from this process."""
    if result.x is None:
        return result
    verdict = Verdict.PROVEN if result.status is Status.OPTIMAL else Verdict.STOPPED
    return conclude(
        model,
        incumbent,
        limits,
        verdict=verdict,
        point=result.x,
        bound=result.bound,
        stopped_by=result.stopped_by,
        note=result.note,
    )
