"""A snapshot and a plan with everything that a page must show, made by hand; and one of any size."""

from __future__ import annotations

import json
from typing import Any

from ymir_opt.domain.documents import snapshot_sha256
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Cluster, Job, Node, NodeState, Snapshot

NASTY = (
    "</script><script>document.title='broken'</script>"
    "<img src=x onerror=\"document.title='broken'\">&amp;'\"`${1}"
)
NOW = 86_400.0


def job(name: str, **fields: Any) -> Job:
    return Job.model_validate_json(
        json.dumps(
            {
                "id": name,
                "submitted_at_s": NOW - 3600,
                "foundation_model": "roberta-base",
                "task": "sst2",
                "peft_type": "LORA",
                "batch_size": 64,
                "remaining_samples": 120_000.0,
                "max_gpus": 4,
                **fields,
            }
        )
    )


def example() -> tuple[Snapshot, Plan]:
    """Return a cluster of 30 GPUs with shared, running, measured, preempted and waiting jobs."""
    nodes = [
        Node(
            id=f"v{n}", gpu_type="V100", gpus=4, gpu_memory_gib=16.0, rack=f"r{n % 2}", labels={"zone": NASTY}
        )
        for n in range(4)
    ]
    nodes += [Node(id=f"a{n}", gpu_type="A100", gpus=8, gpu_memory_gib=80.0) for n in range(2)]
    nodes[3] = nodes[3].model_copy(
        update={"unavailable_gpus": (3,), "external_used_gib": (0.0, 0.0, 6.0, 0.0)}
    )
    nodes += [Node(id="spare", gpu_type="A100", gpus=4, gpu_memory_gib=80.0, state=NodeState.DOWN)]
    names = [f"job-{n:02d}" for n in range(18)] + ["quote\"&'`$", "a" * 120]
    jobs = tuple(
        job(name, submitted_at_s=NOW - 300.0 * n, task=("sst2", "rte", "mnli")[n % 3])
        for n, name in enumerate(names)
    )
    snapshot = Snapshot(taken_at_s=NOW, cluster=Cluster(nodes=tuple(nodes)), jobs=jobs)

    def where(kind: str, count: int, placement: dict[str, list[int]], group: str) -> dict[str, Any]:
        return {"group": group, "gpu_type": kind, "gpus": count, "placement": placement}

    groups: list[dict[str, Any]] = []
    actions: list[dict[str, Any]] = []

    def group(
        mode: str, members: list[str], kind: str, placement: dict[str, list[int]], action: str, **more: Any
    ) -> None:
        count = sum(map(len, placement.values()))
        name = f"g{len(groups)}"
        groups.append(
            {
                "id": name,
                "mode": mode,
                "jobs": members,
                "foundation_model": "roberta-base",
                "gpu_type": kind,
                "gpus": count,
                "placement": placement,
                "predicted": {
                    m: {
                        "samples_per_s": 240.0 * count,
                        "finish_at_s": NOW + 700.0 * (k + 1),
                        "work_ratio": 0.8 if mode == "joint" else 1.0,
                        "low": 90_000.0,
                        "high": 160_000.0,
                        "source": "predicted" if mode == "joint" else "measured",
                    }
                    for k, m in enumerate(members)
                },
                **more,
            }
        )
        for place, member in enumerate(members):
            now = "wait" if mode == "sequence" and place else action
            step: dict[str, Any] = {"job": member, "action": now, "from": None, "to": None}
            if now != "wait":
                step["to"] = where(kind, count, placement, name)
            actions.append(step)

    group("solo", ["job-00"], "V100", {"v0": [0, 1, 2, 3]}, "keep")
    group(
        "joint",
        ["job-01", "job-02"],
        "V100",
        {"v1": [0, 1]},
        "merge",
        probe={"evaluations": 2, "rule": "work ratio below 1", "cost_s": 90.0},
    )
    group("solo", ["job-03"], "V100", {"v1": [2]}, "start")
    group("solo", ["job-04"], "V100", {"v1": [3]}, "migrate")
    group("solo", ["job-05"], "V100", {"v2": [0, 1, 2, 3], "v3": [0, 1]}, "resize")
    group("colocate", ["job-06", "job-07", "job-08"], "A100", {"a0": [0, 1, 2, 3]}, "keep")
    group(
        "sequence",
        ["job-09", "job-10"],
        "A100",
        {"a0": [4, 5]},
        "start",
        starts_from={"job-10": {"job": "job-09"}},
    )
    group("solo", [names[18]], "A100", {"a0": [6]}, "keep")
    group("gpu_share", ["job-11", "job-12"], "A100", {"a0": [7]}, "keep")
    group(
        "solo",
        ["job-13"],
        "A100",
        {"a1": [0, 1, 2, 3]},
        "start",
        starts_from={"job-13": {"adapter": "rte-best"}},
    )
    actions.append(
        {
            "job": "job-14",
            "action": "profile",
            "from": None,
            "to": where("A100", 1, {"a1": [4]}, "x") | {"group": None},
        }
    )
    actions.append(
        {"job": "job-15", "action": "preempt", "from": where("A100", 2, {"a1": [0, 1]}, "old"), "to": None}
    )
    actions += [
        {"job": name, "action": "wait", "from": None, "to": None} for name in ("job-16", "job-17", names[19])
    ]
    reasons = {
        "job-14": (
            "UnknownThroughput",
            "no speed of roberta-base with rte on A100 or V100; measured on 1 GPU",
        ),
        "job-15": ("LowerPriority", f"preempted for job-13: {NASTY}"),
        "job-16": ("InsufficientGPUs", "needs 4 V100; 1 is free after jobs of more value per GPU-second"),
        "job-17": ("ExceedsMaxQuota", "queue nlp holds 12 of its 12 GPUs"),
        names[19]: ("InsufficientGPUs", "needs 8 A100 on one node; the most free on one node is 3"),
    }
    explanations = {}
    for step in actions:
        name = step["job"]
        reason, message = reasons.get(name, ("Chosen", f"{step['action']}: the best of the options by 0.41"))
        explanations[name] = {
            "decision": step["action"],
            "reason": reason,
            "message": message,
            "alternatives": [
                {
                    "option": "4 × V100, solo",
                    "why_not": "would displace job-00",
                    "reason": "InsufficientGPUs",
                    "objective_delta": {"value": 0.0123, "kind": "exact"},
                },
                {
                    "option": f"joint with {names[18]} {NASTY}",
                    "why_not": "transfer of rte to sst2 costs 30 % more samples",
                    "reason": "NegativeTransfer",
                    "objective_delta": {"value": 0.2, "kind": "lower_bound"},
                },
                {"option": "wait", "why_not": "later by 2 h 10 min"},
            ],
        }
    document = {
        "schema": "ymir.plan/1",
        "snapshot_sha256": snapshot_sha256(snapshot),
        "planner": {
            "version": "0.1.0",
            "policy": "ymir",
            "objective": {
                "name": NASTY,
                "version": 1,
                "parameters": {"d0_s": 30.0, "kappa": 1.15, "x0_gpu_s": 50.0},
            },
            "declares": [1, 2, 3, 4, 5, 6, 7, 8],
        },
        "solver": {
            "backend": "highs",
            "status": "optimal",
            "objective": 12.345678,
            "bound": 12.345,
            "gap": 5.5e-5,
            "value_gap": 2.1e-5,
            "wall_s": 0.0421,
            "stopped_by": "gap",
            "objective_terms": {
                "progress": 9.1,
                "queued": 3.4,
                "deadline": 0.245678,
                "transfer_credit": -0.4,
            },
            "candidates": {
                "columns": 1834,
                "generated": 2410,
                "dominated": 576,
                "exhaustive": True,
                "by_mode": {"solo": 144, "joint": 700, "colocate": 990},
            },
        },
        "groups": groups,
        "actions": actions,
        "explanations": explanations,
        "metrics": {
            "gpus_used": 28,
            "gpus_total": 35,
            "predicted_mean_finish_at_s": NOW + 1432.0,
            "fairness": {"max_rho": 1.73, "jain": 0.88},
            "fragmentation": 0.12,
        },
    }
    from ymir_opt.domain.documents import parse_plan

    return snapshot, parse_plan(json.dumps(document).encode(), "example")


