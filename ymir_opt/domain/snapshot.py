"""The snapshot: everything that the planner may know about one moment of a cluster.

Schema ``ymir.snapshot/1``. Field names carry their unit (``_s`` seconds, ``_gib`` GiB);
times are seconds on the clock of ``taken_at_s``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from ymir_opt.domain.base import (
    MIN_POSITIVE,
    Count,
    FreeLabels,
    FrozenDict,
    Id,
    Labels,
    Model,
    NonNegative,
    Placement,
    Positive,
    PositiveCount,
    Real,
    Text,
    freeze,
)

__all__ = [
    "PROFILE_ROWS",
    "SNAPSHOT_SCHEMA",
    "BackboneRow",
    "Cluster",
    "ColocationMember",
    "ColocationRow",
    "CompletedAdapter",
    "Job",
    "JobState",
    "Mode",
    "Node",
    "NodeState",
    "Parallelism",
    "ProbeState",
    "Profiles",
    "Provenance",
    "Queue",
    "Quota",
    "Reclaim",
    "RejectedMerge",
    "RunningGroup",
    "Sharing",
    "Snapshot",
    "StartSource",
    "Starts",
    "SwitchRow",
    "Target",
    "ThroughputRow",
    "TransferMode",
    "TransferRow",
    "Workers",
]

SNAPSHOT_SCHEMA: Final = "ymir.snapshot/1"
_NO_LABELS: FrozenDict = FrozenDict()


class NodeState(StrEnum):
    """``draining`` keeps what runs and starts nothing; ``down`` holds nothing."""

    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"


class Reclaim(StrEnum):
    """From whom a queue below its nominal quota may take GPUs within its cohort."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    ANY = "Any"


class Sharing(StrEnum):
    """What a job allows others to share with it (levels include the ones before)."""

    NONE = "none"
    BACKBONE = "backbone"
    TENANT = "tenant"
    ALL = "all"


class Parallelism(StrEnum):
    """``data`` runs at any count; ``pipeline`` takes whole nodes."""

    DATA = "data"
    PIPELINE = "pipeline"


class JobState(StrEnum):
    """Whether the job holds GPUs at ``taken_at_s``."""

    PENDING = "pending"
    RUNNING = "running"


class Mode(StrEnum):
    """How the members of a group share their GPUs."""

    SOLO = "solo"
    GPU_SHARE = "gpu_share"
    COLOCATE = "colocate"
    JOINT = "joint"
    SEQUENCE = "sequence"


class TransferMode(StrEnum):
    """``warm_start``: the target starts from the source's weights; ``joint``: trained together."""

    WARM_START = "warm_start"
    JOINT = "joint"


class Provenance(StrEnum):
    """Whether a figure was measured or predicted by a fitted model."""

    MEASURED = "measured"
    PREDICTED = "predicted"


class Node(Model):
    """One machine with GPUs of one type."""

    id: Id
    gpu_type: Id
    gpus: Count
    gpu_memory_gib: NonNegative
    state: NodeState = NodeState.READY
    unavailable_gpus: tuple[Count, ...] = ()
    external_used_gib: tuple[NonNegative, ...] = ()
    resident_fm: tuple[Id | None, ...] = ()
    cpus: NonNegative | None = None
    host_memory_gib: NonNegative | None = None
    rack: Id | None = None
    labels: FreeLabels = _NO_LABELS


class Cluster(Model):
    """The nodes."""

    nodes: tuple[Node, ...] = ()


class Quota(Model):
    """A queue's GPUs of one type; ``*`` pools every type that has no row of its own."""

    gpu_type: Id
    nominal_gpus: NonNegative
    borrowing_limit_gpus: NonNegative | None = None
    lending_limit_gpus: NonNegative | None = None


