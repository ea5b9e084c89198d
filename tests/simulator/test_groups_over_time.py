"""Merge, split, early exit, sequences, shared GPUs and probes, against formulas written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sim_kit import Scripted, completions, counts, elastic, linear_workload

from ymir_opt.domain.errors import InvalidPlanError
from ymir_opt.policies.view import Decision, GroupDecision
from ymir_opt.simulator.cluster import parse_cluster
from ymir_opt.simulator.engine import simulate
from ymir_opt.simulator.workload import TransferTruth


def transfer(joint=0.5, warm=0.5, share=0.75, other=None) -> TransferTruth:
    """Return two classes x and y of model m; ``other`` replaces y's ratios."""

    def table(value, second):
        return np.array([[np.nan, value], [second, np.nan]])

    second = {"joint": joint, "warm": warm, "share": share, **(other or {})}
    return TransferTruth(
        ("m", "m"),
        ("x", "y"),
        (8, 8),
        table(warm, second["warm"]),
        table(joint, second["joint"]),
        table(share, second["share"]),
        table(1.0, 1.0),
    )


def pair(work_a=200.0, work_b=400.0, **fields):
    a = elastic("a", 0.0, work_a, task="x", kind=0, epoch_samples=10.0, **fields)
    b = elastic("b", 0.0, work_b, task="y", kind=1, epoch_samples=10.0, **fields)
    return [a, b]


def rows_of(view, *names):
    ids = view.ids()
    return tuple(ids.index(name) for name in names if name in ids)


def together(mode, gpus=2, probe=0, then=None):
    """Return a policy that runs a and b as one group, and each alone on one GPU otherwise."""

    def decide(view):
        rows = rows_of(view, "a", "b")
        if then is not None and view.now_s >= then:
            return Decision(counts(view, a=1, b=1))
        serials = frozenset(view.column("serial").tolist())
        if len(rows) == 2 and (mode, serials) not in view.rejected:
            return Decision(
                counts(view, a=0, b=0), groups=(GroupDecision(mode, rows, gpus, probe_evaluations=probe),)
            )
        return Decision(counts(view, **{view.id(r): view.gpus[r] or 1 for r in rows}))

    return Scripted(decide)


def run(jobs, policy, truth, **options):
    workload = linear_workload(jobs, truth, cold=10.0, warm=10.0)
    return simulate(workload, parse_cluster("1x4:V100"), policy, **options)


def test_joint_training_shares_the_speed_and_the_first_finisher_leaves_early():
    result = run(pair(), together("joint"), transfer(joint=0.5))
    # Work 100 and 200 at 2 samples/s shared equally: a done after 100 s, b's last 100 alone at 2/s.
    assert completions(result) == pytest.approx({"a": 110.0, "b": 160.0})
    assert (result.merges_kept, result.merges_rolled_back, result.preemptions) == (1, 0, 0)
    a, b = result.jobs
    assert a.gpu_s == pytest.approx(110.0)
    assert b.gpu_s == pytest.approx(110.0 + 2 * 50.0)


def test_unequal_batches_share_in_proportion():
    jobs = pair()
    jobs[0] = elastic("a", 0.0, 200.0, task="x", kind=0, batch_size=16)
    result = run(jobs, together("joint"), transfer(joint=1.0))
    # a runs at 2 x 16/24, b at 2 x 8/24; then b alone at 2.
    first = 200.0 / (2 * 16 / 24)
    left = 400.0 - first * 2 * 8 / 24
    assert completions(result) == pytest.approx({"a": 10.0 + first, "b": 10.0 + first + left / 2})


def test_leaving_a_joint_group_divides_the_rest_by_the_ratio():
    tick = elastic("tick", 60.0, 1e-3, task="z")
    result = run([*pair(), tick], together("joint", then=60.0), transfer(joint=0.5))
    # 50 s at 1 sample/s each of 100 and 200; the rest (50, 150) is worth 100 and 300 alone, on one GPU.
    assert completions(result)["a"] == pytest.approx(60.0 + 10.0 + 100.0)
    assert completions(result)["b"] == pytest.approx(60.0 + 10.0 + 300.0)


