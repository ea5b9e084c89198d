"""Co-location on Gavel's pairs (and Titan's, where they lie beside): pairs, keys and families left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_models.colocation.data import PairRows, gavel_pairs, titan_pairs
from ymir_models.colocation.fit import GRID, additive, fit_pairs
from ymir_models.colocation.model import RUNS, PairModel
from ymir_models.evaluation import Row, Target

__all__ = ["evaluate"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

FOLDS = 10
TARGETS = {
    ("gavel", "V100", "leave pair out"): 0.03,
    ("gavel", "V100", "leave key out"): 0.045,
    ("gavel", "P100", "leave pair out"): 0.02,
    ("gavel", "P100", "leave key out"): 0.03,
    ("gavel", "K80", "leave pair out"): 0.025,
}
NOTES = {
    "leave pair out": "Ten folds; both orders of a pair are in one fold. Kernel parameters and intervals are "
    "chosen inside the training folds. cover80 and cover95 are the shares inside the intervals.",
    "leave key out": "Every key (program and batch) in turn: no pair with it is trained on; every held-out "
    "pair is scored from both sides. A key that is alone in its family is abstained from.",
    "leave family out": "Every program in turn. The model abstains; `if forced` is what it would have said.",
    "pairs that cannot run": "Whether a pair runs out of memory, at leave pair out and leave key out: share "
    "of such pairs that are found (recall), and share of those flagged that are (precision).",
    "control: shuffled labels": "The ratios of the training pairs are permuted among the pairs. skill is 1 - "
    "mean absolute error over that of the training median: it must not be above zero.",
}


@dataclass
class _Scores:
    """Held-out cases of one split as they come in, fold by fold."""

    truth: list[FloatArray]
    found: dict[str, list[FloatArray]]
    answered: list[BoolArray]
    width: list[FloatArray]

    @classmethod
    def new(cls) -> _Scores:
        return cls([], {"ours": [], "additive": [], "training median": []}, [], [])

    def add(self, train: PairRows, test: PairRows, model: PairModel) -> None:
        keys = (model.family[test.first], model.log_batch[test.first])
        partners = (model.family[test.second], model.log_batch[test.second])
        seen = ~np.isnan(model.scale)[keys[0], partners[0]]
        self.truth.append(test.ratio)
        self.answered.append(seen & (model.p_infeasible(*keys, *partners) <= RUNS))
        self.found["ours"].append(model.ratio(*keys, *partners))
        self.found["additive"].append(additive(train, test))
        median = np.nanmedian(train.ratio)
        self.found["training median"].append(np.full(len(test), median))
        scale = np.where(np.isnan(model.scale), np.nanmean(model.scale), model.scale)
        self.width.append(scale[keys[0], partners[0]][:, None] * model.radius[self._new(train, test)])

    @staticmethod
    def _new(train: PairRows, test: PairRows) -> NDArray[np.int64]:
        known = np.zeros(len(train.family), dtype=np.bool_)
        known[train.first] = True
        return (~(known[test.first] & known[test.second])).astype(np.int64)

    def metrics(self) -> tuple[int, dict[str, float], dict[str, dict[str, float]]]:
        truth = np.concatenate(self.truth)
        answered = np.concatenate(self.answered)
        width = np.concatenate(self.width)
        scores = {}
        for name, parts in self.found.items():
            error = np.abs(np.concatenate(parts) - truth)[answered]
            scores[name] = {
                "median": float(np.median(error)) if len(error) else np.nan,
                "mean": float(np.mean(error)) if len(error) else np.nan,
            }
        ours = scores.pop("ours")
        whole = np.abs(np.concatenate(self.found["ours"]) - truth)
        ours |= {
            "answered": float(answered.mean()),
            "if forced": float(np.median(whole)),
            "cover80": float(np.mean(whole[answered] <= width[answered, 0])) if answered.any() else np.nan,
            "cover95": float(np.mean(whole[answered] <= width[answered, 1])) if answered.any() else np.nan,
        }
        everything = np.concatenate(self.found["additive"])
        scores["additive"]["if forced"] = float(np.median(np.abs(everything - truth)))
        return len(truth), ours, scores


def _folds(rows: PairRows, split: str) -> Iterator[tuple[BoolArray, BoolArray]]:
    """Yield masks of training and held-out rows."""
    if split == "leave pair out":
        pairs = np.unique(rows.pair)
        fold = np.random.default_rng(0).permutation(len(pairs)) % FOLDS
        of = fold[np.searchsorted(pairs, rows.pair)]
        groups = [of == k for k in range(FOLDS)]
    elif split == "leave key out":
        groups = [(rows.first == k) | (rows.second == k) for k in range(len(rows.family))]
    else:
        sides = rows.family[rows.first], rows.family[rows.second]
        groups = [(sides[0] == f) | (sides[1] == f) for f in range(len(rows.families))]
    for held in groups:
        if held.any() and not held.all():
            yield ~held, held


def _judge(rows: PairRows, split: str, quick: bool) -> tuple[Row, dict[str, float]]:
    """Return the row of one split, and how well pairs that cannot run were found."""
    scores = _Scores.new()
    flagged: list[BoolArray] = []
    truth: list[BoolArray] = []
    for k, (train, held) in enumerate(_folds(rows, split)):
        if quick and k > 2:
            break
        trained = rows.take(train)
        if trained.feasible.sum() < 3:
            continue
        model = fit_pairs(trained, GRID[:2] if quick else GRID)
        test = rows.take(held)
        keys = (rows.family[test.first], rows.log_batch[test.first])
        partners = (rows.family[test.second], rows.log_batch[test.second])
        flagged.append(model.p_infeasible(*keys, *partners) > RUNS)
        truth.append(~test.feasible)
        scores.add(trained, test.take(test.feasible), model)
    cases, ours, baselines = scores.metrics()
    name = f"{rows.name} on {rows.gpu_type}"
    limit = TARGETS.get((rows.name, rows.gpu_type, split))
    targets = () if limit is None else (Target("median", limit),)
    row = Row("colocation", split, name, cases, ours, baselines, targets, NOTES[split])
    y, p = np.concatenate(truth), np.concatenate(flagged)
    found = {
        f"recall, {split}": float(p[y].mean()) if y.any() else np.nan,
        f"precision, {split}": float(y[p].mean()) if p.any() else np.nan,
    }
    return row, found


def _control(rows: PairRows) -> Row:
    """Return what is learnt from shuffled ratios: nothing, if the evaluation is honest."""
    runs = rows.take(rows.feasible)
    rng = np.random.default_rng(1)
    errors: dict[str, list[FloatArray]] = {"ours": [], "training median": []}
    for train, held in _folds(runs, "leave pair out"):
        trained = runs.take(train)
        order = rng.permutation(len(trained))
        shuffled = PairRows(**{**vars(trained), "ratio": trained.ratio[order]})
        model = fit_pairs(shuffled, GRID[:4])
        test = runs.take(held)
        found = model.ratio(
            rows.family[test.first],
            rows.log_batch[test.first],
            rows.family[test.second],
            rows.log_batch[test.second],
        )
        errors["ours"].append(np.abs(found - test.ratio))
        errors["training median"].append(np.abs(np.median(trained.ratio) - test.ratio))
    mean = {name: float(np.concatenate(parts).mean()) for name, parts in errors.items()}
    metrics = {"mean": mean["ours"], "skill": 1 - mean["ours"] / mean["training median"]}
    return Row(
        "colocation",
        "control: shuffled labels",
        f"{rows.name} on {rows.gpu_type}",
        len(runs),
        metrics,
        {"training median": {"mean": mean["training median"]}},
        (Target("skill", 0.02),),
        NOTES["control: shuffled labels"],
    )


def evaluate(folder: Path, *, quick: bool = False) -> list[Row]:
    """Return rows for every set of pairs and split; sets are never pooled.

    Parameters
    ----------
    folder : Path
        Gavel's data; Titan's sharing tables are read from ``titan`` beside it, if it is there.
    quick : bool
        One GPU type and three folds, without the control.
    """
    sets = gavel_pairs(folder)
    sets = sets[:1] if quick else sets
    rows: list[Row] = []
    runs: dict[str, tuple[int, dict[str, float]]] = {}
    for split in ("leave pair out", "leave key out", "leave family out"):
        for pairs in sets:
            row, found = _judge(pairs, split, quick)
            rows.append(row)
            if split != "leave family out":
                name = f"{pairs.name} on {pairs.gpu_type}"
                runs.setdefault(name, (int((~pairs.feasible).sum()), {}))[1].update(found)
    beside = folder.resolve().parent / "titan"
    if not quick and beside.is_dir():
        rows += [_judge(pairs, "leave pair out", quick)[0] for pairs in titan_pairs(beside)]
    split = "pairs that cannot run"
    rows += [
        Row("colocation", split, name, number, found, note=NOTES[split])
        for name, (number, found) in runs.items()
    ]
    return rows if quick else [*rows, _control(sets[0])]