def of_size(nodes: int, jobs: int) -> tuple[Snapshot, Plan]:
    """Return a plan of solo groups of 4 on nodes of 8 GPUs; the other jobs wait."""
    snapshot = Snapshot(
        taken_at_s=NOW,
        cluster=Cluster(
            nodes=tuple(Node(id=f"n{n}", gpu_type="A100", gpus=8, gpu_memory_gib=80.0) for n in range(nodes))
        ),
        jobs=tuple(job(f"j{n}") for n in range(jobs)),
    )
    groups, actions, explanations = [], [], {}
    for n in range(jobs):
        placed = n < 2 * nodes
        if placed:
            placement = {f"n{n // 2}": list(range(4 * (n % 2), 4 * (n % 2) + 4))}
            groups.append(
                {
                    "id": f"g{n}",
                    "mode": "solo",
                    "jobs": [f"j{n}"],
                    "gpu_type": "A100",
                    "gpus": 4,
                    "placement": placement,
                }
            )
        actions.append({"job": f"j{n}", "action": "keep" if placed else "wait", "from": None, "to": None})
        explanations[f"j{n}"] = {
            "decision": "keep" if placed else "wait",
            "reason": "Chosen" if placed else "InsufficientGPUs",
            "message": "kept" if placed else "no GPU is free",
        }
    from ymir_opt.domain.documents import parse_plan

    document = {
        "schema": "ymir.plan/1",
        "snapshot_sha256": snapshot_sha256(snapshot),
        "planner": {"version": "0.1.0", "policy": "fifo"},
        "solver": {"backend": "none", "status": "feasible", "stopped_by": "policy"},
        "groups": groups,
        "actions": actions,
        "explanations": explanations,
    }
    return snapshot, parse_plan(json.dumps(document).encode(), "example")
