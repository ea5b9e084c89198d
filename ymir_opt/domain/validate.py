"""Checks across fields of a snapshot: references, ranges, and what must go together."""

from __future__ import annotations

from collections.abc import Iterable

from ymir_opt.domain.base import nearest, short
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import Job, JobState, Mode, Node, Parallelism, Snapshot

__all__ = ["validate"]


def validate(snapshot: Snapshot) -> None:
    """Raise `InputError` for the first fault that a single field's type cannot show."""
    _unique("cluster.nodes", (n.id for n in snapshot.cluster.nodes))
    _unique("jobs", (j.id for j in snapshot.jobs))
    _unique("queues", (q.name for q in snapshot.queues), "name")
    _unique("groups", (g.id for g in snapshot.groups))
    _unique("adapters", (a.id for a in snapshot.adapters))
    for i, node in enumerate(snapshot.cluster.nodes):
        _node(f"cluster.nodes[{i}]", node)
    for i, queue in enumerate(snapshot.queues):
        _unique(f"queues[{i}].quotas", (q.gpu_type for q in queue.quotas), "gpu_type")
    nodes = {n.id: n for n in snapshot.cluster.nodes}
    queues = {q.name for q in snapshot.queues} | {"default"}
    for i, job in enumerate(snapshot.jobs):
        _job(i, job, queues)
        if job.allocation is not None:
            _allocation(f"jobs[{i}].allocation", job, nodes)
    _groups(snapshot)
    _profiles(snapshot)


def _unique(place: str, names: Iterable[str], field: str = "id") -> None:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            raise InputError(
                f"{place}[{i}].{field}", f"{short(name)} is used twice", f"give each its own {field}"
            )
        seen.add(name)


def _node(place: str, node: Node) -> None:
    for index in node.unavailable_gpus:
        if index >= node.gpus:
            raise InputError(
                f"{place}.unavailable_gpus",
                f"GPU {index} does not exist on a node with {node.gpus}",
                "count GPUs from 0",
            )
    for field, values in (("external_used_gib", node.external_used_gib), ("resident_fm", node.resident_fm)):
        if values and len(values) != node.gpus:
            raise InputError(
                f"{place}.{field}",
                f"{len(values)} values for {node.gpus} GPUs",
                "give one value for each GPU, or leave the field out",
            )


