"""A columnar policy's plan for one snapshot: the baselines behind ``solve`` and ``what-if``.

The policy sees the snapshot as a view and says what should run. What it cannot know (quotas, node
selectors, memory, priority classes, placement) is enforced afterwards: of the columns that it wants, as many
as possible are chosen, the first in its order counting most, within the rows that every plan obeys. Jobs that
must go on as they run, and running groups of more than one job, are kept and hidden from it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.generate import Generator, Pool
from ymir_opt.domain.base import freeze
from ymir_opt.domain.documents import snapshot_sha256
from ymir_opt.domain.errors import InputError, SolverError
from ymir_opt.domain.plan import (
    Decision as Explained,
)
from ymir_opt.domain.plan import (
    Explanation,
    Plan,
    Reason,
    SolverStatus,
    StoppedBy,
)
from ymir_opt.domain.snapshot import Mode, Snapshot
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.columns import concatenate
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.model import RoundModel
from ymir_opt.formulation.parameters import Parameters
from ymir_opt.formulation.quota import QuotaTable
from ymir_opt.planner.assemble import Proof, assemble
from ymir_opt.planner.profiling import Reservation, reserve
from ymir_opt.planner.search import Round, search
from ymir_opt.planner.selection import Selection, settle
from ymir_opt.policies.view import (
    RIGID,
    Decision,
    JobColumns,
    SnapshotView,
    SpeedTable,
    TransferTable,
)
from ymir_opt.solvers import registry
from ymir_opt.solvers.base import Limits, SolveResult

__all__ = ["plan_by", "view_of_snapshot"]

IntArray = NDArray[np.int64]

DECLARED = (1, 2, 3, 4, 5)
WORK = 10.0
# reasons of a job that no policy could have started
HARD = {
    Reason.EXCEEDS_MAX_QUOTA,
    Reason.NO_FEASIBLE_GPU_TYPE,
    Reason.MEMORY_EXCEEDS_GPU,
    Reason.UNKNOWN_THROUGHPUT,
    Reason.NODE_UNAVAILABLE,
    Reason.MIN_RUNTIME_PROTECTED,
    Reason.BACK_OFF,
}


def plan_by(policy: Any, snapshot: Snapshot, previous: Plan | None = None) -> Plan:
    """Return the plan of a columnar policy for a snapshot.

    Parameters
    ----------
    policy : object
        Has ``decide(view) -> Decision``; one with ``plan`` is asked directly.
    snapshot : Snapshot
    previous : Plan, optional

    Returns
    -------
    Plan
        Without objective, bound and gaps: the policy has none. It declares the invariants 1 to 5.

    Raises
    ------
    InputError
        The policy's decision is of the wrong shape or merges jobs, which has no columns here.
    SolverError
        Nothing feasible was found.
    """
    if hasattr(policy, "plan"):
        plan: Plan = policy.plan(snapshot, previous)
        return plan
    began = time.perf_counter()
    name = getattr(policy, "name", type(policy).__name__)
    evaluator = Evaluator(Instance.of(snapshot), Estimates(snapshot), Parameters())
    quotas = QuotaTable(evaluator.instance)
    reservation = reserve(evaluator, quotas, previous)
    work = _round(evaluator, quotas, reservation)
    view, jobs = view_of_snapshot(evaluator, reservation)
    decision: Decision = policy.decide(view)
    if decision.gpus.shape != (len(view),):
        raise InputError(f"policy {name}", f"gives {decision.gpus.shape} counts", f"give {len(view)}")
    if decision.groups:
        raise InputError(f"policy {name}", "merges jobs", "plan with ymir, or use it in simulations only")
    selection = _select(work, _wanted(work, view, jobs, decision))
    proof = Proof(
        backend="policy",
        bound=None,
        gap_target=0.0,
        stopped_by=StoppedBy.POLICY,
        wall_s=0.0,
        policy=name,
        seed=0,
        measured_only=False,
        merge=False,
    )
    pool = Pool(work.table, len(work.table), 0, 0)
    plan = assemble(snapshot, snapshot_sha256(snapshot), work, pool, reservation, selection, proof)
    return _as_of_policy(plan, name, time.perf_counter() - began)


def _round(evaluator: Evaluator, quotas: QuotaTable, reservation: Reservation) -> Round:
    """Return every allowed solo column, also those that our objective would never choose, and the keeps."""
    generator = Generator(evaluator, merge=False)
    alone = np.flatnonzero(evaluator.jobs.startable).reshape(-1, 1)
    table = concatenate([generator.expander.keeps(), generator.expander.expand(Mode.SOLO, alone)])
    table = table.take(np.flatnonzero(quotas.allowed(table) & (table.start < 0).all(axis=1)))
    return Round(evaluator, table, quotas, reservation.available, reservation.charged)


def view_of_snapshot(evaluator: Evaluator, reservation: Reservation) -> tuple[SnapshotView, IntArray]:
    """Return what a columnar policy sees of a snapshot, and the job row of each of its rows.

    Hidden are jobs that must go on as they run, members of running groups of more than one, jobs without a
    known speed and jobs that are profiled this round; their GPUs are not among the nodes' GPUs.
    """
    instance, table = evaluator.instance, evaluator.jobs
    hidden = np.zeros(len(instance.jobs), dtype=np.bool_)
    kept_gpus = np.zeros(len(instance.gpu_node), dtype=np.bool_)
    for group in instance.running:
        solo = group.mode is Mode.SOLO and len(group.members) == 1
        stays = group.keepable and (not solo or evaluator.pinned[list(group.holders)].any())
        draining = not instance.gpu_ready[group.gpus].all()
        if stays or (group.keepable and draining):
            hidden[list(group.members)] = True
            kept_gpus[group.gpus] = True
    hidden |= ~table.known
    hidden[list(reservation.gpus)] = True
    usable = instance.gpu_ready & ~kept_gpus
    for rows in reservation.gpus.values():
        usable[rows] = False
    jobs = np.flatnonzero(~hidden)
    number = len(instance.nodes)
    free = usable & (instance.gpu_held < 0)
    for r, group in enumerate(instance.running):
        # what nobody can keep is free for the policy
        if not group.keepable:
            free |= usable & (instance.gpu_held == r)
    nodes = {
        "node_id": tuple(node.id for node in instance.nodes),
        "node_type": instance.node_type,
        "node_gpus": np.bincount(instance.gpu_node[usable], minlength=number).astype(np.int64),
        "node_free": np.bincount(instance.gpu_node[free], minlength=number).astype(np.int64),
        "node_ready": np.bincount(instance.gpu_node[usable], minlength=number) > 0,
    }
    columns = _columns(evaluator, jobs)
    view = SnapshotView(
        instance.snapshot.taken_at_s,
        columns,
        np.arange(len(jobs), dtype=np.int64),
        _speeds(evaluator),
        TransferTable(),
        nodes,
        queues=tuple(dict.fromkeys(job.queue for job in instance.jobs)) or ("default",),
        quotas=instance.snapshot.queues,
    )
    return view, jobs


def _speeds(evaluator: Evaluator) -> SpeedTable:
    """Return the speeds by (throughput key, batch) as the planner knows them."""
    instance, table = evaluator.instance, evaluator.jobs
    counts = int(table.max.max(initial=1))
    shape = (len(table.speeds), len(instance.types), counts + 1)
    rate, memory = np.zeros(shape), np.full(shape, np.nan)
    for k, speed in enumerate(table.speeds):
        for t in range(shape[1]):
            size = min(counts + 1, len(speed.rate[t]))
            rate[k, t, :size] = np.nan_to_num(speed.rate[t][:size], nan=0.0)
            memory[k, t, :size] = speed.memory[t][:size]
    seconds = np.divide(1.0, rate, out=np.full(shape, np.inf), where=rate > 0)
    start = np.zeros(shape[:2])
    for j, k in enumerate(table.profile.tolist()):
        start[k] = np.nan_to_num(table.cold[j], nan=0.0)
    largest = np.array([float(levels.max(initial=0.0)) for levels in instance.levels])
    names = tuple((f"profile {k}", 0) for k in range(shape[0]))
    return SpeedTable(instance.types, names, rate, seconds, start, start, memory, largest)


def _columns(evaluator: Evaluator, rows: IntArray) -> JobColumns:
    instance, table = evaluator.instance, evaluator.jobs
    columns = JobColumns(max(1, len(rows)))
    queues = {name: i for i, name in enumerate(dict.fromkeys(job.queue for job in instance.jobs))}
    for slot, j in enumerate(rows.tolist()):
        job = instance.jobs[j]
        running = int(instance.running_of[j])
        group = instance.running[running] if running >= 0 and instance.running[running].keepable else None
        left = float(table.own_work[j])
        columns.ids[slot] = job.id
        for name, value in (
            ("serial", j),
            ("submitted_at_s", job.submitted_at_s),
            ("weight", job.weight),
            ("deadline_s", np.inf if job.deadline_s is None else job.deadline_s),
            ("not_before_s", -np.inf if job.not_before_s is None else job.not_before_s),
            ("min_runtime_s", job.min_runtime_s),
            ("estimated_total", left + job.done_samples),
            ("done", job.done_samples),
            ("remaining", left),
            ("productive_s", job.running_s),
            ("attained_gpu_s", job.attained_gpu_s),
            ("held_gpu_s", job.attained_gpu_s),
            ("first_start_s", np.nan if job.first_start_s is None else job.first_start_s),
            ("last_start_s", np.nan if job.last_start_s is None else job.last_start_s),
            ("requested_gpus", int(table.requested[j])),
            ("min_gpus", int(table.min[j])),
            ("max_gpus", int(table.max[j])),
            ("key", RIGID if table.rigid[j] else int(table.profile[j])),
            ("kind", -1),
            ("priority", job.priority),
            ("queue", queues[job.queue]),
            ("type_mask", sum(1 << t for t, ok in enumerate(table.allowed_types[table.profile[j]]) if ok)),
            ("gpus", 0 if group is None else len(group.gpus)),
            ("gpu_type", -1 if group is None else group.type),
            ("group", -1),
            ("restarts", job.restarts),
            ("preemptions", job.preemptions),
            ("failed_starts", job.failed_starts),
            ("movable", job.movable),
            ("sharing", 0),
        ):
            columns.data[name][slot] = value
    return columns


def _wanted(work: Round, view: SnapshotView, jobs: IntArray, decision: Decision) -> list[int]:
    """Return the columns that the policy wants, in its order; kept ones and hidden jobs' first."""
    table = work.table
    keep_of = {int(table.jobs[c, 0]): int(c) for c in np.flatnonzero(table.keep >= 0)}
    options: dict[tuple[int, int], list[int]] = {}
    for c in np.flatnonzero(table.keep < 0).tolist():
        options.setdefault((int(table.jobs[c, 0]), int(table.gpus[c])), []).append(c)
    row_of = {int(j): row for row, j in enumerate(jobs)}
    kept, started = [], []
    for j, c in keep_of.items():
        row = row_of.get(j)
        if row is None or _stays(view, decision, row):
            kept.append(c)
    order = range(len(view)) if decision.order is None else decision.order.tolist()
    for row in dict.fromkeys([*order, *range(len(view))]):
        count = int(decision.gpus[row])
        if not count or (view.gpus[row] and _stays(view, decision, row)):
            continue
        kind = -1 if decision.gpu_type is None else int(decision.gpu_type[row])
        found = options.get((int(jobs[row]), count), [])
        started += [c for c in found if kind in (-1, table.type[c])]
    return [*kept, *started]


