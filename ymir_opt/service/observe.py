"""The snapshot of now: what a pool of workers and the journal know, as the planner needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ymir_opt.domain.documents import sha256
from ymir_opt.domain.errors import YmirError
from ymir_opt.domain.request import SubmittedJob
from ymir_opt.domain.snapshot import (
    Cluster,
    CompletedAdapter,
    Job,
    JobState,
    Mode,
    NodeState,
    ProbeState,
    Profiles,
    Queue,
    RejectedMerge,
    RunningGroup,
    Sharing,
    Snapshot,
    StartSource,
    Target,
)
from ymir_opt.domain.validate import validate
from ymir_opt.executors.pool import WorkerPool
from ymir_opt.executors.records import GroupRecord, JobPhase, JobRecord

__all__ = ["observe", "remaining_of"]

# a job that trains on beyond what was expected of it has at least this share of its epochs left
LEAST_LEFT = 0.1


def remaining_of(job: JobRecord) -> float:
    """Return the samples that a job is expected to need from now on, at most to the end of its epochs."""
    most = max(1.0, job.max_samples - job.samples)
    if job.work is None:
        return most
    expected = job.work - (job.samples - job.samples_at_start)
    return min(most, max(expected, LEAST_LEFT * most, 1.0))


def observe(pool: WorkerPool, profiles: Profiles, now: float, round_s: float) -> Snapshot:
    """Return the snapshot of now.

    Parameters
    ----------
    pool : WorkerPool
    profiles : Profiles
        What is known of speed, switching and transfer.
    now, round_s : float
        Seconds since the epoch; length of a planning round.

    Returns
    -------
    Snapshot
        Validated: jobs that are not over, groups that are wanted and can go on, completed adapters.
    """
    state = pool.state
    nodes = pool.nodes()
    ready = {node.id for node in nodes if node.state is not NodeState.DOWN}
    groups: list[RunningGroup] = []
    holding: dict[str, GroupRecord] = {}
    for record in state.groups.values():
        found = _running(record, state.jobs, ready, now)
        if found is not None:
            group, holders = found
            groups.append(group)
            holding |= dict.fromkeys(holders, record)
    active = [job for job in state.jobs.values() if not job.over]
    active.sort(key=lambda job: (job.submitted_at_s, job.id))
    requests = {job.key: state.request(job.key) for job in active}
    names = {job.id for job in active}
    snapshot = Snapshot(
        taken_at_s=now,
        round_s=round_s,
        cluster=Cluster(nodes=nodes),
        queues=tuple(
            Queue(name=name)
            for name in dict.fromkeys(request.queue for request in requests.values())
            if name != "default"
        ),
        jobs=tuple(_job(job, requests[job.key], holding.get(job.key), now) for job in active),
        groups=tuple(groups),
        rejected_merges=tuple(
            RejectedMerge(
                jobs=tuple(value["jobs"]),
                mode=Mode(value["mode"]),
                at_s=value["at_s"],
                realised_gain=value["realised_gain"],
                estimator_version=value["estimator_version"],
            )
            for value in pool.journal.all("rejected").values()
            if names >= set(value["jobs"])
        ),
        adapters=tuple(_adapters(pool)),
        profiles=profiles,
    )
    validate(snapshot)
    return snapshot


def _running(
    group: GroupRecord, jobs: Mapping[str, JobRecord], ready: set[str], now: float
) -> tuple[RunningGroup, list[str]] | None:
    """Return a wanted group as it runs and the keys of its members that hold the GPU; None: it does not."""
    left = [key for key in group.jobs if not jobs[key].over]
    if not left or group.node not in ready:
        return None
    mode = Mode(group.mode) if len(left) > 1 else Mode.SOLO
    holders = left[:1] if mode is Mode.SEQUENCE else left
    if any((jobs[key].not_before_s or 0.0) > now for key in holders):
        return None
    probe = None
    if group.probe != "none" and mode is not Mode.SOLO:
        seen = min((group.seen.get(key, 0) for key in left), default=0)
        running = group.probe == "running"
        probe = ProbeState(
            state="running" if running else "passed",
            evaluations_left=max(0, group.evaluations - seen) if running else 0,
        )
    starts = {
        jobs[key].id: StartSource(adapter=jobs[source].id)
        if kind == "adapter"
        else StartSource(job=jobs[source].id)
        for key, (kind, source) in group.sources.items()
        if key in left and source in jobs
    }
    found = RunningGroup(
        id=group.id,
        mode=mode,
        jobs=tuple(jobs[key].id for key in left),
        starts_from=starts,
        started_at_s=group.started_at_s,
        probe=probe,
    )
    return found, holders


def _job(job: JobRecord, request: SubmittedJob, group: GroupRecord | None, now: float) -> Job:
    resources = request.resources
    work = remaining_of(job)
    limits: dict[str, Any] = {}
    if group is not None:
        predicted = group.predicted.get(job.key, {})
        for name, value in (("low", predicted.get("low")), ("high", predicted.get("high"))):
            if value is not None and predicted.get("work"):
                # the interval shrinks with the work
                limits[f"remaining_samples_{name}"] = work * value / predicted["work"]
    target = request.target
    running = group is not None
    return Job(
        id=job.id,
        queue=request.queue,
        tenant=job.tenant or None,
        submitted_at_s=job.submitted_at_s,
        priority=request.priority,
        foundation_model=request.model.label,
        task=request.task_name,
        peft_type=request.peft.peft_type,
        config=request.config,
        hyperparameters_sha256=sha256(
            {
                "peft": request.peft.model_dump(mode="json"),
                "training": request.training.model_dump(mode="json", exclude={"seed", "num_train_epochs"}),
            }
        ),
        target=Target(
            metric=None if target is None else target.metric,
            value=None if target is None else target.value,
            max_samples=job.max_samples,
        ),
        batch_size=request.training.global_batch_size,
        done_samples=job.samples,
        last_checkpoint_samples=min(job.checkpoint_samples, job.samples),
        remaining_samples=work,
        requested_gpus=1,
        min_gpus=1,
        max_gpus=1,
        gpu_types=resources.gpu_types,
        memory_gib=resources.memory_gib,
        time_limit_s=resources.time_limit_s,
        # transfer that did not help is not tried again; a shared backbone changes no weights
        sharing=_least(request.sharing) if job.no_transfer else request.sharing,
        failed_starts=job.failed_starts,
        not_before_s=None if running else job.not_before_s,
        state=JobState.RUNNING if running else JobState.PENDING,
        first_start_s=job.first_start_s if job.first_start_s is not None else (now if running else None),
        running_s=job.running_s,
        attained_gpu_s=job.running_s,
        restarts=job.restarts,
        preemptions=job.preemptions,
        samples_at_last_start=job.samples_at_start,
        allocation={group.node: (group.gpu,)} if group is not None else None,
        last_start_s=(job.last_start_s if job.last_start_s is not None else group.started_at_s)
        if group is not None
        else None,
    )


def _least(sharing: Sharing) -> Sharing:
    return Sharing.NONE if sharing is Sharing.NONE else Sharing.BACKBONE


def _adapters(pool: WorkerPool) -> list[CompletedAdapter]:
    found = []
    for job in pool.state.jobs.values():
        if job.phase != JobPhase.COMPLETED or not (pool.folder.job(job.key) / "checkpoint").is_dir():
            continue
        try:
            request = pool.state.request(job.key)
        except YmirError:
            # nobody can say any more what its weights are good for
            continue
        found.append(
            CompletedAdapter(
                id=job.id,
                foundation_model=request.model.label,
                task=request.task_name,
                tenant=job.tenant or None,
                sharing=request.sharing,
                metric=job.metric,
            )
        )
    return found