def _job(index: int, job: Job, queues: set[str]) -> None:
    def fail(field: str, problem: str, remedy: str) -> None:
        raise InputError(f"jobs[{index}].{field}", problem, remedy)

    if job.queue not in queues:
        fail("queue", f"{short(job.queue)} is not a queue of the snapshot", nearest(job.queue, queues))
    low = job.min_gpus or 1
    if job.max_gpus is not None and job.max_gpus < low:
        fail("max_gpus", f"{job.max_gpus} is less than min_gpus {low}", "raise max_gpus or lower min_gpus")
    if job.requested_gpus is not None:
        if job.requested_gpus < low:
            fail(
                "requested_gpus",
                f"{job.requested_gpus} is less than min_gpus {low}",
                "raise requested_gpus or lower min_gpus",
            )
        if job.max_gpus is not None and job.requested_gpus > job.max_gpus:
            fail(
                "requested_gpus",
                f"{job.requested_gpus} is more than max_gpus {job.max_gpus}",
                "raise max_gpus or lower requested_gpus",
            )
    if job.gpu_counts is not None and not job.gpu_counts:
        fail("gpu_counts", "the list is empty", "name at least one allowed count, or leave the field out")
    if job.gpu_types is not None and not job.gpu_types:
        fail("gpu_types", "the list is empty", "name at least one GPU type, or leave the field out")
    if job.workers is not None:
        total = job.workers.count * job.workers.gpus_each
        for field, value in (
            ("max_gpus", job.max_gpus),
            ("min_gpus", job.min_gpus),
            ("requested_gpus", job.requested_gpus),
        ):
            if value is not None and value != total:
                fail(
                    field,
                    f"{value} contradicts workers, which need exactly {total}",
                    "leave the field out, or make both agree",
                )
        if job.parallelism is Parallelism.PIPELINE:
            fail("workers", "a pipeline job takes whole nodes and has no workers", "leave workers out")
    has_max = job.target is not None and job.target.max_samples is not None
    if job.remaining_samples is None and job.remaining_s is None and not has_max:
        fail(
            "remaining_samples",
            "neither remaining_samples, remaining_s nor target.max_samples is given",
            "say how much work is left",
        )
    if job.remaining_samples is not None and job.remaining_s is not None:
        fail(
            "remaining_s",
            "given together with remaining_samples",
            "give samples (elastic job) or seconds at requested_gpus (rigid job)",
        )
    for field, limit, sign in (
        ("remaining_samples_low", job.remaining_samples_low, 1),
        ("remaining_samples_high", job.remaining_samples_high, -1),
    ):
        if limit is not None and job.remaining_samples is None:
            fail(field, "given without remaining_samples", "add remaining_samples")
        if (
            limit is not None
            and job.remaining_samples is not None
            and (limit - job.remaining_samples) * sign > 0
        ):
            fail(
                field,
                f"{limit} is on the wrong side of remaining_samples {job.remaining_samples}",
                "low <= remaining_samples <= high",
            )
    if job.last_checkpoint_samples is not None and job.last_checkpoint_samples > job.done_samples:
        fail(
            "last_checkpoint_samples",
            f"{job.last_checkpoint_samples} is more than done_samples {job.done_samples}",
            "a checkpoint cannot be ahead of the job",
        )
    if job.remaining_samples is not None and job.foundation_model is None:
        fail(
            "foundation_model",
            "missing, but the job counts samples",
            "name the model, or give remaining_s for a rigid job",
        )
    if job.remaining_samples is not None and job.batch_size is None:
        fail("batch_size", "missing, but the job counts samples", "give the global batch size")
    if job.state is JobState.PENDING and job.allocation:
        fail("allocation", "given for a pending job", "set state to running, or leave allocation out")
    if job.state is JobState.RUNNING and not job.allocation:
        fail("allocation", "missing for a running job", "name the GPUs it holds: {node: [gpu, ...]}")


def _allocation(place: str, job: Job, nodes: dict[str, Node]) -> None:
    types = set()
    for name, gpus in (job.allocation or {}).items():
        node = nodes.get(name)
        if node is None:
            raise InputError(place, f"{short(name)} is not a node of the cluster", nearest(name, set(nodes)))
        types.add(node.gpu_type)
        if not gpus:
            raise InputError(place, f"no GPU is named on node {short(name)}", "leave the node out")
        if len(set(gpus)) != len(gpus):
            raise InputError(place, f"a GPU is named twice on node {short(name)}", "name each GPU once")
        for gpu in gpus:
            if gpu >= node.gpus:
                raise InputError(
                    place,
                    f"GPU {gpu} does not exist on node {short(name)} with {node.gpus}",
                    "count GPUs from 0",
                )
    if len(types) > 1:
        raise InputError(place, f"spans the GPU types {', '.join(sorted(types))}", "a gang has one GPU type")


