"""Small clusters at random, and placement by trying every set of GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ymir_opt.domain.snapshot import Cluster, Job, JobState, Node, NodeState, Snapshot
from ymir_opt.formulation.columns import MODES, ColumnTable
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import LinearModel
from ymir_opt.formulation.shapes import Shape

SLACK = 1e-6


def node(name: str, gpus: int, gpu_type: str = "A", **fields: Any) -> Node:
    fields.setdefault("gpu_memory_gib", 32.0)
    return Node(id=name, gpu_type=gpu_type, gpus=gpus, **fields)


def runs(name: str, allocation: dict[str, tuple[int, ...]], **fields: Any) -> Job:
    return Job(
        id=name,
        submitted_at_s=0.0,
        remaining_s=100.0,
        state=JobState.RUNNING,
        allocation=allocation,
        last_start_s=0.0,
        requested_gpus=sum(len(g) for g in allocation.values()),
        **fields,
    )


def instance_of(nodes: Sequence[Node], jobs: Sequence[Job] = ()) -> Instance:
    return Instance.of(Snapshot(taken_at_s=0.0, cluster=Cluster(nodes=tuple(nodes)), jobs=tuple(jobs)))


def random_instance(rng: np.random.Generator, *, plain: bool = False, gpus: int = 9) -> Instance:
    """A cluster of at most ``gpus`` GPUs with running jobs; ``plain``: one kind of GPU, no CPUs."""
    nodes: list[Node] = []
    left = int(rng.integers(3, gpus + 1))
    stingy = rng.random() < 0.5
    while left > 0 and len(nodes) < 5:
        size = int(rng.choice([1, 2, 4])) if plain else int(rng.integers(1, 5))
        size = min(size, left) if not plain or size <= left else 1
        left -= size
        fields: dict[str, Any] = {"labels": {"zone": str(rng.choice(["x", "y"]))}}
        if not plain:
            if rng.random() < 0.5:
                fields["external_used_gib"] = tuple(float(rng.choice([0, 8, 20])) for _ in range(size))
            if rng.random() < 0.6:
                fields["resident_fm"] = tuple([None, "m", "k"][int(rng.integers(0, 3))] for _ in range(size))
            if rng.random() < 0.3:
                fields["unavailable_gpus"] = (int(rng.integers(0, size)),)
            if stingy and rng.random() < 0.7:
                fields["cpus"] = float(rng.integers(size, 3 * size + 2))
            if stingy and rng.random() < 0.4:
                fields["host_memory_gib"] = float(rng.integers(2 * size, 8 * size))
            state = rng.random()
            fields["state"] = (
                NodeState.DOWN if state < 0.05 else NodeState.DRAINING if state < 0.12 else NodeState.READY
            )
        kind = "B" if not plain and rng.random() < 0.2 else "A"
        nodes.append(node(f"n{len(nodes)}", size, kind, **fields))
    jobs: list[Job] = []
    taken: dict[str, set[int]] = {each.id: set() for each in nodes}
    for each in nodes:
        if each.state is NodeState.DOWN:
            continue
        free = [g for g in range(each.gpus) if g not in each.unavailable_gpus and g not in taken[each.id]]
        rng.shuffle(free)
        while free and rng.random() < 0.5:
            count = int(rng.integers(1, len(free) + 1))
            held, free = tuple(sorted(free[:count])), free[count:]
            allocation = {each.id: held}
            other = nodes[int(rng.integers(0, len(nodes)))]
            if rng.random() < 0.3 and other.id > each.id and other.gpu_type == each.gpu_type:
                spare = [g for g in range(other.gpus) if g not in taken[other.id]]
                spare = [g for g in spare if g not in other.unavailable_gpus]
                if spare and other.state is not NodeState.DOWN:
                    allocation[other.id] = (spare[0],)
                    taken[other.id].add(spare[0])
            extra = (
                {}
                if plain
                else {
                    "cpus_per_gpu": float(rng.choice([0.0, 1.0, 2.0])),
                    "host_memory_gib": float(rng.choice([0.0, 2.0, 4.0])),
                }
            )
            jobs.append(runs(f"r{len(jobs)}", allocation, **extra))
    models = [
        Job(id=f"p-{fm}", submitted_at_s=0.0, remaining_s=1.0, foundation_model=fm) for fm in ("m", "k")
    ]
    return instance_of(nodes, [*jobs, *models])


def random_shape(rng: np.random.Generator, instance: Instance, *, plain: bool = False) -> Shape:
    t = 0 if plain else int(rng.integers(0, len(instance.types)))
    if plain:
        return Shape(t, int(rng.choice([1, 1, 2, 4])))
    fields: dict[str, Any] = {}
    gpus = int(rng.choice([1, 1, 1, 2, 2, 2, 3, 4, 5, 6]))
    if rng.random() < 0.3 and len(instance.levels[t]) > 1:
        fields["level"] = int(rng.integers(0, len(instance.levels[t])))
    if rng.random() < 0.12:
        fields["selector"] = (("zone", str(rng.choice(["x", "y"]))),)
    style = rng.random()
    if style < 0.2:
        worker = int(rng.integers(1, 3))
        gpus, fields["worker"] = worker * int(rng.integers(1, 4)), worker
    elif style < 0.3:
        fields["whole"] = True
    if rng.random() < 0.2:
        fields["resident"] = instance.fms.index(str(rng.choice(["m", "k"])))
    if rng.random() < 0.4:
        fields["cpus_per_gpu"] = float(rng.choice([0.5, 1.0, 2.0]))
    if rng.random() < 0.3:
        fields["host_gib_per_gpu"] = float(rng.choice([1.0, 10 / 3, 4.0]))
    return Shape(t, gpus, **fields)


def empty_capacity(instance: Instance, shape: Shape, n: int) -> int:
    """GPUs of an empty node that the shape could use."""
    data = instance.nodes[n]
    if data.state is not NodeState.READY or instance.types[shape.type] != data.gpu_type:
        return 0
    if any(data.labels.get(key) != value for key, value in shape.selector):
        return 0
    first = int(instance.node_first_gpu[n])
    good = sum(
        1
        for i in range(data.gpus)
        if i not in data.unavailable_gpus and instance.gpu_level[first + i] >= shape.level
    )
    for limit, each in (
        (data.cpus, shape.cpus_per_gpu),
        (data.host_memory_gib, shape.host_gib_per_gpu),
    ):
        while limit is not None and each and good * each > limit + SLACK:
            good -= 1
    if shape.whole and (good < data.gpus or data.unavailable_gpus):
        return 0
    return good


def brute_fewest(instance: Instance, shape: Shape) -> int:
    """Try all sets of nodes."""
    caps = [empty_capacity(instance, shape, n) for n in range(len(instance.nodes))]
    caps = [c for c in caps if c]
    for k in range(1, len(caps) + 1):
        for chosen in itertools.combinations(caps, k):
            if shape.whole:
                enough = sum(chosen) == shape.gpus
            elif shape.worker:
                enough = sum(c // shape.worker for c in chosen) * shape.worker >= shape.gpus
            else:
                enough = sum(chosen) >= shape.gpus
            if enough:
                return k
    return 0


def allowed(instance: Instance, shape: Shape, fewest: int, gpus: Iterable[int]) -> bool:
    """Say whether one group may lie on exactly these GPUs of an otherwise empty cluster."""
    rows = list(gpus)
    if len(rows) != shape.gpus or fewest == 0:
        return False
    on: dict[int, int] = {}
    for u in rows:
        if (
            not instance.gpu_ready[u]
            or instance.gpu_type[u] != shape.type
            or instance.gpu_level[u] < shape.level
            or (shape.resident >= 0 and instance.gpu_resident[u] != shape.resident)
        ):
            return False
        on[int(instance.gpu_node[u])] = on.get(int(instance.gpu_node[u]), 0) + 1
    for n, count in on.items():
        if any(instance.nodes[n].labels.get(key) != value for key, value in shape.selector):
            return False
        if shape.worker and count % shape.worker:
            return False
        if shape.whole and (count != instance.nodes[n].gpus or instance.nodes[n].unavailable_gpus):
            return False
    return bool(shape.worker) or len(on) == fewest


def _left(instance: Instance, keeps: Iterable[int]) -> list[tuple[float, float]]:
    left = []
    kept = list(keeps)
    for n, data in enumerate(instance.nodes):
        cpus = float("inf") if data.cpus is None else data.cpus
        host = float("inf") if data.host_memory_gib is None else data.host_memory_gib
        for r in kept:
            group = instance.running[r]
            here = sum(1 for u in group.gpus if instance.gpu_node[u] == n)
            for j in group.holders:
                cpus -= (instance.jobs[j].cpus_per_gpu or 0.0) * here
                host -= (instance.jobs[j].host_memory_gib or 0.0) * here / len(group.gpus)
        left.append((max(cpus, 0.0), max(host, 0.0)))
    return left


def fits_together(
    instance: Instance, keeps: Sequence[int], demands: Sequence[Shape], placed: Sequence[Sequence[int]]
) -> bool:
    """Check CPUs and host memory of a full placement."""
    left = _left(instance, keeps)
    for n in range(len(instance.nodes)):
        for i, figure in enumerate(("cpus_per_gpu", "host_gib_per_gpu")):
            used = sum(
                getattr(shape, figure) * sum(1 for u in rows if instance.gpu_node[u] == n)
                for shape, rows in zip(demands, placed, strict=True)
            )
            if used > 0 and used > left[n][i] + SLACK:
                return False
    return True


def brute_placeable(
    instance: Instance, available: np.ndarray, keeps: Sequence[int], demands: Sequence[Shape]
) -> int:
    """Return -1 if all demands can be placed, else the first one that cannot with those before it."""
    held = {int(u) for r in keeps for u in instance.running[r].gpus}
    free = [u for u in np.flatnonzero(available & instance.gpu_ready).tolist() if u not in held]
    left = _left(instance, keeps)
    limited = [any(np.isfinite(x) for x in both) for both in left]
    states: set[tuple[frozenset[int], tuple[tuple[float, float], ...]]] = {
        (frozenset(), tuple((0.0, 0.0) for _ in left))
    }
    for i, shape in enumerate(demands):
        fewest = brute_fewest(instance, shape)
        options = [
            frozenset(rows)
            for rows in itertools.combinations(free, shape.gpus)
            if allowed(instance, shape, fewest, rows)
        ]
        following = set()
        for taken, used in states:
            for rows in options:
                if rows & taken:
                    continue
                now = list(used)
                good = True
                for n in {int(instance.gpu_node[u]) for u in rows}:
                    if not limited[n]:
                        continue
                    here = sum(1 for u in rows if instance.gpu_node[u] == n)
                    cpus = now[n][0] + shape.cpus_per_gpu * here
                    host = now[n][1] + shape.host_gib_per_gpu * here
                    good &= not shape.cpus_per_gpu or cpus <= left[n][0] + SLACK
                    good &= not shape.host_gib_per_gpu or host <= left[n][1] + SLACK
                    now[n] = (round(cpus, 9), round(host, 9))
                if good:
                    following.add((taken | rows, tuple(now)))
        if not following:
            return i
        states = following
    return -1


def table_of(instance: Instance, keeps: Sequence[int], demands: Sequence[Shape]) -> ColumnTable:
    """One column for each keep, then one for each demand; jobs are only numbers here."""
    shapes = tuple(sorted(set(demands)))
    count = len(keeps) + len(demands)
    new = len(demands)
    zeros = np.zeros(count, np.int64)
    return ColumnTable(
        jobs=np.arange(count, dtype=np.int64)[:, None],
        size=zeros + 1,
        mode=zeros + MODES.index(MODES[0]),
        type=np.array([instance.running[r].type for r in keeps] + [s.type for s in demands], np.int64),
        gpus=np.array([len(instance.running[r].gpus) for r in keeps] + [s.gpus for s in demands], np.int64),
        shape=np.array([-1] * len(keeps) + [shapes.index(s) for s in demands], np.int64),
        keep=np.array([*keeps, *([-1] * new)], np.int64),
        warm=np.array([False] * len(keeps) + [s.resident >= 0 for s in demands]),
        start=np.full((count, 1), -1, np.int64),
        finish_s=np.ones((count, 1)),
        cost=zeros,
        shapes=shapes,
        queued_cost=np.zeros(count, np.int64),
        quantum=1.0,
    )


def solve(model: LinearModel, fixed: np.ndarray | None = None, *, relax: bool = False) -> np.ndarray | None:
    """Return an optimal point, or None; ``fixed`` gives the values of the first variables.

    Relaxable variables are left continuous: that must not change what is accepted. ``relax`` leaves
    all variables continuous.
    """
    import highspy

    lower, upper = model.lower.copy(), model.upper.copy()
    if fixed is not None:
        lower[: len(fixed)] = upper[: len(fixed)] = fixed
    limit = 1 << 50
    highs = highspy.Highs.__bases__[0]()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("parallel", "off")
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = model.variables, model.rows
    lp.col_cost_ = model.cost.astype(float)
    lp.col_lower_ = lower.astype(float)
    lp.col_upper_ = np.where(upper > limit, np.inf, upper.astype(float))
    lp.row_lower_ = np.where(model.row_lower < -limit, -np.inf, model.row_lower.astype(float))
    lp.row_upper_ = np.where(model.row_upper > limit, np.inf, model.row_upper.astype(float))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = model.row_start.astype(np.int32)
    lp.a_matrix_.index_ = model.index.astype(np.int32)
    lp.a_matrix_.value_ = model.value.astype(float)
    lp.integrality_ = [
        highspy.HighsVarType.kContinuous if relax or relaxed else highspy.HighsVarType.kInteger
        for relaxed in model.relaxable
    ]
    highs.passModel(lp)
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kModelEmpty:
        return np.zeros(0)
    assert status in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible)
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    return np.array(highs.getSolution().col_value)


def accepts(model: LinearModel, chosen: np.ndarray) -> bool:
    """Solve the model with its first variables fixed; False if infeasible."""
    return solve(model, chosen) is not None


Demand = tuple[int, int, bool]
"""GPUs, GPUs of a worker (0: a gang), whole nodes."""


def fewest_by_count(sizes: Sequence[int], demand: Demand) -> int:
    """Try all sets of empty nodes of one kind."""
    gpus, worker, whole = demand
    for k in range(1, len(sizes) + 1):
        for chosen in itertools.combinations(sizes, k):
            if whole:
                enough = sum(chosen) == gpus
            elif worker:
                enough = sum(c // worker for c in chosen) * worker >= gpus
            else:
                enough = sum(chosen) >= gpus
            if enough:
                return k
    return 0


def _amounts(state: tuple[tuple[int, int], ...], demand: Demand, fewest: int) -> Iterable[tuple[int, ...]]:
    """GPUs taken from each node (free, size), over all ways to place one group."""
    gpus, worker, whole = demand

    def extend(i: int, left: int, nodes: int) -> Iterable[tuple[int, ...]]:
        if left == 0:
            if worker or nodes == fewest:
                yield (0,) * (len(state) - i)
            return
        if i == len(state):
            return
        free, size = state[i]
        if whole:
            steps: Iterable[int] = (0, size) if free == size else (0,)
        else:
            steps = range(0, min(free, left) + 1, worker or 1)
        for step in steps:
            if step <= left and (worker or nodes + (step > 0) <= fewest):
                for rest in extend(i + 1, left - step, nodes + (step > 0)):
                    yield (step, *rest)

    return extend(0, gpus, 0) if fewest else ()


def count_placeable(sizes: Sequence[int], free: Sequence[int], demands: Sequence[Demand]) -> bool:
    """Placement on GPUs of one kind, by trying every number of GPUs on every node."""
    states = {tuple(sorted(zip(free, sizes, strict=True)))}
    for demand in sorted(demands, reverse=True):
        fewest = fewest_by_count(sizes, demand)
        states = {
            tuple(sorted((f - a, size) for (f, size), a in zip(state, amounts, strict=True)))
            for state in states
            for amounts in _amounts(state, demand, fewest)
        }
        if not states:
            return False
    return True


def pinned_layout(rng: np.random.Generator, sizes: Sequence[int], *, odd: bool) -> Instance:
    """Nodes of one kind with running jobs scattered over them; some span two nodes."""
    nodes = [node(f"n{i}", size) for i, size in enumerate(sizes)]
    left = [list(range(size)) for size in sizes]
    jobs: list[Job] = []
    for _ in range(int(rng.integers(1, 2 * len(sizes)))):
        i = int(rng.integers(0, len(sizes)))
        count = int(rng.choice([1, 2, 3, 5] if odd else [1, 1, 2, 4]))
        if count > len(left[i]):
            continue
        allocation = {f"n{i}": tuple(left[i][:count])}
        left[i] = left[i][count:]
        j = int(rng.integers(0, len(sizes)))
        if j != i and left[j] and rng.random() < 0.2:
            allocation[f"n{j}"] = (left[j].pop(),)
        jobs.append(runs(f"r{len(jobs)}", allocation))
    return instance_of(nodes, jobs)
