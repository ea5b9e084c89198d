"""A valid plan by hand for every invariant, and what spoils it, found under the right number."""

from __future__ import annotations

import pytest
from plan_kit import broken, lies, messages, plan, regroup, solo
from scenario_kit import FM, NOW, group, job, node, queue, running, share_rows, snapshot, transfer

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.plan import ActionKind, Decision, GapScope, ObjectiveInfo, Reason, SolverStatus
from ymir_opt.domain.snapshot import (
    BackboneRow,
    CompletedAdapter,
    JobState,
    Mode,
    NodeState,
    Parallelism,
    Reclaim,
    RejectedMerge,
    Sharing,
    StartSource,
    TransferMode,
    Workers,
)
from ymir_opt.planner import solve
from ymir_opt.verify import check

ALL = Sharing.ALL


def two_jobs(**fields):
    return snapshot([node("n0", 4), node("n1", 4)], [job("a", 2, **fields), job("b", 4)])


# -- 1: membership ------------------------------------------------------------------------------


def test_a_plan_made_by_hand_holds():
    s = two_jobs()
    assert check(s, plan(s, solo("a", {"n0": (0, 1)}), solo("b", {"n1": (0, 1, 2, 3)}))) == []
    assert check(s, plan(s)) == []


def test_a_job_in_two_groups_breaks_1():
    s = two_jobs()
    made = plan(s, solo("a", {"n0": (0, 1)}), solo("a", {"n0": (2, 3)}, id="again"))
    assert broken(s, made) == {1}
    assert "also in groups[0]" in messages(s, made)


def test_an_unplaced_job_without_a_reason_breaks_1():
    s = two_jobs()
    made = plan(s, solo("a", {"n0": (0, 1)}))
    without = made.model_copy(update={"explanations": {"a": made.explanations["a"]}})
    assert 1 in broken(s, without)
    claims = made.explanations["b"].model_copy(update={"reason": Reason.CHOSEN})
    chosen = made.model_copy(update={"explanations": {**made.explanations, "b": claims}})
    assert broken(s, chosen) == {1}


def test_actions_must_say_what_the_groups_say():
    s = snapshot([node("n0", 4)], [running(job("a", 2), {"n0": (0, 1)}), job("b", 2)])
    made = plan(s, solo("a", {"n0": (0, 1)}), solo("b", {"n0": (2, 3)}))
    assert broken(s, made) == set()

    def acting(row, **changes):
        actions = list(made.actions)
        actions[row] = actions[row].model_copy(update=changes)
        return made.model_copy(update={"actions": tuple(actions)})

    for wrong in (
        acting(0, action=ActionKind.MIGRATE),
        acting(0, action=ActionKind.PREEMPT),
        acting(0, from_=None),
        acting(0, from_=made.actions[0].from_.model_copy(update={"gpus": 3})),
        acting(0, from_=made.actions[0].from_.model_copy(update={"gpu_type": "V100"})),
        acting(1, from_=made.actions[0].from_),
        acting(1, action=ActionKind.KEEP),
        acting(1, action=ActionKind.WAIT),
        acting(1, action=ActionKind.RESIZE),
        acting(1, to=None),
        acting(1, to=made.actions[0].to),
        acting(1, job="a"),
        acting(1, job="nobody"),
        made.model_copy(update={"actions": made.actions[:1]}),
        made.model_copy(update={"actions": (*made.actions, made.actions[0])}),
    ):
        assert 1 in broken(s, wrong), wrong.actions


def test_a_job_of_another_snapshot_and_the_size_of_groups():
    s = two_jobs()
    assert 1 in broken(s, plan(s, solo("zebra", {"n0": (0, 1)})))
    assert 1 in broken(s, plan(s, lies(Mode.SOLO, ("a", "b"), {"n0": (0, 1)})))
    assert 1 in broken(s, plan(s, lies(Mode.JOINT, ("a",), {"n0": (0, 1)})))
    twice = plan(s, solo("a", {"n0": (0, 1)}, id="x"), solo("b", {"n1": (0, 1, 2, 3)}, id="x"))
    assert broken(s, twice) == {1}


# -- 2: GPUs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"n1": (3, 0)}, "also used by"),
        ({"n0": (0, 0)}, "also used by"),
        ({"n0": (0, 9)}, "does not exist"),
        ({"mars": (0, 1)}, "does not exist"),
    ],
)
def test_gpus_that_are_taken_or_missing_break_2(where, says):
    s = two_jobs()
    made = plan(s, solo("a", where), solo("b", {"n1": (0, 1, 2, 3)}))
    assert 2 in broken(s, made)
    assert says in messages(s, made)


