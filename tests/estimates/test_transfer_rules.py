"""Work ratios from rows, the rule for groups above two, sharing ratios and defaults."""

from __future__ import annotations

import math

import pytest

from ymir_opt.domain.snapshot import (
    BackboneRow,
    Cluster,
    ColocationMember,
    ColocationRow,
    Mode,
    Profiles,
    Provenance,
    Snapshot,
    SwitchRow,
    TransferMode,
    TransferRow,
)
from ymir_opt.estimates import Colocation, Estimates, MemberKey, ThroughputKey, WorkRatio
from ymir_opt.estimates.protocols import Z80, benefit_probability
from ymir_opt.estimates.transfer import JOINT_RULE_LOG_SD, TransferTable


def warm(source, target, ratio, **fields) -> TransferRow:
    return TransferRow(
        **{
            "mode": TransferMode.WARM_START,
            "foundation_model": "m",
            "source": source,
            "target": target,
            "work_ratio": ratio,
            "matched_hyperparameters": True,
            **fields,
        }
    )


def joint(source, target, ratio, **fields) -> TransferRow:
    return warm(source, target, ratio, mode=TransferMode.JOINT, **fields)


def test_a_warm_start_has_a_direction_a_model_and_its_own_limits() -> None:
    table = TransferTable([warm("a", "b", 0.5, low=0.4, high=0.7, p_benefit=0.8)])
    assert table.warm_start("m", "a", "b") == WorkRatio(0.5, 0.4, 0.7, 0.8, predicted=False)
    assert table.warm_start("m", "b", "a") is None
    assert table.warm_start("n", "a", "b") is None
    assert table.joint("m", ["a"], "b") is None


def test_limits_default_to_the_ratio_and_the_benefit_to_certainty() -> None:
    table = TransferTable([warm("a", "b", 0.5), warm("b", "a", 1.2), warm("a", "c", 1.0)])
    assert table.warm_start("m", "a", "b") == WorkRatio(0.5, 0.5, 0.5, 1.0, predicted=False)
    assert table.warm_start("m", "b", "a").p_benefit == 0.0
    assert table.warm_start("m", "a", "c").p_benefit == 0.0


def test_the_benefit_is_that_of_a_log_normal_through_the_limits() -> None:
    assert benefit_probability(1.0, 0.5, 2.0) == pytest.approx(0.5)
    # at the upper 80 % limit exactly 90 % lie below one
    low, high = 0.5, 1.0
    assert benefit_probability(math.sqrt(low * high), low, high) == pytest.approx(0.9)
    assert benefit_probability(math.sqrt(2.0), 1.0, 2.0) == pytest.approx(0.1)
    found = [benefit_probability(r, r * 0.8, r * 1.3) for r in (0.5, 0.8, 0.95, 1.0, 1.1, 1.5)]
    assert found == sorted(found, reverse=True)
    assert all(0 < p < 1 for p in found)
    table = TransferTable([warm("a", "b", math.sqrt(0.5), low=0.5, high=1.0)])
    assert table.warm_start("m", "a", "b").p_benefit == pytest.approx(0.9)


def test_a_joint_row_answers_for_its_sources_in_any_order() -> None:
    table = TransferTable([joint(("b", "c"), "a", 0.6), joint("b", "a", 0.9), joint("c", "a", 0.9)])
    assert table.joint("m", ["c", "b"], "a").ratio == 0.6
    assert table.joint("m", ["b", "c"], "a") == WorkRatio(0.6, 0.6, 0.6, 1.0, predicted=False)
    assert table.joint("m", ["b"], "a").ratio == 0.9
    assert table.measured_together() == (("m", ("b", "c", "a")),)


def test_larger_groups_take_the_geometric_mean_of_pairs_with_a_wider_interval() -> None:
    rows = [joint("b", "a", 0.5, low=0.4, high=0.7), joint("c", "a", 0.8, low=0.7, high=1.0)]
    found = TransferTable(rows).joint("m", ["b", "c"], "a")
    assert found.ratio == pytest.approx(math.sqrt(0.5 * 0.8))
    assert found.predicted
    halves = [math.log(0.7 / 0.4) / 2, math.log(1.0 / 0.7) / 2]
    half = math.sqrt(sum(h * h for h in halves) / 2 + (Z80 * JOINT_RULE_LOG_SD) ** 2)
    assert found.low == pytest.approx(found.ratio * math.exp(-half))
    assert found.high == pytest.approx(found.ratio * math.exp(half))
    assert found.p_benefit == pytest.approx(benefit_probability(found.ratio, found.low, found.high))
    # exact pairs still leave the rule's own error
    exact = TransferTable([joint("b", "a", 0.5), joint("c", "a", 0.5), joint("d", "a", 0.5)])
    found = exact.joint("m", ["b", "c", "d"], "a")
    assert found.ratio == pytest.approx(0.5)
    assert found.high / found.ratio == pytest.approx(math.exp(Z80 * JOINT_RULE_LOG_SD))


