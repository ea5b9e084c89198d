"""Explanations of random rounds: they never contradict the plan, bound what they claim, and repeat."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from strategies import random_snapshot, snapshots

from ymir_opt import solve
from ymir_opt.domain.plan import ActionKind, DeltaKind, Plan, Reason
from ymir_opt.domain.snapshot import Mode, NodeState, Snapshot
from ymir_opt.explain.options import Kind
from ymir_opt.whatif.forced import ExactAlternatives, force

COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck))
STATIC = {Reason.NO_FEASIBLE_GPU_TYPE, Reason.MEMORY_EXCEEDS_GPU}


def held(plan: Plan) -> dict[str, set[tuple[str, int]]]:
    """Return the GPUs that each job holds after the plan."""
    out: dict[str, set[tuple[str, int]]] = {}
    for group in plan.groups:
        for name in group.jobs[:1] if group.mode is Mode.SEQUENCE else group.jobs:
            out[name] = {(node, gpu) for node, gpus in group.placement.items() for gpu in gpus}
    for action in plan.actions:
        if action.action is ActionKind.PROFILE and action.to is not None:
            out[action.job] = {(node, gpu) for node, gpus in action.to.placement.items() for gpu in gpus}
    return out


def usable(made: Snapshot, gpu_type: str) -> set[tuple[str, int]]:
    """Return the GPUs of a type that something may start on."""
    return {
        (node.id, i)
        for node in made.cluster.nodes
        if node.gpu_type == gpu_type and node.state is NodeState.READY
        for i in range(node.gpus)
        if i not in node.unavailable_gpus
    }


@settings(COMMON, max_examples=80)
@given(snapshots())
def test_e6_e8_reasons_are_there_and_never_contradict_the_plan(made: Snapshot) -> None:
    plan = solve(made)
    holding = held(plan)
    taken = set().union(*holding.values()) if holding else set()
    chosen = {name: group for group in plan.groups for name in group.jobs}
    types = {node.gpu_type for node in made.cluster.nodes}
    assert {action.job for action in plan.actions} == set(plan.explanations)
    for action in plan.actions:
        told = plan.explanations[action.job]
        assert told.decision.value == action.action.value
        assert told.message
        options = [a.option for a in told.alternatives]
        assert len(set(options)) == len(options)
        group = chosen.get(action.job)
        if group is None and action.action is ActionKind.WAIT:
            assert told.reason is not Reason.CHOSEN
            assert "to wait" not in options
            _agrees(told.message, made, taken, holding, types)
        if group is not None and action.action is not ActionKind.KEEP and group.mode is Mode.SOLO:
            assert f"{group.gpus} x {group.gpu_type} alone" not in options
        if action.action is ActionKind.KEEP:
            assert "to go on as it runs" not in options
        for other in told.alternatives:
            assert other.why_not
            if other.objective_delta is not None:
                assert other.objective_delta.kind is DeltaKind.LOWER_BOUND
                assert other.objective_delta.value >= 0
            if other.option in types and other.reason in STATIC and group is not None:
                assert other.option != group.gpu_type


def _agrees(
    message: str,
    made: Snapshot,
    taken: set[tuple[str, int]],
    holding: dict[str, set[tuple[str, int]]],
    types: set[str],
) -> None:
    """Recount what a waiting job's message says of free GPUs and of who holds them."""
    for part in re.split(r"; (?=[A-Z]\d+: )", message):
        gpu_type = part.split(":")[0]
        if gpu_type not in types:
            continue
        found = re.search(r"needs (\d+) GPUs?.*?, (\d+) of (\d+) GPUs? are free after this plan", part)
        if found is None:
            continue
        needed, free = int(found[1]), int(found[2])
        assert free < needed
        assert free <= len(usable(made, gpu_type) - taken)
        for name, count in re.findall(
            r"([\w -]+(?: \+ [\w -]+)*) \((\d+) GPUs?\)", part.partition("held by ")[2]
        ):
            for job in name.split(" + "):
                own = {
                    gpu
                    for gpu in holding[job.strip(" ,").removeprefix("and ")]
                    if gpu in _all(made, gpu_type)
                }
                assert len(own) >= int(count) > 0


