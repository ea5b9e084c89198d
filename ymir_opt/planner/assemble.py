"""From a selection to the plan: groups, one action a job, reasons, metrics, the proof."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates import Pool
from ymir_opt.domain.base import freeze
from ymir_opt.domain.plan import (
    Action,
    ActionKind,
    Candidates,
    EstimatesInfo,
    GapScope,
    Group,
    ObjectiveInfo,
    Plan,
    PlannerInfo,
    Prediction,
    Probe,
    Situation,
    SolverInfo,
    SolverStatus,
    StoppedBy,
)
from ymir_opt.domain.snapshot import Mode, Provenance, Snapshot, StartSource
from ymir_opt.explain.reasons import Question, explain_all
from ymir_opt.formulation.columns import MODES
from ymir_opt.formulation.instance import Instance, group_id
from ymir_opt.formulation.parameters import OBJECTIVE_NAME, OBJECTIVE_VERSION
from ymir_opt.planner.actions import action_of, situation_before
from ymir_opt.planner.metrics import metrics
from ymir_opt.planner.profiling import Reservation
from ymir_opt.planner.search import Round
from ymir_opt.planner.selection import Selection

__all__ = ["DECLARED", "Proof", "assemble", "placement_of"]

IntArray = NDArray[np.int64]

DECLARED = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


@dataclass(frozen=True)
class Proof:
    """How the selection was found and what is proven of it; ``bound`` in quanta.

    ``alternatives``: the plan also tells what else could be done with each job.
    """

    backend: str
    bound: int | None
    gap_target: float
    stopped_by: StoppedBy
    wall_s: float
    policy: str
    seed: int
    measured_only: bool
    merge: bool = True
    exact_types: frozenset[int] = frozenset()
    alternatives: bool = False


def placement_of(instance: Instance, gpus: IntArray) -> dict[str, tuple[int, ...]]:
    """Return GPU rows as ``{node id: (index, ...)}``, nodes in the snapshot's order."""
    out: dict[str, list[int]] = {}
    for row in sorted(gpus.tolist()):
        out.setdefault(instance.nodes[instance.gpu_node[row]].id, []).append(int(instance.gpu_index[row]))
    return {node: tuple(found) for node, found in out.items()}


def assemble(
    snapshot: Snapshot,
    digest: str,
    work: Round,
    pool: Pool,
    reservation: Reservation,
    selection: Selection,
    proof: Proof,
) -> Plan:
    """Return the plan of a selection."""
    instance = work.evaluator.instance
    groups = [_group(work, selection, i) for i in range(len(selection.columns))]
    order = sorted(range(len(groups)), key=lambda i: _rank(work, selection, i))
    groups = [groups[i] for i in order]
    columns = selection.columns[order]
    group_of = {j: (g, i) for i, g in enumerate(groups) for j in g.jobs}
    actions = []
    for j, job in enumerate(snapshot.jobs):
        found = group_of.get(job.id)
        kept = found is not None and work.table.keep[columns[found[1]]] >= 0
        before = situation_before(instance, j)
        if found is None and j in reservation.gpus:
            rows = reservation.gpus[j]
            to = Situation(
                group=None,
                gpu_type=instance.types[instance.gpu_type[rows[0]]],
                gpus=len(rows),
                placement=placement_of(instance, rows),
            )
            actions.append(Action(job=job.id, action=ActionKind.PROFILE, to=to))
            continue
        actions.append(
            action_of(
                instance,
                j,
                before,
                found[0] if found is not None else None,
                kept=kept,
                ahead=work.evaluator.parameters.prepare_ahead_s,
            )
        )
    question = Question(proof.bound, proof.merge, proof.exact_types) if proof.alternatives else None
    explained = explain_all(work, selection, reservation, groups, actions, question)
    solver = _solver(work, pool, selection, proof)
    return Plan(
        snapshot_sha256=digest,
        planner=_planner(work, proof),
        solver=solver.model_copy(update={"price_per_gpu_s": freeze(explained.prices)}),
        groups=tuple(groups),
        actions=tuple(actions),
        explanations=explained.jobs,
        metrics=metrics(work, selection, reservation),
    )


def _rank(work: Round, selection: Selection, i: int) -> tuple[float, str]:
    jobs = work.evaluator.instance.jobs
    members = [jobs[j] for j in work.table.jobs[selection.columns[i]] if j >= 0]
    return min((job.submitted_at_s, job.id) for job in members)