@pytest.mark.parametrize(
    "fields",
    [
        {"state": NodeState.DOWN},
        {"state": NodeState.DRAINING},
        {"unavailable_gpus": (1,)},
        {"external_used_gib": (35.0, 0.0, 0.0, 0.0)},
        {"gpu_type": "V100"},
        {"cpus": 3.0},
        {"host_memory_gib": 20.0},
    ],
)
def test_nodes_that_may_not_be_used_break_2(fields):
    wants = {"cpus_per_gpu": 2.0, "host_memory_gib": 30.0}
    s = snapshot([node("n0", 4, **fields), node("n1", 4)], [job("a", 2, **wants)])
    assert 2 in broken(s, plan(s, solo("a", {"n0": (0, 1)})))
    assert broken(s, plan(s, solo("a", {"n1": (0, 1)}))) == set()


def test_what_runs_may_stay_on_a_draining_node_but_not_move_within():
    s = snapshot([node("n0", 4, state=NodeState.DRAINING)], [running(job("a", 2), {"n0": (0, 1)})])
    assert broken(s, plan(s, solo("a", {"n0": (0, 1)}))) == set()
    assert 2 in broken(s, plan(s, solo("a", {"n0": (2, 3)})))


def test_selectors_bind_every_member():
    nodes = [node("n0", 2, labels={"zone": "a"}), node("n1", 2, labels={"zone": "b"}, rack="r7")]
    s = snapshot(nodes, [job("a", 2, node_selector={"zone": "b", "rack": "r7"}), job("b", 2)])
    assert 2 in broken(s, plan(s, solo("a", {"n0": (0, 1)})))
    assert broken(s, plan(s, solo("a", {"n1": (0, 1)}))) == set()


def test_kept_groups_leave_their_cpus():
    s = snapshot(
        [node("n0", 4, cpus=8.0)],
        [running(job("a", 2, cpus_per_gpu=3.0), {"n0": (0, 1)}), job("b", 2, cpus_per_gpu=1.5)],
    )
    made = plan(s, solo("a", {"n0": (0, 1)}), solo("b", {"n0": (2, 3)}))
    assert broken(s, made) == {2}
    assert "6 are taken" in messages(s, made)


def test_profile_actions_use_gpus_too():
    s = snapshot([node("n0", 2)], [job("a", 2), job("b", 1, foundation_model="unheard", batch_size=1)])
    made = plan(s, solo("a", {"n0": (0, 1)}), profiled={"b": {"n0": (1,)}})
    assert broken(s, made) == {2}
    assert broken(s, plan(s, profiled={"b": {"n0": (1,)}})) == set()


# -- 3: gangs -----------------------------------------------------------------------------------


def test_wrong_counts_break_3():
    s = snapshot([node("n0", 8)], [job("a", 2, max_gpus=8, gpu_counts=(2, 8), gpu_types=("A100",))])
    good = plan(s, solo("a", {"n0": (0, 1)}))
    assert broken(s, good) == set()
    assert broken(s, regroup(good, 0, gpus=4)) == {1, 3}
    assert 3 in broken(s, plan(s, solo("a", {"n0": (0, 1, 2, 3)})))
    assert 3 in broken(s, plan(s, solo("a", {"n0": (0,)})))
    assert 3 in broken(s, plan(s, solo("a", {})))
    other = snapshot([node("n0", 8)], [job("a", 2, gpu_types=("H100",))])
    assert broken(other, plan(other, solo("a", {"n0": (0, 1)}))) == {3}


def test_rigid_jobs_run_on_the_requested_count():
    rigid = job("a", 1, requested_gpus=2, max_gpus=4, remaining_samples=None, remaining_s=60.0)
    s = snapshot([node("n0", 4)], [rigid])
    assert broken(s, plan(s, solo("a", {"n0": (0, 1)}))) == set()
    assert broken(s, plan(s, solo("a", {"n0": (0, 1, 2)}))) == {3}


