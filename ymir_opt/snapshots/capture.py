"""Capturing a planning round as a case, and planning a case again."""

from __future__ import annotations

import traceback
from importlib import metadata
from typing import Any

from ymir_opt.domain.documents import dump_json, parse_plan
from ymir_opt.domain.errors import YmirError
from ymir_opt.domain.outcome import require_same_snapshot
from ymir_opt.domain.plan import Plan, StoppedBy
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.snapshots.case import Case, Failure, Replay, Request
from ymir_opt.snapshots.compare import first_difference, same_plan

__all__ = ["capture", "installed_versions", "replay"]

PACKAGES = (
    "ymir-opt",
    "numpy",
    "scipy",
    "highspy",
    "ortools",
    "pulp",
    "networkx",
    "scikit-learn",
    "pydantic",
)


def installed_versions() -> dict[str, str]:
    """Return the versions that may decide a plan: Python, the platform and the packages."""
    import platform

    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def capture(
    snapshot: Snapshot,
    plan: Plan | None = None,
    *,
    previous: Plan | None = None,
    request: Request | None = None,
    estimator: Any = None,
    note: str = "",
) -> Case:
    """Return the case of a planning round.

    Parameters
    ----------
    snapshot : Snapshot
    plan : Plan, optional
        The plan in question; without one the planner is asked now, and an error becomes the case's failure.
    previous : Plan, optional
        The previous round's plan, if one was given to the planner.
    request : Request, optional
        How the planner was or is asked.
    estimator : optional
        Fitted models; they are not part of the case, only their hash in the plan is.
    note : str
        What the user wants to say.

    Raises
    ------
    InputError
        The plan was made for another snapshot.
    """
    request = request or Request()
    failure = None
    if plan is not None:
        require_same_snapshot(snapshot, plan)
    else:
        plan, failure = _solve(snapshot, previous, request, estimator)
    return Case(
        note=note,
        request=request,
        snapshot=snapshot,
        previous=previous,
        # as a file would give it back: floats at twelve digits
        plan=None if plan is None else parse_plan(dump_json(plan)),
        failure=failure,
        versions=installed_versions(),
    )


def replay(case: Case, estimator: Any = None) -> Replay:
    """Plan a case again and compare.

    Parameters
    ----------
    case : Case
    estimator : optional
        The fitted models with which the case was planned.
    """
    plan, failure = _solve(case.snapshot, case.previous, case.request, estimator)
    here = installed_versions()
    changed = tuple(
        f"{name} {case.versions.get(name, 'absent')} -> {here.get(name, 'absent')}"
        for name in dict.fromkeys([*case.versions, *here])
        if case.versions.get(name) != here.get(name)
    )
    notes = []
    if case.plan is not None:
        if case.plan.solver.stopped_by is StoppedBy.WALL_CLOCK:
            notes.append("the wall clock stopped the solve: the plan depends on the machine")
        wanted = case.plan.planner.estimates
        found = None if plan is None else plan.planner.estimates
        if plan is not None and wanted != found:
            notes.append("the estimates differ: name the fitted models of the case with --models")
    return Replay(*_compare(case, plan, failure), plan, changed, tuple(notes))


def _compare(case: Case, plan: Plan | None, failure: Failure | None) -> tuple[bool, str | None]:
    if failure is not None:
        wanted = case.failure
        same = wanted is not None and (wanted.kind, wanted.message) == (failure.kind, failure.message)
        return same, None if same else f"the planner failed: {failure.message}"
    if plan is None or case.plan is None:
        return False, "the planner did not fail"
    if same_plan(case.plan, plan):
        return True, None
    return False, first_difference(case.plan, plan)


def _solve(
    snapshot: Snapshot, previous: Plan | None, request: Request, estimator: Any
) -> tuple[Plan | None, Failure | None]:
    """Ask the planner; an error is an answer too."""
    from ymir_opt.api import solve

    try:
        plan = solve(
            snapshot,
            policy=request.policy,
            backend=request.backend,
            time_limit_s=request.time_limit_s,
            gap=request.gap,
            previous=previous,
            estimates=estimator,
            measured_only=request.measured_only,
            prove_global=request.prove_global,
            seed=request.seed,
        )
    except Exception as error:
        message = error.one_line() if isinstance(error, YmirError) else str(error)
        return None, Failure(kind=type(error).__name__, message=message[:4096], where=_where(error))
    return parse_plan(dump_json(plan)), None


def _where(error: Exception) -> str | None:
    """Return module and line of the innermost frame, without the folders of this machine."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "ymir_opt" in frame.filename]
    if not own:
        return None
    last = own[-1]
    module = last.filename.replace("\\", "/").rsplit("ymir_opt/", 1)[1]
    return f"ymir_opt/{module}:{last.lineno} in {last.name}"