def test_the_rule_needs_every_pair_and_can_be_refused() -> None:
    rows = [joint("b", "a", 0.5), joint("c", "a", 0.8), joint("a", "b", 0.5)]
    table = TransferTable(rows)
    assert table.joint("m", ["b", "d"], "a") is None
    assert table.joint("m", ["a", "c"], "b") is None
    assert TransferTable(rows, pair_rule=False).joint("m", ["b", "c"], "a") is None
    assert TransferTable(rows, pair_rule=False).joint("m", ["b"], "a").ratio == 0.5
    # the same task twice: two jobs of one task train together by its own pair
    twice = TransferTable([*rows, joint("a", "a", 0.7)])
    assert twice.joint("m", ["a", "b"], "a").ratio == pytest.approx(math.sqrt(0.7 * 0.5))


def test_measured_rows_go_before_predicted_and_matched_before_confounded() -> None:
    guess = warm("a", "b", 0.3, provenance=Provenance.PREDICTED)
    confounded = warm("a", "b", 0.5, matched_hyperparameters=False)
    clean = warm("a", "b", 0.7)
    for rows in ([guess, confounded, clean], [clean, confounded, guess], [confounded, clean, guess]):
        assert TransferTable(rows).warm_start("m", "a", "b").ratio == 0.7
    assert TransferTable([guess, confounded]).warm_start("m", "a", "b").ratio == 0.5
    assert TransferTable([guess]).warm_start("m", "a", "b").predicted


class Guess:
    """A predictor that answers one question of each kind."""

    name, version, sha256 = "guess", "7", "0" * 64

    def throughput(self, key, gpu_type, gpus, batch):
        raise AssertionError("not asked here")

    def colocation(self, mode, gpu_type, gpus, members):
        return Colocation((0.6,) * len(members), 12.0, predicted=True) if mode == "gpu_share" else None

    def warm_start(self, foundation_model, source, target):
        return WorkRatio(0.4, 0.3, 0.5, 0.99, predicted=True) if source == "known" else None

    def joint(self, foundation_model, others, target):
        return WorkRatio(0.6, 0.5, 0.8, 0.9, predicted=True) if len(others) == 1 else None


def estimates(predictor=None, *, measured_only=False, **profiles) -> Estimates:
    snapshot = Snapshot(taken_at_s=0.0, cluster=Cluster(), profiles=Profiles(**profiles))
    return Estimates(snapshot, predictor, measured_only=measured_only)


def test_predictors_answer_after_rows_and_never_under_measured_only() -> None:
    rows = (warm("known", "b", 0.9), joint("b", "a", 0.5))
    asked = estimates(Guess(), transfer=rows)
    assert asked.transfer.warm_start("m", "known", "b").ratio == 0.9
    assert asked.transfer.warm_start("m", "known", "c").ratio == 0.4
    # one pair measured, the other from the predictor
    assert asked.transfer.joint("m", ["b", "c"], "a").ratio == pytest.approx(math.sqrt(0.5 * 0.6))
    guessed = joint("c", "a", 0.5, provenance=Provenance.PREDICTED)
    refused = estimates(Guess(), measured_only=True, transfer=(*rows, guessed))
    assert refused.transfer.warm_start("m", "known", "c") is None
    assert refused.transfer.joint("m", ["c"], "a") is None
    assert refused.transfer.joint("m", ["b"], "a").ratio == 0.5
    assert refused.transfer.joint("m", ["b", "c"], "a") is None
    assert refused.colocation.lookup(Mode.GPU_SHARE, "A", 1, [member("LORA"), member("IA3")]) is None


def test_the_version_is_that_of_whoever_answers() -> None:
    assert estimates(Guess()).version == "7"
    assert estimates(Guess(), measured_only=True).version == estimates().version


# -- sharing ------------------------------------------------------------------------------------


def member(peft: str, batch: int = 32, task: str | None = None, model: str = "m") -> MemberKey:
    return MemberKey(ThroughputKey(model, peft, ""), batch, task)


def share(members, ratios, **fields) -> ColocationRow:
    return ColocationRow(
        **{
            "mode": Mode.COLOCATE,
            "gpu_type": "A",
            "gpus": 2,
            "members": tuple(
                ColocationMember(foundation_model="m", peft_type=p, batch_size=b, task=t)
                for p, b, t in members
            ),
            "speed_ratio": tuple(ratios),
            "memory_gib": 9.0,
            **fields,
        }
    )


