"""Saving a simulation to a JSON file and continuing it, bit for bit.

The file holds the moving state only. The trace is read again: jobs that had arrived are skipped, those that
were active are put back into their slots. Floats survive because JSON's shortest form reads back exactly.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.errors import InputError
from ymir_opt.simulator.cluster import NodeSpec
from ymir_opt.simulator.state import Run

if TYPE_CHECKING:
    from ymir_opt.simulator.engine import Engine
    from ymir_opt.simulator.world import World

__all__ = ["restore", "save"]

SCHEMA = "ymir.simulation/1"
_SCALARS = ("arrived", "rounds", "events", "now", "plan_at", "last_plan", "stalled", "node_done")
_WORLD = ("counter", "next_run", "stats", "jct_sum_s", "last_completion_s")


def _identity(engine: Engine) -> dict[str, Any]:
    """Return what must agree between the run that was saved and the one that continues it."""
    return {
        "trace": engine.workload.name,
        "length": engine.workload.length,
        "policy": engine.policy_name,
        "seed": engine.seed,
        "round_s": engine.cadence.round_s,
        "min_spacing_s": engine.cadence.min_spacing_s,
        "nodes": [[n.id, n.gpu_type, n.gpus] for n in engine.nodes],
        "error": [getattr(engine.estimates.error, f.name) for f in fields(engine.estimates.error)],
    }


def save(engine: Engine, path: Path) -> None:
    """Write the state of a run (temporary file, then renamed)."""
    policy = engine.adapter if engine.adapter is not None else engine.policy
    document = {
        "schema": SCHEMA,
        "identity": _identity(engine),
        "engine": {name: getattr(engine, name) for name in _SCALARS},
        "world": _world(engine.world),
        "recorder": engine.recorder.state(),
        "policy": policy.state() if hasattr(policy, "state") else None,
    }
    write_atomic(path, json.dumps(document))


def _world(world: World) -> dict[str, Any]:
    store, cluster = world.store, world.cluster
    active = store.active_slots().tolist()
    return {
        **{name: getattr(world, name) for name in _WORLD},
        "heap": sorted(world.heap),
        "rejected": [[mode, sorted(serials)] for mode, serials in sorted(world.rejected, key=repr)],
        "adapters": sorted(world.adapters),
        "models": list(world.models()),
        "runs": [_run(run) for run in world.runs.values()],
        "shared": list(world.shared),
        "capacity": store.columns.capacity,
        "free_slots": store.free_slots,
        "first_submission_s": store.first_submission_s,
        "fails_left": list(store.fails_left.items()),
        "slots": active,
        "columns": {name: values[active].tolist() for name, values in store.columns.data.items()},
        "truth": {name: values[active].tolist() for name, values in store.truth.data.items()},
        "version": store.truth.version.tolist(),
        "nodes": [
            [name, cluster.types[cluster.type[i]], int(cluster.size[i])] for name, i in cluster.index.items()
        ],
        "ready": cluster.ready.tolist(),
        "free_mask": cluster.free_mask,
        "resident": cluster.resident,
    }


def _run(run: Run) -> dict[str, Any]:
    out = {f.name: getattr(run, f.name) for f in fields(run)}
    for name in ("before", "ratio", "sources", "limits"):
        out[name] = list(out[name].items())
    out["probing"] = sorted(run.probing)
    return out


def restore(engine: Engine, path: Path) -> None:
    """Put a fresh engine into a saved state.

    Raises
    ------
    InputError
        The file is not a checkpoint, or of another trace, cluster, policy or setting.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"is no checkpoint ({error})", "remove the file to start over") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(str(path), "is no checkpoint of this version", "remove the file to start over")
    identity = json.loads(json.dumps(_identity(engine)))
    for name, value in identity.items():
        if document["identity"].get(name) != value:
            raise InputError(
                str(path),
                f"was saved for another {name} ({document['identity'].get(name)})",
                "remove the file to start over",
            )
    for name, value in document["engine"].items():
        setattr(engine, name, value)
    _restore_world(engine, document["world"])
    engine.recorder.restore(document["recorder"])
    policy = engine.adapter if engine.adapter is not None else engine.policy
    if document["policy"] is not None:
        policy.restore(document["policy"])


def _restore_world(engine: Engine, saved: dict[str, Any]) -> None:
    world, store = engine.world, engine.world.store
    for name in _WORLD:
        setattr(world, name, saved[name])
    while store.columns.capacity < saved["capacity"]:
        store.grow()
    serials = dict(zip(saved["columns"]["serial"], saved["slots"], strict=True))
    for number in range(engine.arrived):
        job = engine.take_next()
        if number in serials:
            store.put(serials[number], job)
    slots = np.array(saved["slots"], dtype=np.int64)
    store.order[: len(slots)] = slots
    for name, values in saved["columns"].items():
        store.columns.data[name][slots] = values
    for name, values in saved["truth"].items():
        store.truth.data[name][slots] = values
    store.truth.version = np.array(saved["version"], dtype=np.int64)
    store.free_slots = saved["free_slots"]
    store.first_submission_s = saved["first_submission_s"]
    store.fails_left = dict(saved["fails_left"])
    for model in saved["models"]:
        world.model_index(model)
    world.heap = [tuple(event) for event in saved["heap"]]
    world.rejected = {(mode, frozenset(members)) for mode, members in saved["rejected"]}
    world.adapters = set(saved["adapters"])
    _restore_cluster(world, saved)
    for entry in saved["runs"]:
        run = _run_of(entry)
        world.runs[run.id] = run
        if run.id in saved["shared"]:
            world.shared[run.id] = run
        for slot in run.slots:
            world.run_of[slot] = run.id


def _restore_cluster(world: World, saved: dict[str, Any]) -> None:
    cluster = world.cluster
    added = tuple(NodeSpec(*row) for row in saved["nodes"] if row[0] not in cluster.index)
    if added:
        cluster.add(added)
    for node, ready in enumerate(saved["ready"]):
        if not ready:
            cluster.set_ready(node, False)
    cluster.free_mask = saved["free_mask"]
    cluster.free[:] = [mask.bit_count() for mask in saved["free_mask"]]
    cluster.resident = saved["resident"]


def _run_of(entry: dict[str, Any]) -> Run:
    return Run(
        **{
            **entry,
            "serials": tuple(entry["serials"]),
            "taken": tuple(tuple(pair) for pair in entry["taken"]),
            "before": {slot: tuple(amounts) for slot, amounts in entry["before"]},
            "ratio": {slot: tuple(pair) for slot, pair in entry["ratio"]},
            "sources": dict(entry["sources"]),
            "limits": dict(entry["limits"]),
            "probing": set(entry["probing"]),
        }
    )
