"""The state in which a policy's simulation leaves a workload at some time."""

from __future__ import annotations

from collections.abc import Sequence

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.jobmodel import JobModel, WorkloadJob

__all__ = ["state_under_policy"]


def state_under_policy(
    snapshot: Snapshot,
    rows: Sequence[WorkloadJob],
    model: JobModel,
    policy: str,
    cluster: str,
    warm_s: float | None,
) -> Snapshot:
    """Return the snapshot with the progress, groups and allocations of a policy's run."""
    raise InputError("--active", f"policy:{policy[:40]} needs the simulator", "use submitted")
