"""The plan: who runs where, who waits and why, and how far from the best it can be.

Schema ``ymir.plan/1``. Objective, bound and gaps are null where a policy has none; a bound
that is unknown is null, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from ymir_opt.domain.base import (
    Count,
    FreeLabels,
    FrozenDict,
    Id,
    Model,
    NonNegative,
    Placement,
    Text,
    freeze,
)
from ymir_opt.domain.snapshot import Mode, Provenance, Starts

__all__ = [
    "ACTION_PRECEDENCE",
    "PLAN_SCHEMA",
    "Action",
    "ActionKind",
    "Alternative",
    "Candidates",
    "Decision",
    "DeltaKind",
    "EstimatesInfo",
    "Explanation",
    "Fairness",
    "GapScope",
    "Group",
    "Metrics",
    "ObjectiveDelta",
    "ObjectiveInfo",
    "Plan",
    "PlannerInfo",
    "Prediction",
    "Probe",
    "Reason",
    "Situation",
    "SolverInfo",
    "SolverStatus",
    "StoppedBy",
]

PLAN_SCHEMA: Final = "ymir.plan/1"
_EMPTY: FrozenDict = FrozenDict()


Tally = Annotated[int, Field(ge=0)]


class ActionKind(StrEnum):
    """What happens to a job; one a job, the first that fits in this order."""

    PREEMPT = "preempt"
    SPLIT = "split"
    MERGE = "merge"
    MIGRATE = "migrate"
    RESIZE = "resize"
    START = "start"
    PROFILE = "profile"
    KEEP = "keep"
    WAIT = "wait"


ACTION_PRECEDENCE = tuple(ActionKind)


class Reason(StrEnum):
    """Why a job is where it is: the tokens of Kueue and Slurm where one exists."""

    CHOSEN = "Chosen"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    INSUFFICIENT_GPUS = "InsufficientGPUs"
    TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"
    NO_FEASIBLE_GPU_TYPE = "NoFeasibleGPUType"
    MEMORY_EXCEEDS_GPU = "MemoryExceedsGPU"
    SHARING_DISABLED = "SharingDisabled"
    NEGATIVE_TRANSFER = "NegativeTransfer"
    UNCERTAIN_TRANSFER = "UncertainTransfer"
    REJECTED_MERGE = "RejectedMerge"
    LOWER_PRIORITY = "LowerPriority"
    SWITCH_COST_EXCEEDS_GAIN = "SwitchCostExceedsGain"
    DEADLINE_UNREACHABLE = "DeadlineUnreachable"
    UNKNOWN_THROUGHPUT = "UnknownThroughput"
    NODE_UNAVAILABLE = "NodeUnavailable"
    MIN_RUNTIME_PROTECTED = "MinRuntimeProtected"
    BACK_OFF = "BackOff"


class SolverStatus(StrEnum):
    """``optimal``: proven within the gap target; ``feasible``: verified, gap as stated."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


class GapScope(StrEnum):
    """What the bound is proven against: the enumerated columns, or all groups of at most four."""

    POOL = "pool"
    GLOBAL = "global"


class StoppedBy(StrEnum):
    """What ended the solve."""

    OPTIMALITY = "optimality"
    GAP = "gap"
    NODE_LIMIT = "node_limit"
    ITERATION_LIMIT = "iteration_limit"
    DETERMINISTIC_LIMIT = "deterministic_limit"
    WALL_CLOCK = "wall_clock"
    HEURISTIC = "heuristic"
    POLICY = "policy"


class DeltaKind(StrEnum):
    """Whether an alternative's loss was found by re-solving or bounded by reduced costs."""

    EXACT = "exact"
    LOWER_BOUND = "lower_bound"


class ObjectiveInfo(Model):
    """The objective's name, version and every constant in it."""

    name: Text
    version: int
    parameters: Annotated[Mapping[str, Any], AfterValidator(freeze)] = _EMPTY


class EstimatesInfo(Model):
    """Where the estimates came from."""

    name: Text
    version: Text
    sha256: Text | None = None


class PlannerInfo(Model):
    """Who made the plan, with which policy, seed, objective and estimates."""

    name: Text = "ymir-opt"
    version: Text
    policy: Text
    seed: int = 0
    objective: ObjectiveInfo | None = None
    estimates: EstimatesInfo | None = None
    declares: tuple[int, ...] = (1, 2, 3, 4, 5)


