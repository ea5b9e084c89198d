"""The checker on random plans: whatever is done to a plan, it answers with violations, never a traceback."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_kit import plan
from strategies import Recipe, random_snapshot

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.plan import ActionKind, Decision, Group, Plan, Reason, Situation
from ymir_opt.domain.snapshot import JobState, Mode, Snapshot, StartSource
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.planner import solve
from ymir_opt.verify import check

RECIPE = Recipe(jobs=6, nodes=3)
SEEDS = st.integers(0, 400)


def keep_everything(snapshot: Snapshot) -> Plan:
    """The plan that leaves everything as it runs: valid whatever the snapshot is."""
    nodes = {node.id: node for node in snapshot.cluster.nodes}
    jobs = {job.id: job for job in snapshot.jobs}
    entries = [(g.id, g.mode, g.jobs, dict(g.starts_from)) for g in snapshot.groups]
    inside = {name for _, _, names, _ in entries for name in names}
    entries += [
        (f"solo-{job.id}", Mode.SOLO, (job.id,), {})
        for job in snapshot.jobs
        if job.state is JobState.RUNNING and job.id not in inside
    ]
    groups = []
    for name, mode, names, starts in entries:
        where = dict(jobs[names[0]].allocation or {})
        if any(
            nodes[n].state.value == "down" or set(g) & set(nodes[n].unavailable_gpus)
            for n, g in where.items()
        ):
            continue
        models = {jobs[n].foundation_model for n in names}
        groups.append(
            Group(
                id=name,
                mode=mode,
                jobs=names,
                foundation_model=models.pop() if len(models) == 1 else None,
                gpu_type=nodes[next(iter(where))].gpu_type,
                gpus=sum(len(g) for g in where.values()),
                placement=where,
                starts_from=starts,
            )
        )
    return plan(snapshot, *groups, reason=Reason.NODE_UNAVAILABLE)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_keeping_everything_is_always_valid(seed):
    snapshot = random_snapshot(seed, RECIPE)
    assert check(snapshot, keep_everything(snapshot)) == []


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_the_planners_plans_hold_with_and_without_its_evaluator(seed):
    snapshot = random_snapshot(seed, RECIPE)
    made = solve(snapshot, backend="greedy")
    assert check(snapshot, made) == []
    evaluator = Evaluator(Instance.of(snapshot), Estimates(snapshot))
    assert check(snapshot, made, evaluator=evaluator, compare_hash=False) == []


def _spoil(rng: random.Random, snapshot: Snapshot, made: Plan) -> Plan:
    """Return the plan with one random change, sensible or not."""
    names = [job.id for job in snapshot.jobs] + ["nobody"]
    nodes = [node.id for node in snapshot.cluster.nodes] + ["nowhere"]
    types = [node.gpu_type for node in snapshot.cluster.nodes] + ["abacus"]

    def where() -> dict[str, tuple[int, ...]]:
        return {
            rng.choice(nodes): tuple(rng.choices(range(5), k=rng.randint(0, 3)))
            for _ in range(rng.randint(0, 2))
        }

    def source() -> StartSource:
        return rng.choice(
            (
                StartSource(adapter="adapter-fm0"),
                StartSource(adapter="none"),
                StartSource(job=rng.choice(names)),
                StartSource(),
            )
        )

    def some_group() -> Group:
        members = tuple(rng.choices(names, k=rng.randint(1, 3)))
        return Group(
            id=rng.choice(("g", "h")),
            mode=rng.choice(tuple(Mode)),
            jobs=members,
            foundation_model=rng.choice((None, "fm0")),
            gpu_type=rng.choice(types),
            gpus=rng.randint(0, 4),
            placement=where(),
            starts_from={members[0]: source()} if rng.random() < 0.5 else {},
        )

    change: dict[str, Any] = {}
    groups, actions = list(made.groups), list(made.actions)
    choice = rng.randrange(6)
    if choice == 0 or not groups:
        groups.append(some_group())
        change["groups"] = tuple(groups)
    elif choice == 1:
        groups.pop(rng.randrange(len(groups)))
        change["groups"] = tuple(groups)
    elif choice == 2:
        at = rng.randrange(len(groups))
        field = rng.choice(
            ("placement", "gpus", "jobs", "mode", "gpu_type", "starts_from", "foundation_model")
        )
        groups[at] = groups[at].model_copy(update={field: getattr(some_group(), field)})
        change["groups"] = tuple(groups)
    elif choice == 3 and actions:
        at = rng.randrange(len(actions))
        to = Situation(group=None, gpu_type=rng.choice(types), gpus=rng.randint(0, 2), placement=where())
        actions[at] = actions[at].model_copy(
            update=rng.choice(
                (
                    {"action": rng.choice(tuple(ActionKind))},
                    {"to": rng.choice((None, to))},
                    {"from_": rng.choice((None, to))},
                    {"job": rng.choice(names)},
                    {"action": ActionKind.PROFILE, "to": to},
                )
            )
        )
        change["actions"] = tuple(actions)
    elif choice == 4:
        told = dict(made.explanations)
        name = rng.choice(names)
        if name in told and rng.random() < 0.5:
            told[name] = told[name].model_copy(update={"decision": rng.choice(tuple(Decision))})
        else:
            told.pop(name, None)
        change["explanations"] = told
    else:
        figure = rng.choice((None, 0.0, 1.0, -1.0, 1e300))
        field = rng.choice(("objective", "bound", "gap", "value_gap"))
        change["solver"] = made.solver.model_copy(update={field: figure})
    return made.model_copy(update=change)


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.integers(0, 10**6), st.integers(1, 4))
def test_spoilt_plans_give_violations_never_exceptions(seed, luck, times):
    snapshot = random_snapshot(seed, RECIPE)
    rng = random.Random(luck)
    made = keep_everything(snapshot).model_copy(update={})
    planner = made.planner.model_copy(update={"declares": (1, 2, 3, 4, 5, 6, 7, 8)})
    solver = made.solver.model_copy(update={"objective": 1.0})
    made = made.model_copy(update={"planner": planner, "solver": solver})
    for _ in range(times):
        made = _spoil(rng, snapshot, made)
    for violation in check(snapshot, made):
        assert 1 <= violation.invariant <= 8
        assert violation.place
        assert violation.message.isprintable()


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(0, 10**6))
def test_a_gpu_given_to_another_group_is_always_found(seed, luck):
    snapshot = random_snapshot(seed, RECIPE)
    made = keep_everything(snapshot)
    if len(made.groups) < 2:
        return
    rng = random.Random(luck)
    a, b = rng.sample(range(len(made.groups)), 2)
    groups = list(made.groups)
    groups[a] = groups[a].model_copy(update={"placement": groups[b].placement, "gpus": groups[b].gpus})
    found = {v.invariant for v in check(snapshot, made.model_copy(update={"groups": tuple(groups)}))}
    assert 2 in found


def test_a_wrong_hash_is_bad_input():
    snapshot = random_snapshot(3, RECIPE)
    made = keep_everything(snapshot).model_copy(update={"snapshot_sha256": "0" * 64})
    with pytest.raises(InputError, match="made for snapshot"):
        check(snapshot, made)
    assert check(snapshot, made, compare_hash=False) == []


def test_large_plans_are_checked_by_arrays_and_dictionaries():
    """Ten times the jobs take about ten times the calls, not a hundred times."""
    import cProfile
    import pstats

    def calls(jobs: int) -> int:
        snapshot = random_snapshot(1, RECIPE, jobs=jobs, nodes=jobs // 2, exact_jobs=True)
        made = keep_everything(snapshot)
        profile = cProfile.Profile()
        profile.runcall(check, snapshot, made)
        return pstats.Stats(profile).total_calls

    few, many = calls(60), calls(600)
    assert many < 25 * few
