"""Rounds beyond brute force: degenerate families, equal answers, a pool that only helps, global proofs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ymir_opt.candidates import PoolLimits
from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import dump_json
from ymir_opt.domain.plan import GapScope, SolverStatus, StoppedBy
from ymir_opt.domain.snapshot import Cluster, JobState, Node, Snapshot
from ymir_opt.planner.pipeline import plan_round, solve
from ymir_opt.verify import check


def one_model(jobs: int, gpus: int) -> Snapshot:
    """Return a round whose waiting jobs all have one foundation model."""
    made = synthetic_snapshot(jobs, gpus)
    model = made.jobs[0].foundation_model
    alike = tuple(job.model_copy(update={"foundation_model": model}) for job in made.jobs)
    return made.model_copy(update={"jobs": alike})


def identical(jobs: int, gpus: int) -> Snapshot:
    made = synthetic_snapshot(jobs, gpus)
    first = next(job for job in made.jobs if job.state is JobState.PENDING)
    same = tuple(first.model_copy(update={"id": f"job{i:05d}"}) for i in range(jobs))
    return made.model_copy(update={"jobs": same})


def one_gpu(jobs: int) -> Snapshot:
    made = synthetic_snapshot(jobs, 8)
    waiting = tuple(
        job.model_copy(
            update={"state": JobState.PENDING, "allocation": {}, "first_start_s": None, "last_start_s": None}
        )
        for job in made.jobs
    )
    node = Node(id="only", gpu_type="A100", gpus=1, gpu_memory_gib=40.0)
    return made.model_copy(update={"jobs": waiting, "cluster": Cluster(nodes=(node,))})


def without_gains(jobs: int, gpus: int) -> Snapshot:
    """Return a round in which every transfer and co-location only harms."""
    made = synthetic_snapshot(jobs, gpus)
    harm = {"work_ratio": 3.0, "low": 2.9, "high": 3.1}
    profiles = made.profiles.model_copy(
        update={
            "transfer": tuple(row.model_copy(update=harm) for row in made.profiles.transfer),
            "colocation": tuple(
                row.model_copy(update={"speed_ratio": (0.1, 0.1)}) for row in made.profiles.colocation
            ),
        }
    )
    return made.model_copy(update={"profiles": profiles})


@pytest.mark.parametrize(
    "snapshot",
    [one_model(220, 64), identical(220, 64), one_gpu(210), without_gains(220, 64)],
    ids=["one model", "identical jobs", "one GPU", "no gains"],
)
def test_degenerate_families(snapshot: Snapshot) -> None:
    plan = plan_round(snapshot, backend="decompose", alternatives=False)
    assert not check(snapshot, plan)
    assert plan.solver.value_gap is not None
    assert plan.solver.value_gap <= 1e-4
    assert plan.solver.status is SolverStatus.OPTIMAL
    greedy = plan_round(snapshot, backend="greedy", alternatives=False)
    assert plan.solver.objective is not None
    assert greedy.solver.objective is not None
    assert plan.solver.objective <= greedy.solver.objective + 1e-9


def test_no_gains_means_no_merges() -> None:
    snapshot = without_gains(120, 32)
    plan = plan_round(snapshot, backend="decompose", alternatives=False)
    assert all(len(group.jobs) == 1 for group in plan.groups)


@pytest.mark.parametrize("limit", [1e-3, 0.1, 1.0])
def test_a_short_limit_gives_a_verified_plan_and_says_so(limit: float) -> None:
    snapshot = synthetic_snapshot(600, 256)
    plan = plan_round(snapshot, time_limit_s=limit)
    assert not check(snapshot, plan)
    if plan.solver.stopped_by is StoppedBy.WALL_CLOCK:
        assert plan.solver.status is SolverStatus.FEASIBLE
    else:
        assert plan.solver.value_gap is not None
    floor = plan_round(snapshot, backend="greedy", time_limit_s=1e-6, alternatives=False)
    assert plan.solver.objective is not None
    assert floor.solver.objective is not None
    assert plan.solver.objective <= floor.solver.objective + 1e-9


def test_against_exact_backends() -> None:
    for seed, (jobs, gpus) in enumerate([(30, 12), (45, 16), (60, 24)]):
        snapshot = synthetic_snapshot(jobs, gpus, seed)
        ours = plan_round(snapshot, backend="decompose", gap=0.0, alternatives=False)
        for other in ("highs", "cpsat"):
            theirs = plan_round(snapshot, backend=other, gap=0.0, alternatives=False)
            assert ours.solver.objective == pytest.approx(theirs.solver.objective, rel=1e-12)
        assert ours.solver.bound == pytest.approx(ours.solver.objective, rel=1e-12)


@pytest.mark.slow
def test_against_an_exact_backend_at_300_jobs() -> None:
    snapshot = synthetic_snapshot(300, 96, 1)
    ours = plan_round(snapshot, backend="decompose", gap=0.0, alternatives=False)
    theirs = plan_round(snapshot, backend="highs", gap=0.0, alternatives=False)
    assert ours.solver.objective == pytest.approx(theirs.solver.objective, rel=1e-12)


def test_a_narrower_pool_never_has_the_better_optimum() -> None:
    snapshot = synthetic_snapshot(40, 16)
    full = plan_round(snapshot, gap=0.0, limits=PoolLimits(exhaustive_below=10**9), alternatives=False)
    assert full.solver.gap_scope is GapScope.GLOBAL
    assert full.solver.objective is not None
    narrow = PoolLimits(exhaustive_below=0, pairs_per_job=2, grown_per_job=1, partners_per_job=1)
    for limits in (
        narrow,
        replace(narrow, pairs_per_job=1, counts_per_set=1),
        replace(narrow, max_members=2),
    ):
        plan = plan_round(snapshot, gap=0.0, limits=limits, alternatives=False)
        assert plan.solver.objective is not None
        assert plan.solver.objective >= full.solver.objective - 1e-9


def test_a_global_proof_or_an_honest_pool() -> None:
    snapshot = synthetic_snapshot(12, 8)
    plan = solve(snapshot, prove_global=True)
    assert plan.solver.gap_scope is GapScope.GLOBAL
    assert plan.solver.candidates.exhaustive
    assert plan.solver.value_gap == 0.0
    limits = PoolLimits(exhaustive_below=10**9, most_sets=10)
    cut = plan_round(synthetic_snapshot(40, 16), limits=limits)
    assert cut.solver.gap_scope is GapScope.POOL
    assert not cut.solver.candidates.exhaustive
    assert "too many groups" in cut.labels["note"]


CORES = """
import os, sys
os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: int(sys.argv[1])]))
from pathlib import Path
from ymir_opt.domain.documents import dump_json, parse_snapshot
from ymir_opt.planner.pipeline import plan_round
plan = plan_round(parse_snapshot(Path(sys.argv[2]).read_bytes(), "s"), alternatives=False)
Path(sys.argv[3]).write_text(dump_json(plan.model_copy(update={
    "solver": plan.solver.model_copy(update={"wall_s": 0.0})})))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be taken away here")
