"""Complaints of users of such systems, over rounds, with our planner: starvation, thrash, growth, repair."""

from __future__ import annotations

import pytest
from sim_kit import completions, elastic, linear_workload, rigid

from ymir_opt.domain.snapshot import Queue, Quota
from ymir_opt.policies.base import Cadence, load_policy
from ymir_opt.simulator.cluster import NodeEvent, parse_cluster
from ymir_opt.simulator.engine import simulate
from ymir_opt.simulator.state import Options
from ymir_opt.simulator.workload import RigidSpeeds, Workload

ROUNDS = Cadence.rounds(120.0)


def run(workload, cluster, policy="ymir-no-merge", **options):
    return simulate(workload, parse_cluster(cluster), load_policy(policy), **options)


def rigid_trace(jobs, queues=(), restart_s=10.0):
    return Workload.of("scenario", jobs, RigidSpeeds(("V100",), restart_s), quotas=tuple(queues))


def queue(name, nominal, cohort="c"):
    return Queue(name=name, cohort=cohort, quotas=(Quota(gpu_type="V100", nominal_gpus=float(nominal)),))


def records(result):
    return {job.id: job for job in result.jobs}


@pytest.mark.parametrize(("waited", "goes_first"), [(100.0, False), (3 * 3600.0, True)])
def test_o1_ageing_lets_a_gang_in_before_a_stream_of_small_jobs(waited: float, goes_first: bool):
    """Small jobs keep three of four GPUs busy; a gang of four that has waited long enough goes first."""
    blocker = rigid("blocker", -waited - 1.0, waited + 1.0, 4, movable=False)
    gang = rigid("gang", -waited, 60.0, 4)
    small = [rigid(f"s{i:02}", 20.0 * i - 70.0, 60.0, 1) for i in range(16)]
    trace = rigid_trace([blocker, gang, *small], restart_s=0.0)
    result = run(trace, "1x4:V100", "ymir-no-merge:r=0.25", cadence=Cadence.events(10.0))
    assert result.unfinished == ()
    found = records(result)
    assert (found["gang"].first_start_s < 20.0) == goes_first
    assert found["gang"].preemptions == 0
    if not goes_first:
        assert found["gang"].first_start_s > 200.0, "as long as the stream goes on"


def wait_behind_a_stream(policy: str, gang_s: float, stream: int) -> float:
    """Return how long a gang of four GPUs waits while small jobs keep three of four GPUs busy."""
    small = [rigid(f"s{i:03}", 20.0 * i - 60.0, 60.0, 1) for i in range(stream)]
    trace = rigid_trace([rigid("gang", 0.0, gang_s, 4), *small], restart_s=0.0)
    gang = records(run(trace, "1x4:V100", policy, cadence=Cadence.events(10.0)))["gang"]
    assert gang.preemptions == 0
    return gang.first_start_s


@pytest.mark.parametrize(("exponent", "gang_s", "stream"), [(0.25, 5.0, 50), (0.5, 20.0, 20)])
def test_o1_with_ageing_the_wait_does_not_grow_with_the_stream(exponent: float, gang_s: float, stream: int):
    """Within the stream's 20 s x number the gang goes; twice the stream changes nothing."""
    policy = f"ymir-no-merge:r={exponent}"
    short, long = (wait_behind_a_stream(policy, gang_s, n) for n in (stream, 2 * stream))
    assert short == long < 20.0 * stream - 100.0


def test_o1_without_ageing_the_wait_grows_with_the_stream():
    waits = [wait_behind_a_stream("ymir-no-merge:r=0", 20.0, n) for n in (20, 40)]
    assert waits[1] >= waits[0] + 300.0


def test_o5_waiting_never_lowers_a_rank_equal_jobs_start_in_order_of_submission():
    jobs = [rigid(f"j{i:02}", 7.0 * i, 100.0, 1) for i in range(12)]
    result = run(rigid_trace(jobs), "1x2:V100", cadence=Cadence.events(10.0))
    starts = sorted(result.jobs, key=lambda job: job.id)
    assert [job.first_start_s for job in starts] == sorted(job.first_start_s for job in starts)
    assert result.preemptions == 0


