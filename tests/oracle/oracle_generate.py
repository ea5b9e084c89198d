"""Small random snapshots for the brute force: every mode, rule and oddity, small enough to try everything."""

from __future__ import annotations

import random
from itertools import combinations

from oracle_jobs import Jobs
from strategies import Recipe, random_snapshot

from ymir_opt.domain.snapshot import (
    ColocationMember,
    ColocationRow,
    JobState,
    Mode,
    Provenance,
    Quota,
    Sharing,
    Snapshot,
    Target,
    TransferMode,
    TransferRow,
)
from ymir_opt.domain.validate import validate

FAMILIES: dict[str, dict[str, object]] = {
    "any": {},
    # one model, few GPUs: groups are worth their while
    "merging": {
        "models": 1,
        "node_sizes": (1, 1, 2),
        "nodes": 2,
        "gpu_types": ("A100",),
        "workers": False,
        "pipeline": False,
        "rigid": False,
        "selectors": False,
        "protected": False,
        "queues": False,
    },
    # everything taken, queues and classes compete
    "rules": {"gpu_types": ("A100",), "node_sizes": (2, 4), "nodes": 2, "imperfect_nodes": False},
    # gangs of all sizes, mixed memory, resident models
    "places": {"node_sizes": (1, 2, 3, 4), "queues": False, "priorities": False, "transfer": False},
}


def small_snapshot(seed: int) -> Snapshot:
    """Return the snapshot of a seed: at most six jobs, three nodes, two GPU types."""
    family = list(FAMILIES)[seed % len(FAMILIES)]
    for attempt in range(100):
        rng = random.Random(f"{seed}/{attempt}")
        recipe = Recipe(**{"jobs": 6, "nodes": 3, "node_sizes": (1, 2, 4), "gaps": False, **FAMILIES[family]})
        snapshot = random_snapshot(
            rng.randrange(1 << 30), recipe, jobs=rng.choice((3, 4, 5, 6, 6)), exact_jobs=True
        )
        if family == "rules" and not (
            snapshot.queues and any(j.state is JobState.RUNNING for j in snapshot.jobs)
        ):
            continue
        snapshot = _enriched(rng, snapshot, family)
        if _all_known(snapshot):
            return snapshot
    raise AssertionError(f"seed {seed} gives no snapshot whose speeds are all known")


def _all_known(snapshot: Snapshot) -> bool:
    """A job of unknown speed would be profiled, which the brute force does not model."""
    jobs = Jobs(snapshot)
    return all(
        jobs.known[j]
        or job.state is JobState.RUNNING
        or (job.gpu_types is not None and not set(job.gpu_types) & set(jobs.types))
        for j, job in enumerate(jobs.jobs)
    )


def _enriched(rng: random.Random, snapshot: Snapshot, family: str) -> Snapshot:
    snapshot = snapshot.model_copy(update={"jobs": tuple(_job(rng, job, family) for job in snapshot.jobs)})
    snapshot = snapshot.model_copy(
        update={
            "profiles": _profiles(rng, snapshot, 0.8 if family == "merging" else 0.4),
            "queues": _queues(rng, snapshot.queues, family),
            "rejected_merges": tuple(
                merge.model_copy(update={"estimator_version": rng.choice((None, "1", "0"))})
                for merge in snapshot.rejected_merges
            ),
        }
    )
    if rng.random() < 0.25:
        snapshot = _host(rng, snapshot)
    validate(snapshot)
    return snapshot


def _job(rng, job, family):
    changes = {}
    if job.remaining_samples is not None:
        if rng.random() < 0.3:
            changes["remaining_samples_high"] = job.remaining_samples * 1.6
        if rng.random() < 0.1:
            changes["remaining_samples"] = changes["remaining_samples_high"] = job.remaining_samples * 0.02
            changes["remaining_samples_low"] = None
        if rng.random() < 0.1:
            changes["target"] = Target(metric="m", value=0.9, max_samples=job.done_samples + 4000.0)
        if job.state is JobState.RUNNING and job.done_samples and rng.random() < 0.4:
            changes["last_checkpoint_samples"] = job.done_samples * 0.3
    if family == "merging":
        changes["sharing"] = rng.choice((Sharing.ALL, Sharing.ALL, Sharing.ALL, job.sharing))
        changes["peft_type"], changes["batch_size"] = "LORA", 32
    elif rng.random() < 0.15:
        changes["sharing"] = rng.choice(tuple(Sharing))
    if family == "rules":
        changes["priority"] = rng.choice((0, 0, 1, 2))
        changes["movable"] = job.movable or rng.random() < 0.5
    if rng.random() < 0.2:
        changes["weight"] = rng.choice((0.5, 4.0))
    return job.model_copy(update=changes)


