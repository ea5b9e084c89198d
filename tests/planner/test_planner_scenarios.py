"""What users of schedulers complain about, as snapshots with an expected property of the plan."""

from __future__ import annotations

from typing import Any

import pytest
from scenario_kit import (
    NOW,
    acts,
    job,
    node,
    nodes_of,
    queue,
    running,
    runs,
    share_rows,
    snapshot,
    transfer,
)

from ymir_opt import check, outcome, solve
from ymir_opt.domain.plan import Reason
from ymir_opt.domain.snapshot import Mode, Reclaim, Sharing, Snapshot, TransferMode, Workers

BACKENDS = ("highs", "cpsat", "cbc", "pulp-highs")


@pytest.fixture(params=BACKENDS)
def plan(request: pytest.FixtureRequest) -> Any:
    def run(made: Snapshot, **options: Any) -> Any:
        found = solve(made, **({"gap": 0.0, "backend": request.param} | options))
        assert check(made, found) == []
        assert "note" not in found.labels
        return found

    return run


def reason(found: Any, name: str) -> Reason:
    return found.explanations[name].reason


# -- preemption and thrash --------------------------------------------------------------------------


def test_p4_planning_on_from_the_outcome_moves_nothing(plan: Any) -> None:
    made = snapshot(
        [node("n0"), node("n1")],
        [job(f"j{i}", 1 + i % 4, hours=0.2 * (i + 1), max_gpus=4 + i % 4, min_gpus=1) for i in range(6)],
    )
    first = plan(made)
    again = plan(outcome(made, first), previous=first)
    assert set(acts(again).values()) <= {"keep", "wait"}
    # nor does it without knowing the previous plan
    assert set(acts(plan(outcome(made, first))).values()) <= {"keep", "wait"}


def test_p6_eviction_comes_only_with_the_start_that_it_enables(plan: Any) -> None:
    made = snapshot(
        [node("n0", 4)],
        [running(job("long", 4, hours=200), {"n0": (0, 1, 2, 3)}), job("short", 4, hours=0.05, weight=50)],
    )
    assert acts(plan(made)) == {"long": "preempt", "short": "start"}


def test_p7_nothing_is_evicted_for_a_job_that_cannot_be_placed(plan: Any) -> None:
    # four GPUs could be freed, but never on one node
    jobs = [running(job(f"pin{i}", 1, hours=9, movable=False), {f"n{i}": (0,)}) for i in range(2)] + [
        running(job(f"low{i}", 1, hours=90), {f"n{i}": (1,)}) for i in range(2)
    ]
    made = snapshot([node("n0", 4), node("n1", 4)], [*jobs, job("big", 4, hours=0.05, weight=100)])
    found = plan(made)
    assert {acts(found)[f"low{i}"] for i in range(2)} == {"keep"}
    assert acts(found)["big"] == "wait"
    assert reason(found, "big") is Reason.TOPOLOGY_PLACEMENT_FAILED


def test_p8_one_eviction_where_one_suffices(plan: Any) -> None:
    lows = [running(job(f"low{i}", 1, hours=50), {"n0": (i,)}) for i in range(8)]
    made = snapshot([node("n0")], [*lows, job("urgent", 1, hours=0.05, priority=5)])
    found = plan(made)
    assert sorted(acts(found).values()).count("preempt") == 1
    assert acts(found)["urgent"] == "start"


def test_p10_minimum_run_time_is_honoured(plan: Any) -> None:
    def made(since: float) -> Snapshot:
        young = running(job("young", 4, hours=200, min_runtime_s=1800), {"n0": (0, 1, 2, 3)}, since)
        return snapshot([node("n0", 4)], [young, job("short", 4, hours=0.05, weight=50, priority=3)])

    early = plan(made(60.0))
    assert acts(early) == {"young": "keep", "short": "wait"}
    assert reason(early, "young") is Reason.MIN_RUNTIME_PROTECTED
    assert acts(plan(made(3600.0)))["young"] == "preempt"


def test_p11_immovable_jobs_stay(plan: Any) -> None:
    pinned = running(job("pinned", 2, hours=200, movable=False, max_gpus=8, min_gpus=1), {"n0": (0, 1)})
    made = snapshot([node("n0", 4)], [pinned, job("short", 4, hours=0.02, weight=90, priority=9)])
    found = plan(made)
    assert acts(found) == {"pinned": "keep", "short": "wait"}
    assert nodes_of(found, "pinned") == {"n0": (0, 1)}


