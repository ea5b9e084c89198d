"""What a policy sees of the world: copies and estimates, from which nothing leads back to the truth."""

from __future__ import annotations

from typing import Any

from ymir_opt.policies.view import GroupView, SnapshotView
from ymir_opt.simulator.world import World

__all__ = ["view_of"]


def view_of(world: World, now: float, *, places: bool) -> SnapshotView:
    """Return the view of one moment; every job's progress is brought up to date.

    Parameters
    ----------
    world : World
    now : float
    places : bool
        Also say which GPUs every job holds and what each GPU held last (snapshot policies need it).
    """
    slots = world.store.active_slots()
    world.store.settle(slots, now)
    cluster = world.cluster
    nodes: dict[str, Any] = {
        "node_id": tuple(cluster.ids),
        "node_type": cluster.type.copy(),
        "node_gpus": cluster.size.copy(),
        "node_free": cluster.free.copy(),
        "node_ready": cluster.ready.copy(),
    }
    rows: dict[int, int] = {}
    if world.shared or places:
        rows = {slot: row for row, slot in enumerate(slots.tolist())}
    groups = tuple(
        GroupView(
            run.id,
            run.mode,
            tuple(rows[slot] for slot in run.slots),
            run.gpus,
            run.gpu_type,
            run.taken,
            run.started_s,
            run.probe,
            dict(sorted((rows[slot], kind) for slot, kind in run.sources.items() if slot in run.slots)),
        )
        for run in world.shared.values()
    )
    view = SnapshotView(
        now,
        world.store.columns,
        slots,
        world.estimates.speed,
        world.estimates.transfer,
        nodes,
        groups,
        frozenset(world.rejected),
        world.workload.queues,
        frozenset(world.adapters),
        world.workload.quotas,
        world.estimates.error.work,
    )
    if places:
        view.places = {rows[run.slots[0]]: run.taken for run in world.runs.values() if run.mode == "solo"}
        nodes["node_resident"] = tuple(map(tuple, cluster.resident))
        nodes["models"] = world.models()
    return view
