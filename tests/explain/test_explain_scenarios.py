"""What users ask a scheduler first: why does my job wait, why there, and what else could be done."""

from __future__ import annotations

import re
from typing import Any

import pytest
from scenario_kit import FM, NOW, acts, job, node, queue, running, share_rows, snapshot, transfer

from ymir_opt import check, outcome, solve
from ymir_opt.domain.plan import Alternative, DeltaKind, Plan, Reason
from ymir_opt.domain.snapshot import (
    CompletedAdapter,
    Mode,
    NodeState,
    Parallelism,
    RejectedMerge,
    Sharing,
    Snapshot,
    TransferMode,
)
from ymir_opt.whatif.forced import ExactAlternatives


def planned(made: Snapshot, **options: Any) -> Plan:
    plan = solve(made, **({"gap": 0.0} | options))
    assert check(made, plan) == []
    return plan


def parts(plan: Plan, name: str) -> dict[str, str]:
    """Return what a waiting job's message says of each GPU type."""
    found = re.split(r"(?:^|; )([A-Z]\d+): ", plan.explanations[name].message)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def alternative(plan: Plan, name: str, option: str) -> Alternative:
    found = [a for a in plan.explanations[name].alternatives if a.option == option]
    assert len(found) == 1, [a.option for a in plan.explanations[name].alternatives]
    return found[0]


# -- E1 to E4: why a job waits ----------------------------------------------------------------------


def test_e1_the_first_violated_constraint_of_every_gpu_type_with_needed_and_available_numbers() -> None:
    queues = (queue("q", 8), queue("h", 100, "H100"))
    quotas = (*queues[0].quotas, *queues[1].quotas)
    held = [
        running(job("own", 4, movable=False, queue="q"), {"a0": (0, 1, 2, 3)}),
        running(job("h-0", 1, movable=False), {"h0": (0,)}),
        running(job("h-1", 1, movable=False), {"h1": (0,)}),
    ]
    big = job("big", 8, queue="q", gpu_types=("A100", "H100"))
    made = snapshot(
        [node("a0"), node("a1"), node("h0", gpu_type="H100"), node("h1", gpu_type="H100")],
        [*held, big],
        queues=(queues[0].model_copy(update={"quotas": quotas}),),
    )
    plan = planned(made)
    assert acts(plan)["big"] == "wait"
    said = parts(plan, "big")
    assert said["A100"] == "needs 8 GPUs, the quota of queue q leaves 4 (4 of 8 GPUs in use)"
    assert said["H100"] == "needs 8 GPUs on 1 node; 14 GPUs are free, but at most 7 on one node (h0)"
    assert plan.explanations["big"].reason is Reason.TOPOLOGY_PLACEMENT_FAILED


def test_e1_static_limits_come_before_what_is_taken() -> None:
    made = snapshot(
        [
            node("a0", 4),
            node("v0", 4, "V100", memory=8.0),
            node("t0", 4, "T4", state=NodeState.DRAINING),
            node("h0", 4, "H100", labels={"zone": "b"}),
        ],
        [
            running(job("busy", 4, movable=False, hours=9), {"a0": (0, 1, 2, 3)}),
            job("gang", 2, gpu_types=("V100", "T4", "A100"), memory_gib=10.0),
            job("zoned", 1, node_selector={"zone": "c"}, gpu_types=("H100",)),
        ],
    )
    plan = planned(made)
    said = parts(plan, "gang")
    assert said["V100"] == "needs 10 GiB a GPU, the largest has 8 GiB"
    assert said["T4"] == "needs 2 GPUs of 4; t0 is not ready"
    assert said["H100"] == "the job does not allow it"
    assert said["A100"].startswith(
        "needs 2 GPUs, 0 of 4 GPUs are free after this plan; held by busy (4 GPUs)"
    )
    assert plan.explanations["gang"].reason is Reason.INSUFFICIENT_GPUS
    assert parts(plan, "zoned")["H100"] == "no node matches zone=c"
    assert plan.explanations["zoned"].reason is Reason.NO_FEASIBLE_GPU_TYPE