class Candidates(Model):
    """How many columns were considered, and how many were dropped with and without a guarantee."""

    columns: Tally = 0
    generated: Tally = 0
    dominated: Tally = 0
    heuristically_pruned: Tally = 0
    exhaustive: bool = False
    by_mode: Annotated[Mapping[str, Tally], AfterValidator(freeze)] = _EMPTY


class SolverInfo(Model):
    """What the solver proved."""

    backend: Text
    status: SolverStatus
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None
    value_gap: float | None = None
    gap_scope: GapScope = GapScope.POOL
    wall_s: NonNegative = 0.0
    stopped_by: StoppedBy = StoppedBy.OPTIMALITY
    objective_terms: Annotated[Mapping[str, float], AfterValidator(freeze)] = _EMPTY
    price_per_gpu_s: Annotated[Mapping[str, float], AfterValidator(freeze)] = _EMPTY
    candidates: Candidates = Candidates()


class Probe(Model):
    """How a merge must prove itself, and what a failure costs."""

    evaluations: Count
    rule: Text
    on_fail: Literal["split"] = "split"
    cost_s: NonNegative


class Prediction(Model):
    """A member's speed, finish and work; ``low``/``high`` are 80 % limits of the work in samples."""

    samples_per_s: float | None = None
    finish_at_s: float | None = None
    work_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    source: Provenance = Provenance.MEASURED


Predictions = Annotated[Mapping[Id, Prediction], AfterValidator(freeze)]


class Group(Model):
    """Jobs on the same GPUs."""

    id: Id
    mode: Mode
    jobs: Annotated[tuple[Id, ...], Field(min_length=1)]
    foundation_model: Id | None = None
    gpu_type: Id
    gpus: Count
    placement: Placement
    starts_from: Starts = _EMPTY
    probe: Probe | None = None
    predicted: Predictions = _EMPTY


class Situation(Model):
    """Where a job is: its group, GPU type, count and placement."""

    group: Id | None = None
    gpu_type: Id
    gpus: Count
    placement: Placement


class Action(Model):
    """What happens to one job."""

    job: Id
    action: ActionKind
    from_: Annotated[Situation | None, Field(alias="from")] = None
    to: Situation | None = None
    prepare_ahead_s: NonNegative | None = None


class ObjectiveDelta(Model):
    """The loss in objective of an alternative."""

    value: float
    kind: DeltaKind


class Alternative(Model):
    """An option that was not chosen, and why."""

    option: Text
    why_not: Text
    reason: Reason | None = None
    objective_delta: ObjectiveDelta | None = None


class Decision(StrEnum):
    """What the explanation explains; the same words as the actions."""

    PREEMPT = "preempt"
    SPLIT = "split"
    MERGE = "merge"
    MIGRATE = "migrate"
    RESIZE = "resize"
    START = "start"
    PROFILE = "profile"
    KEEP = "keep"
    WAIT = "wait"


class Explanation(Model):
    """Why a job is where it is."""

    decision: Decision
    reason: Reason
    message: Text
    alternatives: tuple[Alternative, ...] = ()


class Fairness(Model):
    """Finish-time fairness (largest rho) and Jain's index over rho."""

    max_rho: float | None = None
    jain: float | None = None


class Metrics(Model):
    """What the plan uses and predicts."""

    gpus_used: Count = 0
    gpus_total: Count = 0
    predicted_mean_finish_at_s: float | None = None
    fairness: Fairness = Fairness()
    fragmentation: float | None = None


class Plan(Model):
    """One round's plan, bound to the snapshot it was made for by its hash."""

    schema_: Annotated[Literal["ymir.plan/1"], Field(alias="schema")] = PLAN_SCHEMA
    snapshot_sha256: Text
    planner: PlannerInfo
    solver: SolverInfo
    groups: tuple[Group, ...] = ()
    actions: tuple[Action, ...] = ()
    explanations: Annotated[Mapping[Id, Explanation], AfterValidator(freeze)] = _EMPTY
    metrics: Metrics = Metrics()
    labels: FreeLabels = _EMPTY