def test_gangs_lie_on_the_fewest_nodes_unless_kept_or_workers():
    s = snapshot([node("n0", 4), node("n1", 4)], [job("a", 4), job("b", 5)])
    spread = plan(s, solo("a", {"n0": (0, 1), "n1": (0, 1)}))
    assert broken(s, spread) == {3}
    assert "lie on 2 nodes, but 1 could hold them" in messages(s, spread)
    assert broken(s, plan(s, solo("b", {"n0": (0, 1, 2), "n1": (0, 1)}))) == set()
    where = {"n0": (0, 1), "n1": (0, 1)}
    kept = snapshot([node("n0", 4), node("n1", 4)], [running(job("a", 4), where)])
    assert broken(kept, plan(kept, solo("a", where))) == set()
    gang = job("a", 4, workers=Workers(count=2, gpus_each=2), min_gpus=None, max_gpus=None)
    free = snapshot([node("n0", 4), node("n1", 4)], [gang])
    assert broken(free, plan(free, solo("a", where))) == set()
    assert broken(free, plan(free, solo("a", {"n0": (0, 1, 2), "n1": (0,)}))) == {3}


def test_the_fewest_nodes_are_those_that_could_hold_it():
    # a node that drains or does not match the selector does not count; busy ones do
    nodes = [node("n0", 2), node("n1", 2), node("big", 4, state=NodeState.DRAINING)]
    s = snapshot(nodes, [job("a", 4)])
    assert broken(s, plan(s, solo("a", {"n0": (0, 1), "n1": (0, 1)}))) == set()
    nodes[2] = node("big", 4)
    s = snapshot(nodes, [job("a", 4), running(job("b", 1), {"big": (0,)})])
    made = plan(s, solo("a", {"n0": (0, 1), "n1": (0, 1)}), solo("b", {"big": (0,)}))
    assert broken(s, made) == {3}


def test_pipeline_jobs_take_whole_nodes():
    s = snapshot([node("n0", 4), node("n1", 2)], [job("a", 2, max_gpus=4, parallelism=Parallelism.PIPELINE)])
    assert broken(s, plan(s, solo("a", {"n1": (0, 1)}))) == set()
    assert broken(s, plan(s, solo("a", {"n0": (0, 1)}))) == {3}


# -- 4: sharing ---------------------------------------------------------------------------------


def pair(mode=Mode.GPU_SHARE, **fields):
    b = {"sharing": ALL} | fields
    rows = {
        "colocation": (share_rows(Mode.GPU_SHARE, 2, 0.7), share_rows(Mode.COLOCATE, 2, 0.8)),
        "backbone_gib": (BackboneRow(foundation_model=FM, gib=3.0),),
        "transfer": (
            transfer(TransferMode.JOINT, "a", "b", 0.5),
            transfer(TransferMode.JOINT, "b", "a", 0.5),
            transfer(TransferMode.WARM_START, "a", "b", 0.5),
        ),
    }
    memory = b.pop("memory", 10.0)
    gpu = b.pop("gpu", 40.0)
    extra = b.pop("snapshot", {})
    s = snapshot(
        [node("n0", 2, memory=gpu)],
        [job("a", 1, sharing=ALL), job("b", 1, **b)],
        profiles=rows,
        memory=memory,
        **extra,
    )
    starts = {"b": StartSource(job="a")} if mode is Mode.SEQUENCE else {}
    models = {j.foundation_model for j in s.jobs}
    made = plan(
        s,
        lies(
            mode,
            ("a", "b"),
            {"n0": (0,)},
            starts_from=starts,
            foundation_model=models.pop() if len(models) == 1 else None,
        ),
    )
    return s, made


SHARED = (Mode.GPU_SHARE, Mode.COLOCATE, Mode.JOINT, Mode.SEQUENCE)


@pytest.mark.parametrize("mode", SHARED)
def test_every_mode_can_hold(mode):
    s, made = pair(mode)
    assert messages(s, made) == ""


@pytest.mark.parametrize("mode", SHARED)
@pytest.mark.parametrize(
    ("level", "tenant", "lowest"),
    [
        (Sharing.NONE, "default", None),
        (Sharing.BACKBONE, "default", "backbone"),
        (Sharing.TENANT, "default", "tenant"),
        (Sharing.TENANT, "other", "backbone"),
        (Sharing.ALL, "other", "all"),
    ],
)
def test_sharing_levels(mode, level, tenant, lowest):
    s, made = pair(mode, sharing=level, tenant=tenant)
    weights = mode in (Mode.JOINT, Mode.SEQUENCE)
    allowed = lowest is not None and (not weights or lowest != "backbone")
    assert broken(s, made) == (set() if allowed else {4})


