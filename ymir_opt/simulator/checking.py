"""Every round's changes, and now and then everything, before the independent checker (`ymir_opt.verify`).

Jobs are numbered by their slots, so no column is gathered; the cost is that of the groups that changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import InvalidPlanError
from ymir_opt.policies.decision import Decision
from ymir_opt.simulator.state import Run
from ymir_opt.simulator.world import World
from ymir_opt.verify.columnar import RoundColumns, check_round

__all__ = ["Before", "check_round_of"]

NO_LIMIT = 1 << 40


@dataclass(frozen=True)
class Before:
    """What held before a decision was carried out, by slot.

    Attributes
    ----------
    group : int64[S]
        Run of each job, -1 none.
    protected : bool[S]
        Holds GPUs and must go on as it runs.
    holding : bool[S]
    """

    group: NDArray[np.int64]
    protected: NDArray[np.bool_]
    holding: NDArray[np.bool_]

    @classmethod
    def of(cls, world: World, now: float) -> Before:
        """Return the state of a world."""
        data = world.store.columns.data
        holding = data["gpus"] > 0
        with np.errstate(invalid="ignore"):
            young = now - data["last_start_s"] < data["min_runtime_s"]
        return cls(data["group"].copy(), holding & ((data["movable"] == 0) | young), holding)


def check_round_of(
    world: World, before: Before, begun: Sequence[Run], decision: Decision, policy: str, *, all_runs: bool
) -> None:
    """Check what a decision changed, or with `all_runs` every group as if it had just begun.

    Raises
    ------
    InvalidPlanError
        An invariant is broken; the policy and the first job concerned are named.
    """
    runs = list(world.runs.values()) if all_runs else list(begun)
    data, cluster = world.store.columns.data, world.cluster
    moved = before.holding & (data["group"] != before.group)
    if not runs and not (moved & before.protected).any():
        return
    full = (np.int64(1) << cluster.size) - 1
    busy = np.where(cluster.ready, full & ~np.array(cluster.free_mask, dtype=np.int64), 0)
    parts = [(g, node, mask) for g, run in enumerate(runs) for node, mask in run.taken]
    part = np.array(parts, dtype=np.int64).reshape(-1, 3)
    mine = np.zeros(len(busy), dtype=np.int64)
    np.bitwise_or.at(mine, part[:, 1], part[:, 2])
    members = [(g, slot) for g, run in enumerate(runs) for slot in run.slots]
    member = np.array(members, dtype=np.int64).reshape(-1, 2)
    largest = np.maximum(data["max_gpus"], data["requested_gpus"])
    ids = np.array([run.id for run in runs], dtype=np.int64)
    columns = RoundColumns(
        node_type=cluster.type,
        node_gpus=cluster.size,
        node_ready=cluster.ready,
        node_busy=busy & ~mine,
        group_type=np.array([run.gpu_type for run in runs], dtype=np.int64),
        group_gpus=np.array([run.gpus for run in runs], dtype=np.int64),
        group_joint=np.array([run.mode == "joint" for run in runs], dtype=np.bool_),
        # an older group may lie on more nodes than would now be enough
        group_spread=np.full(len(runs), all_runs),
        part_group=part[:, 0],
        part_node=part[:, 1],
        part_gpus=part[:, 2],
        member_group=member[:, 0],
        member_job=member[:, 1],
        job_min=np.zeros_like(largest) if all_runs else data["min_gpus"],
        job_max=np.full_like(largest, NO_LIMIT) if all_runs or "max_gpus" in decision.waived else largest,
        job_types=data["type_mask"],
        job_busy=world.store.alive & (data["group"] >= 0) & ~np.isin(data["group"], ids),
        job_moved=moved,
        job_protected=before.protected,
    )
    found = check_round(columns)
    if found:
        first = found[0]
        kind, _, number = first.place.partition(" ")
        name = world.store.columns.ids[int(number)] if kind == "job" else first.place
        raise InvalidPlanError(
            f"policy {policy}",
            f"breaks invariant {first.invariant}: {name} {first.message}",
            "correct the policy",
        )
