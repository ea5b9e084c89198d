"""The independent checker sits between every decision and the world."""

from __future__ import annotations

import numpy as np
import pytest
from sim_kit import Scripted, counts, rigid, rigid_workload

from ymir_opt.domain.errors import InvalidPlanError
from ymir_opt.policies.base import Cadence, load_policy
from ymir_opt.policies.view import Decision
from ymir_opt.simulator.checking import Before, check_round_of
from ymir_opt.simulator.cluster import parse_cluster
from ymir_opt.simulator.engine import Engine


def running_engine() -> Engine:
    jobs = [rigid("a", 0.0, 500.0, 2), rigid("b", 0.0, 500.0, 2), rigid("c", 0.0, 500.0, 4)]
    engine = Engine(rigid_workload(jobs), parse_cluster("2x4:V100"), load_policy("fifo"), policy_name="mine")
    engine.run(stop_after_rounds=1)
    assert len(engine.world.runs) == 3
    return engine


def check(engine: Engine, *, everything: bool = True) -> None:
    world = engine.world
    decision = Decision(np.zeros(0, dtype=np.int64))
    check_round_of(world, Before.of(world, engine.now), [], decision, "mine", all_runs=everything)


def test_a_world_in_order_passes():
    check(running_engine())


def test_a_gpu_used_twice_and_a_gang_that_is_not_whole_are_found():
    engine = running_engine()
    runs = list(engine.world.runs.values())
    runs[0].taken = runs[2].taken
    with pytest.raises(InvalidPlanError, match=r"policy mine: breaks invariant 2: .* used by two groups"):
        check(engine)
    engine = running_engine()
    engine.world.runs[1].gpus = 3
    with pytest.raises(InvalidPlanError, match=r"breaks invariant 3: .*2 GPUs are named for a gang of 3"):
        check(engine)


def test_books_that_do_not_fit_what_runs_are_found():
    engine = running_engine()
    engine.world.cluster.set_ready(0, False)
    with pytest.raises(InvalidPlanError, match="is not ready"):
        check(engine)


def test_every_change_is_checked_in_the_round_in_which_it_happens(monkeypatch: pytest.MonkeyPatch):
    from ymir_opt.simulator import apply

    def wrong_place(*_: object) -> tuple[int, tuple[tuple[int, int], ...]]:
        return 0, ((0, 0b01), (1, 0b01))

    monkeypatch.setattr(apply, "_place", wrong_place)
    jobs = [rigid("a", 0.0, 10.0, 2)]
    policy = Scripted(lambda view: Decision(counts(view, a=2)), Cadence.events(0.0))
    engine = Engine(rigid_workload(jobs), parse_cluster("2x4:V100"), policy)
    with pytest.raises(InvalidPlanError, match=r"2 GPUs lie on 2 nodes, but 1 could hold them"):
        engine.run()


def test_what_did_not_change_is_checked_every_fiftieth_round():
    """A group whose books go wrong unseen is found at round 50, and not by the rounds before."""
    policy = Scripted(lambda view: Decision(counts(view, a=2)), Cadence.rounds(1.0))
    workload = rigid_workload([rigid("a", 0.0, 500.0, 2)])
    engine = Engine(workload, parse_cluster("2x4:V100"), policy, policy_name="mine")
    engine.run(stop_after_rounds=3)
    next(iter(engine.world.runs.values())).gpus = 3
    engine.run(stop_after_rounds=46)
    assert engine.rounds == 49
    with pytest.raises(InvalidPlanError, match=r"policy mine: breaks invariant 3"):
        engine.run(stop_after_rounds=1)
