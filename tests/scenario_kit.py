"""Short builders for scenario tests: nodes, jobs that take a known time, and what a plan does with them."""

from __future__ import annotations

from typing import Any

from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import (
    Cluster,
    ColocationMember,
    ColocationRow,
    Job,
    JobState,
    Mode,
    Node,
    Profiles,
    Queue,
    Quota,
    RunningGroup,
    Sharing,
    Snapshot,
    SwitchRow,
    ThroughputRow,
    TransferMode,
    TransferRow,
)
from ymir_opt.domain.validate import validate

NOW = 100_000.0
FM = "fm"
RATE = 100.0
COUNTS = (1, 2, 3, 4, 5, 8, 16, 25, 32)


def node(name: str, gpus: int = 8, gpu_type: str = "A100", **fields: Any) -> Node:
    """Return a node of 40 GiB GPUs."""
    return Node(id=name, gpu_type=gpu_type, gpus=gpus, gpu_memory_gib=fields.pop("memory", 40.0), **fields)


def job(name: str, gpus: int = 1, hours: float = 1.0, **fields: Any) -> Job:
    """Return a job that takes ``hours`` on its ``gpus`` GPUs (linear speed-up, 100 samples/s a GPU)."""
    defaults: dict[str, Any] = {
        "submitted_at_s": NOW - 600.0,
        "foundation_model": FM,
        "task": name,
        "peft_type": "LORA",
        "batch_size": 32,
        "remaining_samples": hours * 3600.0 * RATE * gpus,
        "min_gpus": gpus,
        "max_gpus": gpus,
        "sharing": Sharing.NONE,
    }
    return Job(id=name, **(defaults | fields))


def running(one: Job, allocation: dict[str, tuple[int, ...]], since_s: float = 3600.0, **fields: Any) -> Job:
    """Return the job as it runs on these GPUs for ``since_s`` seconds."""
    changes = {
        "state": JobState.RUNNING,
        "allocation": allocation,
        "first_start_s": NOW - since_s,
        "last_start_s": NOW - since_s,
        "submitted_at_s": min(one.submitted_at_s, NOW - since_s),
    }
    return Job(**(one.model_dump() | changes | fields))


def throughput(types: tuple[str, ...] = ("A100",), memory: float = 10.0) -> tuple[ThroughputRow, ...]:
    """Return rows of linear speed-up on every type."""
    return tuple(
        ThroughputRow(
            foundation_model=FM,
            peft_type="LORA",
            gpu_type=t,
            gpus=g,
            batch_size=32,
            samples_per_s=RATE * g,
            memory_gib=memory,
        )
        for t in types
        for g in COUNTS
    )


def snapshot(nodes: list[Node], jobs: list[Job], **fields: Any) -> Snapshot:
    """Return a validated snapshot; ``profiles`` extends the default rows."""
    types = tuple(dict.fromkeys(n.gpu_type for n in nodes)) or ("A100",)
    profiles = {
        "throughput": throughput(types, fields.pop("memory", 10.0)),
        "switch_s": tuple(SwitchRow(foundation_model=FM, gpu_type=t, cold_s=60.0, warm_s=5.0) for t in types),
    }
    profiles |= fields.pop("profiles", {})
    made = Snapshot(
        taken_at_s=NOW,
        cluster=Cluster(nodes=tuple(nodes)),
        jobs=tuple(jobs),
        profiles=Profiles(**profiles),
        **fields,
    )
    validate(made)
    return made


def queue(name: str, nominal: float, gpu_type: str = "A100", **fields: Any) -> Queue:
    """Return a queue with one quota row; ``borrowing`` and ``lending`` are its limits."""
    quota = Quota(
        gpu_type=gpu_type,
        nominal_gpus=nominal,
        borrowing_limit_gpus=fields.pop("borrowing", None),
        lending_limit_gpus=fields.pop("lending", None),
    )
    return Queue(name=name, quotas=(quota,), **fields)


def share_rows(mode: Mode, count: int, ratio: float, gpu_type: str = "A100", gpus: int = 1) -> ColocationRow:
    """Return a row for ``count`` equal members of the one model."""
    member = ColocationMember(foundation_model=FM, peft_type="LORA", batch_size=32)
    return ColocationRow(
        mode=mode, gpu_type=gpu_type, gpus=gpus, members=(member,) * count, speed_ratio=(ratio,) * count
    )


def transfer(
    mode: TransferMode, source: str | tuple[str, ...], target: str, ratio: float, **fields: Any
) -> TransferRow:
    """Return a transfer row of the one model."""
    return TransferRow(
        mode=mode, foundation_model=FM, source=source, target=target, work_ratio=ratio, **fields
    )


def group(mode: Mode, *jobs: str, name: str = "g") -> RunningGroup:
    """Return a running group."""
    return RunningGroup(id=name, mode=mode, jobs=jobs, started_at_s=NOW - 3600.0)


def acts(plan: Plan) -> dict[str, str]:
    """Return the action of every job by name."""
    return {action.job: action.action.value for action in plan.actions}


def runs(plan: Plan) -> set[str]:
    """Return the jobs that hold GPUs after the plan."""
    waits = {name for g in plan.groups if g.mode is Mode.SEQUENCE for name in g.jobs[1:]}
    return {name for g in plan.groups for name in g.jobs} - waits


def nodes_of(plan: Plan, name: str) -> dict[str, tuple[int, ...]]:
    """Return where a job's group lies."""
    return next(dict(g.placement) for g in plan.groups if name in g.jobs)
