"""Transfer on TaskWeb, whole targets left out; work ratios on Titan; the pair rule on groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_models.evaluation import Row, Target
from ymir_models.scores import (
    auc,
    bootstrap,
    brier,
    brier_skill,
    calibration_error,
    mean_known,
    ndcg,
    ranks,
)
from ymir_models.transfer.data import TaskWeb, read_taskweb
from ymir_models.transfer.fit import Answers, calibrated, fit_heads, history_of, predict_heads
from ymir_models.transfer.linear import fit_ridge
from ymir_models.transfer.rule_rows import rule_rows
from ymir_models.transfer.work_rows import work_rows

__all__ = ["evaluate"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NOTES = {
    "choice of source": "Every target in turn; nothing of its results as a target is used. regret is what "
    "the chosen source (the best of the three highest, @3) loses against the best one, over the score "
    "without transfer (over the mean score in the two settings where that is not known). `new task`: also "
    "nothing of its results as a source.",
    "regret over a baseline's": "Ratio of mean regrets@1, with 95 % limits of a paired bootstrap over the "
    "targets.",
    "probability of a benefit": "Whether the mean score over seeds is above the score without transfer, in "
    "the seven settings where that is known. `majority` always says the share of benefits of the training "
    "targets. `split-half` is what half of the seeds say of the other half: no model can do better.",
    "interval of the gain": "Half widths from targets left out inside the training targets, every target "
    "counting the same. se is the standard error of a bootstrap over targets.",
    "control: shuffled labels": "Scores and gains of every training target are permuted among its sources. "
    "auc must be near one half, and the regret near that of a random choice.",
}
SHUFFLED = 0.55


@dataclass
class _Held:
    """Predictions for every target by models that never saw its results, float64[T, K, S]."""

    order: FloatArray
    gain: FloatArray
    benefit: FloatArray
    radius: FloatArray

    @classmethod
    def new(cls, shape: tuple[int, int, int]) -> _Held:
        order, gain, benefit = (np.full(shape, np.nan) for _ in range(3))
        return cls(order, gain, benefit, np.full((shape[0], 2), np.nan))

    def put(self, target: int, answers: Answers, radius: FloatArray) -> None:
        self.order[target] = answers.order[0]
        self.gain[target] = answers.gain[0]
        self.benefit[target] = answers.benefit[0]
        self.radius[target] = radius


def _never_a_source(data: TaskWeb, target: int) -> TaskWeb:
    """Return the data without what the target did as a source of others."""
    score, gain = data.score.copy(), data.gain.copy()
    if data.targets[target] in data.sources:
        column = data.sources.index(data.targets[target])
        score[:, :, column] = gain[:, :, column] = np.nan
    return replace(data, score=score, gain=gain)


def _leave_out(data: TaskWeb, targets: list[int], *, calibrate: bool) -> tuple[_Held, _Held]:
    """Return predictions of the head for known and of that for new tasks."""
    count = len(data.targets)
    shape = (count, len(data.settings), len(data.sources))
    known, new = _Held.new(shape), _Held.new(shape)
    for target in targets:
        mask = np.ones(count, dtype=np.bool_)
        mask[target] = False
        for which, (held, seen) in enumerate(((known, data), (new, _never_a_source(data, target)))):
            history = history_of(seen)
            heads = fit_heads(history, seen.gain, mask)
            if calibrate:
                heads = calibrated(heads, history, seen.gain, mask)
            answers = predict_heads(heads, history, mask, ~mask)
            held.put(target, answers[which], heads[which].radius)
    return known, new


def _shuffled(data: TaskWeb, target: int, rng: np.random.Generator) -> TaskWeb:
    """Return the data with the sources of every other target permuted, setting by setting."""
    score, gain = data.score.copy(), data.gain.copy()
    for t in range(len(data.targets)):
        if t == target:
            continue
        for k in range(len(data.settings)):
            there = np.flatnonzero(np.isfinite(score[k, t]))
            mixed = rng.permutation(there)
            score[k, t, there], gain[k, t, there] = data.score[k, t, mixed], data.gain[k, t, mixed]
    return replace(data, score=score, gain=gain)


# ---------------------------------------------------------------- choosing a source


def _regrets(data: TaskWeb, order: FloatArray, targets: list[int], best_of: int) -> FloatArray:
    """Return float64[len(targets), K]: what the choice loses, over the reference score."""
    result = np.empty((len(targets), len(data.settings)))
    for i, t in enumerate(targets):
        for k in range(len(data.settings)):
            worth = data.score[k, t]
            there = np.flatnonzero(np.isfinite(worth))
            wanted = np.nan_to_num(order[t, k, there], nan=-np.inf)
            chosen = there[np.argsort(-wanted, kind="stable")[:best_of]]
            result[i, k] = (worth[there].max() - worth[chosen].max()) / data.reference[k, t]
    return result


def _mean_of_others(values: FloatArray, *, all_settings: bool) -> FloatArray:
    """Return float64[T, K, S]: mean over the other targets of values (float64[K, T, S])."""
    count = values.shape[1]
    result = np.empty((count, values.shape[0], values.shape[2]))
    for t in range(count):
        others = np.delete(values, t, axis=1)
        mean = mean_known(others, 1)
        result[t] = mean_known(mean, 0)[None] if all_settings else mean
    return result


def _regressed(data: TaskWeb, feature: FloatArray) -> FloatArray:
    """Return the order by a linear regression of the standardised score on one pair score."""
    level = history_of(data).level
    wide = np.broadcast_to(feature, level.shape)
    result = np.empty((len(data.targets), len(data.settings), len(data.sources)))
    for t in range(len(data.targets)):
        keep = np.isfinite(level) & np.isfinite(wide)
        keep[:, t] = False
        model = fit_ridge(wide[keep][:, None], level[keep], 1e-6)
        result[t] = model(np.broadcast_to(feature[t], result[t].shape)[..., None])
    return result


def _baselines(data: TaskWeb) -> dict[str, FloatArray]:
    rank = ranks(data.score)
    return {
        "source mean of rank, same setting": _mean_of_others(rank, all_settings=False),
        "source mean of rank, all settings": _mean_of_others(rank, all_settings=True),
        "raw source mean": _mean_of_others(data.score, all_settings=False),
        "regression on retrieval": _regressed(data, data.retrieval),
        "regression on language model": _regressed(data, data.llm),
    }


def _ranking(data: TaskWeb, order: FloatArray, targets: list[int]) -> dict[str, float]:
    gains = [
        ndcg(data.score[k, t], order[t, k])
        for t in targets
        for k in range(len(data.settings))
        if np.nanstd(data.score[k, t]) > 0
    ]
    return {
        "regret@1": float(_regrets(data, order, targets, 1).mean()),
        "regret@3": float(_regrets(data, order, targets, 3).mean()),
        "ndcg": float(np.mean(gains)),
    }


def _choice_rows(data: TaskWeb, known: _Held, new: _Held, targets: list[int]) -> list[Row]:
    baselines = _baselines(data)
    scores = {name: _ranking(data, order, targets) for name, order in baselines.items()}
    split = "choice of source"
    note = NOTES[split]
    count = len(targets) * len(data.settings)
    rows = [
        Row("transfer", split, "known task", count, _ranking(data, known.order, targets), scores, note=note),
        Row("transfer", split, "new task", count, _ranking(data, new.order, targets), note=note),
    ]
    # the stronger of the two rank means is the one to beat
    strongest = min(list(baselines)[:2], key=lambda name: scores[name]["regret@1"])
    against = {strongest: 0.90} | dict.fromkeys(list(baselines)[2:], 0.75)
    for model, held in (("known task", known), ("new task", new)):
        ours = _regrets(data, held.order, targets, 1).mean(axis=1)
        for name, limit in against.items():
            theirs = _regrets(data, baselines[name], targets, 1).mean(axis=1)
            ratio = _ratio(ours, theirs)
            _, low, high = bootstrap(len(targets), lambda c, f=ratio: f(c), rounds=2000)  # type: ignore[misc]
            rows.append(
                Row(
                    "transfer",
                    "regret over a baseline's",
                    f"{model}, over {name}",
                    len(targets),
                    {"ratio": ratio(np.arange(len(targets))), "low": low, "high": high},
                    targets=(Target("ratio", limit),),
                    note=NOTES["regret over a baseline's"],
                )
            )
    return rows


def _ratio(ours: FloatArray, theirs: FloatArray) -> Callable[[IntArray], float]:
    def ratio(chosen: IntArray) -> float:
        lost = float(theirs[chosen].sum())
        return float(ours[chosen].sum()) / lost if lost > 0 else np.nan

    return ratio


# ---------------------------------------------------------------- probability and interval


def _benefit_rows(data: TaskWeb, known: _Held, new: _Held, targets: list[int]) -> list[Row]:
    gain = np.swapaxes(data.gain, 0, 1)[targets]
    there = np.isfinite(gain)
    truth = gain[there] > 0
    share = np.empty(gain.shape)
    for i, t in enumerate(targets):
        others = np.delete(data.gain, t, axis=1)
        share[i] = np.mean(others[np.isfinite(others)] > 0)
    majority = share[there]
    split = "probability of a benefit"

    def judged(probability: FloatArray) -> dict[str, float]:
        return {
            "auc": auc(truth, probability),
            "brier": brier(truth, probability),
            "skill": brier_skill(truth, probability, majority),
            "calibration error": calibration_error(truth, probability),
        }

    half = data.halves / data.reference[None, :, :, None] - 1
    first, second = (np.swapaxes(h, 0, 1)[targets] for h in half)
    both = there & np.isfinite(first) & np.isfinite(second)
    rank = _mean_of_others(ranks(data.score), all_settings=False)[targets]
    baselines = {
        "majority": judged(majority),
        "source mean of rank": {"auc": auc(truth, rank[there])},
        "split-half": {"auc": auc(second[both] > 0, first[both])},
    }
    rows = []
    for model, held, used in (("known task", known, baselines), ("new task", new, {})):
        rows.append(
            Row(
                "transfer",
                split,
                model,
                int(there.sum()),
                judged(held.benefit[targets][there]),
                used,
                (Target("auc", 0.62, at_least=True), Target("skill", 0.0, at_least=True)),
                NOTES[split],
            )
        )
    return rows


def _interval_rows(data: TaskWeb, known: _Held, new: _Held, targets: list[int]) -> list[Row]:
    gain = np.swapaxes(data.gain, 0, 1)[targets]
    there = np.isfinite(gain)
    split = "interval of the gain"
    rows = []
    for model, held in (("known task", known), ("new task", new)):
        miss = np.abs(held.gain[targets] - gain)
        metrics: dict[str, float] = {"median error": float(np.median(miss[there]))}
        targets_kept = []
        for k, level in enumerate((0.80, 0.95)):
            inside = np.where(there, miss <= held.radius[targets][:, k][:, None, None], False)
            per_target = inside.sum(axis=(1, 2)) / there.sum(axis=(1, 2))
            error, _, _ = bootstrap(len(targets), lambda c, p=per_target: float(p[c].mean()), rounds=1000)  # type: ignore[misc]
            name = f"cover{round(100 * level)}"
            metrics |= {
                name: float(per_target.mean()),
                f"{name} se": error,
                f"{name} worst target": float(per_target.min()),
                f"{name} off, se": float(abs(per_target.mean() - level) / max(error, 1e-9)),
            }
            targets_kept.append(Target(f"{name} off, se", 2.0))
        worst = data.targets[targets[int(np.argmin(per_target))]]
        note = NOTES[split] + f" The worst target is {worst}."
        rows.append(Row("transfer", split, model, int(there.sum()), metrics, {}, tuple(targets_kept), note))
    return rows


def _control_row(data: TaskWeb, targets: list[int]) -> Row:
    rng = np.random.default_rng(0)
    count = len(data.targets)
    shape = (count, len(data.settings), len(data.sources))
    order, benefit = np.full(shape, np.nan), np.full(shape, np.nan)
    for target in targets:
        mixed = _shuffled(data, target, rng)
        history = history_of(mixed)
        mask = np.ones(count, dtype=np.bool_)
        mask[target] = False
        heads = fit_heads(history, mixed.gain, mask)
        known, _ = predict_heads(heads, history, mask, ~mask)
        order[target], benefit[target] = known.order[0], known.benefit[0]
    gain = np.swapaxes(data.gain, 0, 1)[targets]
    there = np.isfinite(gain)
    mean = np.nanmean(data.score, axis=2, keepdims=True)
    random = ((np.nanmax(data.score, axis=2, keepdims=True) - mean)[:, :, 0] / data.reference).T[targets]
    metrics = {
        "auc": auc(gain[there] > 0, benefit[targets][there]),
        "regret@1": float(_regrets(data, order, targets, 1).mean()),
    }
    split = "control: shuffled labels"
    baselines = {"random choice": {"auc": 0.5, "regret@1": float(random.mean())}}
    return Row(
        "transfer",
        split,
        "known task",
        int(there.sum()),
        metrics,
        baselines,
        (Target("auc", SHUFFLED),),
        NOTES[split],
    )


def evaluate(folder: Path, *, quick: bool = False) -> list[Row]:
    """Return rows on accuracy gains, and on work ratios and groups where that data lie beside.

    Parameters
    ----------
    folder : Path
        TaskWeb's data; ``titan``, ``standley`` and ``mtgnet`` are read beside it, if they are there.
    quick : bool
        Leave only three targets out, without intervals, work ratios and groups.
    """
    data = read_taskweb(folder)
    targets = list(range(len(data.targets)))[:: 8 if quick else 1]
    known, new = _leave_out(data, targets, calibrate=not quick)
    rows = _choice_rows(data, known, new, targets)
    rows += _benefit_rows(data, known, new, targets)
    if not quick:
        rows += _interval_rows(data, known, new, targets)
    rows.append(_control_row(data, targets))
    if quick:
        return rows
    beside = folder.resolve().parent
    if (beside / "titan" / "curves").is_dir():
        rows += work_rows(beside / "titan")
    return rows + rule_rows(beside)