def test_e2_each_type_that_was_not_chosen_has_its_loss_or_its_reason() -> None:
    made = snapshot(
        [node("a0", 1), node("v0", 1, "V100"), node("t0", 1, "T4", memory=4.0)],
        [job("first", 1, hours=0.1, weight=9, gpu_types=("A100",)), job("second", 1, memory_gib=10.0)],
    )
    plan = planned(made)
    assert next(g.gpu_type for g in plan.groups if g.jobs == ("second",)) == "V100"
    on_a100 = alternative(plan, "second", "1 x A100 alone")
    assert on_a100.objective_delta is not None
    assert on_a100.objective_delta.kind is DeltaKind.LOWER_BOUND
    assert on_a100.objective_delta.value > 0
    assert on_a100.reason is Reason.INSUFFICIENT_GPUS
    assert "with its 1 A100" in on_a100.why_not
    on_t4 = alternative(plan, "second", "T4")
    assert (on_t4.reason, on_t4.objective_delta) == (Reason.MEMORY_EXCEEDS_GPU, None)
    assert on_t4.why_not == "needs 10 GiB a GPU, the largest has 4 GiB"
    # what others would do with the A100 is what it is worth; nobody else wants the V100
    prices = plan.solver.price_per_gpu_s
    assert prices["A100"] > prices["V100"] == 0


def test_e3_requested_free_and_blocking_jobs_are_named() -> None:
    held = [
        running(job(f"run{i}", n, movable=False, hours=9), {"n0": gpus})
        for i, (n, gpus) in enumerate(((3, (0, 1, 2)), (2, (3, 4)), (1, (5,))))
    ]
    wide = job("wide", 4, min_gpus=4, requested_gpus=6, max_gpus=8)
    plan = planned(snapshot([node("n0")], [*held, wide]))
    assert parts(plan, "wide")["A100"] == (
        "needs 4 GPUs (asks for 6), 2 of 8 GPUs are free after this plan; "
        "held by run0 (3 GPUs), run1 (2 GPUs), run2 (1 GPU)"
    )


def test_e3_higher_classes_are_the_reason_only_where_the_rest_would_not_do() -> None:
    high = running(job("high", 6, movable=False, priority=5), {"n0": tuple(range(6))})
    low = running(job("low", 2, movable=False), {"n0": (6, 7)})
    plan = planned(snapshot([node("n0")], [high, low, job("two", 2), job("four", 4)]))
    assert plan.explanations["two"].reason is Reason.INSUFFICIENT_GPUS
    assert plan.explanations["four"].reason is Reason.LOWER_PRIORITY
    assert plan.explanations["four"].message.endswith("6 GPUs are held by higher priority classes")


def test_e4_a_message_does_not_change_between_identical_rounds() -> None:
    jobs = [job(f"j{i}", 1 + i % 3, hours=0.3 * (i + 1)) for i in range(6)]
    made = snapshot([node("n0", 4)], [*jobs, job("never", 2, gpu_types=("V100",)), job("wide", 16)])
    first = planned(made)
    again = planned(outcome(made, first), previous=first)
    waiting = [name for name, kind in acts(first).items() if kind == "wait"]
    assert len(waiting) >= 4
    for name in waiting:
        assert again.explanations[name].message == first.explanations[name].message
        assert again.explanations[name].reason is first.explanations[name].reason


# -- other reasons ----------------------------------------------------------------------------------


def test_a_pipeline_job_is_told_of_whole_nodes_not_of_its_smallest_count() -> None:
    pinned = running(job("pin", 1, movable=False, hours=9), {"n0": (0,)})
    whole = job("whole", 8, min_gpus=1, max_gpus=8, parallelism=Parallelism.PIPELINE)
    plan = planned(snapshot([node("n0")], [pinned, whole]))
    assert acts(plan)["whole"] == "wait"
    assert plan.explanations["whole"].reason is Reason.INSUFFICIENT_GPUS
    assert parts(plan, "whole")["A100"].startswith("needs 8 GPUs, 7 of 8 GPUs are free after this plan")


def test_protected_and_backed_off_jobs_have_one_alternative_that_says_why() -> None:
    young = running(job("young", 2, min_runtime_s=1800), {"n0": (0, 1)}, 60.0)
    fixed = running(job("fixed", 1, movable=False), {"n0": (2,)})
    later = job("later", 1, not_before_s=NOW + 50.0, failed_starts=1)
    plan = planned(snapshot([node("n0", 4)], [young, fixed, later]))
    told = plan.explanations
    assert [(a.option, a.reason) for a in told["young"].alternatives] == [
        ("anything else", Reason.MIN_RUNTIME_PROTECTED)
    ]
    assert told["young"].alternatives[0].why_not == "its minimum run time is not over before second 101740"
    assert told["fixed"].alternatives[0].why_not == "it may not be moved"
    assert told["later"].alternatives[0].option == "to start now"
    assert told["later"].message == "not before second 100050 (in 50 s), after 1 failed start"