def test_equal_plans_on_one_and_two_cores(tmp_path: Path) -> None:
    source = tmp_path / "s.json"
    source.write_text(dump_json(synthetic_snapshot(260, 128)))
    texts = []
    for cores in (1, 2):
        target = tmp_path / f"{cores}.json"
        environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        arguments = [sys.executable, "-c", CORES, str(cores), str(source), str(target)]
        subprocess.run(arguments, check=True, env=environment)
        texts.append(target.read_text())
    assert texts[0] == texts[1]


def test_every_set_is_what_brute_force_finds() -> None:
    from itertools import combinations, permutations

    from ymir_opt.candidates.every import every_set
    from ymir_opt.candidates.generate import SHARED_MODES, Generator
    from ymir_opt.candidates.partners import PairFinder
    from ymir_opt.domain.snapshot import Mode
    from ymir_opt.estimates import Estimates
    from ymir_opt.formulation.evaluate import Evaluator
    from ymir_opt.formulation.instance import Instance

    snapshot = synthetic_snapshot(16, 16, 3)
    evaluator = Evaluator(Instance.of(snapshot), Estimates(snapshot))
    generator = Generator(evaluator, PoolLimits(exhaustive_below=10**9))
    finder = PairFinder(evaluator, generator.rules, generator.limits, np.zeros(16))
    rows = np.flatnonzero(evaluator.jobs.startable & ~evaluator.jobs.rigid)
    for mode in SHARED_MODES:
        found = every_set(generator.rules, finder, mode, 4, 10**9)
        assert found is not None
        for size in (2, 3, 4):
            every = permutations(rows, size) if mode is Mode.SEQUENCE else combinations(rows, size)
            sets = np.array(list(every), dtype=np.int64).reshape(-1, size)
            sets = sets[generator.rules.allowed(mode, sets)]
            columns = generator.expander.expand(mode, sets)
            wanted = {tuple(row) for row in columns.jobs[:, :size].tolist()}
            mine = {tuple(row) for part in found if part.shape[1] == size for row in part.tolist()}
            assert wanted <= mine, (mode, size)