# -- fragmentation and topology ---------------------------------------------------------------------


def test_f1_a_big_job_waits_for_a_node_without_evictions(plan: Any) -> None:
    jobs = [
        running(job(f"high{n}-{i}", 1, hours=5, priority=10), {f"n{n}": (i,)})
        for n in range(4)
        for i in range(6)
    ] + [running(job(f"low{n}-{i}", 1, hours=5), {f"n{n}": (i,)}) for n in range(4) for i in (6, 7)]
    jobs = jobs[:-1]  # one GPU is free
    made = snapshot([node(f"n{n}") for n in range(4)], [*jobs, job("big", 8, hours=5), job("one", 1)])
    found = plan(made)
    assert "preempt" not in acts(found).values()
    assert acts(found)["big"] == "wait"
    assert reason(found, "big") in (
        Reason.TOPOLOGY_PLACEMENT_FAILED,
        Reason.LOWER_PRIORITY,
        Reason.INSUFFICIENT_GPUS,
    )
    assert acts(found)["one"] == "start"


def test_f2_a_gang_of_two_nodes_waits_and_a_single_one_runs(plan: Any) -> None:
    ones = [running(job(f"one{i}", 1, hours=1, movable=False), {f"n{i}": (0,)}) for i in range(2)]
    made = snapshot([node(f"n{i}") for i in range(3)], [*ones, job("two-nodes", 16), job("eight", 8)])
    found = plan(made)
    assert acts(found)["two-nodes"] == "wait"
    assert acts(found)["eight"] == "start"
    assert nodes_of(found, "eight") == {"n2": tuple(range(8))}


def test_f4_best_fit_takes_the_node_with_exactly_two_free(plan: Any) -> None:
    filler = running(job("filler", 2, hours=9, movable=False), {"n1": (0, 1)})
    made = snapshot([node("n0", 4), node("n1", 4)], [filler, job("two", 2)])
    assert nodes_of(plan(made), "two") == {"n1": (2, 3)}


def test_f5_workers_spread_where_a_gang_could_not(plan: Any) -> None:
    full = [
        running(job("a", 2, hours=9, movable=False), {"n1": (0, 1)}),
        running(job("b", 1, hours=9, movable=False), {"n2": (0,)}),
    ]
    made = snapshot(
        [node("n0", 2), node("n1", 3), node("n2", 2)],
        [
            *full,
            job("A", 2, min_gpus=None, max_gpus=None, workers=Workers(count=2, gpus_each=1)),
            job("B", 2, min_gpus=None, max_gpus=None, workers=Workers(count=1, gpus_each=2)),
        ],
    )
    found = plan(made)
    assert {"A", "B"} <= runs(found)
    assert sum(len(g) for g in nodes_of(found, "A").values()) == 2
    assert len(nodes_of(found, "A")) == 2


def test_f7_a_small_job_runs_beside_a_waiting_big_one(plan: Any) -> None:
    made = snapshot([node("n0", 4), node("n1", 1)], [job("five", 5, hours=0.5), job("one", 1, hours=0.5)])
    found = plan(made)
    assert acts(found) == {"five": "wait", "one": "start"} or acts(found)["five"] == "start"
    assert acts(found)["one"] == "start" or acts(found)["five"] == "start"


# -- order, gangs -----------------------------------------------------------------------------------


def test_o3_a_blocked_type_does_not_block_others(plan: Any) -> None:
    busy = running(job("busy", 4, hours=9, movable=False), {"a": (0, 1, 2, 3)})
    made = snapshot(
        [node("a", 4), node("v", 4, "V100")],
        [
            busy,
            job("first", 4, gpu_types=("A100",), submitted_at_s=NOW - 9000),
            job("second", 4, gpu_types=("V100",)),
        ],
    )
    found = plan(made)
    assert acts(found) == {"busy": "keep", "first": "wait", "second": "start"}
    assert "A100" in found.explanations["first"].message


