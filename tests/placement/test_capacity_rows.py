"""Capacity, resident, resource and rung rows: never too strict, and exact where they claim it."""

from __future__ import annotations

import numpy as np
import pytest
from placement_oracle import (
    accepts,
    brute_fewest,
    brute_placeable,
    count_placeable,
    instance_of,
    node,
    pinned_layout,
    random_instance,
    random_shape,
    runs,
    solve,
    table_of,
)

from ymir_opt.domain.snapshot import NodeState
from ymir_opt.formulation.capacity import capacity_rows, resident_rows, resource_rows, rung_rows
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import LinearModel, ModelBuilder
from ymir_opt.formulation.nodes import node_rows
from ymir_opt.formulation.shapes import Shape

AGGREGATE = (capacity_rows, resident_rows, resource_rows)
ALL = (*AGGREGATE, rung_rows)


def model_of(instance: Instance, available: np.ndarray, keeps, demands, families) -> LinearModel:
    table = table_of(instance, keeps, demands)
    builder = ModelBuilder()
    x = builder.variables(np.zeros(len(table), np.int64))
    for family in families:
        family(builder, instance, available, table, x)
    return builder.build()


def exact_of(instance: Instance, available: np.ndarray, keeps, demands) -> LinearModel:
    def family(*arguments) -> None:
        node_rows(*arguments, types=range(len(instance.types)))

    return model_of(instance, available, keeps, demands, [family])


def choices(rng: np.random.Generator, keeps, demands, count: int):
    for _ in range(count):
        yield np.array([rng.random() < 0.5 for _ in keeps] + [rng.random() < 0.7 for _ in demands], np.int64)


def test_rows_never_refuse_and_the_node_model_decides() -> None:
    """Down, draining, unavailable, external memory, residents, selectors, workers, CPUs: every choice."""
    yes = no = 0
    for seed in range(160):
        rng = np.random.default_rng(seed)
        instance = random_instance(rng, gpus=int(rng.integers(4, 12)))
        demands: list[Shape] = []
        while len(demands) < 1 + seed % 3:
            shape = random_shape(rng, instance)
            if rng.random() < 0.1 or brute_fewest(instance, shape):
                demands.append(shape)
        available = instance.gpu_ready.copy()
        if rng.random() < 0.3:
            available[int(rng.integers(0, len(available)))] = False
        keeps = [r for r, g in enumerate(instance.running) if g.keepable]
        exact = exact_of(instance, available, keeps, demands)
        relaxed = model_of(instance, available, keeps, demands, ALL)
        for x in choices(rng, keeps, demands, 4):
            kept = [r for r, v in zip(keeps, x, strict=False) if v]
            wanted = [s for s, v in zip(demands, x[len(keeps) :], strict=True) if v]
            placeable = brute_placeable(instance, available, kept, wanted) < 0
            assert accepts(exact, x) == placeable, (seed, x)
            if placeable:
                assert accepts(relaxed, x), (seed, x)
            yes += placeable
            no += not placeable
    assert min(yes, no) > 100


def test_rungs_are_exact_for_powers_of_two_where_aggregate_capacity_is_not() -> None:
    """Adversarial pinned layouts on nodes of 2, 4 and 8; running groups of any size, kept or dropped."""
    yes = no = fooled = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        sizes = [8] * int(rng.integers(2, 6))
        if rng.random() < 0.5:
            sizes = [int(rng.choice([2, 4, 8])) for _ in sizes]
        instance = pinned_layout(rng, sizes, odd=bool(rng.random() < 0.4))
        counts = rng.choice([1, 1, 2, 2, 4, 8, 16], size=int(rng.integers(2, 7))).tolist()
        demands = [Shape(0, g) for g in counts]
        keeps = list(range(len(instance.running)))
        rungs = model_of(instance, instance.gpu_ready, keeps, demands, [capacity_rows, rung_rows])
        plain = model_of(instance, instance.gpu_ready, keeps, demands, [capacity_rows])
        for x in choices(rng, keeps, demands, 4):
            free = list(sizes)
            for r in np.flatnonzero(x[: len(keeps)]).tolist():
                for n in instance.gpu_node[instance.running[r].gpus].tolist():
                    free[n] -= 1
            wanted = [(g, 0, False) for g, v in zip(counts, x[len(keeps) :], strict=True) if v]
            placeable = count_placeable(sizes, free, wanted)
            assert accepts(rungs, x) == placeable, (seed, x)
            fooled += accepts(plain, x) and not placeable
            yes += placeable
            no += not placeable
    assert min(yes, no) > 150
    assert fooled > 30  # what aggregate capacity alone would have promised


