"""Transfer: nothing of a target's own results reaches its prediction; no gain without its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ymir_models import FITTED
from ymir_models.evaluation import markdown, summary
from ymir_models.predictor import FittedPredictor, load
from ymir_models.transfer.data import TaskWeb, read_taskweb
from ymir_models.transfer.evaluate import _never_a_source, evaluate
from ymir_models.transfer.features import NEW_TASK, History
from ymir_models.transfer.fit import fit_heads, history_of, predict_heads
from ymir_models.transfer.groups import GroupSet, judge_rule, mtgnet_sets, rule_error, standley_sets
from ymir_models.transfer.model import Gain
from ymir_models.transfer.train import own_pairs
from ymir_models.transfer.work import GainToWork, Pairs, fit_mapping, fit_work

from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.snapshot import Provenance, TransferMode, TransferRow


def web(seed: int = 0, targets: int = 8, sources: int = 9, settings: int = 2) -> TaskWeb:
    """Return a small world in which good sources are good everywhere, and pair scores say the rest."""
    rng = np.random.default_rng(seed)
    names = tuple(f"task{i}" for i in range(sources))
    llm, retrieval = rng.normal(size=(targets, sources)), rng.normal(size=(targets, sources))
    good = rng.normal(size=sources)
    effect = 0.05 * good + 0.03 * llm + 0.01 * rng.normal(size=(settings, targets, sources))
    base = rng.uniform(0.4, 0.8, (settings, targets))
    score = base[:, :, None] * (1 + effect)
    gain = effect.copy()
    for t in range(targets):
        score[:, t, t] = gain[:, t, t] = llm[t, t] = retrieval[t, t] = np.nan
    halves = np.stack([score * 1.01, score * 0.99])
    return TaskWeb(("s0", "s1"), names[:targets], names, score, gain, base, halves, llm, retrieval)


def left_out(data: TaskWeb, target: int) -> tuple[np.ndarray, np.ndarray]:
    history = history_of(data)
    mask = np.ones(len(data.targets), dtype=np.bool_)
    mask[target] = False
    known, new = predict_heads(fit_heads(history, data.gain, mask), history, mask, ~mask)
    return known.order[0], new.order[0]


def test_a_target_s_own_results_change_nothing_of_its_prediction() -> None:
    data = web()
    score, gain = data.score.copy(), data.gain.copy()
    score[:, 3] *= np.random.default_rng(9).uniform(0.5, 1.5, score[:, 3].shape)
    gain[:, 3] = np.random.default_rng(8).normal(size=gain[:, 3].shape)
    other = replace(data, score=score, gain=gain)
    for before, after in zip(left_out(data, 3), left_out(other, 3), strict=True):
        assert np.allclose(before, after)


def test_what_a_task_did_as_a_source_is_seen_by_the_last_features_only_where_it_may_be() -> None:
    data = web()
    mask = np.ones(8, dtype=np.bool_)
    mask[3] = False
    score = data.score.copy()
    score[:, [t for t in range(8) if t != 3], 3] *= 0.2
    before, after = (history_of(d).features(mask)[3] for d in (data, replace(data, score=score)))
    assert not np.allclose(before[..., NEW_TASK:], after[..., NEW_TASK:])
    # a new task is judged without that column: there nothing is left to notice
    hidden = [history_of(_never_a_source(d, 3)).features(mask)[3] for d in (data, replace(data, score=score))]
    assert np.allclose(hidden[0][..., :NEW_TASK], hidden[1][..., :NEW_TASK])
    assert np.allclose(hidden[0][..., NEW_TASK:], hidden[1][..., NEW_TASK:])


def test_features_of_known_and_new_tasks_agree_on_what_both_have() -> None:
    data = web()
    history = history_of(data)
    everyone = np.ones(8, dtype=np.bool_)
    outside = History(
        history.targets[:7],
        history.sources,
        history.rank[:, :7],
        history.level[:, :7],
        history.llm[:7],
        history.retrieval[:7],
    )
    mask = everyone.copy()
    mask[7] = False
    known = history.features(mask)[7][..., :NEW_TASK]
    new = outside.new_task(history.llm[7], history.retrieval[7])
    assert np.allclose(known, new)


def test_signal_is_found_and_shuffled_labels_give_none() -> None:
    data = web(targets=8)
    ours = [
        np.corrcoef(
            left_out(data, t)[0][0][np.isfinite(data.score[0, t])],
            data.score[0, t][np.isfinite(data.score[0, t])],
        )[0, 1]
        for t in range(8)
    ]
    assert np.mean(ours) > 0.8


@pytest.fixture(scope="module")
def predictor() -> FittedPredictor:
    return load(FITTED)


def test_a_measured_gain_is_returned_as_measured(predictor: FittedPredictor) -> None:
    assert predictor.gain is not None
    gain = predictor.gain_after("roberta-base", "snli", "rte")
    assert gain is not None
    assert gain.measured
    assert gain.low < gain.gain < gain.high
    assert predictor.gain_after("roberta-base", "rte", "rte") is None


def test_unknown_models_and_tasks_are_never_defaulted(predictor: FittedPredictor) -> None:
    assert predictor.gain is not None
    assert predictor.warm_start("llama", "snli", "rte") is None
    assert predictor.warm_start("roberta-base", "snli", "my-task") is None
    assert predictor.warm_start("roberta-base", "my-adapter", "rte") is None
    assert predictor.joint("t5-base", ("snli",), "rte") is None
    assert predictor.joint("roberta-base", (), "rte") is None
    with pytest.raises(NotFoundError, match=r"'my-task'.*has no features"):
        predictor.gain.pair(0, "snli", "my-task")
    with pytest.raises(NotFoundError, match="did you mean 'rte'"):
        predictor.gain.rank_sources(0, "rtee")


def test_a_new_task_needs_every_score(predictor: FittedPredictor) -> None:
    model = predictor.gain
    assert model is not None
    row = model.history.targets.index("rte")
    llm = dict(zip(model.history.sources, np.nan_to_num(model.history.llm[row]).tolist(), strict=True))
    retrieval = dict(
        zip(model.history.sources, np.nan_to_num(model.history.retrieval[row]).tolist(), strict=True)
    )
    gains = model.new_target(0, llm, retrieval)
    assert set(gains) == set(model.history.sources)
    assert all(gain.low < gain.gain < gain.high for gain in gains.values())
    del llm["snli"]
    with pytest.raises(InputError, match="no language model score for 1 sources, the first is 'snli'"):
        model.new_target(0, llm, retrieval)


def test_the_best_sources_come_first(predictor: FittedPredictor) -> None:
    model = predictor.gain
    assert model is not None
    order = model.rank_sources(0, "rte")
    scores = [score for _, score in order]
    assert scores == sorted(scores, reverse=True)
    assert "rte" not in {name for name, _ in order}


def test_a_gain_reaches_work_only_with_the_error_of_that_step() -> None:
    line = GainToWork(0.25, -12.0, 0.55)
    sure = line.answer(Gain(0.02, 0.02, 0.02, 1.0, True))
    assert math.log(sure.ratio) == pytest.approx(0.25 - 0.24)
    assert math.log(sure.high / sure.low) == pytest.approx(2 * 1.2815515655 * 0.55)
    unsure = line.answer(Gain(0.02, -0.01, 0.04, 0.8, False))
    assert unsure.low < sure.low
    assert unsure.high > sure.high
    # gains beyond those ever seen with a ratio are taken as that much
    assert (
        line.answer(Gain(0.5, 0.5, 0.5, 1.0, True)).ratio
        == line.answer(Gain(0.05, 0.05, 0.05, 1.0, True)).ratio
    )
    assert sure.predicted


def made_pairs(noise: float = 0.0) -> Pairs:
    rng = np.random.default_rng(0)
    names = [(m, s, t) for m in ("x", "y") for s in "abcdef" for t in "abcdef" if s != t]
    effect = {(m, n): rng.normal(0, 0.4) for m in "xy" for n in "abcdef"}
    log_ratio = np.array([effect[m, s] + effect[m, t] + noise * rng.normal() for m, s, t in names])
    gain = -(log_ratio - 0.2) / 12
    models, sources, targets = (tuple(column) for column in zip(*names, strict=True))
    return Pairs(models, sources, targets, log_ratio, log_ratio < 0, gain)


def test_additive_work_is_recovered_and_unknown_pairs_are_abstained_from() -> None:
    pairs = made_pairs(0.05)
    keep = np.ones(len(pairs), dtype=np.bool_)
    keep[7] = False
    model = fit_work(pairs.take(keep))
    found = model.answer(pairs.model[7], pairs.source[7], pairs.target[7])
    assert found is not None
    assert found.low < math.exp(pairs.log_ratio[7]) < found.high
    assert (found.p_benefit > 0.5) == bool(pairs.benefit[7])
    assert model.answer("z", "a", "b") is None
    assert model.answer("x", "a", "g") is None
    assert model.answer("x", "a", "a") is None


def test_the_line_from_gain_to_work_is_recovered() -> None:
    line = fit_mapping(made_pairs())
    assert line.slope < 0
    assert line.intercept == pytest.approx(0.2, abs=0.1)


def test_own_rows_are_measured_single_sources_only() -> None:
    row = TransferRow(mode=TransferMode.JOINT, foundation_model="m", source="a", target="b", work_ratio=0.8)
    rows = [
        row,
        row.model_copy(update={"source": ("a", "c")}),
        row.model_copy(update={"provenance": Provenance.PREDICTED}),
        row.model_copy(update={"mode": TransferMode.WARM_START}),
    ]
    found = own_pairs(rows, "joint")
    assert len(found) == 1
    assert found.benefit.tolist() == [True]
    assert found.log_ratio[0] == pytest.approx(math.log(0.8))


def test_a_group_is_the_geometric_mean_of_its_pairs_and_less_sure(predictor: FittedPredictor) -> None:
    pairs = [predictor.joint("roberta-base", (other,), "rte") for other in ("mnli", "qqp")]
    group = predictor.joint("roberta-base", ("mnli", "qqp"), "rte")
    assert group is not None
    known = [pair for pair in pairs if pair is not None]
    assert group.ratio == pytest.approx(math.sqrt(known[0].ratio * known[1].ratio))
    assert group.high / group.low > max(pair.high / pair.low for pair in known)
    assert predictor.joint("roberta-base", ("mnli", "my-task"), "rte") is None


def test_the_rule_is_judged_on_groups_whose_pairs_are_known() -> None:
    member = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=bool)
    log_ratio = np.where(member, [[0.1, 0.2, 0], [0.3, 0, 0.4], [0, 0.5, 0.6], [0.2, 0.3, 0.7]], np.nan)
    predicted, measured = judge_rule(GroupSet("g", member, log_ratio))
    assert predicted.tolist() == pytest.approx([0.2, 0.35, 0.5])
    assert measured.tolist() == [0.2, 0.3, 0.7]
    assert rule_error(GroupSet("g", member, log_ratio)).error == pytest.approx(0.25 / 3)


@pytest.mark.data
def test_the_rule_s_error_on_published_groups(data_dir: Path) -> None:
    sets = standley_sets(data_dir / "standley") + mtgnet_sets(data_dir / "mtgnet")
    found = {groups.name: rule_error(groups) for groups in sets}
    assert found["standley results"].cases == 55
    assert found["mtgnet MIMIC-III"].cases == 37793
    better = [name for name, error in found.items() if error.error < error.nothing]
    assert set(found) - set(better) == {"standley results_large"}


@pytest.mark.data
def test_taskweb_is_read_as_documented(data_dir: Path) -> None:
    data = read_taskweb(data_dir / "taskweb")
    assert data.score.shape == (9, 21, 22)
    assert int(np.isfinite(data.gain).sum()) == 3087
    assert np.nanmax(data.score) <= 1.0


@pytest.mark.data
def test_the_quick_evaluation_of_transfers_runs(data_dir: Path) -> None:
    rows = evaluate(data_dir / "taskweb", quick=True)
    assert {"choice of source", "probability of a benefit", "control: shuffled labels"} <= {
        r.split for r in rows
    }


@pytest.mark.slow
@pytest.mark.data
def test_every_target_is_reached_and_nothing_is_learnt_from_shuffled_labels(
    data_dir: Path, documented: Callable[[str], str]
) -> None:
    rows = evaluate(data_dir / "taskweb")
    assert documented("transfer") == markdown(summary(rows))
    missed = [
        (row.split, row.model, t.metric) for row in rows for t in row.targets if not t.reached(row.metrics)
    ]
    assert not missed
    ratios = [row for row in rows if row.split == "regret over a baseline's"]
    assert len(ratios) == 8
    # the paired bootstrap over targets leaves no doubt about the known tasks
    assert all(row.metrics["high"] < row.targets[0].limit for row in ratios if row.model.startswith("known"))
    (control,) = [row for row in rows if row.split == "control: shuffled labels"]
    assert abs(control.metrics["auc"] - 0.5) < 0.05
    assert control.metrics["regret@1"] > 0.85 * control.baselines["random choice"]["regret@1"]