def test_o6_ties_go_to_the_earlier_submission_then_the_smaller_id() -> None:
    def winner(*jobs: Any) -> str:
        made = snapshot([node("n0", 1)], list(jobs))
        return next(iter(runs(solve(made, gap=0.0))))

    assert winner(job("b", 1), job("a", 1)) == "a"
    assert winner(job("a", 1), job("b", 1)) == "a"
    late = job("a", 1, submitted_at_s=NOW)
    early = job("b", 1, submitted_at_s=NOW - 5)
    assert winner(late, early) == "b"


def test_g1_g2_gangs_are_all_or_nothing(plan: Any) -> None:
    made = snapshot([node("n0", 4), node("n1", 2)], [job("x", 4), job("y", 4)])
    found = plan(made)
    assert len(runs(found)) == 1
    assert {g.gpus for g in found.groups} == {4}


# -- sharing ----------------------------------------------------------------------------------------


def test_s1_the_fifth_job_shares_a_gpu(plan: Any) -> None:
    jobs = [job(f"j{i}", 1, sharing=Sharing.ALL) for i in range(5)]
    made = snapshot(
        [node("n0", 4, memory=23.0)],
        jobs,
        profiles={"colocation": (share_rows(Mode.GPU_SHARE, 2, 0.75),)},
    )
    found = plan(made)
    assert len(runs(found)) == 5
    assert sorted(g.mode.value for g in found.groups) == ["gpu_share", "solo", "solo", "solo"]


def test_s2_memory_used_from_outside_is_respected(plan: Any) -> None:
    jobs = [job(f"j{i}", 1, sharing=Sharing.ALL) for i in range(5)]
    made = snapshot(
        [node("n0", 4, memory=23.0, external_used_gib=(4.0, 4.0, 4.0, 14.0))],
        jobs,
        profiles={"colocation": (share_rows(Mode.GPU_SHARE, 2, 0.75),)},
    )
    found = plan(made)
    # 20 GiB for two do not fit beside 4 GiB, 10 GiB for one not beside 14
    assert all(g.mode is Mode.SOLO for g in found.groups)
    assert all(3 not in gpus for g in found.groups for gpus in g.placement.values())


@pytest.mark.parametrize(
    ("mode", "level", "shares"),
    [
        (Mode.GPU_SHARE, Sharing.NONE, False),
        (Mode.GPU_SHARE, Sharing.BACKBONE, True),
        (Mode.COLOCATE, Sharing.BACKBONE, True),
        (Mode.JOINT, Sharing.BACKBONE, False),
        (Mode.JOINT, Sharing.TENANT, False),
        (Mode.JOINT, Sharing.ALL, True),
    ],
)
def test_s3_sharing_has_levels(plan: Any, mode: Mode, level: Sharing, *, shares: bool) -> None:
    jobs = [job(n, 1, sharing=level, tenant=f"tenant-{n}") for n in ("a", "b")]
    profiles: dict[str, Any] = (
        {
            "transfer": tuple(
                transfer(TransferMode.JOINT, (x,), y, 0.5, low=0.4, high=0.6, p_benefit=1.0)
                for x, y in (("a", "b"), ("b", "a"))
            )
        }
        if mode is Mode.JOINT
        else {"colocation": (share_rows(mode, 2, 0.9),), "backbone_gib": ()}
    )
    if mode is Mode.COLOCATE:
        from ymir_opt.domain.snapshot import BackboneRow

        profiles["backbone_gib"] = (BackboneRow(foundation_model="fm", gib=4.0),)
    made = snapshot([node("n0", 1)], jobs, profiles=profiles)
    assert (len(runs(plan(made))) == 2) is shares


def test_s4_negative_transfer_is_never_merged_uncertain_only_if_it_pays(plan: Any) -> None:
    def modes(ratio: float, low: float, high: float, p: float) -> set[Mode]:
        jobs = [job(n, 1, sharing=Sharing.ALL) for n in ("a", "b")]
        rows = tuple(
            transfer(TransferMode.JOINT, (x,), y, ratio, low=low, high=high, p_benefit=p)
            for x, y in (("a", "b"), ("b", "a"))
        )
        return {g.mode for g in plan(snapshot([node("n0", 1)], jobs, profiles={"transfer": rows})).groups}

    assert modes(1.2, 1.1, 1.3, 0.0) == {Mode.SOLO}
    assert modes(0.5, 0.4, 0.6, 1.0) == {Mode.JOINT}
    # a coin toss: what a failed probe costs outweighs a small gain
    assert modes(0.97, 0.6, 1.5, 0.5) == {Mode.SOLO}