def test_rungs_are_exact_on_random_clusters_of_one_kind() -> None:
    for seed in range(120):
        rng = np.random.default_rng(seed)
        instance = random_instance(rng, plain=True, gpus=12)
        demands = [random_shape(rng, instance, plain=True) for _ in range(int(rng.integers(1, 7)))]
        keeps = list(range(len(instance.running)))
        rungs = model_of(instance, instance.gpu_ready, keeps, demands, [capacity_rows, rung_rows])
        for x in choices(rng, keeps, demands, 3):
            kept = [r for r, v in zip(keeps, x, strict=False) if v]
            wanted = [s for s, v in zip(demands, x[len(keeps) :], strict=True) if v]
            assert accepts(rungs, x) == (brute_placeable(instance, instance.gpu_ready, kept, wanted) < 0)


def test_node_model_is_exact_for_odd_sizes_workers_and_mixed_nodes() -> None:
    yes = no = loose = 0
    for seed in range(110):
        rng = np.random.default_rng(seed)
        sizes = [int(rng.choice([4, 6, 8])) for _ in range(int(rng.integers(2, 5)))]
        instance = pinned_layout(rng, sizes, odd=True)
        asked = [
            (int(rng.choice([1, 2, 3, 3, 5, 6, 7, 12])), 0, False) for _ in range(int(rng.integers(1, 5)))
        ]
        asked += [[(4, 2, False), (6, 3, False), (6, 0, True), (12, 0, True)][int(rng.integers(0, 4))]]
        demands = [Shape(0, g, worker=w, whole=whole) for g, w, whole in asked]
        keeps = list(range(len(instance.running)))
        exact = exact_of(instance, instance.gpu_ready, keeps, demands)
        relaxed = model_of(instance, instance.gpu_ready, keeps, demands, ALL)
        for x in choices(rng, keeps, demands, 4):
            free = list(sizes)
            for r in np.flatnonzero(x[: len(keeps)]).tolist():
                for n in instance.gpu_node[instance.running[r].gpus].tolist():
                    free[n] -= 1
            wanted = [d for d, v in zip(asked, x[len(keeps) :], strict=True) if v]
            placeable = count_placeable(sizes, free, wanted)
            assert accepts(exact, x) == placeable, (seed, x)
            accepted = accepts(relaxed, x)
            assert accepted or not placeable, (seed, x)
            loose += accepted and not placeable
            yes += placeable
            no += not placeable
    assert min(yes, no) > 100
    assert loose  # why the node model exists


def test_capacity_classes_nest() -> None:
    """Two GPUs of 32 GiB and two of 12: jobs of 20 GiB compete for the first two only."""
    instance = instance_of([node("a", 4, external_used_gib=(0, 0, 20, 20))])
    big = Shape(0, 1, level=instance.level_for(0, 20.0))
    small = Shape(0, 1)
    model = model_of(instance, instance.gpu_ready, [], [big, big, big, small, small, small, small], ALL)
    assert accepts(model, np.array([1, 1, 0, 1, 1, 0, 0]))
    assert accepts(model, np.array([0, 0, 0, 1, 1, 1, 1]))  # small ones use large memories too
    assert not accepts(model, np.array([1, 1, 1, 0, 0, 0, 0]))
    assert not accepts(model, np.array([1, 1, 0, 1, 1, 1, 0]))