@pytest.mark.parametrize("mode", SHARED)
def test_different_foundation_models_share_gpus_only(mode):
    s, made = pair(mode, foundation_model="other", memory_gib=5.0)
    assert broken(s, made) == (set() if mode is Mode.GPU_SHARE else {4})


def test_what_never_merges():
    for mode in SHARED:
        s, made = pair(mode, remaining_samples=None, remaining_s=100.0, memory_gib=1.0)
        assert 4 in broken(s, made)
    s, made = pair(Mode.JOINT, peft_type="IA3")
    assert 4 in broken(s, made)
    s, made = pair(Mode.JOINT, done_samples=10.0)
    assert broken(s, made) == {4}
    s, made = pair(Mode.COLOCATE, done_samples=10.0)
    assert broken(s, made) == set()


def test_rejected_merges_stay_rejected_by_the_same_estimator():
    merge = RejectedMerge(jobs=("b", "a"), mode=Mode.COLOCATE)
    s, made = pair(Mode.COLOCATE, snapshot={"rejected_merges": (merge,)})
    assert broken(s, made) == {4}
    s, made = pair(Mode.GPU_SHARE, snapshot={"rejected_merges": (merge,)})
    assert broken(s, made) == set()
    older = merge.model_copy(update={"estimator_version": "older"})
    s, made = pair(Mode.COLOCATE, snapshot={"rejected_merges": (older,)})
    assert broken(s, made) == set()


@pytest.mark.parametrize(
    ("mode", "most"),
    [(Mode.GPU_SHARE, 20.0), (Mode.COLOCATE, 17.0), (Mode.JOINT, 10.0), (Mode.SEQUENCE, 10.0)],
)
def test_memory_of_the_whole_group(mode, most):
    # 10 GiB each, of which 3 GiB are the backbone
    s, made = pair(mode, gpu=most)
    assert broken(s, made) == set()
    s, made = pair(mode, gpu=most - 0.5)
    assert 4 in broken(s, made)


def test_unknown_memory_is_no_candidate_for_sharing():
    s, made = pair(Mode.GPU_SHARE, foundation_model="other")
    assert broken(s, made) == {4}


def test_starts_from_adapters_need_both_sides_consent():
    def start(adapter_level, job_level, tenant, model=FM):
        done = CompletedAdapter(
            id="ad", foundation_model=model, task="t", tenant="default", sharing=adapter_level
        )
        s = snapshot([node("n0", 1)], [job("a", 1, sharing=job_level, tenant=tenant)], adapters=(done,))
        return broken(s, plan(s, solo("a", {"n0": (0,)}, starts_from={"a": StartSource(adapter="ad")})))

    assert start(Sharing.TENANT, Sharing.TENANT, "default") == set()
    assert start(Sharing.ALL, Sharing.TENANT, "other") == {4}
    assert start(Sharing.ALL, Sharing.ALL, "other") == set()
    assert start(Sharing.ALL, Sharing.BACKBONE, "default") == {4}
    assert start(Sharing.ALL, Sharing.ALL, "default", model="else") == {4}
    s = snapshot([node("n0", 1)], [job("a", 1)])
    for source in (StartSource(adapter="none"), StartSource(job="b"), StartSource()):
        assert broken(s, plan(s, solo("a", {"n0": (0,)}, starts_from={"a": source}))) == {4}


# -- 5: protection, quotas, priorities ----------------------------------------------------------


@pytest.mark.parametrize("fields", [{"movable": False}, {"min_runtime_s": 7200.0}])
def test_protected_jobs_stay(fields):
    s = snapshot([node("n0", 2)], [running(job("a", 1, **fields), {"n0": (0,)}), job("b", 1, priority=9)])
    assert 5 in broken(s, plan(s, solo("b", {"n0": (0,)})))
    assert broken(s, plan(s, solo("a", {"n0": (1,)}))) == {5}
    assert broken(s, plan(s, solo("a", {"n0": (0,)}))) == set()
    lost = snapshot([node("n0", 2, state=NodeState.DOWN), node("n1", 1)], list(s.jobs))
    assert broken(lost, plan(lost, solo("a", {"n1": (0,)}))) == set()


def test_back_off():
    s = snapshot([node("n0", 1)], [job("a", 1, not_before_s=NOW + 60)])
    made = plan(s, solo("a", {"n0": (0,)}))
    assert broken(s, made) == {5}
    assert "another 60 s" in messages(s, made)