def _groups(snapshot: Snapshot) -> None:
    jobs = {j.id: j for j in snapshot.jobs}
    member_of: dict[str, str] = {}
    for i, group in enumerate(snapshot.groups):
        place = f"groups[{i}]"
        for name in group.jobs:
            if name not in jobs:
                raise InputError(
                    f"{place}.jobs", f"{short(name)} is not a job of the snapshot", nearest(name, set(jobs))
                )
            if name in member_of:
                raise InputError(
                    f"{place}.jobs",
                    f"{short(name)} is also in group {short(member_of[name])}",
                    "a job is in at most one group",
                )
            member_of[name] = group.id
        holders = group.jobs[:1] if group.mode is Mode.SEQUENCE else group.jobs
        allocations = {name: jobs[name].allocation for name in holders}
        for name in holders:
            if jobs[name].state is not JobState.RUNNING:
                raise InputError(f"{place}.jobs", f"{short(name)} is not running", "list running jobs only")
            if allocations[name] != allocations[holders[0]]:
                raise InputError(
                    f"{place}.jobs",
                    f"{short(name)} and {short(holders[0])} hold different GPUs",
                    "members of a group share their GPUs",
                )
        for name in group.jobs[len(holders) :]:
            if jobs[name].state is JobState.RUNNING:
                raise InputError(
                    f"{place}.jobs",
                    f"{short(name)} runs, but waits in a sequence",
                    "only the first member of a sequence holds GPUs",
                )
        if group.mode is not Mode.SOLO and len(group.jobs) == 1:
            raise InputError(
                f"{place}.mode", f"{group.mode.value} with 1 job", "the last member of a group runs solo"
            )
        if group.mode is Mode.SOLO and len(group.jobs) > 1:
            raise InputError(f"{place}.mode", f"solo with {len(group.jobs)} jobs", "name the sharing mode")
        for name in group.starts_from:
            if name not in group.jobs:
                raise InputError(
                    f"{place}.starts_from",
                    f"{short(name)} is not in the group",
                    nearest(name, set(group.jobs)),
                )
            source = group.starts_from[name]
            if (source.adapter is None) == (source.job is None):
                raise InputError(
                    f"{place}.starts_from.{name}",
                    "names both an adapter and a job" if source.adapter else "names neither adapter nor job",
                    'give {"adapter": id} or {"job": id}',
                )
    _exclusive(snapshot, member_of)
    for i, rejected in enumerate(snapshot.rejected_merges):
        if len(set(rejected.jobs)) != len(rejected.jobs):
            raise InputError(f"rejected_merges[{i}].jobs", "a job is named twice", "name each job once")


def _exclusive(snapshot: Snapshot, member_of: dict[str, str]) -> None:
    holder: dict[tuple[str, int], str] = {}
    for i, job in enumerate(snapshot.jobs):
        owner = member_of.get(job.id, f"job {job.id}")
        for node, gpus in (job.allocation or {}).items():
            for gpu in gpus:
                other = holder.setdefault((node, gpu), owner)
                if other != owner:
                    raise InputError(
                        f"jobs[{i}].allocation",
                        f"GPU {gpu} of node {short(node)} is also held by {short(other)}",
                        "jobs that share GPUs belong to one entry of groups[]",
                    )


def _profiles(snapshot: Snapshot) -> None:
    for i, row in enumerate(snapshot.profiles.colocation):
        if len(row.speed_ratio) != len(row.members):
            raise InputError(
                f"profiles.colocation[{i}].speed_ratio",
                f"{len(row.speed_ratio)} values for {len(row.members)} members",
                "give one ratio for each member",
            )
    for i, transfer in enumerate(snapshot.profiles.transfer):
        for field, value, sign in (("low", transfer.low, 1), ("high", transfer.high, -1)):
            if value is not None and (value - transfer.work_ratio) * sign > 0:
                raise InputError(
                    f"profiles.transfer[{i}].{field}",
                    f"{value} is on the wrong side of work_ratio {transfer.work_ratio}",
                    "low <= work_ratio <= high",
                )
        if transfer.mode == "warm_start" and not isinstance(transfer.source, str):
            raise InputError(
                f"profiles.transfer[{i}].source", "a list for a warm start", "name one task or adapter"
            )
    for i, switch in enumerate(snapshot.profiles.switch_s):
        if switch.warm_s > switch.cold_s:
            raise InputError(
                f"profiles.switch_s[{i}].warm_s",
                f"{switch.warm_s} is more than cold_s {switch.cold_s}",
                "a warm start cannot be slower than a cold one",
            )
