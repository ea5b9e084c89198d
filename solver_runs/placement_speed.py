"""How fast placement is: prints one JSON object a line, the first describing the machine.

Usage: ``python solver_runs/placement_speed.py [--small]``. Times are CPU seconds of this process;
the first call of each kind is not counted (imports, caches of another instance).
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

from ymir_opt.domain.snapshot import Cluster, Job, JobState, Node, Snapshot
from ymir_opt.formulation.capacity import capacity_rows, resident_rows, resource_rows, rung_rows
from ymir_opt.formulation.columns import MODES, ColumnTable
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import ModelBuilder
from ymir_opt.formulation.nodes import node_rows
from ymir_opt.formulation.shapes import Shape
from ymir_opt.placement.pack import place


def machine() -> dict[str, Any]:
    """Describe the machine and the versions that matter."""
    model = platform.processor()
    try:
        with open("/proc/cpuinfo") as lines:
            model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "machine": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "highspy": version("highspy"),
    }


def cluster(rng: np.random.Generator, nodes: int, *, busy: float = 0.0, models: int = 0) -> Instance:
    """Nodes of 8; ``busy`` governs how many running jobs are pinned, ``models`` resident ones."""
    listed, jobs = [], []
    for i in range(nodes):
        resident = tuple(f"fm{m}" for m in rng.integers(0, models, 8)) if models else ()
        listed.append(Node(id=f"n{i}", gpu_type="A", gpus=8, gpu_memory_gib=40.0, resident_fm=resident))
        free = list(range(8))
        while free and rng.random() < busy:
            count = min(int(rng.choice([1, 2, 3, 4, 8])), len(free))
            held, free = free[:count], free[count:]
            jobs.append(
                Job(
                    id=f"r{len(jobs)}",
                    submitted_at_s=0.0,
                    remaining_s=100.0,
                    requested_gpus=count,
                    state=JobState.RUNNING,
                    allocation={f"n{i}": tuple(held)},
                    last_start_s=0.0,
                )
            )
    wanted = [
        Job(id=f"p{m}", submitted_at_s=0.0, remaining_s=1.0, foundation_model=f"fm{m}") for m in range(models)
    ]
    snapshot = Snapshot(taken_at_s=0.0, cluster=Cluster(nodes=tuple(listed)), jobs=(*jobs, *wanted))
    return Instance.of(snapshot)


def demands(rng: np.random.Generator, count: int, free: int, sizes: list[int], models: int) -> list[Shape]:
    """Draw demands until the count or the free GPUs are reached; half of them warm with ``models``."""
    found: list[Shape] = []
    while len(found) < count and free > 0:
        size = min(int(rng.choice(sizes)), free)
        warm = int(rng.integers(0, models)) if models and size <= 2 and rng.random() < 0.5 else -1
        found.append(Shape(0, size, resident=warm))
        free -= size
    return found


def tight(nodes: int) -> list[Shape]:
    """Fill two nodes of 8 exactly, in a way that largest-first best fit never finds."""
    return [Shape(0, size) for _ in range(nodes // 2) for size in (3, 3, 2, 4, 2, 2)]


def table(instance: Instance, shapes: list[Shape], copies: int) -> ColumnTable:
    """One keep column for each running group and ``copies`` columns for each demand."""
    distinct = tuple(sorted(set(shapes)))
    row = {shape: i for i, shape in enumerate(distinct)}
    keeps = len(instance.running)
    new = len(shapes) * copies
    zeros = np.zeros(keeps + new, np.int64)
    of_keep = np.full(keeps, -1, np.int64)
    repeated = np.repeat(np.array([row[s] for s in shapes], np.int64), copies)
    sizes = np.repeat(np.array([s.gpus for s in shapes], np.int64), copies)
    return ColumnTable(
        jobs=np.arange(keeps + new)[:, None],
        size=zeros + 1,
        mode=zeros + MODES.index(MODES[0]),
        type=zeros,
        gpus=np.concatenate([np.array([len(g.gpus) for g in instance.running], np.int64), sizes]),
        shape=np.concatenate([of_keep, repeated]),
        keep=np.concatenate([np.arange(keeps), np.full(new, -1)]),
        warm=np.zeros(keeps + new, np.bool_),
        start=np.full((keeps + new, 1), -1),
        finish_s=np.ones((keeps + new, 1)),
        cost=zeros,
        shapes=distinct,
        queued_cost=zeros,
        quantum=1.0,
    )


def timed(action: Callable[[], Any]) -> tuple[Any, float, float]:
    """Run once; return the result, CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = action()
    return result, round(time.process_time() - cpu, 4), round(time.perf_counter() - wall, 4)


def packing(rng: np.random.Generator, nodes: int) -> Iterator[dict[str, Any]]:
    """Time `place` on growing demands, easy and hard ones."""
    powers, any_size = [1, 1, 2, 4, 8], [1, 2, 3, 4, 6, 8, 16, 24]
    cases: list[tuple[str, float, int, list[int] | None, int]] = [
        ("powers of two, empty", 0.0, 0, powers, 1000),
        ("powers of two, pinned jobs", 0.5, 0, powers, 1000),
        ("any size, pinned jobs", 0.5, 0, any_size, 500),
        ("residents and warm starts", 0.3, 20, powers, 1000),
        ("10 000 single GPUs", 0.0, 0, [1], 10_000),
        ("best fit fails, search decides", 0.0, 0, None, 0),
    ]
    for name, busy, models, sizes, count in cases:
        instance = cluster(rng, nodes, busy=busy, models=models)
        keeps = range(len(instance.running))
        free = int((instance.gpu_held < 0).sum())
        wanted = tight(nodes) if sizes is None else demands(rng, count, free, sizes, models)
        place(instance, instance.gpu_ready, keeps, wanted[:1])
        result, cpu, wall = timed(lambda i=instance, k=keeps, w=wanted: place(i, i.gpu_ready, k, w))
        yield {
            "what": "place",
            "case": name,
            "nodes": nodes,
            "groups": len(wanted),
            "ok": result.ok,
            "exact": result.exact,
            "searched": bool(result.searched),
            "cpu_s": cpu,
            "wall_s": wall,
        }


def building(rng: np.random.Generator, nodes: int) -> Iterator[dict[str, Any]]:
    """Time the rows on a table of 100 columns a demand, with pinned jobs."""
    instance = cluster(rng, nodes, busy=0.5)
    found = table(instance, demands(rng, 1000, 8 * nodes, [1, 2, 3, 4, 6, 8, 16], 0), 100)

    def aggregate() -> Any:
        builder = ModelBuilder()
        x = builder.variables(found.cost)
        for family in (capacity_rows, resident_rows, resource_rows, rung_rows):
            family(builder, instance, instance.gpu_ready, found, x)
        return builder.build()

    def exact() -> Any:
        builder = ModelBuilder()
        x = builder.variables(found.cost)
        node_rows(builder, instance, instance.gpu_ready, found, x, [0])
        return builder.build()

    for name, action in (("capacity and rungs", aggregate), ("exact node model", exact)):
        model, cpu, wall = timed(action)
        yield {
            "what": "rows",
            "case": name,
            "nodes": nodes,
            "columns": len(found),
            "kept_groups": len(instance.running),
            "variables": model.variables - len(found),
            "rows": model.rows,
            "nonzeros": len(model.index),
            "cpu_s": cpu,
            "wall_s": wall,
        }


def main() -> None:
    """Print the lines."""
    nodes = 130 if "--small" in sys.argv[1:] else 1250
    print(json.dumps(machine()))
    for part in (packing, building):
        for line in part(np.random.default_rng(0), nodes):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
