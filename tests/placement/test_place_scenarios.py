"""What users complain about, on small clusters: rows choose, `place` finds the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from placement_oracle import instance_of, node, runs, solve, table_of

from ymir_opt.formulation.capacity import capacity_rows, resident_rows, resource_rows, rung_rows
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import ModelBuilder
from ymir_opt.formulation.nodes import node_rows
from ymir_opt.formulation.shapes import Shape
from ymir_opt.placement.pack import Placement, place


@dataclass(frozen=True)
class Option:
    """A column for a job: what it asks, what it is worth."""

    job: str
    shape: Shape
    worth: int


@dataclass(frozen=True)
class Round:
    kept: tuple[str, ...]
    started: dict[str, np.ndarray]
    placement: Placement


def plan(
    instance: Instance, worth_kept: dict[str, int], options: Sequence[Option], *, exact: bool = False
) -> Round:
    """Choose the columns of the greatest worth that the rows allow, and place them."""
    keeps = list(range(len(instance.running)))
    names = [instance.jobs[g.members[0]].id for g in instance.running]
    table = table_of(instance, keeps, [o.shape for o in options])
    builder = ModelBuilder()
    worth = [worth_kept[name] for name in names] + [o.worth for o in options]
    x = builder.variables(-np.array(worth, np.int64))
    jobs = [*names, *(o.job for o in options)]
    for job in dict.fromkeys(jobs):
        builder.row(x[[i for i, other in enumerate(jobs) if other == job]], 1, 0, 1, "job")
    available = instance.gpu_ready
    if exact:
        node_rows(builder, instance, available, table, x, range(len(instance.types)))
    else:
        for family in (capacity_rows, resident_rows, resource_rows, rung_rows):
            family(builder, instance, available, table, x)
    point = solve(builder.build())
    assert point is not None
    chosen = np.rint(point[: len(jobs)]).astype(bool)
    kept = [r for r in keeps if chosen[r]]
    started = [o for o, v in zip(options, chosen[len(keeps) :], strict=True) if v]
    placement = place(instance, available, kept, [o.shape for o in started])
    assert placement.ok
    return Round(
        tuple(names[r] for r in kept),
        {o.job: rows for o, rows in zip(started, placement.gpus, strict=True)},
        placement,
    )


BOTH = pytest.mark.parametrize("exact", [False, True])


def spread(low: int, together: int = 0) -> Instance:
    """Four nodes of 8 with six high jobs each, and low jobs: ``together`` on n0, the others spread."""
    jobs = []
    free = {n: [6, 7] for n in range(4)}
    for n in range(4):
        jobs += [runs(f"high{n}{i}", {f"n{n}": (i,)}) for i in range(6)]
    for i in range(low):
        n = 0 if i < together else i % 4
        jobs.append(runs(f"low{i}", {f"n{n}": (free[n].pop(),)}))
    return instance_of([node(f"n{n}", 8) for n in range(4)], jobs)


@BOTH
def test_f1_nothing_is_evicted_for_what_no_node_can_hold(exact: bool) -> None:
    instance = spread(7)
    worth = {job.id: 1000 if job.id.startswith("high") else 1 for job in instance.jobs}
    got = plan(
        instance, worth, [Option("big", Shape(0, 8), 500), Option("small", Shape(0, 1), 2)], exact=exact
    )
    assert len(got.kept) == 24 + 7
    assert list(got.started) == ["small"]


@BOTH
def test_p7_evict_only_for_what_is_then_placeable(exact: bool) -> None:
    """Two low jobs on one node make room for a pair; one on each of two nodes does not."""
    options = [Option("pair", Shape(0, 2), 50)]
    full = {"a": 6, "b": 6}
    jobs = [runs(f"{n}{i}", {n: (i,)}) for n, count in full.items() for i in range(count)]
    apart = [*jobs, runs("low0", {"a": (6,)}), runs("low1", {"b": (6,)})]
    apart += [runs("firm0", {"a": (7,)}), runs("firm1", {"b": (7,)})]
    instance = instance_of([node("a", 8), node("b", 8)], apart)
    worth = {job.id: 1 if job.id.startswith("low") else 1000 for job in instance.jobs}
    got = plan(instance, worth, options, exact=exact)
    assert len(got.kept) == 16
    assert not got.started
    close = [*jobs, runs("low0", {"a": (6,)}), runs("low1", {"a": (7,)})]
    instance = instance_of([node("a", 8), node("b", 8)], close)
    got = plan(instance, {**worth, "low1": 1}, [Option("pair", Shape(0, 2), 50)] * 1, exact=exact)
    assert set(got.kept) == {job.id for job in instance.jobs}  # b has two free GPUs already
    assert instance.gpu_node[got.started["pair"]].tolist() == [1, 1]
    close += [runs("firm0", {"b": (6,)}), runs("firm1", {"b": (7,)})]
    instance = instance_of([node("a", 8), node("b", 8)], close)
    got = plan(instance, {**worth, "low1": 1}, options, exact=exact)
    assert {"low0", "low1"}.isdisjoint(got.kept)
    assert got.started["pair"].tolist() == [6, 7]


@BOTH
def test_f2_two_single_gpu_jobs_leave_one_whole_node(exact: bool) -> None:
    jobs = [runs("one", {"a": (0,)}), runs("two", {"b": (3,)})]
    instance = instance_of([node("a", 8), node("b", 8), node("c", 8)], jobs)
    gang = Option("gang", Shape(0, 16, worker=8), 100)
    got = plan(instance, {"one": 1000, "two": 1000}, [gang, Option("eight", Shape(0, 8), 10)], exact=exact)
    assert set(got.kept) == {"one", "two"}
    assert instance.gpu_node[got.started["eight"]].tolist() == [2] * 8
    assert "gang" not in got.started


def test_f4_best_fit() -> None:
    """The node with exactly two free, not the one with four; and three ones fill the fullest nodes."""
    jobs = [runs("r0", {"a": (0, 1, 2, 3)}), runs("r1", {"b": (0, 1, 2, 3, 4, 5)})]
    instance = instance_of([node("a", 8), node("b", 8), node("c", 8)], jobs)
    got = place(instance, instance.gpu_ready, [0, 1], [Shape(0, 2)])
    assert got.gpus[0].tolist() == [14, 15]
    got = place(instance, instance.gpu_ready, [0, 1], [Shape(0, 1)] * 3)
    assert [int(instance.gpu_node[g[0]]) for g in got.gpus] == [1, 1, 0]
    got = place(instance, instance.gpu_ready, [0, 1], [Shape(0, 1), Shape(0, 4)])
    assert [instance.gpu_node[g].tolist() for g in got.gpus] == [[1], [0] * 4]
    # nodes alike: the one that comes first
    assert place(instance, instance.gpu_ready, [], [Shape(0, 3)]).gpus[0].tolist() == [0, 1, 2]


@BOTH
def test_f5_workers_take_what_others_leave(exact: bool) -> None:
    """2, 1, 1 free; two workers of one and one worker of two: both run."""
    jobs = [runs(f"r{i}", {f"n{i}": tuple(range(held))}) for i, held in enumerate((2, 3, 3))]
    instance = instance_of([node(f"n{i}", 4) for i in range(3)], jobs)
    options = [Option("a", Shape(0, 2, worker=1), 5), Option("b", Shape(0, 2, worker=2), 5)]
    got = plan(instance, dict.fromkeys(("r0", "r1", "r2"), 100), options, exact=exact)
    assert sorted(got.started) == ["a", "b"]
    assert sorted(instance.gpu_node[got.started["a"]].tolist()) == [1, 2]
    assert instance.gpu_node[got.started["b"]].tolist() == [0, 0]
    # without workers two GPUs must lie on one node, so only one of two pairs runs
    options = [Option("a", Shape(0, 2), 5), Option("b", Shape(0, 2), 5)]
    assert len(plan(instance, dict.fromkeys(("r0", "r1", "r2"), 100), options, exact=exact).started) == 1


@BOTH
def test_f7_a_blocked_job_does_not_block_a_small_one(exact: bool) -> None:
    jobs = [runs("r0", {"a": tuple(range(4))}), runs("r1", {"b": tuple(range(7))})]
    instance = instance_of([node("a", 8), node("b", 8)], jobs)
    options = [Option("five", Shape(0, 5), 100), Option("one", Shape(0, 1), 1)]
    got = plan(instance, {"r0": 1000, "r1": 1000}, options, exact=exact)
    assert list(got.started) == ["one"]
    assert instance.gpu_node[got.started["one"]].tolist() == [1]


@BOTH
def test_r2_all_nodes_of_a_gang_come_from_one_pool(exact: bool) -> None:
    """Two GPUs in each of zone x, zone y and another type never make four."""
    zones = {"a": "x", "b": "y"}
    nodes = [node(name, 2, labels={"zone": zone}) for name, zone in zones.items()] + [node("c", 2, "B")]
    instance = instance_of(nodes)
    in_zone = [Option("gang", Shape(0, 4, selector=(("zone", z),)), 10) for z in ("x", "y")]
    other = [Option("gang", Shape(1, 4), 10)]
    assert not plan(instance, {}, [*in_zone, *other], exact=exact).started
    got = plan(instance, {}, [*in_zone, *other, Option("gang", Shape(0, 4), 1)], exact=exact)
    assert got.started["gang"].tolist() == [0, 1, 2, 3]


@BOTH
def test_g1_all_or_nothing(exact: bool) -> None:
    jobs = [runs("r", {"b": (0, 1)})]
    instance = instance_of([node("a", 8), node("b", 8)], jobs)
    options = [Option("gang", Shape(0, 16), 10)]
    assert not plan(instance, {"r": 100}, options, exact=exact).started
    got = plan(instance, {"r": 1}, options, exact=exact)
    assert not got.kept
    assert got.started["gang"].tolist() == list(range(16))


@BOTH
def test_g2_two_gangs_never_hold_half_each(exact: bool) -> None:
    instance = instance_of([node(f"n{i}", 8) for i in range(3)])
    options = [Option("first", Shape(0, 16), 10), Option("second", Shape(0, 16), 11)]
    got = plan(instance, {}, options, exact=exact)
    assert list(got.started) == ["second"]
    assert len(got.started["second"]) == 16
    failed = place(instance, instance.gpu_ready, [], [o.shape for o in options])
    assert (failed.failed, failed.gpus, failed.exact) == (1, (), True)


def test_the_first_demand_that_fails_is_named() -> None:
    """Demands before it fit together; types without trouble are not blamed."""
    instance = instance_of([node("a", 4), node("b", 4), node("c", 4, "B")])
    demands = [Shape(1, 4), Shape(0, 3), Shape(0, 3), Shape(0, 1), Shape(0, 2), Shape(0, 1)]
    got = place(instance, instance.gpu_ready, [], demands)
    assert (got.failed, got.failed_types, got.exact) == (4, (0,), True)
    demands[0] = Shape(1, 5)
    got = place(instance, instance.gpu_ready, [], demands)
    assert (got.failed, got.failed_types) == (0, (0, 1))


def test_preferred_gpus_come_back() -> None:
    """Every group asks for what it had, on nodes that are otherwise alike."""
    instance = instance_of([node(f"n{i}", 8) for i in range(6)])
    rng = np.random.default_rng(3)
    had = [rng.permutation(8)[:4] + 8 * n for n in rng.permutation(6)]
    prefer = [np.sort(rows) for rows in had] + [None]
    demands = [Shape(0, 4)] * 7
    got = place(instance, instance.gpu_ready, [], demands, prefer=prefer)
    assert got.ok
    back = [len(np.intersect1d(rows, want)) for rows, want in zip(got.gpus, prefer[:6], strict=False)]
    assert sum(back) >= 4 * 4
    used = np.concatenate(got.gpus)
    assert len(np.unique(used)) == len(used)
    one = place(instance, instance.gpu_ready, [], [Shape(0, 3)], prefer=[np.array([42, 44, 47])])
    assert one.gpus[0].tolist() == [42, 44, 47]


def test_preferences_never_cost_room() -> None:
    """A wish for the empty node does not split it: best fit goes first, then wishes among equals."""
    jobs = [runs("r0", {"a": tuple(range(6))})]
    instance = instance_of([node("a", 8), node("b", 8)], jobs)
    got = place(
        instance,
        instance.gpu_ready,
        [0],
        [Shape(0, 2), Shape(0, 8)],
        prefer=[np.array([8, 9]), np.array([8, 9, 10, 11])],
    )
    assert [g.tolist() for g in got.gpus] == [[6, 7], list(range(8, 16))]
    # a preferred GPU that is held, down or of another kind is left alone
    got = place(instance, instance.gpu_ready, [0], [Shape(0, 2)], prefer=[np.array([0, 7])])
    assert got.gpus[0].tolist() == [6, 7]


def test_cold_starts_spare_resident_and_large_memory_gpus() -> None:
    instance = instance_of(
        [node("a", 2, resident_fm=("m", "m")), node("b", 2, external_used_gib=(20.0, 20.0)), node("c", 2)],
        [runs("w", {"c": (0,)}, foundation_model="m")],
    )
    m = instance.fms.index("m")
    got = place(instance, instance.gpu_ready, [0], [Shape(0, 1), Shape(0, 1), Shape(0, 1)])
    assert [int(instance.gpu_node[g[0]]) for g in got.gpus] == [1, 1, 2]
    got = place(instance, instance.gpu_ready, [0], [Shape(0, 1), Shape(0, 2), Shape(0, 2, resident=m)])
    assert [instance.gpu_node[g].tolist() for g in got.gpus] == [[2], [1, 1], [0, 0]]