def test_a_quota_that_no_plan_can_keep_is_ruled_out_not_priced() -> None:
    made = snapshot(
        [node("n0")],
        [job("wide", 2, min_gpus=1, max_gpus=4, queue="q", hours=0.5), job("other", 8, hours=0.1, weight=50)],
        queues=(queue("q", 2),),
    )
    found = alternative(planned(made), "wide", "4 x A100 alone")
    assert (found.reason, found.objective_delta) == (Reason.EXCEEDS_MAX_QUOTA, None)
    assert found.why_not == "needs 4 GPUs, the quota of queue q is 2 GPUs"


# -- merges that are no candidates ------------------------------------------------------------------


def joint(ratio: float, low: float, high: float, p: float) -> dict[str, Any]:
    return {
        "transfer": tuple(
            transfer(TransferMode.JOINT, (x,), y, ratio, low=low, high=high, p_benefit=p)
            for x, y in (("a", "b"), ("b", "a"))
        )
    }


@pytest.mark.parametrize(
    ("profiles", "levels", "reason", "words"),
    [
        (joint(1.2, 1.1, 1.3, 0.0), {}, Reason.NEGATIVE_TRANSFER, "a would need 1.2 x the samples"),
        (joint(0.97, 0.6, 1.5, 0.5), {}, Reason.UNCERTAIN_TRANSFER, "helps with 50 % probability"),
        (joint(0.5, 0.4, 0.6, 1.0), {"b": "backbone"}, Reason.SHARING_DISABLED, "b shares no weights"),
        (joint(0.5, 0.4, 0.6, 1.0), {"b": "none"}, Reason.SHARING_DISABLED, "b shares nothing"),
        (
            joint(0.5, 0.4, 0.6, 1.0),
            {"b": "tenant"},
            Reason.SHARING_DISABLED,
            "b shares within its tenant only",
        ),
    ],
    ids=["negative", "uncertain", "backbone", "none", "tenant"],
)
def test_a_joint_run_that_is_no_candidate_has_its_reason(
    profiles: dict[str, Any], levels: dict[str, str], reason: Reason, words: str
) -> None:
    jobs = [
        job(n, 1, sharing=Sharing(levels.get(n, "all")), tenant=f"tenant-{n}", hours=1 + i)
        for i, n in enumerate(("a", "b"))
    ]
    plan = planned(snapshot([node("n0", 1)], jobs, profiles=profiles))
    found = alternative(plan, "a", "joint with b")
    assert (found.reason, found.objective_delta) == (reason, None)
    assert words in found.why_not


def test_a_rejected_merge_says_when_and_how_it_went() -> None:
    jobs = [job(n, 1, sharing=Sharing.ALL) for n in ("a", "b")]
    tried = RejectedMerge(jobs=("a", "b"), mode=Mode.JOINT, at_s=NOW - 500.0, realised_gain=-0.08)
    made = snapshot([node("n0", 1)], jobs, profiles=joint(0.5, 0.4, 0.6, 1.0), rejected_merges=(tried,))
    for name, other in (("a", "b"), ("b", "a")):
        found = alternative(planned(made), name, f"joint with {other}")
        assert found.reason is Reason.REJECTED_MERGE
        assert found.why_not == "was tried at second 99500 and did not help (gain -8 %)"


def test_sharing_that_needs_too_much_memory_or_gains_nothing_says_so() -> None:
    def shared(ratio: float, memory: float) -> Alternative:
        jobs = [job(n, 1, sharing=Sharing.ALL, hours=2) for n in ("a", "b")]
        rows = {"colocation": (share_rows(Mode.GPU_SHARE, 2, ratio),)}
        return alternative(
            planned(snapshot([node("n0", 1, memory=memory)], jobs, profiles=rows)), "a", "gpu_share with b"
        )

    tight = shared(0.9, 15.0)
    assert tight.reason is Reason.MEMORY_EXCEEDS_GPU
    assert tight.why_not == "need 20 GiB a GPU together, the largest has 15 GiB"
    slow = shared(0.3, 40.0)
    assert slow.reason is None
    assert slow.why_not.startswith("no quicker together than one after the other: on 1 x A100")