class Queue(Model):
    """A queue: Kueue's ClusterQueue, Slurm's account or QOS."""

    name: Id
    cohort: Id | None = None
    weight: Positive = 1.0
    reclaim_within_cohort: Reclaim = Reclaim.ANY
    quotas: tuple[Quota, ...] = ()


class Target(Model):
    """What ends the job: a metric's value, or a maximum of samples."""

    metric: Text | None = None
    value: Real | None = None
    max_samples: NonNegative | None = None


class Workers(Model):
    """A gang of ``count`` workers with ``gpus_each`` GPUs on one node each; it may spread."""

    count: PositiveCount
    gpus_each: PositiveCount


class Job(Model):
    """One fine-tuning job (or rigid job, without model and task)."""

    id: Id
    queue: Id = "default"
    tenant: Id | None = None
    submitted_at_s: Real
    priority: Annotated[int, Field(ge=-(2**31), le=2**31)] = 0
    weight: Annotated[float, Field(ge=MIN_POSITIVE, le=1e9)] = 1.0
    deadline_s: Real | None = None
    foundation_model: Id | None = None
    task: Id | None = None
    peft_type: Id | None = None
    config: Text = ""
    hyperparameters_sha256: Text | None = None
    parallelism: Parallelism = Parallelism.DATA
    target: Target | None = None
    batch_size: Annotated[int, Field(ge=1, le=10**9)] | None = None
    done_samples: NonNegative = 0.0
    last_checkpoint_samples: NonNegative | None = None
    remaining_samples: NonNegative | None = None
    remaining_samples_low: NonNegative | None = None
    remaining_samples_high: NonNegative | None = None
    remaining_s: NonNegative | None = None
    requested_gpus: PositiveCount | None = None
    min_gpus: PositiveCount | None = None
    max_gpus: Count | None = None
    gpu_counts: tuple[PositiveCount, ...] | None = None
    gpu_types: tuple[Id, ...] | None = None
    workers: Workers | None = None
    memory_gib: NonNegative | None = None
    node_selector: Labels = _NO_LABELS
    cpus_per_gpu: NonNegative | None = None
    host_memory_gib: NonNegative | None = None
    time_limit_s: Positive | None = None
    sharing: Sharing = Sharing.TENANT
    movable: bool = True
    min_runtime_s: NonNegative = 0.0
    not_before_s: Real | None = None
    failed_starts: Count = 0
    state: JobState = JobState.PENDING
    first_start_s: Real | None = None
    running_s: NonNegative = 0.0
    attained_gpu_s: NonNegative = 0.0
    restarts: Count = 0
    preemptions: Count = 0
    samples_at_last_start: NonNegative | None = None
    allocation: Placement | None = None
    last_start_s: Real | None = None
    labels: FreeLabels = _NO_LABELS


class ProbeState(Model):
    """A running merge that must prove itself, or has."""

    state: Literal["running", "passed"]
    evaluations_left: Count = 0


class StartSource(Model):
    """The weights that a job starts from: a completed adapter's or an unfinished job's."""

    adapter: Id | None = None
    job: Id | None = None


Starts = Annotated[Mapping[Id, StartSource], AfterValidator(freeze)]


class RunningGroup(Model):
    """A group that runs at ``taken_at_s``; for a sequence only the first member holds GPUs."""

    id: Id
    mode: Mode
    jobs: Annotated[tuple[Id, ...], Field(min_length=1, max_length=64)]
    starts_from: Starts = _NO_LABELS
    started_at_s: Real | None = None
    probe: ProbeState | None = None


class RejectedMerge(Model):
    """A merge that was tried and did not help; not proposed again by the same estimator."""

    jobs: Annotated[tuple[Id, ...], Field(min_length=1, max_length=64)]
    mode: Mode
    at_s: Real | None = None
    realised_gain: Real | None = None
    estimator_version: Text | None = None


class CompletedAdapter(Model):
    """Completed work that a job may start from."""

    id: Id
    foundation_model: Id
    task: Id
    tenant: Id | None = None
    sharing: Sharing = Sharing.TENANT
    metric: Real | None = None
    memory_gib: NonNegative | None = None


