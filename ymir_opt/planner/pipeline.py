"""``solve``: one snapshot in, one verified plan out.

Pure: nothing but the arguments and the installed versions influences the plan; the clock only
triggers the guard and fills ``wall_s``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from ymir_opt.candidates import PoolLimits
from ymir_opt.candidates.prices import Prices, dual_prices, row_guess
from ymir_opt.domain.documents import snapshot_sha256
from ymir_opt.domain.errors import InputError, NotFoundError, SolverError
from ymir_opt.domain.forked import beside
from ymir_opt.domain.outcome import outcome
from ymir_opt.domain.plan import Plan, StoppedBy
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.model import RoundModel
from ymir_opt.formulation.parameters import Parameters
from ymir_opt.formulation.quota import QuotaTable
from ymir_opt.planner.assemble import Proof, assemble, own_version
from ymir_opt.planner.carry import OUTCOME_LABEL, carried, resumed
from ymir_opt.planner.pooling import HEURISTICS, make_pool, struck
from ymir_opt.planner.profiling import reserve
from ymir_opt.planner.search import Outcome, Round, search
from ymir_opt.planner.selection import Selection
from ymir_opt.planner.state import SolverMemory, SolverState
from ymir_opt.solvers import registry
from ymir_opt.solvers.base import Limits, SolveResult

if TYPE_CHECKING:
    from ymir_opt.candidates import Pool
    from ymir_opt.estimates.protocols import Predictor
    from ymir_opt.planner.proving import Proven

__all__ = [
    "ALTERNATIVES_TO",
    "DEFAULT_GAP",
    "DEFAULT_WORK",
    "OWN_POLICIES",
    "make_pool",
    "plan_round",
    "solve",
]

DEFAULT_GAP = 1e-4
# up to so many jobs a plan tells for each what else could be done with it
ALTERNATIVES_TO = 256
# a plan that changes something must be better by more than this share of queueing everything
LEAST_GAIN = 1e-6
SETS_LABEL, ROUNDS_LABEL = "global_sets", "global_pricings"
# deterministic budget, about seconds of one core; the wall-clock guard comes on top
DEFAULT_WORK = 60.0
# from so many jobs on a plan is verified and its outcome hashed side by side
BESIDE_FROM = 200
# up to so many sets of a mode it is quicker to evaluate all than to prove that most do not pay
FEW_SETS = 2000
# filling, placing, telling and verifying a plan takes about so many times as long as stating its round
CLOSING = 8.0
OWN_POLICIES = {"ymir": True, "ymir-no-merge": False}


def solve(
    snapshot: Snapshot,
    *,
    policy: str = "ymir",
    backend: str = "auto",
    time_limit_s: float | None = None,
    gap: float | None = None,
    previous: Plan | None = None,
    estimates: Predictor | None = None,
    measured_only: bool = False,
    prove_global: bool = False,
    alternatives: bool | None = None,
    seed: int = 0,
    memory: SolverMemory | None = None,
    cores: int | None = None,
) -> Plan:
    """Plan one round.

    Parameters
    ----------
    snapshot : Snapshot
    policy : str
        ``ymir``, or ``ymir-no-merge``, which starts no group of two or more.
    backend : str
        ``auto``, ``greedy``, ``matching``, or a solver from ``ymir_opt.solvers``.
    time_limit_s : float, optional
        Wall-clock guard in seconds; the plan says if it struck.
    gap : float, optional
        Stop at this value gap, a fraction; default 1e-4.
    previous : Plan, optional
        The previous round's plan.
    estimates : Predictor, optional
        Fitted models, asked where no row answers.
    measured_only : bool
        Refuse predicted figures.
    prove_global : bool
        Prove the gap against every group of at most four: all enumerated, or by exhaustive pricing.
    alternatives : bool, optional
        Tell for each job what else could be done with it, and what that would lose; by default up to
        `ALTERNATIVES_TO` jobs.
    seed : int
    memory : SolverMemory, optional
        Gives what the previous round's solver knew, and takes what this one leaves.
    cores : int, optional
        Cores to use, by default all at hand; the plan is the same on any number.

    Returns
    -------
    Plan
        Verified; its invariants are checked before it is returned.

    Raises
    ------
    InputError
        An argument is out of range, or names an unknown policy or backend.
    SolverError
        The planner made a plan that breaks an invariant, and so did its fallback.
    """
    if time_limit_s is not None and not time_limit_s > 0:
        raise InputError("time_limit_s", f"{time_limit_s} is not above 0", "give seconds")
    if gap is not None and not 0 <= gap <= 1:
        raise InputError("gap", f"{gap} is not between 0 and 1", "give a fraction such as 0.001")
    if policy not in OWN_POLICIES:
        raise NotFoundError(
            "policy", f"{policy!r} is not one of ours", f"choose one of {', '.join(OWN_POLICIES)}"
        )
    return plan_round(
        snapshot,
        policy=policy,
        merge=OWN_POLICIES[policy],
        backend=backend,
        time_limit_s=time_limit_s,
        gap=DEFAULT_GAP if gap is None else gap,
        previous=previous,
        estimates=estimates,
        measured_only=measured_only,
        limits=everything(len(snapshot.jobs)) if prove_global else None,
        alternatives=alternatives,
        seed=seed,
        memory=memory,
        cores=cores,
        prove=prove_global,
    )


def everything(jobs: int) -> PoolLimits:
    """Return limits under which nothing is dropped where groups are few; else pricing has to prove it."""
    return replace(PoolLimits.of_size(jobs), exhaustive_below=10**9, most_sets=FEW_SETS)


def plan_round(
    snapshot: Snapshot,
    *,
    policy: str = "ymir",
    merge: bool = True,
    backend: str = "auto",
    time_limit_s: float | None = None,
    gap: float = DEFAULT_GAP,
    previous: Plan | None = None,
    estimates: Predictor | None = None,
    measured_only: bool = False,
    limits: PoolLimits | None = None,
    parameters: Parameters | None = None,
    alternatives: bool | None = None,
    seed: int = 0,
    checked: bool = True,
    memory: SolverMemory | None = None,
    cores: int | None = None,
    prove: bool = False,
) -> Plan:
    """Plan one round with every parameter in the open; see `solve`."""
    deadline = None if time_limit_s is None else time.perf_counter() + time_limit_s
    name = registry.auto_name(len(snapshot.jobs)) if backend == "auto" else backend
    _load(name)
    began = time.perf_counter()
    evaluator = Evaluator(
        Instance.of(snapshot),
        Estimates(snapshot, estimates, measured_only=measured_only),
        parameters or Parameters(),
    )
    quotas = QuotaTable(evaluator.instance)
    if deadline is not None:
        # what is left to do at the end takes its time too, on any machine in proportion to the beginning
        deadline -= CLOSING * (time.perf_counter() - began)
    digest = snapshot_sha256(snapshot)
    continued = resumed(previous, digest)
    reservation = reserve(evaluator, quotas, previous, only_earlier=continued)
    pool, work = make_pool(
        evaluator,
        quotas,
        reservation,
        limits,
        merge=merge,
        backend=backend,
        deadline=deadline,
        state=None if memory is None else memory.before,
        cores=cores,
    )
    fallback = carried(work, fill_idle=not continued)
    if name != "greedy" and struck(deadline):
        answer = Outcome(None, None, StoppedBy.WALL_CLOCK)
    else:
        answer = _search(work, name, gap, fallback, deadline, seed, pool.prices)
    found: Proven | None = None
    if prove and merge and not pool.exhaustive and name not in HEURISTICS:
        from ymir_opt.planner.proving import prove as proved

        found = proved(
            pool,
            work,
            answer,
            lambda wider, of: _search(wider, name, gap, fallback, deadline, seed, of.prices),
            gap=_quanta(work, gap, fallback),
            incumbent=fallback.objective,
            deadline=deadline,
        )
        pool, work, answer = found.pool, found.work, found.outcome
    prices = answer.prices or pool.prices
    if memory is not None and prices is not None:
        memory.after = SolverState.of(evaluator.instance, prices, work.table, digest)
    if pool.cut:
        answer = replace(answer, stopped_by=StoppedBy.WALL_CLOCK)
    best, stopped = _adopt(work, fallback, answer, gap, continued=continued)
    proof = Proof(
        backend=name,
        bound=answer.bound,
        gap_target=gap,
        stopped_by=stopped,
        wall_s=0.0,
        policy=policy,
        seed=seed,
        measured_only=measured_only,
        merge=merge,
        exact_types=answer.exact_types,
        alternatives=len(snapshot.jobs) <= ALTERNATIVES_TO and not struck(deadline)
        if alternatives is None
        else alternatives,
    )

    def finished(selection: Selection) -> Plan:
        return assemble(snapshot, digest, work, pool, reservation, selection, proof)

    plan = finished(best)
    side = 1 if len(snapshot.jobs) < BESIDE_FROM else cores
    with beside(lambda: _after(snapshot, plan), side) as told:
        good = _verified(snapshot, plan, evaluator, lambda: finished(fallback)) if checked else plan
        after = told() if good is plan else _after(snapshot, good)
    labels = {**good.labels, OUTCOME_LABEL: after}
    if answer.bound is not None and good.solver.bound is None:
        labels = {"note": "the solver's bound was above this plan and is left out", **labels}
    if prove or (limits is not None and limits.exhaustive_below > len(snapshot.jobs)):
        labels |= _told(pool, found)
    solver = good.solver.model_copy(update={"wall_s": time.perf_counter() - began})
    return good.model_copy(update={"solver": solver, "labels": labels})


def _load(name: str) -> None:
    """Import what is needed only now: planning is timed without imports."""
    import numpy.ma  # noqa: F401  (loaded by the first np.unique)

    import ymir_opt.verify  # noqa: F401

    if name not in HEURISTICS:
        for module in registry.get(name).capabilities.imports:
            import_module(module)
    own_version()


def _after(snapshot: Snapshot, plan: Plan) -> str:
    """Return the hash of the snapshot in which a plan has been carried out."""
    return snapshot_sha256(outcome(snapshot, plan, compare_hash=False))


def _search(
    work: Round,
    name: str,
    gap: float,
    fallback: Selection,
    deadline: float | None,
    seed: int,
    prices: Prices | None,
) -> Outcome:
    if name == "matching":
        from ymir_opt.planner.matched import matched

        return matched(work)
    if name in HEURISTICS:
        return Outcome(None, None, StoppedBy.HEURISTIC)
    backend = registry.get(name)
    quanta = _quanta(work, gap, fallback)
    told: list[Prices] = []

    def run(stated: RoundModel) -> SolveResult:
        model = stated.model if prices is None else replace(stated.model, guess=row_guess(stated, prices))
        left = None if deadline is None else max(deadline - time.perf_counter(), 0.05)
        bounds = Limits(gap_quanta=quanta, work=DEFAULT_WORK, wall_s=left)
        if left is None:
            result = backend.solve(model, limits=bounds, seed=seed)
            if result.row_duals is not None:
                told.append(dual_prices(stated, result.row_duals, len(work.evaluator.instance.types)))
            return result
        from ymir_opt.solvers.guarded import solve_guarded

        return solve_guarded(name, model, limits=bounds, seed=seed)

    found = search(work, run)
    return replace(found, prices=told[-1]) if told else found


def _quanta(work: Round, gap: float, fallback: Selection) -> int:
    """Return the gap target in quanta: value_gap divides by more, so that it is met when the solver stops."""
    return int(gap * max(int(work.table.queued_cost.sum()) - fallback.objective, 0))


def _told(pool: Pool, found: Proven | None) -> dict[str, str]:
    """Return what the plan says of the proof against every group."""
    labels = {} if found is None else {SETS_LABEL: str(found.sets), ROUNDS_LABEL: str(found.rounds)}
    if pool.exhaustive:
        return labels
    why = f" ({found.note})" if found is not None and found.note else ""
    note = f"there are too many groups, or too little time, to prove the gap against all of them{why}"
    return {**labels, "note": note}


def _adopt(
    work: Round, fallback: Selection, outcome: Outcome, gap: float, *, continued: bool
) -> tuple[Selection, StoppedBy]:
    """Choose between what the solver found and the carried-over plan.

    Where something runs, a plan that differs is adopted only if its objective is lower by more than
    ``max(gap target, 1e-6)`` times the cost of queueing everything.
    """
    found = outcome.selection
    if found is None or continued:
        return fallback, outcome.stopped_by
    runs = any(group.keepable for group in work.evaluator.instance.running)
    least = max(gap, LEAST_GAIN) * float(work.table.queued_cost.sum()) if runs else 0.0
    if fallback.objective - found.objective > least:
        return found, outcome.stopped_by
    return fallback, outcome.stopped_by


def _verified(snapshot: Snapshot, plan: Plan, evaluator: Evaluator, fallback: Callable[[], Plan]) -> Plan:
    """Check a plan before it leaves; the carried-over plan takes the place of one that fails."""
    from ymir_opt.verify import check

    found = check(snapshot, plan, evaluator=evaluator, compare_hash=False)
    if not found:
        return plan
    second = fallback()
    worse = check(snapshot, second, evaluator=evaluator, compare_hash=False)
    if worse:
        first = worse[0]
        raise SolverError(
            first.place,
            f"the planner made a plan that breaks invariant {first.invariant}: {first.message}",
            "please report it with `ymir-plan snapshot capture`",
        )
    notes = {**second.labels, "note": f"the solver's plan broke invariant {found[0].invariant}"}
    return second.model_copy(update={"labels": notes})
