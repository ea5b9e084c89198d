"""What a policy can see: estimates with injected error, never the truth."""

from __future__ import annotations

import gc
import types
from pathlib import Path

import numpy as np
import pytest
from sim_kit import elastic, linear_workload, titan

from ymir_opt.policies.base import Cadence, load_policy
from ymir_opt.policies.view import Decision
from ymir_opt.simulator.cluster import parse_cluster
from ymir_opt.simulator.engine import Engine, simulate
from ymir_opt.simulator.estimates import EstimateError, Estimates
from ymir_opt.simulator.rates import Rates
from ymir_opt.simulator.state import Run, Truth
from ymir_opt.simulator.store import JobStore
from ymir_opt.simulator.workload import ModelSpeeds, Speeds, TraceJob, TransferTruth, Workload
from ymir_opt.simulator.world import World

TRUE = (Truth, World, Workload, TraceJob, Run, JobStore, Rates, TransferTruth, ModelSpeeds, Engine)
NOT_DATA = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def reachable(root: object) -> list[object]:
    """Return every object that attributes, items and closures lead to, code and classes left out."""
    seen: dict[int, object] = {}
    stack = [root]
    while stack:
        found = stack.pop()
        if id(found) in seen or isinstance(found, NOT_DATA):
            continue
        seen[id(found)] = found
        stack.extend(gc.get_referents(found))
        if isinstance(found, types.MethodType):
            stack.append(found.__self__)
    return list(seen.values())


class Spy:
    """Looks at everything within reach, then behaves as the policy it wraps."""

    def __init__(self, inner: object, work: dict[str, float]) -> None:
        self.inner = inner
        self.work = work
        self.cadence = inner.cadence  # type: ignore[attr-defined]
        self.seen: list[object] = []

    def look(self, root: object, active: list[str]) -> None:
        self.seen = reachable(root)
        assert not [found for found in self.seen if isinstance(found, TRUE)]
        # What a finished job did is known; what an active one has to do is not.
        hidden = {self.work[name] for name in active}
        assert not hidden & numbers(self.seen), "a true amount of work was within reach"


class ColumnSpy(Spy):
    def decide(self, view):
        self.look(view, view.ids())
        return self.inner.decide(view)


class SnapshotSpy(Spy):
    def plan(self, snapshot, previous=None):
        self.look((snapshot, previous), [job.id for job in snapshot.jobs])
        return self.inner.plan(snapshot, previous)


def numbers(objects: list[object]) -> set[float]:
    found = {float(x) for x in objects if type(x) is float}
    for array in objects:
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            found.update(float(x) for x in array.ravel())
    return found


def some_jobs(number=6):
    return [elastic(f"j{i}", 7.0 * i, 1000.0 + 37.0 * i, task=f"t{i}") for i in range(number)]


@pytest.mark.parametrize("policy", ["tiresias", "titan", "ymir-no-merge"])
def test_no_object_within_a_policys_reach_leads_to_the_truth(policy: str):
    inner = load_policy(policy)
    jobs = some_jobs()
    spy = (SnapshotSpy if hasattr(inner, "plan") else ColumnSpy)(inner, {job.id: job.work for job in jobs})
    error = EstimateError(work=0.4, speed=0.2, seed=3)
    result = simulate(linear_workload(jobs), parse_cluster("2x4:V100"), spy, error=error)
    assert result.unfinished == ()
    assert spy.seen


def test_the_search_for_the_truth_finds_it_where_it_is_reachable():
    engine = Engine(linear_workload(some_jobs()), parse_cluster("2x4:V100"), load_policy("fifo"))
    assert [found for found in reachable(engine) if isinstance(found, Truth)]


def test_estimates_hold_no_reference_to_the_workload():
    workload = linear_workload(some_jobs())
    estimates = Estimates.build(workload, EstimateError(work=0.1))
    assert not [found for found in reachable(estimates) if isinstance(found, TRUE)]