@pytest.mark.parametrize(("cap", "right"), [(None, True), (2, True), (1, False)])
def test_profiling_stays_within_its_reserve(cap, right):
    jobs = [job(name, 1, foundation_model=f"unheard-{name}", batch_size=1) for name in ("a", "b")]
    s = snapshot([node("n0", 4)], jobs)
    made = plan(s, profiled={"a": {"n0": (0,)}, "b": {"n0": (1,)}})
    stated = ObjectiveInfo(name="any", version=1, parameters={"profile_gpus_cap": cap})
    made = made.model_copy(update={"planner": made.planner.model_copy(update={"objective": stated})})
    assert broken(s, made) == (set() if right else {5})


def test_quota_limits_bind_what_starts_or_grows():
    queues = (queue("q", 2.0),)
    jobs = [job("a", 2, queue="q"), job("b", 1, queue="q")]
    s = snapshot([node("n0", 8)], jobs, queues=queues)
    assert broken(s, plan(s, solo("a", {"n0": (0, 1)}))) == set()
    assert broken(s, plan(s, solo("a", {"n0": (0, 1)}), solo("b", {"n0": (2,)}))) == {5}
    over = [running(job("a", 4, queue="q"), {"n0": (0, 1, 2, 3)}), jobs[1]]
    s = snapshot([node("n0", 8)], over, queues=queues)
    assert broken(s, plan(s, solo("a", {"n0": (0, 1, 2, 3)}))) == set()
    assert broken(s, plan(s, solo("a", {"n0": (4, 5, 6, 7)}))) == set()  # moves, but does not grow
    assert broken(s, plan(s, solo("a", {"n0": (0, 1, 2, 3)}), solo("b", {"n0": (4,)}))) == {5}


def test_a_type_without_a_quota_row_is_not_allowed():
    s = snapshot(
        [node("n0", 2), node("v", 2, gpu_type="V100")], [job("a", 1, queue="q")], queues=(queue("q", 2.0),)
    )
    assert broken(s, plan(s, solo("a", {"v": (0,)}, gpu_type="V100"))) == {5}
    pooled = snapshot(
        [node("n0", 2), node("v", 2, gpu_type="V100")],
        [job("a", 1, queue="q")],
        queues=(queue("q", 2.0, gpu_type="*"),),
    )
    assert broken(pooled, plan(pooled, solo("a", {"v": (0,)}, gpu_type="V100"))) == set()


def cohort(borrowing=None, lending=None, used=2):
    queues = (
        queue("q", 1.0, cohort="c", borrowing=borrowing),
        queue("r", 3.0, cohort="c", lending=lending),
    )
    jobs = [job("a", used, queue="q"), job("b", 2, queue="r")]
    s = snapshot([node("n0", 8)], jobs, queues=queues)
    return s, plan(s, solo("a", {"n0": tuple(range(used))}), solo("b", {"n0": (6, 7)}))


def test_cohorts_lend_and_borrow():
    assert broken(*cohort()) == set()
    assert broken(*cohort(used=3)) == {5}  # 3 + 2 of 4
    assert broken(*cohort(borrowing=0.5)) == {5}
    assert broken(*cohort(lending=1.0)) == set()  # 2 of 1 + 1
    assert broken(*cohort(lending=0.0)) == {5}


def test_members_of_a_shared_group_are_charged_their_share():
    rows = {"colocation": (share_rows(Mode.GPU_SHARE, 2, 0.7),)}
    jobs = [job("a", 1, sharing=ALL, queue="q"), job("b", 1, sharing=ALL)]
    s = snapshot([node("n0", 2)], jobs, queues=(queue("q", 0.5),), profiles=rows)
    assert broken(s, plan(s, lies(Mode.GPU_SHARE, ("a", "b"), {"n0": (0,)}))) == set()
    assert broken(s, plan(s, solo("a", {"n0": (0,)}))) == {5}


