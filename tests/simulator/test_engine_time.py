"""Time: exact completions, rounds, spacing, offsets, start costs, capacity."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_kit import (
    Scripted,
    completions,
    counts,
    elastic,
    linear_workload,
    rigid,
    rigid_workload,
)

from ymir_opt.domain.errors import InputError
from ymir_opt.policies.base import Cadence, load_policy
from ymir_opt.policies.view import Decision
from ymir_opt.simulator.cluster import NodeEvent, parse_cluster
from ymir_opt.simulator.engine import simulate
from ymir_opt.simulator.workload import synthetic_rigid


def fifo(jobs, cluster="1x4:V100", restart_s=0.0, **options):
    return simulate(rigid_workload(jobs, restart_s), parse_cluster(cluster), load_policy("fifo"), **options)


def test_a_job_alone_completes_after_its_start_and_its_work():
    result = fifo([rigid("a", 7.0, 100.0, 2)], restart_s=30.0)
    job = result.jobs[0]
    assert (job.first_start_s, job.completed_at_s) == (7.0, 137.0)
    assert (job.gpu_s, job.switch_gpu_s) == (260.0, 60.0)
    assert (job.exclusive_s, job.fastest_s, job.jct_s) == (130.0, 130.0, 130.0)
    assert (result.makespan_s, result.mean_jct_s) == (130.0, 130.0)


def test_in_rounds_completions_are_exact_but_gpus_are_handed_out_at_the_next_round():
    jobs = [rigid("a", 0.0, 100.0, 4), rigid("b", 0.0, 50.0, 4)]
    result = fifo(jobs, cadence=Cadence.rounds(60.0))
    assert completions(result) == {"a": 100.0, "b": 170.0}


def test_a_submission_or_completion_on_the_tick_counts_for_that_tick():
    jobs = [rigid("a", 60.0, 60.0, 4), rigid("b", 60.0, 60.0, 4)]
    assert completions(fifo(jobs, cadence=Cadence.rounds(60.0))) == {"a": 120.0, "b": 180.0}


def test_on_events_a_plan_follows_each_event_but_no_closer_than_the_spacing():
    jobs = [rigid("a", 0.0, 100.0), rigid("b", 3.0, 100.0), rigid("c", 4.0, 100.0), rigid("d", 50.0, 1.0)]
    seen = Scripted(lambda view: Decision(counts(view)), Cadence.events(10.0))
    simulate(rigid_workload(jobs), parse_cluster("1x1:V100"), seen)
    assert [at for at, _ in seen.seen] == [0.0, 10.0, 50.0]
    assert seen.seen[1][1] == ["a", "b", "c"]


@pytest.mark.parametrize("offset", [0.0, 1e9, -5000.0])
@pytest.mark.parametrize("cadence", [Cadence.events(10.0), Cadence.rounds(50.0)])
def test_a_trace_may_start_at_any_offset_with_empty_rounds_between(offset, cadence):
    """R3: the JCTs do not depend on where the clock starts."""
    jobs = [
        rigid("a", offset + 1000.0, 300.0, 4),
        rigid("b", offset + 1100.0, 300.0, 2),
        rigid("c", offset + 90_000.0, 10.0, 1),
    ]
    result = fifo(jobs, cadence=cadence)
    assert [job.jct_s for job in result.jobs] == pytest.approx([300.0, 500.0, 10.0])
    assert result.makespan_s == pytest.approx(89_010.0)


def test_an_empty_trace_and_jobs_that_never_fit_end_the_run():
    assert fifo([]).jobs_finished == 0
    assert np.isnan(fifo([]).mean_jct_s)
    result = fifo([rigid("small", 0.0, 10.0), rigid("huge", 1.0, 10.0, 5)])
    assert (result.jobs_finished, result.unfinished) == (1, ("huge",))
    rounds = fifo([rigid("huge", 1.0, 10.0, 5)], cadence=Cadence.rounds(60.0))
    assert rounds.unfinished == ("huge",)
    assert rounds.rounds < 5


def test_strict_fifo_waits_for_its_head_and_backfill_does_not():
    jobs = [rigid("a", 0.0, 100.0, 3), rigid("big", 1.0, 10.0, 4), rigid("small", 2.0, 10.0, 1)]
    assert completions(fifo(jobs))["small"] == 120.0
    filled = simulate(rigid_workload(jobs), parse_cluster("1x4:V100"), load_policy("fifo:backfill"))
    assert completions(filled)["small"] == 20.0


def test_elastic_work_is_linear_between_changes_and_every_change_costs_a_start():
    def decide(view):
        wanted = 1 if view.now_s < 60.0 else 4
        return Decision(counts(view, a=wanted))

    jobs = [elastic("a", 0.0, 200.0), elastic("tick", 60.0, 1e-3)]
    result = simulate(
        linear_workload(jobs, cold=10.0, warm=10.0), parse_cluster("2x4:V100"), Scripted(decide)
    )
    # 50 s of work on one GPU, then a start of 10 s and 150 GPU-seconds on four.
    assert completions(result) == {"a": pytest.approx(60.0 + 10.0 + 150.0 / 4)}
    job = result.jobs[0]
    assert (job.starts, job.preemptions) == (2, 0)
    assert job.gpu_s == pytest.approx(60.0 + 4 * 47.5)
    assert job.switch_gpu_s == pytest.approx(10.0 + 40.0)


def test_a_start_is_warm_only_where_every_gpu_held_the_model():
    """`a` leaves its model on two GPUs; `b` takes those two, `c` needs three, `d` is of another model."""

    def decide(view):
        wanted = {"a": 2, "b": 2, "c": 3, "d": 2}
        return Decision(counts(view, **{name: wanted[name] for name in view.ids()}), large_first=False)

    jobs = [
        elastic("a", 0.0, 20.0, task="x"),
        elastic("b", 100.0, 20.0, task="x"),
        elastic("c", 200.0, 30.0, task="x"),
        elastic("d", 300.0, 20.0, model="other"),
    ]
    result = simulate(linear_workload(jobs, cold=10.0, warm=2.0), parse_cluster("1x4:V100"), Scripted(decide))
    jct = {job.id: job.jct_s for job in result.jobs}
    assert jct == pytest.approx({"a": 20.0, "b": 12.0, "c": 20.0, "d": 20.0})


def test_preemption_keeps_progress_and_is_counted_once():
    def decide(view):
        if "b" in view.ids():
            return Decision(counts(view, a=0, b=4))
        return Decision(counts(view, a=4))

    jobs = [elastic("a", 0.0, 400.0), elastic("b", 50.0, 80.0)]
    result = simulate(linear_workload(jobs, cold=0.0, warm=0.0), parse_cluster("1x4:V100"), Scripted(decide))
    assert completions(result) == pytest.approx({"a": 120.0, "b": 70.0})
    assert {job.id: job.preemptions for job in result.jobs} == {"a": 1, "b": 0}
    assert result.preemptions == 1


@settings(max_examples=40, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 200), st.integers(1, 8)), min_size=1, max_size=25
    ),
    policy=st.sampled_from(
        ["fifo", "fifo:backfill", "srtf", "srtf:fixed", "tiresias", "themis", "gavel", "sia"]
    ),
)
def test_no_gpu_is_used_twice_and_all_work_is_done(jobs, policy):
    trace = [rigid(f"j{i}", float(at), float(s), g) for i, (at, s, g) in enumerate(jobs)]
    result = simulate(
        rigid_workload(trace, 5.0), parse_cluster("3x4:V100"), load_policy(policy), segments=True
    )
    assert result.unfinished == ()
    assert sorted(job.id for job in result.jobs) == sorted(job.id for job in trace)
    work = {job.id: job.work for job in trace}
    for job in result.jobs:
        productive = job.gpu_s - job.switch_gpu_s
        assert productive == pytest.approx(work[job.id] * job.requested_gpus)
        assert (
            job.switch_gpu_s == pytest.approx(5.0 * job.starts * job.requested_gpus, abs=1e-6)
            or job.preemptions
        )
        assert job.jct_s >= job.exclusive_s - 1e-6
    events = []
    for segment in result.segments:
        for node, mask in segment.nodes:
            for gpu in range(4):
                if mask >> gpu & 1:
                    events.append((node, gpu, segment.start_s, segment.end_s))
    events.sort()
    for before, after in pairwise(events):
        if before[:2] == after[:2]:
            assert before[3] <= after[2] + 1e-9


def test_wrong_inputs_name_the_place_and_the_remedy():
    jobs = [rigid("a", 0.0, 1.0)]
    with pytest.raises(InputError, match=r"--cluster: has no nodes"):
        simulate(rigid_workload(jobs), (), load_policy("fifo"))
    with pytest.raises(InputError, match=r"node n0: GPU type 'A100' has no speeds.*V100"):
        fifo(jobs, cluster="1x4:A100")
    with pytest.raises(InputError, match=r"'n9': names no node"):
        fifo(jobs, node_events=(NodeEvent(1.0, "down", "n9"),))
    with pytest.raises(InputError, match=r"neither decide\(\) nor plan\(\)"):
        simulate(rigid_workload(jobs), parse_cluster("1x4:V100"), object())
    for text in ("8x4", "0x4:V100", "axb:c", "8x4:V100,", "8x99:V100"):
        with pytest.raises(InputError, match="--cluster"):
            parse_cluster(text)


def test_memory_and_cost_follow_the_active_jobs_not_the_finished_ones():
    from ymir_opt.simulator.engine import Engine
    from ymir_opt.simulator.results import Recorder

    taken = []
    workload = synthetic_rigid(3000, gpus=64, load=0.5, mean_s=100.0)
    engine = Engine(
        workload,
        parse_cluster("8x8:V100"),
        load_policy("fifo"),
        recorder=Recorder(taken.append, series=False),
    )
    result = engine.run()
    assert (result.jobs_finished, len(taken), result.jobs) == (3000, 3000, [])
    store = engine.world.store
    assert store.columns.capacity <= 256
    assert len(store.order) <= 2 * 256
    assert len(engine.world.heap) <= 256