def test_o8_a_job_whose_start_keeps_failing_backs_off_and_holds_nobody_back():
    jobs = [rigid("bad", 0.0, 60.0, 1, failing_starts=5), *(rigid(f"j{i}", 1.0, 100.0, 1) for i in range(4))]
    options = Options(backoff_s=40.0, backoff_limit_s=400.0)
    result = run(rigid_trace(jobs), "1x1:V100", cadence=Cadence.events(10.0), options=options)
    assert result.unfinished == ()
    assert result.failed_starts == 5
    done = completions(result)
    assert max(done[f"j{i}"] for i in range(4)) < 4 * 110.0 + 5 * 20.0 + 100.0


@pytest.mark.parametrize(("work", "grows"), [(4000.0, True), (480.0, False)])
def test_l1_an_elastic_job_grows_when_gpus_free_up_if_the_gain_exceeds_the_restart(work: float, grows: bool):
    """After `short` leaves, `long` has either a long way to go or less than a start is worth."""
    jobs = [
        elastic("short", 0.0, 400.0, most=2, min_gpus=2, requested_gpus=2, task="s"),
        elastic("long", 0.0, work, most=4, min_gpus=2, requested_gpus=2, task="l"),
    ]
    result = run(linear_workload(jobs, cold=30.0, warm=30.0), "1x4:V100")
    long = records(result)["long"]
    assert long.starts == (2 if grows else 1)
    assert records(result)["short"].starts == 1
    if grows:
        assert long.completed_at_s == pytest.approx(230.0 + 30.0 + (work - 400.0) / 4, abs=11.0)


def test_l3_gpus_of_a_gang_that_lost_a_node_are_freed_for_others():
    jobs = [rigid("gang", 0.0, 5000.0, 4), rigid("small", 300.0, 100.0, 2)]
    down = NodeEvent(200.0, "down", "n1")
    result = run(rigid_trace(jobs), "2x2:V100", node_events=(down,), cadence=Cadence.events(10.0))
    assert completions(result) == {"small": pytest.approx(410.0)}
    assert result.unfinished == ("gang",)


def test_p1_a_reclaim_evicts_once_and_nobody_twice():
    """Two queues of 15 and a best-effort one in a cohort of 30; 25 + 5 run and 5 arrive within nominal."""
    queues = [queue("a", 15), queue("b", 15), queue("spare", 0)]
    jobs = [
        rigid("borrower", 0.0, 3000.0, 25, queue="a"),
        rigid("spare", 0.0, 3000.0, 5, queue="spare"),
        rigid("owner", 300.0, 3000.0, 5, queue="b", weight=20.0),
    ]
    result = run(rigid_trace(jobs, queues), "1x30:V100", cadence=ROUNDS)
    found = records(result)
    assert found["owner"].first_start_s == 360.0
    assert (found["borrower"].preemptions, found["spare"].preemptions) == (0, 1)
    assert found["spare"].first_start_s == 0.0
    assert result.preemptions == 1


@pytest.mark.parametrize(("asked", "evicted"), [(4, 2), (3, 2)])
def test_p3_a_reclaim_of_gangs_is_one_decision_and_then_stable(asked: int, evicted: int):
    """Eight GPUs, four gangs of two of queue a (nominal 4); queue b (nominal 4) asks for four or three."""
    queues = [queue("a", 4), queue("b", 4)]
    jobs = [rigid(f"a{i}", 0.0, 4000.0, 2, queue="a") for i in range(4)]
    jobs.append(rigid("b", 300.0, 2000.0, asked, queue="b", weight=20.0))
    result = run(rigid_trace(jobs, queues), "1x8:V100", cadence=ROUNDS)
    found = records(result)
    assert found["b"].first_start_s == 360.0
    assert result.preemptions == evicted
    assert found["b"].preemptions == 0
    assert max(job.starts for job in result.jobs) == 2
    later = result.series["time_s"] > 360.0
    before_b_ends = later & (result.series["time_s"] < found["b"].completed_at_s)
    used = result.series["used_gpus"][before_b_ends]
    assert set(used.tolist()) == {float(asked + 4)}