def test_sharing_rows_answer_for_members_in_any_order() -> None:
    rows = (share([("LORA", 32, None), ("IA3", 32, None), ("IA3", 64, None)], (0.5, 0.6, 0.7)),)
    table = estimates(colocation=rows).colocation
    lora, small, large = member("LORA"), member("IA3"), member("IA3", 64)
    assert table.lookup(Mode.COLOCATE, "A", 2, [large, lora, small]) == Colocation(
        (0.7, 0.5, 0.6), 9.0, predicted=False
    )
    assert table.lookup(Mode.COLOCATE, "A", 2, [lora, small, small]) is None
    assert table.lookup(Mode.COLOCATE, "A", 2, [lora, small]) is None
    assert table.lookup(Mode.COLOCATE, "A", 4, [large, lora, small]) is None
    assert table.lookup(Mode.COLOCATE, "B", 2, [large, lora, small]) is None
    assert table.lookup(Mode.GPU_SHARE, "A", 2, [large, lora, small]) is None


def test_a_row_without_a_task_stands_for_all_and_named_tasks_go_first() -> None:
    pair = [("LORA", 32, None), ("LORA", 32, None)]
    general = share(pair, (0.5, 0.5))
    half = share([("LORA", 32, "x"), ("LORA", 32, None)], (0.9, 0.8))
    named = share([("LORA", 32, "x"), ("LORA", 32, "y")], (0.7, 0.6))
    a, b, c = (member("LORA", task=task) for task in ("x", "y", "z"))
    for rows in ((general, half, named), (named, half, general)):
        table = estimates(colocation=rows).colocation
        assert table.lookup(Mode.COLOCATE, "A", 2, [b, a]).speed_ratio == (0.6, 0.7)
        assert table.lookup(Mode.COLOCATE, "A", 2, [c, a]).speed_ratio == (0.8, 0.9)
        assert table.lookup(Mode.COLOCATE, "A", 2, [c, b]).speed_ratio == (0.5, 0.5)
    measured = share(pair, (0.4, 0.4))
    guess = share(pair, (0.9, 0.9), source=Provenance.PREDICTED)
    for rows in ((guess, measured), (measured, guess)):
        assert estimates(colocation=rows).colocation.lookup(Mode.COLOCATE, "A", 2, [a, b]).speed_ratio == (
            0.4,
            0.4,
        )
    assert (
        estimates(colocation=(guess,), measured_only=True).colocation.lookup(Mode.COLOCATE, "A", 2, [a, b])
        is None
    )
    assert estimates(colocation=(guess,)).colocation.lookup(Mode.COLOCATE, "A", 2, [a, b]).predicted


def test_the_predictor_shares_where_no_row_does() -> None:
    table = estimates(Guess(), colocation=(share([("LORA", 32, None)] * 2, (0.5, 0.5)),)).colocation
    pair = [member("LORA"), member("LORA")]
    assert table.lookup(Mode.COLOCATE, "A", 2, pair).speed_ratio == (0.5, 0.5)
    assert table.lookup(Mode.GPU_SHARE, "A", 2, pair) == Colocation((0.6, 0.6), 12.0, predicted=True)
    assert table.lookup(Mode.COLOCATE, "A", 4, pair) is None


# -- defaults -----------------------------------------------------------------------------------


def test_switching_defaults_to_a_minute_and_to_nothing_without_a_model() -> None:
    rows = (SwitchRow(foundation_model="m", gpu_type="A", cold_s=40.0, warm_s=6.0),)
    found = estimates(switch_s=rows)
    assert found.switch_s("m", "A") == (40.0, 6.0)
    assert found.switch_s("m", "B") == (60.0, 60.0)
    assert found.switch_s("n", "A") == (60.0, 60.0)
    assert found.switch_s(None, "A") == (0.0, 0.0)


def test_an_unknown_backbone_is_unknown() -> None:
    found = estimates(backbone_gib=(BackboneRow(foundation_model="m", gib=1.5),))
    assert found.backbone_gib("m") == 1.5
    assert found.backbone_gib("n") is None


def test_tables_are_remembered_for_the_same_profiles_only() -> None:
    rows = (warm("a", "b", 0.5),)
    first = Snapshot(taken_at_s=0.0, cluster=Cluster(), profiles=Profiles(transfer=rows))
    later = first.model_copy(update={"taken_at_s": 5.0})
    assert Estimates(first).transfer is Estimates(later).transfer
    assert Estimates(first).transfer is not Estimates(first, Guess()).transfer
    assert Estimates(first).transfer is not Estimates(first, measured_only=True).transfer
    other = first.model_copy(update={"profiles": Profiles(transfer=(warm("a", "b", 0.6),))})
    assert Estimates(other).transfer.warm_start("m", "a", "b").ratio == 0.6


def test_fitted_models_bring_the_pair_rules_own_error() -> None:
    class Fitted:
        rule_spread = 0.5

        def joint(self, *_: object) -> None:
            return None

    pairs = [
        TransferRow(
            mode=TransferMode.JOINT,
            foundation_model="m",
            source=(s,),
            target="t",
            work_ratio=0.5,
            low=0.5,
            high=0.5,
        )
        for s in ("a", "b")
    ]
    found = TransferTable(pairs, Fitted()).joint("m", ["a", "b"], "t")  # type: ignore[arg-type]
    assert found is not None
    assert found.high / found.ratio == pytest.approx(math.exp(Z80 * 0.5))
