"""The array form agrees with the checker of documents on plain rounds, and finds what is spoilt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_kit import plan, solo
from scenario_kit import job, node, running, snapshot

from ymir_opt.verify import check
from ymir_opt.verify.columnar import RoundColumns, check_round

TYPES = ("A100", "V100")


def ints(values) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def columns_of(s, groups) -> RoundColumns:
    """Write a round of solo groups as columns: groups is [(job, type, {node: gpus})]."""
    jobs = {j.id: i for i, j in enumerate(s.jobs)}
    nodes = {n.id: i for i, n in enumerate(s.cluster.nodes)}
    kept, busy = set(), [0] * len(nodes)
    new = []
    for name, t, where in groups:
        one = s.jobs[jobs[name]]
        if one.allocation is not None and dict(one.allocation) == where:
            kept.add(name)
            for n, gpus in where.items():
                busy[nodes[n]] |= sum(1 << g for g in gpus)
        else:
            new.append((name, t, where))
    parts = [
        (g, nodes[n], sum(1 << i for i in set(gpus)))
        for g, (_, _, where) in enumerate(new)
        for n, gpus in where.items()
    ]
    now = s.taken_at_s
    return RoundColumns(
        node_type=ints([TYPES.index(n.gpu_type) for n in s.cluster.nodes]),
        node_gpus=ints([n.gpus for n in s.cluster.nodes]),
        node_ready=np.array([n.state.value == "ready" for n in s.cluster.nodes]),
        node_busy=ints(busy),
        group_type=ints([TYPES.index(t) for _, t, _ in new]),
        group_gpus=ints([sum(map(len, where.values())) for _, _, where in new]),
        group_joint=np.zeros(len(new), np.bool_),
        group_spread=np.zeros(len(new), np.bool_),
        part_group=ints([p[0] for p in parts]),
        part_node=ints([p[1] for p in parts]),
        part_gpus=ints([p[2] for p in parts]),
        member_group=ints(range(len(new))),
        member_job=ints([jobs[name] for name, _, _ in new]),
        job_min=ints([j.min_gpus for j in s.jobs]),
        job_max=ints([j.max_gpus for j in s.jobs]),
        job_types=ints(
            [
                sum(1 << i for i, t in enumerate(TYPES) if j.gpu_types is None or t in j.gpu_types)
                for j in s.jobs
            ]
        ),
        job_busy=np.array([j.id in kept for j in s.jobs]),
        job_moved=np.array([j.allocation is not None and j.id not in kept for j in s.jobs]),
        job_protected=np.array(
            [
                not j.movable or (j.last_start_s is not None and now - j.last_start_s < j.min_runtime_s)
                for j in s.jobs
            ]
        ),
    )


@st.composite
def rounds(draw):
    """A cluster, jobs of which some run, and groups on GPUs that may well be wrong."""
    nodes = [
        node(f"n{i}", draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from(TYPES)))
        for i in range(draw(st.integers(1, 3)))
    ]
    jobs, used = [], {n.id: 0 for n in nodes}
    for i in range(draw(st.integers(1, 4))):
        most = draw(st.integers(1, 4))
        types = draw(st.sampled_from((None, ("A100",))))
        one = job(f"j{i}", 1, max_gpus=most, gpu_types=types, movable=draw(st.booleans()))
        home = draw(st.sampled_from(nodes))
        size = draw(st.integers(1, most))
        if draw(st.booleans()) and used[home.id] + size <= home.gpus:
            held = tuple(range(used[home.id], used[home.id] + size))
            used[home.id] += size
            one = running(one, {home.id: held})
        jobs.append(one)
    groups = []
    for one in jobs:
        choice = draw(st.integers(0, 3))
        if choice == 0:
            continue
        if choice == 1 and one.allocation is not None:
            where = dict(one.allocation)
        else:
            spots = draw(
                st.lists(
                    st.tuples(st.sampled_from(nodes), st.integers(0, 4)),
                    min_size=1,
                    max_size=4,
                    unique_by=lambda p: (p[0].id, p[1]),
                )
            )
            where = {}
            for n, g in spots:
                where[n.id] = (*where.get(n.id, ()), g)
        first = next(n for n in nodes if n.id in where)
        groups.append((one.id, first.gpu_type, where))
    return snapshot(nodes, jobs), groups


@settings(max_examples=150, deadline=None)
@given(rounds())
def test_both_forms_agree(drawn):
    s, groups = drawn
    made = plan(s, *(solo(name, where, gpu_type=t) for name, t, where in groups))
    slow = {v.invariant for v in check(s, made)} & {1, 2, 3, 5}
    fast = {v.invariant for v in check_round(columns_of(s, groups))}
    assert fast == slow


def base() -> RoundColumns:
    s = snapshot([node("n0", 4), node("n1", 4), node("v", 2, "V100")], [job("a", 2, max_gpus=4), job("b", 2)])
    good = columns_of(s, [("a", "A100", {"n0": (0, 1)}), ("b", "A100", {"n1": (0, 1)})])
    assert check_round(good) == []
    return good


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({"member_job": ints([0, 0])}, 1),
        ({"job_busy": np.array([True, False])}, 1),
        ({"part_node": ints([0, 0])}, 2),
        ({"part_gpus": ints([3, 1 << 4 | 1])}, 2),
        ({"part_gpus": ints([3, -1])}, 2),
        ({"node_busy": ints([2, 0, 0])}, 2),
        ({"node_ready": np.array([True, False, True])}, 2),
        ({"part_node": ints([0, 2])}, 2),
        ({"group_gpus": ints([2, 1])}, 3),
        ({"job_max": ints([1, 2])}, 3),
        ({"job_types": ints([2, 3])}, 3),
        ({"job_moved": np.array([True, False]), "job_protected": np.array([True, True])}, 5),
    ],
)
def test_every_fault_has_its_number(change, number):
    assert number in {v.invariant for v in check_round(replace(base(), **change))}


def test_gangs_lie_on_the_fewest_nodes_unless_they_may_spread():
    good = base()
    spread = replace(good, part_group=ints([0, 0, 1]), part_node=ints([0, 1, 1]), part_gpus=ints([1, 1, 6]))
    assert {v.invariant for v in check_round(spread)} == {3}
    assert check_round(replace(spread, group_spread=np.array([True, False]))) == []


def test_joint_groups_may_use_the_sum():
    good = base()
    wide = replace(
        good,
        group_type=ints([0]),
        group_gpus=ints([3]),
        group_joint=np.array([False]),
        group_spread=np.array([False]),
        part_group=ints([0]),
        part_node=ints([0]),
        part_gpus=ints([7]),
        member_group=ints([0, 0]),
        job_max=ints([2, 2]),
    )
    assert {v.invariant for v in check_round(wide)} == {3}
    assert check_round(replace(wide, group_joint=np.array([True]))) == []


def test_no_changes_hold():
    none = np.zeros(0, np.int64)
    empty = dict.fromkeys(
        ("group_type", "group_gpus", "part_group", "part_node", "part_gpus", "member_group", "member_job"),
        none,
    )
    empty |= {"group_joint": none.astype(np.bool_), "group_spread": none.astype(np.bool_)}
    assert check_round(replace(base(), **empty)) == []