def _all(made: Snapshot, gpu_type: str) -> set[tuple[str, int]]:
    return {(n.id, i) for n in made.cluster.nodes if n.gpu_type == gpu_type for i in range(n.gpus)}


@settings(COMMON, max_examples=25)
@given(snapshots(jobs=4, nodes=2))
def test_a_lower_bound_never_exceeds_the_exact_loss(made: Snapshot) -> None:
    plan = solve(made, gap=0.0)
    if not made.jobs:
        return
    exact = ExactAlternatives(made, plan)
    slack = 2 * exact.round.work.table.quantum
    for job in made.jobs:
        asked, offers = exact.offers(job.id)
        for offer in offers:
            if offer.option is None:
                assert offer.alternative.objective_delta is None
                continue
            forced = force(asked.extended, offer.option)
            loss = offer.alternative.objective_delta
            if forced.selection is None or loss is None:
                continue
            found = (forced.selection.objective - exact.round.selection.objective) * asked.table.quantum
            assert loss.value <= found + slack, (job.id, offer.alternative.option)
            assert _does(offer.option.kind, job.id, forced.selection, asked)


def _does(kind: Kind, name: str, selection: object, asked: object) -> bool:
    """Say whether a forced plan really contains the option's kind of place for the job."""
    from ymir_opt.explain.alternatives import Alternatives
    from ymir_opt.planner.selection import Selection

    assert isinstance(asked, Alternatives)
    assert isinstance(selection, Selection)
    j = asked.instance.job_row[name]
    mine = [c for c in selection.columns.tolist() if j in asked.table.jobs[c]]
    if kind is Kind.WAIT:
        return not mine
    (c,) = mine
    if kind is Kind.KEEP:
        return bool(asked.table.keep[c] >= 0)
    return bool(asked.table.keep[c] < 0 and (asked.table.size[c] > 1) == (kind is Kind.MERGE))


@pytest.mark.parametrize("seed", range(8))
def test_an_exact_loss_is_never_below_its_bound_and_the_rest_is_unchanged(seed: int) -> None:
    made = random_snapshot(seed, jobs=5)
    plan = solve(made, gap=0.0)
    exact = ExactAlternatives(made, plan)
    for name, told in plan.explanations.items():
        again = exact.of(name)
        assert (again.decision, again.reason, again.message) == (told.decision, told.reason, told.message)
        found = {a.option: a for a in again.alternatives}
        for one in told.alternatives:
            two = found[one.option]
            assert two.reason == one.reason
            if one.objective_delta is not None and two.objective_delta is not None:
                assert two.objective_delta.value >= one.objective_delta.value - 1e-6


@settings(COMMON, max_examples=15)
@given(snapshots())
def test_explanations_are_identical_over_identical_rounds(made: Snapshot) -> None:
    assert solve(made).explanations == solve(made).explanations


def test_alternatives_change_nothing_but_the_explanations() -> None:
    from ymir_opt.planner import solve as own

    for seed in range(12):
        made = random_snapshot(seed, jobs=10)
        one, two = own(made), own(made, alternatives=False)
        assert [a.model_dump() for a in one.actions] == [a.model_dump() for a in two.actions]
        assert one.solver.objective == two.solver.objective
        assert not two.solver.price_per_gpu_s
        assert all(not told.alternatives for told in two.explanations.values())
        for name, told in one.explanations.items():
            assert (told.reason, told.message) == (
                two.explanations[name].reason,
                two.explanations[name].message,
            )


def test_large_plans_have_no_alternatives() -> None:
    from ymir_opt.planner.pipeline import ALTERNATIVES_TO

    made = random_snapshot(1, jobs=ALTERNATIVES_TO + 1, exact_jobs=True, nodes=1, running=False)
    plan = solve(made, backend="greedy")
    assert all(not told.alternatives for told in plan.explanations.values())