def _group(work: Round, selection: Selection, i: int) -> Group:
    instance, table = work.evaluator.instance, work.table
    c = int(selection.columns[i])
    members = [int(j) for j in table.jobs[c] if j >= 0]
    names = tuple(instance.jobs[j].id for j in members)
    mode = MODES[table.mode[c]]
    keep = int(table.keep[c])
    starts: dict[str, StartSource] = {}
    probe = None
    if keep >= 0:
        source = instance.running[keep].source
        if source is not None:
            starts = {name: s for name, s in source.starts_from.items() if name in names}
    else:
        for k, name in enumerate(names):
            adapter = int(table.start[c, k])
            if adapter >= 0:
                starts[name] = StartSource(adapter=instance.snapshot.adapters[adapter].id)
            elif mode is Mode.SEQUENCE and k > 0:
                starts[name] = StartSource(job=names[k - 1])
        probe = _probe(work, selection, i, len(members))
    models = {instance.jobs[j].foundation_model for j in members}
    return Group(
        id=instance.running[keep].id if keep >= 0 else group_id(mode, names),
        mode=mode,
        jobs=names,
        foundation_model=models.pop() if len(models) == 1 else None,
        gpu_type=instance.types[table.type[c]],
        gpus=int(table.gpus[c]),
        placement=placement_of(instance, selection.gpus[i]),
        starts_from=starts,
        probe=probe,
        predicted=_predictions(work, selection, i, members),
    )


def _probe(work: Round, selection: Selection, i: int, size: int) -> Probe | None:
    result, row = selection.evaluations[i]
    if not work.evaluator.parameters.probes or not result.work.transferred[row, :size].any():
        return None
    return Probe(
        evaluations=work.evaluator.parameters.probe_evaluations,
        rule="metric at each evaluation no worse than the predicted curve's 80 % limit",
        cost_s=float(result.probe_s[row, :size].max()),
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _predictions(work: Round, selection: Selection, i: int, members: list[int]) -> dict[str, Prediction]:
    instance, jobs = work.evaluator.instance, work.evaluator.jobs
    result, row = selection.evaluations[i]
    now = instance.snapshot.taken_at_s
    kept = work.table.keep[selection.columns[i]] >= 0
    out = {}
    for k, j in enumerate(members):
        finish = _finite(result.finish_s[row, k])
        guessed = bool(result.predicted[row] or result.work.predicted[row, k])
        rigid = bool(jobs.rigid[j])
        out[instance.jobs[j].id] = Prediction(
            samples_per_s=None if rigid else _finite(result.rate[row, k]),
            finish_at_s=None if finish is None else now + finish,
            work_ratio=None if kept or rigid else _finite(result.work.ratio[row, k]),
            low=None if rigid else _finite(result.work.low[row, k]),
            high=None if rigid else _finite(result.work.high[row, k]),
            source=Provenance.PREDICTED if guessed else Provenance.MEASURED,
        )
    return out


@cache
def own_version() -> str:
    """Return the version of this package; reading it takes a while."""
    return version("ymir-opt")


def _planner(work: Round, proof: Proof) -> PlannerInfo:
    predictor = work.evaluator.estimates.predictor
    estimates = EstimatesInfo(
        name="measured" if proof.measured_only else "snapshot", version=work.evaluator.estimates.version
    )
    if predictor is not None:
        estimates = EstimatesInfo(
            name=predictor.name, version=predictor.version, sha256=getattr(predictor, "sha256", None)
        )
    return PlannerInfo(
        version=own_version(),
        policy=proof.policy,
        seed=proof.seed,
        objective=ObjectiveInfo(
            name=OBJECTIVE_NAME,
            version=OBJECTIVE_VERSION,
            parameters=work.evaluator.parameters.as_dict(),
        ),
        estimates=estimates,
        declares=DECLARED,
    )


def _solver(work: Round, pool: Pool, selection: Selection, proof: Proof) -> SolverInfo:
    quantum = work.table.quantum
    objective = selection.objective
    # a bound above a verified plan proves nothing; the planner says so in the plan's labels
    bound = None if proof.bound is None or proof.bound > objective else proof.bound
    queue_all = int(work.table.queued_cost.sum())
    gap = value_gap = None
    if bound is not None:
        gap = value_gap = 0.0
        if bound < objective:
            gap = (objective - bound) / max(abs(objective), 1e-12)
            value_gap = (objective - bound) / (queue_all - bound) if queue_all > bound else 1.0
    proven = value_gap is not None and value_gap <= proof.gap_target and not pool.cut
    stopped = proof.stopped_by
    if proven and stopped in (StoppedBy.OPTIMALITY, StoppedBy.GAP):
        stopped = StoppedBy.OPTIMALITY if bound == objective else StoppedBy.GAP
    dropped_rows = len(pool.table) - len(work.table)
    counts = np.bincount(work.table.mode, minlength=len(MODES))
    return SolverInfo(
        backend=proof.backend,
        status=SolverStatus.OPTIMAL if proven else SolverStatus.FEASIBLE,
        objective=objective * quantum,
        bound=None if bound is None else bound * quantum,
        gap=gap,
        value_gap=value_gap,
        gap_scope=GapScope.GLOBAL if pool.exhaustive else GapScope.POOL,
        wall_s=proof.wall_s,
        stopped_by=stopped,
        objective_terms=selection.terms,
        candidates=Candidates(
            columns=len(work.table),
            generated=pool.generated,
            dominated=pool.dominated + dropped_rows,
            heuristically_pruned=pool.dropped,
            exhaustive=pool.exhaustive,
            by_mode={mode.value: int(counts[i]) for i, mode in enumerate(MODES)},
        ),
    )