def test_errors_are_log_normal_seeded_and_belong_to_the_job_not_to_the_order_of_arrival():
    jobs = [elastic(f"j{i}", float(i), 100.0, task=f"t{i}") for i in range(400)]
    workload = linear_workload(jobs)
    first = Estimates.build(workload, EstimateError(work=0.4, seed=1))
    again = Estimates.build(workload, EstimateError(work=0.4, seed=1))
    other = Estimates.build(workload, EstimateError(work=0.4, seed=2))
    totals = np.array([first.total(job) for job in jobs])
    assert totals.tolist() == [again.total(job) for job in reversed(jobs)][::-1]
    assert not np.array_equal(totals, [other.total(job) for job in jobs])
    logs = np.log(totals / 100.0)
    assert logs.std() == pytest.approx(0.4, rel=0.12)
    assert abs(logs.mean()) < 0.08
    assert Estimates.build(workload).total(jobs[0]) == 100.0


def test_speed_and_transfer_errors_change_the_tables_and_not_the_truth(data_dir: Path):
    workload = titan(data_dir, "FM-1-roberta-large")
    exact = Estimates.build(workload)
    wrong = Estimates.build(workload, EstimateError(speed=0.3, transfer=0.3, seed=5))
    known = exact.speed.rate > 0
    factors = (wrong.speed.rate[known] / exact.speed.rate[known]).reshape(len(exact.speed.names), -1)
    assert np.ptp(factors, axis=1).max() < 1e-9, "one factor a key, all counts alike"
    assert factors[:, 0].std() > 0.05
    both = ~np.isnan(exact.transfer.joint)
    assert np.abs(np.log(wrong.transfer.joint[both] / exact.transfer.joint[both])).max() > 0.1
    assert np.array_equal(exact.transfer.joint[both], workload.transfer.joint[both])
    model, batch = exact.speed.names[0]
    speeds: Speeds = workload.speeds
    assert exact.speed.rate[0, 0, 6] == speeds.rate(model, batch, (4, 2), "V100")


def test_tables_and_columns_given_to_a_policy_are_read_only():
    def tamper(view):
        for array in (view.remaining, view.gpus, view.speed.rate, view.transfer.warm, view.submitted_at_s):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        return Decision(np.maximum(view.gpus, 1))

    policy = type("Tamper", (), {"decide": staticmethod(tamper), "cadence": Cadence.events()})()
    assert simulate(linear_workload(some_jobs(2)), parse_cluster("1x4:V100"), policy).unfinished == ()


def test_a_wrong_estimate_changes_the_order_but_never_the_work_done():
    jobs = [elastic(f"j{i}", 0.0, 100.0 * (i + 1), most=1, task=f"t{i}") for i in range(8)]

    def mean(error):
        result = simulate(
            linear_workload(jobs, cold=0.0, warm=0.0),
            parse_cluster("1x1:V100"),
            load_policy("srtf:fixed"),
            cadence=Cadence.events(0.0),
            error=error,
        )
        assert result.makespan_s == pytest.approx(3600.0)
        return result.mean_jct_s

    exact = mean(None)
    assert exact == pytest.approx(sum(100.0 * (i + 1) * (8 - i) for i in range(8)) / 8)
    assert mean(EstimateError(work=1.0, seed=2)) > exact


@pytest.mark.data
@pytest.mark.parametrize("against", ["trace", "best_single"])
def test_runs_that_never_reach_their_target_give_no_estimate_and_at_least_their_limit(
    data_dir: Path, against: str
) -> None:
    workload = titan(data_dir, "FM-1-roberta-large", against=against)
    true = workload.transfer
    estimated = Estimates.build(workload, EstimateError(transfer=0.3)).transfer
    for ratios, censored, told in (
        (true.warm, true.warm_censored, estimated.warm),
        (true.joint, true.joint_censored, estimated.joint),
    ):
        assert 0 < censored.sum() < (~np.isnan(ratios)).sum()
        assert np.isnan(told[censored]).all()
        assert (np.isnan(told) == (np.isnan(ratios) | censored)).all()
        assert (ratios[censored] >= 1.0).all(), "ten epochs, which no run alone exceeds"
    # by hand from the curves: 22 of 56 starts and 30 of 56 joint runs end at the limit of ten epochs
    assert [int(c.sum()) for c in (true.warm_censored, true.joint_censored)] == [22, 30]
    assert [note.split(" never")[0] for note in workload.notes] == [
        "22 of 56 measured warm starts",
        "30 of 56 measured joint runs",
    ]
