"""Synthetic snapshots of any size, for ``ymir-plan bench``.

Ten foundation models with Zipf popularity (the first few have most jobs), tasks with pairwise
transfer figures, two GPU types from 64 GPUs on, nodes of 8, and running jobs on a third of the
GPUs. The figures are invented; a benchmark measures the planner, not the models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ymir_opt.domain.snapshot import (
    BackboneRow,
    Cluster,
    ColocationMember,
    ColocationRow,
    Job,
    JobState,
    Mode,
    Node,
    Profiles,
    Sharing,
    Snapshot,
    SwitchRow,
    ThroughputRow,
    TransferMode,
    TransferRow,
)
from ymir_opt.domain.validate import validate

__all__ = ["synthetic_snapshot"]

MODELS = 10
TASKS = 12
BATCHES = (32, 64)
COUNTS = (1, 2, 4, 8)
TYPES = {"A100": (40.0, 100.0), "V100": (16.0, 45.0)}
NODE_SIZE = 8


def synthetic_snapshot(jobs: int, gpus: int, seed: int = 0) -> Snapshot:
    """Return a valid snapshot with this many jobs and GPUs.

    Parameters
    ----------
    jobs, gpus : int
        Numbers of jobs and of GPUs in the cluster.
    seed : int
        The same numbers and seed give the same snapshot.
    """
    rng = np.random.default_rng([seed, jobs, gpus])
    names = tuple(TYPES) if gpus >= 64 else ("A100",)
    nodes = _nodes(gpus, names)
    weights = 1 / np.arange(1, MODELS + 1)
    model_of = rng.choice(MODELS, size=jobs, p=weights / weights.sum())
    rows = [_job(rng, j, int(model_of[j])) for j in range(jobs)]
    _run_some(rng, rows, nodes)
    models = [f"fm{m}" for m in sorted(set(model_of.tolist()))]
    snapshot = Snapshot(
        taken_at_s=86_400.0,
        cluster=Cluster(nodes=nodes),
        jobs=tuple(Job(**row) for row in rows),
        profiles=_profiles(rng, models, names),
    )
    validate(snapshot)
    return snapshot


def _nodes(gpus: int, names: tuple[str, ...]) -> tuple[Node, ...]:
    sizes = [NODE_SIZE] * (gpus // NODE_SIZE) + ([gpus % NODE_SIZE] if gpus % NODE_SIZE else [])
    return tuple(
        Node(
            id=f"node{n:04d}",
            gpu_type=names[n % len(names)],
            gpus=size,
            gpu_memory_gib=TYPES[names[n % len(names)]][0],
        )
        for n, size in enumerate(sizes)
    )


def _job(rng: np.random.Generator, j: int, model: int) -> dict[str, Any]:
    work = float(np.round(np.exp(rng.normal(np.log(60_000), 1.2))))
    return {
        "id": f"job{j:05d}",
        "tenant": f"tenant{int(rng.integers(4))}",
        "submitted_at_s": 86_400.0 - float(np.round(rng.exponential(3600.0))),
        "foundation_model": f"fm{model}",
        "task": f"task{int(rng.integers(TASKS)):02d}",
        "peft_type": "LORA",
        "batch_size": int(rng.choice(BATCHES)),
        "remaining_samples": max(work, 500.0),
        "max_gpus": int(rng.choice(COUNTS)),
        "sharing": Sharing.ALL if rng.random() < 0.5 else Sharing.TENANT,
    }


def _run_some(rng: np.random.Generator, rows: list[dict[str, Any]], nodes: tuple[Node, ...]) -> None:
    """Let jobs run alone on about a third of the GPUs."""
    free = {node.id: node.gpus for node in nodes[: max(1, len(nodes) // 3)]}
    for row in rows:
        wanted = row["max_gpus"]
        node = next((name for name, left in free.items() if left >= wanted), None)
        if node is None or rng.random() < 0.5:
            continue
        size = next(n.gpus for n in nodes if n.id == node)
        first = size - free[node]
        free[node] -= wanted
        if free[node] == 0:
            del free[node]
        started = 86_400.0 - float(np.round(rng.uniform(60.0, 3000.0)))
        row |= {
            "state": JobState.RUNNING,
            "allocation": {node: tuple(range(first, first + wanted))},
            "submitted_at_s": min(row["submitted_at_s"], started),
            "first_start_s": started,
            "last_start_s": started,
            "done_samples": 2000.0,
        }
        if not free:
            return


def _profiles(rng: np.random.Generator, models: list[str], names: tuple[str, ...]) -> Profiles:
    throughput: list[ThroughputRow] = []
    switch: list[SwitchRow] = []
    colocation: list[ColocationRow] = []
    transfer: list[TransferRow] = []
    for model in models:
        scale = float(rng.uniform(0.5, 1.5))
        exponent = float(rng.uniform(0.7, 0.95))
        for name in names:
            switch.append(SwitchRow(foundation_model=model, gpu_type=name, cold_s=60.0, warm_s=8.0))
            for batch in (*BATCHES, 128, 256):
                throughput.extend(
                    ThroughputRow(
                        foundation_model=model,
                        peft_type="LORA",
                        gpu_type=name,
                        gpus=count,
                        batch_size=batch,
                        samples_per_s=round(
                            TYPES[name][1] * scale * count**exponent * (batch / 32) ** 0.15, 3
                        ),
                        memory_gib=3.0 + batch / 64,
                    )
                    for count in COUNTS
                )
            for a, b in ((32, 32), (32, 64), (64, 64)):
                ratio = round(float(rng.uniform(0.5, 0.75)), 3)
                colocation.extend(
                    ColocationRow(
                        mode=Mode.COLOCATE,
                        gpu_type=name,
                        gpus=count,
                        members=tuple(
                            ColocationMember(foundation_model=model, peft_type="LORA", batch_size=batch)
                            for batch in (a, b)
                        ),
                        speed_ratio=(ratio, ratio),
                        memory_gib=8.0,
                    )
                    for count in COUNTS
                )
        ratios = np.exp(rng.normal(0.0, 0.2, size=(TASKS, TASKS)))
        for mode in TransferMode:
            transfer.extend(
                TransferRow(
                    mode=mode,
                    foundation_model=model,
                    source=f"task{s:02d}",
                    target=f"task{t:02d}",
                    work_ratio=round(float(ratios[s, t]), 4),
                    low=round(float(ratios[s, t]) * 0.9, 4),
                    high=round(float(ratios[s, t]) * 1.1, 4),
                    matched_hyperparameters=True,
                )
                for s in range(TASKS)
                for t in range(TASKS)
            )
    return Profiles(
        throughput=tuple(throughput),
        switch_s=tuple(switch),
        backbone_gib=tuple(BackboneRow(foundation_model=model, gib=1.5) for model in models),
        transfer=tuple(transfer),
        colocation=tuple(colocation),
    )