def test_warm_starts_are_bounded_by_resident_free_gpus() -> None:
    jobs = [runs("r", {"a": (0,)}), runs("w", {"b": (3,)}, foundation_model="m")]
    instance = instance_of([node("a", 4, resident_fm=("m", "m", "m", None)), node("b", 4)], jobs)
    warm = Shape(0, 1, resident=instance.fms.index("m"))
    keeps = [0]
    model = model_of(instance, instance.gpu_ready, keeps, [warm] * 4, [resident_rows])
    assert accepts(model, np.array([1, 1, 1, 0, 0]))
    assert not accepts(model, np.array([1, 1, 1, 1, 0]))
    assert accepts(model, np.array([0, 1, 1, 1, 0]))  # dropping r frees a resident GPU
    pair = Shape(0, 2, resident=warm.resident)
    model = model_of(instance, instance.gpu_ready, keeps, [pair, pair], ALL)
    assert accepts(model, np.array([1, 1, 0]))
    assert not accepts(model, np.array([0, 1, 1]))


def test_resource_rows_sum_cpus_and_do_not_charge_overuse_to_other_nodes() -> None:
    jobs = [runs("r", {"a": (0, 1)}, cpus_per_gpu=10.0)]
    instance = instance_of([node("a", 4, cpus=8.0), node("b", 4, cpus=8.0)], jobs)
    thirsty = Shape(0, 1, cpus_per_gpu=4.0)
    model = model_of(instance, instance.gpu_ready, [0], [thirsty] * 4, [resource_rows])
    assert accepts(model, np.array([0, 1, 1, 1, 1]))
    assert accepts(model, np.array([1, 1, 1, 0, 0]))  # r overuses a; b is untouched
    assert not accepts(model, np.array([1, 1, 1, 1, 0]))
    exact = exact_of(instance, instance.gpu_ready, [0], [thirsty] * 4)
    assert accepts(exact, np.array([1, 1, 1, 0, 0]))
    assert not accepts(exact, np.array([1, 1, 1, 1, 0]))


@pytest.mark.parametrize("families", [ALL, "exact"])
def test_what_no_empty_nodes_could_hold_is_forbidden(families) -> None:
    instance = instance_of([node("a", 4, labels={"zone": "x"}), node("b", 4, state=NodeState.DRAINING)])
    demands = [
        Shape(0, 5),
        Shape(0, 1, selector=(("zone", "z"),)),
        Shape(0, 3, whole=True),
        Shape(0, 4, selector=(("zone", "x"),)),
    ]
    if families == "exact":
        model = exact_of(instance, instance.gpu_ready, [], demands)
    else:
        model = model_of(instance, instance.gpu_ready, [], demands, families)
    for i in range(3):
        assert not accepts(model, np.eye(4, dtype=np.int64)[i])
    assert accepts(model, np.array([0, 0, 0, 1]))


def test_a_keep_on_a_draining_node_uses_no_capacity_and_frees_none() -> None:
    jobs = [runs("d", {"b": (0, 1)})]
    instance = instance_of([node("a", 2), node("b", 4, state=NodeState.DRAINING)], jobs)
    demands = [Shape(0, 1)] * 3
    for model in (
        model_of(instance, instance.gpu_ready, [0], demands, ALL),
        exact_of(instance, instance.gpu_ready, [0], demands),
    ):
        assert accepts(model, np.array([1, 1, 1, 0]))
        assert not accepts(model, np.array([0, 1, 1, 1]))