# -- quotas, robustness -----------------------------------------------------------------------------


def test_queue_limit_binds_starts_and_reclaim_takes_back_what_is_borrowed(plan: Any) -> None:
    queues = (queue("a", 4, cohort="c"), queue("b", 4, cohort="c"))
    borrowed = [running(job(f"a{i}", 2, hours=30, queue="a"), {"n0": (2 * i, 2 * i + 1)}) for i in range(4)]
    made = snapshot([node("n0")], [*borrowed, job("b0", 2, hours=0.2, queue="b", weight=20)], queues=queues)
    found = plan(made)
    assert acts(found)["b0"] == "start"
    assert list(acts(found).values()).count("preempt") == 1


def test_reclaim_never_waits(plan: Any) -> None:
    queues = (queue("a", 4, cohort="c"), queue("b", 4, cohort="c", reclaim_within_cohort=Reclaim.NEVER))
    borrowed = [running(job(f"a{i}", 2, hours=30, queue="a"), {"n0": (2 * i, 2 * i + 1)}) for i in range(4)]
    made = snapshot([node("n0")], [*borrowed, job("b0", 2, hours=0.2, queue="b", weight=20)], queues=queues)
    found = plan(made)
    assert "preempt" not in acts(found).values()
    assert reason(found, "b0") in (Reason.EXCEEDS_MAX_QUOTA, Reason.INSUFFICIENT_GPUS)


def test_use_within_nominal_is_never_preempted_by_borrowing(plan: Any) -> None:
    queues = (queue("a", 4, cohort="c"), queue("b", 4, cohort="c"))
    own = [running(job(f"a{i}", 2, hours=90, queue="a"), {"n0": (2 * i, 2 * i + 1)}) for i in range(2)]
    greedy = [job(f"b{i}", 2, hours=0.1, queue="b", weight=90) for i in range(4)]
    found = plan(snapshot([node("n0")], [*own, *greedy], queues=queues))
    assert acts(found)["a0"] == acts(found)["a1"] == "keep"
    assert len(runs(found)) == 4


def test_lower_class_never_takes_from_a_higher_one(plan: Any) -> None:
    high = running(job("high", 4, hours=500, priority=7), {"n0": (0, 1, 2, 3)})
    made = snapshot([node("n0", 4)], [high, job("low", 4, hours=0.01, weight=1000)])
    assert acts(plan(made)) == {"high": "keep", "low": "wait"}


def test_r2_all_nodes_of_a_gang_are_of_one_pool(plan: Any) -> None:
    made = snapshot(
        [
            node("a", 4, labels={"zone": "x"}),
            node("b", 4, labels={"zone": "y"}),
            node("v", 4, "V100", labels={"zone": "x"}),
        ],
        [job("gang", 8, node_selector={"zone": "x"}), job("any", 8)],
    )
    found = plan(made)
    assert acts(found)["gang"] == "wait"
    assert set(nodes_of(found, "any")) == {"a", "b"}


@pytest.mark.parametrize(
    "made",
    [
        snapshot([node("n0")], []),
        snapshot([], [job("j", 1)]),
        snapshot([node("n0", 0)], [job("j", 1)]),
        snapshot([node("n0", 1)], [job("\u00fc-\u6f22", 1)]),
        snapshot([node("n0", 1)], [job("j", 1, remaining_samples=1e18)]),
        snapshot([node("n0", 1)], [job("j", 1, remaining_samples=0.0)]),
    ],
    ids=["no jobs", "no nodes", "empty node", "unicode", "1e18 samples", "no work left"],
)
def test_r7_odd_snapshots_get_a_plan(plan: Any, made: Snapshot) -> None:
    found = plan(made)
    assert len(found.actions) == len(made.jobs)
    assert found.solver.value_gap == 0


def test_a_selector_never_matches_a_label_that_a_node_lacks(plan: Any) -> None:
    made = snapshot([node("n0", 1)], [job("j", 1, node_selector={"zone": "None"})])
    assert acts(plan(made)) == {"j": "wait"}