def _queues(rng, queues, family):
    """Small quotas, so that they bind; mostly in a cohort."""
    cohort = "all" if family == "rules" and rng.random() < 0.8 else None
    return tuple(
        queue.model_copy(
            update={
                "cohort": cohort or queue.cohort,
                "quotas": tuple(
                    Quota(
                        gpu_type=quota.gpu_type,
                        nominal_gpus=float(rng.choice((0, 1, 2, 2, 3, 4))),
                        borrowing_limit_gpus=quota.borrowing_limit_gpus,
                        lending_limit_gpus=quota.lending_limit_gpus,
                    )
                    for quota in queue.quotas
                ),
            }
        )
        for queue in queues
    )


def _profiles(rng, snapshot, often):
    profiles = snapshot.profiles
    transfer = [
        row.model_copy(
            update={
                "provenance": Provenance.PREDICTED if rng.random() < 0.3 else row.provenance,
                "p_benefit": None if rng.random() < 0.3 else row.p_benefit,
            }
        )
        for row in profiles.transfer
    ]
    colocation = list(profiles.colocation)
    by_model: dict[str, list] = {}
    for job in snapshot.jobs:
        if job.foundation_model is not None:
            by_model.setdefault(job.foundation_model, []).append(job)
    types = sorted({node.gpu_type for node in snapshot.cluster.nodes})
    for model, jobs in by_model.items():
        for a, b in combinations(jobs, 2):
            for source, target in ((a, b), (b, a)):
                if rng.random() < often and not any(
                    (r.mode, r.foundation_model, r.source, r.target)
                    == (TransferMode.JOINT, model, source.task, target.task)
                    for r in transfer
                ):
                    ratio = rng.choice((0.45, 0.6, 0.8))
                    transfer.append(
                        TransferRow(
                            mode=TransferMode.JOINT,
                            foundation_model=model,
                            source=source.task,
                            target=target.task,
                            work_ratio=ratio,
                            low=ratio * 0.85,
                            high=ratio * 1.2,
                        )
                    )
        for trio in combinations(jobs, 3):
            if rng.random() < 0.3:
                kinds = [ColocationMember(**_kind(job)) for job in trio]
                # equal members have equal ratios: nobody could say who is who
                ratio = {repr(kind): value for kind, value in zip(kinds, (0.6, 0.55, 0.5), strict=True)}
                for t in types:
                    colocation.append(
                        ColocationRow(
                            mode=rng.choice((Mode.COLOCATE, Mode.GPU_SHARE)),
                            gpu_type=t,
                            gpus=rng.choice((1, 2)),
                            members=tuple(kinds),
                            speed_ratio=tuple(ratio[repr(kind)] for kind in kinds),
                            memory_gib=rng.choice((None, 9.0, 18.0)),
                        )
                    )
            if rng.random() < 0.3:
                target, *others = trio
                tasks = tuple(job.task for job in others)
                if not any(r.source == tasks and r.target == target.task for r in transfer):
                    transfer.append(
                        TransferRow(
                            mode=TransferMode.JOINT,
                            foundation_model=model,
                            source=tasks,
                            target=target.task,
                            work_ratio=rng.choice((0.4, 0.7)),
                            p_benefit=0.8,
                        )
                    )
    # one answer for each question: duplicates would test the choice among rows, not the plan
    unique: dict[tuple, TransferRow] = {}
    for row in transfer:
        source = row.source if isinstance(row.source, str) else tuple(sorted(row.source))
        unique.setdefault((row.mode, row.foundation_model, source, row.target), row)
    groups: dict[tuple, ColocationRow] = {}
    for row in colocation:
        members = tuple(sorted(repr(m) for m in row.members))
        groups.setdefault((row.mode, row.gpu_type, row.gpus, members), row)
    return profiles.model_copy(
        update={"transfer": tuple(unique.values()), "colocation": tuple(groups.values())}
    )


def _kind(job) -> dict:
    return {
        "foundation_model": job.foundation_model,
        "peft_type": job.peft_type,
        "config": job.config,
        "batch_size": job.batch_size,
    }


def _host(rng, snapshot: Snapshot) -> Snapshot:
    """Nodes with few CPUs and little host memory."""
    nodes = tuple(
        node.model_copy(
            update={"cpus": float(rng.choice((2, 4, 8))), "host_memory_gib": rng.choice((None, 24.0))}
        )
        for node in snapshot.cluster.nodes
    )
    jobs = tuple(
        job.model_copy(
            update={
                "cpus_per_gpu": rng.choice((None, 1.0, 2.0)),
                "host_memory_gib": rng.choice((None, 6.0, 12.0)),
            }
        )
        for job in snapshot.jobs
    )
    return snapshot.model_copy(
        update={"jobs": jobs, "cluster": snapshot.cluster.model_copy(update={"nodes": nodes})}
    )
