"""Every exact backend finds the optimum that trying everything finds."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from brute import Best, brute_force
from oracle_generate import FAMILIES, small_snapshot

from ymir_opt.domain.snapshot import JobState, Mode, Snapshot
from ymir_opt.planner import solve
from ymir_opt.verify import check

SNAPSHOTS = 200
BACKENDS = ("highs", "pulp-highs", "cbc", "cpsat")


@cache
def case(seed: int) -> tuple[Snapshot, Best]:
    snapshot = small_snapshot(seed)
    return snapshot, brute_force(snapshot)


def close(found: float | None, best: Best) -> bool:
    # where the optimum is next to nothing, a few quanta (1e-9 of queueing everything) decide
    return found is not None and abs(found - best.objective) <= max(
        1e-6 * abs(best.objective), 1e-8 * best.queueing
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_exact_backends_find_the_optimum(backend):
    wrong = []
    for seed in range(SNAPSHOTS):
        snapshot, best = case(seed)
        made = solve(snapshot, backend=backend, gap=0)
        if not close(made.solver.objective, best) or not close(made.solver.bound, best):
            wrong.append((seed, made.solver.objective, made.solver.bound, best.objective))
        if backend == BACKENDS[0]:
            assert check(snapshot, made) == [], seed
    assert not wrong, f"{len(wrong)} of {SNAPSHOTS} differ: (seed, objective, bound, optimum) {wrong[:5]}"


@pytest.mark.parametrize("seed", range(12))
def test_the_first_cases_in_the_quick_suite(seed):
    snapshot, best = case(seed)
    made = solve(snapshot, backend="highs", gap=0)
    assert close(made.solver.objective, best)
    assert close(made.solver.bound, best)


def test_heuristics_are_never_better_than_the_optimum():
    for seed in range(40):
        snapshot, best = case(seed)
        for backend in ("greedy", "matching"):
            found = solve(snapshot, backend=backend).solver.objective
            assert found is not None
            assert found >= best.objective - 1e-8 * best.queueing, (seed, backend)


@pytest.mark.slow
def test_the_cases_exercise_every_rule():
    """What the optimal plans contain: without this the agreement above could be hollow."""
    seen: Counter[str] = Counter()
    for seed in range(SNAPSHOTS):
        snapshot, best = case(seed)
        placed = {j for option in best.chosen for j in option.members}
        for option in best.chosen:
            new = "keep" if option.run >= 0 else "new"
            seen[f"{new} {option.mode.value}"] += 1
            seen["group of 3 or more"] += len(option.members) > 2
            seen["start from an adapter"] += any(option.starts)
            seen["warm start"] += option.warm is not None
            seen["workers"] += option.workers is not None
            seen["whole nodes"] += option.whole
            seen["moved"] += new == "new" and any(
                snapshot.jobs[j].state is JobState.RUNNING for j in option.holders
            )
        for j, job in enumerate(snapshot.jobs):
            seen["preempted"] += job.state is JobState.RUNNING and j not in placed
            seen["left waiting"] += job.state is JobState.PENDING and j not in placed
            seen["deadline"] += job.deadline_s is not None
            seen["immovable"] += not job.movable
    wanted = [f"new {mode.value}" for mode in Mode]
    wanted += [f"keep {mode.value}" for mode in Mode]
    wanted += ["group of 3 or more", "start from an adapter", "warm start", "workers", "whole nodes"]
    wanted += ["moved", "preempted", "left waiting", "deadline", "immovable"]
    assert not [name for name in wanted if seen[name] == 0], seen
    assert set(FAMILIES) == {"any", "merging", "rules", "places"}