def test_whole_nodes_need_every_group_gone() -> None:
    """Pipeline jobs take nodes without any kept group; a node with an unavailable GPU is never whole."""
    jobs = [runs("r", {"a": (0,)}), runs("s", {"a": (1,)}), runs("t", {"b": (7,)})]
    nodes = [node("a", 8), node("b", 8), node("c", 8, unavailable_gpus=(0,))]
    instance = instance_of(nodes, jobs)
    demands = [Shape(0, 8, whole=True), Shape(0, 16, whole=True)]
    for model in (
        model_of(instance, instance.gpu_ready, [0, 1, 2], demands, ALL),
        exact_of(instance, instance.gpu_ready, [0, 1, 2], demands),
    ):
        assert accepts(model, np.array([0, 0, 1, 1, 0]))
        assert accepts(model, np.array([1, 1, 0, 1, 0]))
        assert not accepts(model, np.array([1, 0, 1, 1, 0]))
        assert accepts(model, np.array([0, 0, 0, 0, 1]))
        assert not accepts(model, np.array([0, 0, 1, 0, 1]))
        assert not accepts(model, np.array([0, 0, 0, 1, 1]))


def test_several_keep_columns_of_one_group_count_once() -> None:
    """A kept group may be offered in more than one column (they exclude each other elsewhere)."""
    instance = instance_of([node("a", 8)], [runs("r", {"a": (0, 1, 2)}), runs("s", {"a": (3,)})])
    demands = [Shape(0, 4), Shape(0, 8, whole=True)]
    for families in (ALL, None):
        if families is None:
            model = exact_of(instance, instance.gpu_ready, [0, 0, 1], demands)
        else:
            model = model_of(instance, instance.gpu_ready, [0, 0, 1], demands, families)
        assert accepts(model, np.array([1, 0, 1, 1, 0]))
        assert accepts(model, np.array([0, 1, 1, 1, 0]))
        assert not accepts(model, np.array([0, 1, 0, 0, 1]))
        assert accepts(model, np.array([0, 0, 0, 0, 1]))


def test_rungs_alone_do_not_see_three_three_two_on_four_and_four() -> None:
    jobs = [runs(f"r{n}", {n: (0, 1, 2, 3)}) for n in "ab"]
    instance = instance_of([node("a", 8), node("b", 8)], jobs)
    demands = [Shape(0, 3), Shape(0, 3), Shape(0, 2)]
    everything = np.ones(5, np.int64)
    assert accepts(model_of(instance, instance.gpu_ready, [0, 1], demands, ALL), everything)
    assert not accepts(exact_of(instance, instance.gpu_ready, [0, 1], demands), everything)


def test_rows_name_their_family() -> None:
    instance = instance_of([node("a", 8), node("b", 8)], [runs("r", {"a": (0, 1, 2)})])
    demands = [Shape(0, 4)] * 3 + [Shape(0, 16)]
    model = model_of(instance, instance.gpu_ready, [0], demands, ALL)
    assert set(model.row_family) <= {"capacity", "resident", "resource", "rung", "rung_host"}
    assert {"capacity", "rung"} <= set(model.row_family)


def test_the_linear_relaxation_of_rungs_is_tighter_than_capacity() -> None:
    """Twelve free GPUs in threes: no 4-GPU job, which capacity alone would grant three times."""
    jobs = [runs(f"r{i}", {f"n{i}": tuple(range(5))}) for i in range(4)]
    instance = instance_of([node(f"n{i}", 8) for i in range(4)], jobs)
    keeps, demands = list(range(4)), [Shape(0, 4)] * 3
    table = table_of(instance, keeps, demands)

    def bound(families) -> float:
        builder = ModelBuilder()
        x = builder.variables(np.array([0] * 4 + [-1] * 3, np.int64), np.array([1] * 4 + [0] * 3))
        for family in families:
            family(builder, instance, instance.gpu_ready, table, x)
        model = builder.build()
        point = solve(model, relax=True)
        assert point is not None
        return float(model.cost @ point)

    assert bound(AGGREGATE) == pytest.approx(-3)
    assert bound(ALL) == pytest.approx(0)
