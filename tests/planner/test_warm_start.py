"""The state of one round serves the next: less work, no worse plan; what does not fit is ignored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from warm_start import churned

from ymir_opt.candidates import PoolLimits
from ymir_opt.candidates.generate import Generator
from ymir_opt.candidates.shards import Look
from ymir_opt.candidates.spread import Spread
from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.columns import MODES
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.planner.pipeline import plan_round
from ymir_opt.planner.state import SolverMemory, SolverState, read_state, state_path, write_state

JOBS = 420


def test_after_churn_the_state_spares_a_look_and_loses_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Look] = []
    columns = Spread.columns
    monkeypatch.setattr(Spread, "columns", lambda self, look: looks.append(look) or columns(self, look))
    _, after, plan, memory = churned(JOBS, 128)
    assert memory.after is not None
    assert memory.after.groups
    looks.clear()
    scratch = plan_round(after, previous=plan, alternatives=False)
    without = len(looks)
    looks.clear()
    warm = plan_round(after, previous=plan, memory=SolverMemory(memory.after), alternatives=False)
    assert len(looks) == without - 1
    assert warm.solver.objective is not None
    assert scratch.solver.objective is not None
    evaluator = Evaluator(Instance.of(after), Estimates(after))
    value = float(evaluator.queued_cost.sum()) - scratch.solver.objective
    assert warm.solver.objective <= scratch.solver.objective + 5e-4 * value


def test_groups_of_the_round_before_are_candidates() -> None:
    _, after, _, memory = churned(JOBS, 128)
    state = memory.after
    assert state is not None
    instance = Instance.of(after)
    sets = state.sets(instance)
    assert sum(len(rows) for _, rows in sets) < len(state.groups)  # those of jobs that left are gone
    names = {(mode, tuple(after.jobs[j].id for j in row)) for mode, rows in sets for row in rows.tolist()}
    assert names <= set(state.groups)
    # they are there whatever else a narrow search finds
    limits = replace(PoolLimits.of_size(JOBS), pairs_per_job=1, grown_per_job=1, partners_per_job=1)
    generator = Generator(Evaluator(instance, Estimates(after)), limits, cores=1)
    pools = [
        generator.first(lambda alone, sets=sets: Look(state.prices(instance, alone), 0.0, sets=sets))
        for sets in ((), sets)
    ]
    found = [
        {(MODES[m], tuple(j for j in row if j >= 0)) for m, row in zip(t.mode, t.jobs.tolist(), strict=True)}
        for t in (pool.table for pool in pools)
    ]
    kept = {(mode, tuple(row)) for mode, rows in sets for row in rows.tolist()}
    assert len(found[1] & kept) > len(found[0] & kept)


def test_a_state_comes_back_from_its_file(tmp_path: Path) -> None:
    before, _, plan, memory = churned(120, 64)
    assert memory.after is not None
    path = state_path(str(tmp_path / "plan.json"))
    assert read_state(path, plan) is None
    write_state(path, memory.after)
    assert read_state(path, plan) == memory.after
    assert set(memory.after.job) == {job.id for job in before.jobs}
    other = plan.model_copy(update={"snapshot_sha256": "0" * 64})
    assert read_state(path, other) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: [],
        lambda data: {**data, "format": "something else"},
        lambda data: {**data, "objective": ["another", 1]},
        lambda data: {**data, "gpu": {"A100": -1.0}},
        lambda data: {**data, "gpu": {"A100": "dear"}},
        lambda data: {**data, "job": {"job00000": True}},
        lambda data: {**data, "job": None},
        lambda data: {**data, "groups": None},
        lambda data: {**data, "groups": [["joint", "job00000"]]},
        lambda data: {**data, "groups": [["unheard of", "job00000", "job00001"]]},
        lambda data: {**data, "groups": [["joint", "job00000", 7]]},
        lambda data: {**data, "groups": [["joint", "job00000", "job00000"]]},
    ],
)
def test_a_broken_or_foreign_state_is_ignored(damage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan = plan_round(synthetic_snapshot(6, 4), alternatives=False)
    path = tmp_path / "state.json"
    write_state(path, SolverState(plan.snapshot_sha256, {"A100": 1.0}, {"job00000": 0.5}))
    assert read_state(path, plan) is not None
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    assert read_state(path, plan) is None
    path.write_text("{")
    assert read_state(path, plan) is None


def test_a_state_of_other_jobs_changes_nothing() -> None:
    snapshot = synthetic_snapshot(120, 64)
    foreign = SolverState("0" * 64, {"A100": 1.0, "V100": 1.0}, {"nobody": 1.0})
    plain = plan_round(snapshot, alternatives=False)
    given = plan_round(snapshot, memory=SolverMemory(foreign), alternatives=False)
    assert given.solver.objective == plain.solver.objective
    assert given.groups == plain.groups