def test_borrowing_never_preempts_use_within_nominal():
    queues = (queue("q", 2.0, cohort="c"), queue("r", 2.0, cohort="c"))
    jobs = [
        running(job("kept", 2, queue="q"), {"n0": (0, 1)}),
        running(job("victim", 2, queue="r"), {"n0": (2, 3)}),
        job("new", 2, queue="q", priority=5),
    ]
    s = snapshot([node("n0", 4)], jobs, queues=queues)
    made = plan(s, solo("kept", {"n0": (0, 1)}), solo("new", {"n0": (2, 3)}))
    assert broken(s, made) == {5}
    assert "within nominal" in messages(s, made)
    own = snapshot([node("n0", 4)], [jobs[0], jobs[1], job("new", 2, queue="r", priority=5)], queues=queues)
    assert broken(own, plan(own, solo("kept", {"n0": (0, 1)}), solo("new", {"n0": (2, 3)}))) == set()


@pytest.mark.parametrize(
    ("how", "priority", "right"),
    [
        (Reclaim.ANY, 0, True),
        (Reclaim.LOWER_PRIORITY, 0, False),
        (Reclaim.LOWER_PRIORITY, 2, True),
        (Reclaim.NEVER, 2, False),
    ],
)
def test_reclaim_within_the_cohort(how, priority, right):
    # r uses 4 of its nominal 2; q, below nominal, takes 2 back
    queues = (queue("q", 2.0, cohort="c", reclaim_within_cohort=how), queue("r", 2.0, cohort="c"))
    jobs = [
        running(job("stays", 2, queue="r", priority=1), {"n0": (0, 1)}),
        running(job("goes", 2, queue="r", priority=1), {"n0": (2, 3)}),
        job("new", 2, queue="q", priority=priority),
    ]
    s = snapshot([node("n0", 4)], jobs, queues=queues)
    made = plan(s, solo("stays", {"n0": (0, 1)}), solo("new", {"n0": (2, 3)}))
    assert broken(s, made) == (set() if right else {5})


def test_lower_classes_take_nothing_from_higher_ones():
    jobs = [running(job("high", 2, priority=1), {"n0": (0, 1)}), job("low", 2), job("same", 2, priority=1)]
    s = snapshot([node("n0", 2)], jobs)
    taken = plan(s, solo("low", {"n0": (0, 1)}))
    assert broken(s, taken) == {5}
    assert "priority class 0" in messages(s, taken)
    assert broken(s, plan(s, solo("same", {"n0": (0, 1)}))) == set()
    room = snapshot([node("n0", 2), node("n1", 2)], jobs)
    assert broken(room, plan(room, solo("low", {"n0": (0, 1)}), solo("high", {"n1": (0, 1)}))) == set()


def test_classes_count_for_each_memory_level():
    # the low job needs the large GPU, which only the high one could release
    nodes = [node("big", 1, memory=80.0), node("small", 1, memory=40.0)]
    jobs = [running(job("high", 1, priority=1), {"big": (0,)}), job("low", 1)]
    s = snapshot(nodes, jobs, memory=50.0)
    swapped = plan(s, solo("high", {"small": (0,)}), solo("low", {"big": (0,)}))
    assert 5 in broken(s, swapped)


# -- 6: preemption ------------------------------------------------------------------------------


def test_preemption_is_for_something():
    jobs = [running(job("a", 1), {"n0": (0,)}), job("b", 1), job("c", 2)]
    s = snapshot([node("n0", 2), node("n1", 2)], jobs)
    assert broken(s, plan(s, solo("b", {"n1": (0,)}))) == {6}
    assert broken(s, plan(s, solo("c", {"n0": (0, 1)}))) == set()
    plain = plan(s, solo("b", {"n1": (0,)}), declares=(1, 2, 3, 4, 5))
    assert broken(s, plain) == set()


def test_a_quota_that_was_needed_is_a_use():
    queues = (queue("q", 1.0),)
    jobs = [running(job("a", 1, queue="q"), {"n0": (0,)}), job("b", 1, queue="q")]
    s = snapshot([node("n0", 2)], jobs, queues=queues)
    assert broken(s, plan(s, solo("b", {"n0": (1,)}))) == set()


def test_a_node_that_left_explains_a_preemption():
    s = snapshot([node("n0", 1, state=NodeState.DOWN)], [running(job("a", 1), {"n0": (0,)})])
    assert broken(s, plan(s, reason=Reason.NODE_UNAVAILABLE)) == set()


def test_a_group_whose_member_goes_elsewhere_cannot_be_put_back():
    rows = {"colocation": (share_rows(Mode.GPU_SHARE, 2, 0.7),)}
    jobs = [
        running(job("a", 1, sharing=ALL), {"n0": (0,)}),
        running(job("b", 1, sharing=ALL), {"n0": (0,)}),
    ]
    s = snapshot([node("n0", 2)], jobs, groups=(group(Mode.GPU_SHARE, "a", "b"),), profiles=rows)
    assert broken(s, plan(s, solo("a", {"n0": (1,)}))) == set()
    assert broken(s, plan(s)) == {6}