def test_a_job_that_shares_nothing_has_one_line_for_all_partners() -> None:
    jobs = [job("loner", 1), *(job(f"j{i}", 1, sharing=Sharing.ALL) for i in range(6))]
    plan = planned(snapshot([node("n0", 1)], jobs))
    found = [a for a in plan.explanations["loner"].alternatives if a.reason is Reason.SHARING_DISABLED]
    assert [a.option for a in found] == ["any group with j0, j1, j2 and 3 more jobs"]


def test_a_policy_without_merging_says_that_it_makes_no_groups() -> None:
    jobs = [job(n, 1, sharing=Sharing.ALL) for n in ("a", "b")]
    plan = planned(
        snapshot([node("n0", 1)], jobs, profiles=joint(0.5, 0.4, 0.6, 1.0)), policy="ymir-no-merge"
    )
    assert alternative(plan, "a", "any group").why_not == "this policy makes no new groups"


def test_a_possible_merge_is_offered_with_its_loss() -> None:
    jobs = [job(n, 1, sharing=Sharing.ALL, hours=1 + i) for i, n in enumerate(("a", "b"))]
    rows = {"colocation": (share_rows(Mode.GPU_SHARE, 2, 0.75),)}
    plan = planned(snapshot([node("n0", 2)], jobs, profiles=rows))
    assert {g.mode for g in plan.groups} == {Mode.SOLO}
    found = alternative(plan, "a", "gpu_share with b")
    assert found.objective_delta is not None
    assert found.objective_delta.value > 0


# -- E5: units --------------------------------------------------------------------------------------

UNITS = (
    r"GPUs?|A100|V100|H100|T4|GiB|nodes?|s|min|h|d|%|x|samples|samples/s|of objective|more (?:jobs?|groups?)"
    r"|failed starts?|in use|on one node|jobs?"
)
UNITLESS = (
    r"second \d+(?:\.\d+)?|\(asks for \d+\)|\d+ of (?=\d)|leaves \d+(?:\.\d+)?|\d+ d (?=\d)|\d+ h (?=\d)"
)


def test_a_restart_from_an_adapter_on_the_same_gpus_is_not_the_run_going_on() -> None:
    adapter = CompletedAdapter(
        id="done", foundation_model=FM, task="old", tenant="t", sharing=Sharing.ALL, memory_gib=0.1
    )
    gain = transfer(TransferMode.WARM_START, "old", "new", 0.3, low=0.25, high=0.35, p_benefit=1.0)
    on = job("on", 1, hours=10.0, task="new", sharing=Sharing.ALL)
    made = snapshot(
        [node("a0", 2)],
        [running(on, {"a0": (0,)}, 60.0), job("small", 1, hours=0.1)],
        adapters=(adapter,),
        profiles={"transfer": (gain,)},
    )
    plan = planned(made)
    group = next(g for g in plan.groups if "on" in g.jobs)
    assert group.placement == {"a0": (0,)}
    assert group.starts_from["on"].adapter == "done"
    exact = ExactAlternatives(made, plan)
    told = plan.solver.objective
    assert told is not None
    quantum = exact.round.work.table.quantum
    assert exact.round.selection.objective * quantum == pytest.approx(told, abs=quantum)


def without_unit(text: str, ids: set[str]) -> list[str]:
    """Return the numbers in a text, ids apart, that no unit follows."""
    bare = re.sub("|".join(sorted(map(re.escape, ids), key=len, reverse=True)) or "$^", "ID", text)
    bare = re.sub(r" [AVHT]\d+\b", " GPUs", re.sub(UNITLESS, "N", bare))
    numbers = re.finditer(r"(?<![\w.])-?\d[\d .]*\d|(?<![\w.])\d", bare)
    return [bare[n.start() :] for n in numbers if not re.match(UNITS, bare[n.end() :].lstrip())]


def test_e5_every_number_has_a_unit(examples: Any) -> None:
    from ymir_opt.domain.documents import parse_snapshot

    assert without_unit("needs 3, and n3 is free", {"n3"}) == ["3, and ID is free"]
    assert without_unit("needs 3 GPUs in 1 h 05 min, 2 of 4 GPUs, on 2 A100", set()) == []
    made = parse_snapshot((examples / "small.json").read_bytes())
    plan = planned(made)
    ids = {j.id for j in made.jobs} | {n.id for n in made.cluster.nodes} | {a.id for a in made.adapters}
    for name, told in plan.explanations.items():
        for text in (told.message, *(a.why_not for a in told.alternatives)):
            assert without_unit(text, ids) == [], (name, text)