def _stays(view: SnapshotView, decision: Decision, row: int) -> bool:
    same = decision.gpus[row] == view.gpus[row]
    if decision.gpu_type is not None and decision.gpu_type[row] >= 0:
        same = same and decision.gpu_type[row] == view.gpu_type[row]
    return bool(same and row not in decision.moved)


def _select(work: Round, wanted: list[int]) -> Selection:
    """Return as many of the wanted columns as fit, the first counting most."""
    others = np.setdiff1d(np.flatnonzero(work.table.keep >= 0), wanted)
    columns = np.concatenate([np.array(wanted, dtype=np.int64), others])
    table = work.table.take(columns)
    # the first outweighs the next few, so that order matters where not all fit
    worth = np.maximum(1, 2 * len(columns) - np.arange(len(columns))) * 1000
    worth[table.keep >= 0] += 2000 * (len(columns) + 1)
    # the rows must know of what runs, but the policy does not want it to go on
    worth[len(wanted) :] = -1
    present = table.jobs >= 0
    queued: IntArray = np.full(len(table.queued_cost), 4000 * (len(columns) + 2), dtype=np.int64)
    cost = np.where(present, queued[np.where(present, table.jobs, 0)], 0).sum(axis=1) - worth
    preferring = replace(table, cost=cost.astype(np.int64), queued_cost=queued)
    backend = registry.get("highs")

    def run(stated: RoundModel) -> SolveResult:
        return backend.solve(stated.model, limits=Limits(gap_quanta=0, work=WORK, wall_s=None), seed=0)

    narrowed = replace(work, table=preferring)
    found = search(narrowed, run).selection
    if found is None:
        keeps = np.flatnonzero(table.keep[: len(wanted)] >= 0)
        found, _ = narrowed.locate(keeps)
        if found is None:
            raise SolverError("policy", "nothing that it wants can be placed", "report it")
    return settle(work.evaluator, work.table, columns[found.columns], found.gpus)


def _as_of_policy(plan: Plan, name: str, wall_s: float) -> Plan:
    """Take out what only our objective knows, and say whose plan it is."""
    explanations = {}
    for job, found in plan.explanations.items():
        if found.decision in (Explained.WAIT, Explained.PREEMPT) and found.reason not in HARD:
            explanations[job] = Explanation(
                decision=found.decision,
                reason=Reason.INSUFFICIENT_GPUS,
                message=f"{name} gives the GPUs to other jobs",
            )
        else:
            explanations[job] = found.model_copy(update={"alternatives": ()})
    solver = plan.solver.model_copy(
        update={
            "status": SolverStatus.FEASIBLE,
            "objective": None,
            "bound": None,
            "gap": None,
            "value_gap": None,
            "stopped_by": StoppedBy.POLICY,
            "objective_terms": freeze({}),
            "wall_s": wall_s,
        }
    )
    planner = plan.planner.model_copy(update={"declares": DECLARED, "objective": None})
    return plan.model_copy(
        update={"planner": planner, "solver": solver, "explanations": freeze(explanations)}
    )