def test_a_joint_group_may_be_resized_without_paying_its_ratio_twice():
    def decide(view):
        rows = rows_of(view, "a", "b")
        if len(rows) < 2:
            return Decision(counts(view))
        size = 2 if view.now_s < 60.0 else 4
        return Decision(counts(view, a=0, b=0), groups=(GroupDecision("joint", rows, size),))

    tick = elastic("tick", 60.0, 1e-3, task="z")
    result = run([*pair(), tick], Scripted(decide), transfer(joint=0.5))
    # After 60 s 50 and 150 are left; a start of 10 s, then 2 samples/s each, and b's last 100 at 4/s.
    assert completions(result)["a"] == pytest.approx(60.0 + 10.0 + 25.0)
    assert completions(result)["b"] == pytest.approx(60.0 + 10.0 + 25.0 + 25.0)


@pytest.mark.parametrize("mode", ["gpu_share", "colocate"])
def test_shared_gpus_run_at_their_speed_ratio_and_then_alone(mode):
    result = run(pair(), together(mode), transfer(share=0.75))
    # a: 200 / (2 x 0.75); b then has 400 - 200 left, alone at 2/s.
    first = 200.0 / 1.5
    assert completions(result) == pytest.approx({"a": 10.0 + first, "b": 10.0 + first + 100.0})


def test_a_sequence_starts_its_second_member_from_the_first_ones_weights():
    result = run(pair(), together("sequence"), transfer(warm=0.25))
    # a alone: 100 s; b: warm start, 400 x 0.25 samples at 2/s.
    assert completions(result) == pytest.approx({"a": 110.0, "b": 110.0 + 10.0 + 50.0})
    b = result.jobs[1]
    assert b.first_start_s == pytest.approx(110.0)
    assert b.gpu_s == pytest.approx(2 * 60.0)


def test_the_head_of_a_sequence_goes_on_when_its_successor_is_let_go():
    def decide(view):
        rows = rows_of(view, "a", "b")
        if view.now_s < 60.0:
            return Decision(counts(view, a=0, b=0), groups=(GroupDecision("sequence", rows, 2),))
        return Decision(counts(view, a=2, b=1))

    tick = elastic("tick", 60.0, 1e-3, task="z")
    result = run([*pair(), tick], Scripted(decide), transfer())
    assert completions(result)["a"] == pytest.approx(110.0)
    assert completions(result)["b"] == pytest.approx(60.0 + 10.0 + 400.0)
    assert result.jobs[-1].starts == 1


def test_a_start_from_a_completed_adapter_discards_progress_and_scales_the_work():
    def decide(view):
        ids = view.ids()
        if 0 in view.adapters and "b" in ids:
            row = ids.index("b")
            running = next((g for g in view.groups if g.rows == (row,)), None)
            size = running.gpus if running else 2
            return Decision(
                counts(view, b=0), groups=(GroupDecision("solo", (row,), size, starts_from={row: 0}),)
            )
        return Decision(counts(view, a=2, b=1))

    result = run(pair(), Scripted(decide), transfer(warm=0.25))
    # a done at 110; b then starts over on two GPUs with 400 x 0.25 samples.
    assert completions(result) == pytest.approx({"a": 110.0, "b": 110.0 + 10.0 + 50.0})


def test_a_probe_that_helps_is_passed_and_one_that_does_not_is_rolled_back_and_charged():
    good = run(pair(), together("joint", probe=2), transfer(joint=0.5))
    assert completions(good) == pytest.approx({"a": 110.0, "b": 160.0})
    bad = run(pair(), together("joint", probe=2), transfer(joint=0.5, other={"joint": 1.5}))
    assert (bad.merges_kept, bad.merges_rolled_back) == (0, 1)
    # Both are judged after two epochs of ten samples at 1/s, at 30 s: b is taken back to nothing done, a
    # keeps what it learnt (20 of 100 samples, worth 40 of its own 200), and both start again alone.
    assert completions(bad) == pytest.approx({"a": 30.0 + 10.0 + 160.0, "b": 30.0 + 10.0 + 400.0})


