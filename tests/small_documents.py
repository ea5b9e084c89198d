"""Small snapshots and plans as plain JSON values, to be changed by tests and read by the parsers."""

from __future__ import annotations

import copy
import json
from typing import Any

from ymir_opt.domain.documents import parse_plan, parse_snapshot, snapshot_sha256
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Snapshot

__all__ = ["change", "job_row", "node_row", "plan_data", "plan_of", "snapshot_data", "snapshot_of"]


def node_row(name: str = "n0", **fields: Any) -> dict[str, Any]:
    return {"id": name, "gpu_type": "A100", "gpus": 4, "gpu_memory_gib": 40.0} | fields


def job_row(name: str = "a", **fields: Any) -> dict[str, Any]:
    """Return an elastic job that counts samples."""
    return {
        "id": name,
        "submitted_at_s": 0.0,
        "foundation_model": "bert",
        "task": f"task-{name}"[:40],
        "peft_type": "LORA",
        "batch_size": 32,
        "remaining_samples": 6000.0,
        "max_gpus": 4,
    } | fields


def snapshot_data(jobs: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """Return two nodes of four GPUs, the jobs, and the speed of their model."""
    return {
        "schema": "ymir.snapshot/1",
        "taken_at_s": 1000.0,
        "cluster": {"nodes": [node_row("n0"), node_row("n1")]},
        "jobs": [job_row("a"), job_row("b")] if jobs is None else jobs,
        "profiles": {
            "throughput": [
                {
                    "foundation_model": "bert",
                    "peft_type": "LORA",
                    "gpu_type": "A100",
                    "gpus": gpus,
                    "batch_size": batch,
                    "samples_per_s": round(100.0 * gpus**0.8, 3),
                    "memory_gib": 8.0,
                }
                for gpus in (1, 2, 4)
                for batch in (32, 64, 128)
            ],
            "switch_s": [{"foundation_model": "bert", "gpu_type": "A100", "cold_s": 60.0, "warm_s": 5.0}],
        },
    } | fields


def snapshot_of(data: dict[str, Any]) -> Snapshot:
    return parse_snapshot(json.dumps(data))


def plan_data(snapshot: Snapshot, **fields: Any) -> dict[str, Any]:
    """Return a plan for the snapshot in which every job waits (or is kept where it runs alone)."""
    groups = [
        {
            "id": f"g-{job.id}",
            "mode": "solo",
            "jobs": [job.id],
            "foundation_model": job.foundation_model,
            "gpu_type": "A100",
            "gpus": sum(map(len, job.allocation.values())),
            "placement": {node: list(gpus) for node, gpus in job.allocation.items()},
        }
        for job in snapshot.jobs
        if job.allocation
    ]
    return {
        "schema": "ymir.plan/1",
        "snapshot_sha256": snapshot_sha256(snapshot),
        "planner": {"version": "0", "policy": "by-hand"},
        "solver": {"backend": "none", "status": "feasible"},
        "groups": groups,
        "actions": [{"job": job.id, "action": "keep" if job.allocation else "wait"} for job in snapshot.jobs],
        "explanations": {
            job.id: {"decision": "keep", "reason": "Chosen", "message": "runs on"}
            if job.allocation
            else {"decision": "wait", "reason": "InsufficientGPUs", "message": "waits"}
            for job in snapshot.jobs
        },
    } | fields


def plan_of(data: dict[str, Any]) -> Plan:
    return parse_plan(json.dumps(data))


def change(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy with one value replaced; the path reads like ``jobs.0.max_gpus``.

    A missing last key is added; ``...`` as the value removes it.
    """
    made = copy.deepcopy(data)
    at: Any = made
    *parents, last = (int(part) if part.isdecimal() else part for part in path.split("."))
    for part in parents:
        if isinstance(at, dict) and part not in at:
            at[part] = {}
        at = at[part]
    if value is ...:
        del at[last]
    elif isinstance(at, list) and last == len(at):
        at.append(value)
    else:
        at[last] = value
    return made
