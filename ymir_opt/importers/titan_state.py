"""The state in which a policy's simulation leaves a workload at some time."""

from __future__ import annotations

from pathlib import Path

from ymir_opt.domain.base import FrozenDict
from ymir_opt.domain.snapshot import Cluster, Job, Snapshot
from ymir_opt.jobmodel import JobModel
from ymir_opt.simulator.cluster import parse_cluster

__all__ = ["state_under_policy"]

STATE = (
    "done_samples",
    "remaining_samples",
    "state",
    "allocation",
    "not_before_s",
    "failed_starts",
    "first_start_s",
    "last_start_s",
    "running_s",
    "attained_gpu_s",
    "restarts",
    "preemptions",
)
"""Fields of a job that a run changes."""


def state_under_policy(
    snapshot: Snapshot,
    workload: str,
    model: JobModel,
    policy: str,
    cluster: str,
    *,
    warm_s: float | None = None,
    against: str = "best-single",
) -> Snapshot:
    """Return the snapshot with the progress, groups and allocations of a policy's run.

    The run begins with the workload's first arrival and ends at the snapshot's time; completed jobs are
    gone, their weights are in ``adapters``. The policy sees no estimate error.

    Parameters
    ----------
    snapshot : Snapshot
        Every job submitted by its time, pending.
    workload : str
        The workload's file.
    model : JobModel
    policy : str
        Name of an installed policy.
    cluster : str
    warm_s : float or None
    against : {"best-single", "trace"}
        To which single-task run the transfers of the run compare.

    Raises
    ------
    NotFoundError
        There is no such policy.
    """
    from ymir_opt.policies.base import load_policy
    from ymir_opt.policies.document import Documents
    from ymir_opt.simulator.engine import Engine
    from ymir_opt.simulator.workload import titan_workload

    nodes = parse_cluster(cluster)
    trace = titan_workload(
        Path(workload),
        model,
        gpu_types=tuple(dict.fromkeys(node.gpu_type for node in nodes)),
        cluster_gpus=min(32, sum(node.gpus for node in nodes)),
        warm_s=warm_s,
        against="best_single" if against == "best-single" else "trace",
        exact_targets=True,
    )
    chosen = load_policy(policy)
    engine = Engine(trace, nodes, chosen, policy_name=policy)
    engine.run(until_s=snapshot.taken_at_s)
    seen = Documents(snapshot.round_s, every_adapter=True).snapshot(engine.view(places=True))
    before = {job.id: job for job in snapshot.jobs}
    resident = {node.id: node.resident_fm for node in seen.cluster.nodes}
    return snapshot.model_copy(
        update={
            "jobs": tuple(_moved(before[job.id], job) for job in seen.jobs),
            "groups": seen.groups,
            "rejected_merges": seen.rejected_merges,
            "adapters": seen.adapters,
            "cluster": Cluster(
                nodes=tuple(
                    node.model_copy(update={"resident_fm": resident[node.id]})
                    for node in snapshot.cluster.nodes
                )
            ),
            "labels": FrozenDict({**snapshot.labels, "policy": policy}),
        }
    )


def _moved(before: Job, now: Job) -> Job:
    """Return a job with the state that the run gave it."""
    return before.model_copy(update={name: getattr(now, name) for name in STATE})
