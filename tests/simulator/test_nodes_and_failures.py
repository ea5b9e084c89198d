"""Nodes that leave, return and arrive; starts that fail."""

from __future__ import annotations

import pytest
from sim_kit import completions, elastic, linear_workload, rigid, rigid_workload

from ymir_opt.policies.base import Cadence, load_policy
from ymir_opt.simulator.cluster import NodeEvent, NodeSpec, parse_cluster, parse_drop
from ymir_opt.simulator.engine import added_nodes, simulate
from ymir_opt.simulator.state import Options


def fifo(jobs, cluster, *events, **options):
    return simulate(
        rigid_workload(jobs), parse_cluster(cluster), load_policy("fifo"), node_events=events, **options
    )


def test_a_node_failure_loses_the_work_since_the_last_checkpoint_and_the_job_starts_elsewhere():
    down = NodeEvent(250.0, "down", "n0")
    result = fifo([rigid("a", 0.0, 400.0, 2)], "2x2:V100", down, options=Options(checkpoint_s=100.0))
    # 250 s done, 50 of them after the checkpoint at 200: 200 s are left.
    assert completions(result) == {"a": pytest.approx(450.0)}
    assert (result.node_failures, result.preemptions, result.jobs[0].starts) == (1, 0, 2)


def test_a_gang_over_two_nodes_frees_the_healthy_one_too():
    down = NodeEvent(100.0, "down", "n1")
    jobs = [rigid("wide", 0.0, 1000.0, 4), rigid("b", 10.0, 50.0, 2)]
    result = fifo(jobs, "2x2:V100", down, cadence=Cadence.events(0.0))
    # The wide one can never run again and, first in, holds back nobody: b was behind it.
    assert completions(result) == {}
    assert result.unfinished == ("wide", "b")
    filled = simulate(
        rigid_workload(jobs), parse_cluster("2x2:V100"), load_policy("fifo:backfill"), node_events=(down,)
    )
    assert completions(filled) == {"b": pytest.approx(150.0)}


def test_a_node_that_returns_is_used_again_and_a_second_failure_is_not_counted_twice():
    events = (NodeEvent(10.0, "down", "n0"), NodeEvent(20.0, "down", "n0"), NodeEvent(500.0, "up", "n0"))
    result = fifo([rigid("a", 0.0, 100.0, 2)], "1x2:V100", *events, options=Options(checkpoint_s=1000.0))
    assert completions(result) == {"a": pytest.approx(600.0)}
    assert result.node_failures == 1


@pytest.mark.parametrize("policy", ["fifo", "srtf", "titan", "ymir-no-merge"])
def test_a_job_that_fitted_nowhere_is_placed_when_a_node_arrives(policy):
    """R1: on events at once, in rounds at the next one."""
    jobs = [elastic("a", 0.0, 400.0, most=4, min_gpus=4, requested_gpus=4)]
    result = simulate(
        linear_workload(jobs, cold=0.0, warm=0.0),
        parse_cluster("1x2:V100"),
        load_policy(policy),
        node_events=added_nodes((NodeSpec("x", "V100", 4),), 1000.0),
    )
    late = load_policy(policy).cadence.round_s or 0.0
    assert 1100.0 <= completions(result)["a"] <= 1100.0 + late
    assert result.gpus == 2


def test_failed_starts_back_off_and_do_not_starve_others():
    """O8: the waits double up to the limit, and the GPU is free for others meanwhile."""
    jobs = [rigid("bad", 0.0, 50.0, 1, failing_starts=3), *(rigid(f"j{i}", 1.0, 60.0, 1) for i in range(5))]
    options = Options(backoff_s=30.0, backoff_limit_s=100.0)
    result = simulate(
        rigid_workload(jobs, restart_s=5.0),
        parse_cluster("1x1:V100"),
        load_policy("fifo:backfill"),
        cadence=Cadence.events(0.0),
        options=options,
    )
    assert result.failed_starts == 3
    assert result.unfinished == ()
    done = completions(result)
    # The GPU never idles: five jobs of 65 s, three failures of 5 s, and at last the 55 s of the failing one.
    assert max(done.values()) == pytest.approx(5 * 65.0 + 3 * 5.0 + 55.0)
    assert done["j0"] == pytest.approx(70.0)
    starts = next(job for job in result.jobs if job.id == "bad")
    assert starts.starts == 4


def test_a_drop_is_written_as_node_at_seconds():
    assert parse_drop("rack@a@3600") == NodeEvent(3600.0, "down", "rack@a")