# -- 7: objective -------------------------------------------------------------------------------


def solved():
    jobs = [
        job("a", 1, sharing=ALL),
        job("b", 1, sharing=ALL),
        job("c", 2),
        running(job("d", 1), {"n0": (0,)}),
    ]
    s = snapshot([node("n0", 2), node("n1", 1)], jobs)
    return s, solve(s, gap=0, backend="highs")


def with_solver(made, **changes):
    return made.model_copy(update={"solver": made.solver.model_copy(update=changes)})


def test_objective_bound_and_gaps():
    s, made = solved()
    objective = made.solver.objective
    assert broken(s, made) == set()
    # the cost of queueing everything lies within 1e9 and 1e10 quanta
    quantum = 10.0**-9
    while objective / quantum > 1e10:
        quantum *= 10
    assert broken(s, with_solver(made, objective=objective + quantum)) == {7}
    assert broken(s, with_solver(made, bound=objective * 1.001)) == {7}
    assert broken(s, with_solver(made, gap=1e-3)) == {7}
    assert broken(s, with_solver(made, value_gap=1e-3)) == {7}
    assert broken(s, with_solver(made, gap=None)) == {7}
    assert broken(s, with_solver(made, bound=None)) == {7}
    unknown = with_solver(made, bound=None, gap=None, value_gap=None, status=SolverStatus.FEASIBLE)
    assert broken(s, unknown) == set()
    assert broken(s, with_solver(unknown, status=SolverStatus.OPTIMAL)) == {7}
    assert made.solver.gap_scope is GapScope.GLOBAL
    pruned = made.solver.candidates.model_copy(update={"exhaustive": False})
    assert broken(s, with_solver(made, candidates=pruned)) == {7}
    assert broken(s, with_solver(made, candidates=pruned, gap_scope=GapScope.POOL)) == set()
    assert broken(s, with_solver(made, bound=objective * 0.9)) == {7}
    empty = with_solver(unknown, objective=None)
    assert broken(s, empty) == set()


def test_gaps_follow_their_formula():
    s, made = solved()
    # queueing everything costs what the plan without any group would; d runs, and nothing forbids to stop it
    nothing = plan(s).model_copy(update={"planner": made.planner})
    stated = [v for v in check(s, with_solver(nothing, objective=0.5)) if v.place == "solver.objective"]
    queueing = float(stated[0].message.split("costs ")[1].split()[0])
    objective, bound = made.solver.objective, made.solver.objective * 0.9
    gap = (objective - bound) / objective
    value_gap = (objective - bound) / (queueing - bound)
    assert gap != pytest.approx(value_gap)
    assert broken(s, with_solver(made, bound=bound, gap=gap, value_gap=value_gap)) == set()
    assert broken(s, with_solver(made, bound=bound, gap=value_gap, value_gap=gap)) == {7}
    assert broken(s, with_solver(made, bound=bound, gap=0.0, value_gap=0.0)) == {7}


def test_a_group_that_does_not_pay_has_no_place_in_the_objective():
    rows = {"colocation": (share_rows(Mode.GPU_SHARE, 2, 0.3),)}
    s = snapshot([node("n0", 1)], [job("a", 1, sharing=ALL), job("b", 1, sharing=ALL)], profiles=rows)
    made = plan(s, lies(Mode.GPU_SHARE, ("a", "b"), {"n0": (0,)}), declares=(1, 2, 3, 4, 5, 7))
    priced = with_solver(made, objective=1.0)
    assert broken(s, priced) == {7}
    assert "not admitted" in messages(s, priced)
    assert broken(s, made) == set()  # a policy without an objective may share as it likes