def test_a_rejected_merge_is_told_to_the_policy():
    policy = together("joint", probe=2)
    seen = []
    inner = policy._decide

    def decide(view):
        seen.append(view.rejected)
        return inner(view)

    policy._decide = decide
    run(pair(), policy, transfer(joint=1.5))
    assert seen[0] == frozenset()
    assert seen[-1] == {("joint", frozenset({0, 1}))}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda view: Decision(view.gpus[:1]), "counts for 2 jobs"),
        (lambda view: Decision(counts(view, a=9)), "gives job a 9 GPUs; allowed are 1 to 4"),
        (lambda view: Decision(counts(view, a=-1)), "gives job a -1 GPUs"),
        (lambda view: Decision(counts(view, a=4, b=1)), "uses 5 GPUs of 4"),
        (
            lambda view: Decision(counts(view, a=1), groups=(GroupDecision("joint", (0, 1), 2),)),
            "puts row 0 into two groups",
        ),
        (lambda view: Decision(counts(view), groups=(GroupDecision("solo", (0, 1), 2),)), "solo group of 2"),
        (
            lambda view: Decision(counts(view), groups=(GroupDecision("dance", (0, 1), 2),)),
            "gives a group 'dance'",
        ),
        (
            lambda view: Decision(counts(view, a=1), nodes={0: ((0, 3),)}),
            "places job a on 2 GPUs for 1",
        ),
    ],
)
def test_an_invalid_decision_is_stopped_with_the_policys_name(change, message):
    with pytest.raises(InvalidPlanError, match=message) as caught:
        run(pair(), Scripted(change), transfer(), policy_name="bad:one")
    assert caught.value.place == "policy bad:one"


@pytest.mark.parametrize("mode", ["joint", "sequence", "colocate"])
def test_jobs_of_different_models_and_jobs_that_do_not_share_are_not_merged(mode):
    jobs = pair()
    jobs[1] = elastic("b", 0.0, 1.0, model="n", kind=-1)
    with pytest.raises(InvalidPlanError, match="different models"):
        run(jobs, together(mode), transfer())
    with pytest.raises(InvalidPlanError, match="does not share"):
        run(pair(sharing="none"), together(mode), transfer())


def test_a_job_with_progress_does_not_enter_joint_training():
    def decide(view):
        if view.now_s < 60.0:
            return Decision(counts(view, a=1, b=1))
        return Decision(counts(view, a=0, b=0), groups=(GroupDecision("joint", rows_of(view, "a", "b"), 2),))

    tick = elastic("tick", 60.0, 1e-3, task="z")
    with pytest.raises(InvalidPlanError, match="with progress"):
        run([*pair(), tick], Scripted(decide), transfer())


def test_an_immovable_job_and_one_within_its_minimum_time_are_not_moved():
    def decide(view):
        return Decision(counts(view, a=1 if view.now_s < 60.0 else 2))

    tick = elastic("tick", 60.0, 1e-3, task="z")
    for fields, message in (
        ({"movable": False}, "must not be moved"),
        ({"min_runtime_s": 100.0}, "minimum time"),
    ):
        jobs = [elastic("a", 0.0, 1000.0, **fields), tick]
        with pytest.raises(InvalidPlanError, match=message):
            run(jobs, Scripted(decide), transfer())


@pytest.mark.parametrize(("limit", "kept"), [(None, False), (590.0, False), (600.0, True)])
def test_a_probe_is_passed_where_the_work_is_no_more_than_predicted(limit: float | None, kept: bool):
    """b needs 1.5 x 400 samples: against its own interest, but as the plan said if its limit is 600."""

    def decide(view):
        rows = rows_of(view, "a", "b")
        rejected = ("joint", frozenset(view.column("serial").tolist())) in view.rejected
        if len(rows) == 2 and not rejected:
            limits = {} if limit is None else {rows[1]: limit}
            group = GroupDecision("joint", rows, 2, probe_evaluations=2, probe_limits=limits)
            return Decision(counts(view, a=0, b=0), groups=(group,))
        return Decision(counts(view, **{view.id(r): view.gpus[r] or 1 for r in rows}))

    result = run(pair(), Scripted(decide), transfer(joint=0.5, other={"joint": 1.5}))
    assert (result.merges_kept, result.merges_rolled_back) == ((1, 0) if kept else (0, 1))