class ThroughputRow(Model):
    """Samples per second of one configuration on ``gpus`` GPUs at a global batch size."""

    foundation_model: Id
    peft_type: Id | None = None
    config: Text = ""
    gpu_type: Id
    gpus: PositiveCount
    batch_size: Annotated[int, Field(ge=1, le=10**9)]
    samples_per_s: NonNegative
    memory_gib: NonNegative | None = None
    nodes: PositiveCount | None = None
    source: Provenance = Provenance.MEASURED


class SwitchRow(Model):
    """Seconds from a start to the first step: with a cold and with a warm backbone."""

    foundation_model: Id
    gpu_type: Id
    cold_s: NonNegative
    warm_s: NonNegative
    source: Provenance = Provenance.MEASURED


class BackboneRow(Model):
    """GPU memory that one copy of the frozen foundation model takes."""

    foundation_model: Id
    gib: NonNegative
    source: Provenance = Provenance.MEASURED


class TransferRow(Model):
    """Work (samples to target) of ``target`` with the source, over its work alone.

    ``source`` names a task or an adapter, for ``joint`` the list of the other members' tasks;
    ``provenance`` says what ``source`` says on other rows.
    """

    mode: TransferMode
    foundation_model: Id
    source: Id | tuple[Id, ...]
    target: Id
    work_ratio: Positive
    low: Positive | None = None
    high: Positive | None = None
    p_benefit: Annotated[float, Field(ge=0, le=1)] | None = None
    matched_hyperparameters: bool | None = None
    provenance: Provenance = Provenance.MEASURED


class ColocationMember(Model):
    """The throughput key of one member of a measured group."""

    foundation_model: Id
    peft_type: Id | None = None
    config: Text = ""
    batch_size: Annotated[int, Field(ge=1, le=10**9)]
    task: Id | None = None


class ColocationRow(Model):
    """Speed of the members when they share GPUs, each over its speed alone on the same GPUs."""

    mode: Literal[Mode.GPU_SHARE, Mode.COLOCATE]
    gpu_type: Id
    gpus: PositiveCount
    members: Annotated[tuple[ColocationMember, ...], Field(min_length=2, max_length=64)]
    speed_ratio: tuple[NonNegative, ...]
    memory_gib: NonNegative | None = None
    source: Provenance = Provenance.MEASURED


class Profiles(Model):
    """What is measured or predicted about speed, memory, switching and transfer."""

    throughput: tuple[ThroughputRow, ...] = ()
    switch_s: tuple[SwitchRow, ...] = ()
    backbone_gib: tuple[BackboneRow, ...] = ()
    transfer: tuple[TransferRow, ...] = ()
    colocation: tuple[ColocationRow, ...] = ()


PROFILE_ROWS: Final[Mapping[str, type[Model]]] = {
    "throughput": ThroughputRow,
    "switch_s": SwitchRow,
    "backbone_gib": BackboneRow,
    "transfer": TransferRow,
    "colocation": ColocationRow,
}
"""The kind of row in each table of `Profiles`."""


class Snapshot(Model):
    """One moment of a cluster: nodes, queues, jobs, what runs, and the profiles."""

    schema_: Annotated[Literal["ymir.snapshot/1"], Field(alias="schema")] = SNAPSHOT_SCHEMA
    taken_at_s: Real
    round_s: Positive = 120.0
    cluster: Cluster = Cluster()
    queues: tuple[Queue, ...] = ()
    jobs: tuple[Job, ...] = ()
    groups: tuple[RunningGroup, ...] = ()
    rejected_merges: tuple[RejectedMerge, ...] = ()
    adapters: tuple[CompletedAdapter, ...] = ()
    profiles: Profiles = Profiles()
    labels: FreeLabels = _NO_LABELS