def test_unknown_objectives_are_refused():
    s, made = solved()
    for info in (
        ObjectiveInfo(name="other", version=1),
        ObjectiveInfo(name=made.planner.objective.name, version=1, parameters={"d1_s": 3.0}),
        ObjectiveInfo(name=made.planner.objective.name, version=1, parameters={"d0_s": "thirty"}),
        ObjectiveInfo(name=made.planner.objective.name, version=1, parameters={"d0_s": 0.0}),
        ObjectiveInfo(name=made.planner.objective.name, version=1, parameters={"kappa": -1.0}),
        ObjectiveInfo(name=made.planner.objective.name, version=1, parameters={"uncertainty": 1.25}),
        ObjectiveInfo(name=made.planner.objective.name, version=2),
    ):
        with pytest.raises(InputError, match=r"planner\.objective"):
            check(s, made.model_copy(update={"planner": made.planner.model_copy(update={"objective": info})}))


# -- 8: explanations ----------------------------------------------------------------------------


def test_explanations_tell_the_plan():
    s = two_jobs()
    made = plan(s, solo("a", {"n0": (0, 1)}))
    told = made.explanations["a"].model_copy(update={"decision": Decision.WAIT})
    wrong = made.model_copy(update={"explanations": {**made.explanations, "a": told}})
    assert broken(s, wrong) == {8}
    missing = made.model_copy(update={"explanations": {"b": made.explanations["b"]}})
    assert broken(s, missing) == {8}
    assert broken(s, plan(s, solo("a", {"n0": (0, 1)}), declares=(1, 2, 3, 4, 5))) == set()


@pytest.mark.parametrize("reason", [Reason.INSUFFICIENT_GPUS, Reason.EXCEEDS_MAX_QUOTA, Reason.BACK_OFF])
def test_why_a_job_has_no_gpus_is_not_told_of_one_that_has_some(reason):
    s = two_jobs()
    made = plan(s, solo("a", {"n0": (0, 1)}), reason=reason)
    assert broken(s, made) == set()
    told = made.explanations["a"].model_copy(update={"reason": reason})
    assert broken(s, made.model_copy(update={"explanations": {**made.explanations, "a": told}})) == {8}


# -- the whole ----------------------------------------------------------------------------------


def test_a_plan_for_another_snapshot_is_refused_in_one_line():
    s, other = two_jobs(), two_jobs(priority=3)
    with pytest.raises(InputError) as caught:
        check(other, plan(s))
    assert "\n" not in str(caught.value)
    assert "made for snapshot" in str(caught.value)


def test_a_waiting_sequence_member_is_chosen_but_holds_nothing():
    s, made = pair(Mode.SEQUENCE)
    assert made.actions[1].action is ActionKind.WAIT
    assert made.explanations["b"].reason is Reason.CHOSEN
    assert broken(s, made) == set()
    wrong = regroup(made, 0, starts_from={"a": StartSource(job="b")})
    assert broken(s, wrong) == {4}


def test_sequences_may_be_kept_with_or_without_their_sources_named():
    first = running(job("a", 1, sharing=ALL), {"n0": (0,)})
    entry = group(Mode.SEQUENCE, "a", "b").model_copy(update={"starts_from": {"b": StartSource(job="a")}})
    rows = {"transfer": (transfer(TransferMode.WARM_START, "a", "b", 0.5),)}
    s = snapshot([node("n0", 1)], [first, job("b", 1, sharing=ALL)], groups=(entry,), profiles=rows)
    assert s.jobs[1].state is JobState.PENDING
    for starts in ({}, {"b": StartSource(job="a")}):
        made = plan(s, lies(Mode.SEQUENCE, ("a", "b"), {"n0": (0,)}, starts_from=starts))
        assert messages(s, made) == ""


def test_what_a_kept_group_and_a_waiting_member_say_of_themselves():
    first = running(job("a", 1, sharing=ALL), {"n0": (0,)})
    rows = {"transfer": (transfer(TransferMode.WARM_START, "a", "b", 0.5),)}
    entry = group(Mode.SEQUENCE, "a", "b")
    s = snapshot([node("n0", 2)], [first, job("b", 1, sharing=ALL)], groups=(entry,), profiles=rows)
    made = plan(s, lies(Mode.SEQUENCE, ("a", "b"), {"n0": (0,)}))
    assert broken(s, made) == set()
    assert broken(s, regroup(made, 0, foundation_model="other")) == {4}
    other = made.actions[0].from_.model_copy(update={"group": "other"})
    elsewhere = made.actions[1].to.model_copy(update={"placement": {"n0": (1,)}})
    for row, change in ((0, {"from_": other}), (1, {"to": elsewhere})):
        actions = list(made.actions)
        actions[row] = actions[row].model_copy(update=change)
        assert broken(s, made.model_copy(update={"actions": tuple(actions)})) == {1}
