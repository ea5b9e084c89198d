"""Work ratios on Titan's transfer curves: rows of the evaluation, both versions of "alone"."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ymir_models.evaluation import Row, Target
from ymir_models.scores import auc, brier_skill
from ymir_models.transfer.work import Against, Pairs, fit_mapping, fit_work, read_traces, titan_pairs
from ymir_opt.jobmodel import Curves

__all__ = ["work_rows"]

FloatArray = NDArray[np.float64]

NOTE = (
    "Epochs to 98 % of the best single-task metric (of the trace's target) with the transfer over epochs "
    "alone, at most ten; error is of the logarithm. Confounded: the setting of the transfer runs was not "
    "recorded, so part of a ratio below 1 may be better hyper-parameters, most so against the trace's."
)
GAIN_NOTE = (
    "Work ratio from the gain in best metric alone, target tasks left out: what a gain in accuracy says of "
    "work. spread is the standard deviation of log ratio around the line; it enters every interval."
)
CONTROL_NOTE = (
    "Ratios and benefits of the training pairs are permuted; skill is 1 - error over that of the median."
)
FOLDS = 10


def _folds(pairs: Pairs, split: str) -> NDArray[np.int64]:
    if split == "work ratio, leave target out":
        where: NDArray[np.int64] = np.unique(np.array(pairs.target), return_inverse=True)[1]
        return where
    return np.random.default_rng(1).permutation(len(pairs)) % FOLDS


def _row(pairs: Pairs, split: str, name: str) -> Row:
    fold = _folds(pairs, split)
    n = len(pairs)
    found, probability, constant, share = (np.empty(n) for _ in range(4))
    inside = np.empty((n, 2))
    for k in np.unique(fold):
        out = fold == k
        train = pairs.take(~out)
        model = fit_work(train)
        found[out], probability[out] = model.predict(pairs.take(out))
        constant[out] = np.median(train.log_ratio)
        share[out] = train.benefit.mean()
        inside[out] = np.abs(found[out] - pairs.log_ratio[out])[:, None] <= model.radius
    metrics = {
        "error": float(np.abs(found - pairs.log_ratio).mean()),
        "auc": auc(pairs.benefit, probability),
        "skill": brier_skill(pairs.benefit, probability, share),
        "share of benefits": float(pairs.benefit.mean()),
        "cover80": float(inside[:, 0].mean()),
        "cover95": float(inside[:, 1].mean()),
    }
    baselines = {"median": {"error": float(np.abs(constant - pairs.log_ratio).mean()), "skill": 0.0}}
    return Row("transfer", split, name, n, metrics, baselines, note=NOTE)


def _gain_row(pairs: Pairs, name: str) -> Row:
    known = pairs.take(np.isfinite(pairs.gain))
    targets = np.array(known.target)
    found, constant, inside = (np.empty(len(known)) for _ in range(3))
    for target in np.unique(targets):
        out = targets == target
        line = fit_mapping(known.take(~out))
        found[out] = line.log_ratio(known.gain[out])
        constant[out] = np.median(known.log_ratio[~out])
        inside[out] = np.abs(found[out] - known.log_ratio[out]) <= 1.2815515655446004 * line.spread
    whole = fit_mapping(known)
    metrics = {
        "error": float(np.abs(found - known.log_ratio).mean()),
        "auc": auc(known.benefit, -found),
        "slope": whole.slope,
        "spread": whole.spread,
        "cover80": float(inside.mean()),
    }
    baselines = {"median": {"error": float(np.abs(constant - known.log_ratio).mean())}}
    return Row("transfer", "work ratio from gain", name, len(known), metrics, baselines, note=GAIN_NOTE)


def _control(pairs: Pairs, name: str) -> Row:
    rng = np.random.default_rng(2)
    fold = _folds(pairs, "work ratio, leave pair out")
    found, probability, constant = (np.empty(len(pairs)) for _ in range(3))
    for k in np.unique(fold):
        out = fold == k
        train = pairs.take(~out)
        mixed = rng.permutation(len(train))
        nothing = Pairs(
            train.model,
            train.source,
            train.target,
            train.log_ratio[mixed],
            train.benefit[mixed],
            train.gain,
        )
        model = fit_work(nothing, calibrate=False)
        found[out], probability[out] = model.predict(pairs.take(out))
        constant[out] = np.median(train.log_ratio)
    error, middle = (float(np.abs(value - pairs.log_ratio).mean()) for value in (found, constant))
    metrics = {"error": error, "skill": 1 - error / middle, "auc": auc(pairs.benefit, probability)}
    return Row(
        "transfer",
        "control: shuffled work ratios",
        name,
        len(pairs),
        metrics,
        {"median": {"error": middle}},
        (Target("skill", 0.02),),
        CONTROL_NOTE,
    )


def work_rows(folder: Path) -> list[Row]:
    """Return the rows on Titan's transfer curves.

    Parameters
    ----------
    folder : Path
        Titan's data, with ``curves/``.
    """
    curves = Curves.read(folder / "curves")
    traces = read_traces(folder)
    sets = {
        (mode, against): titan_pairs(curves, mode, against, traces)
        for mode in ("warm_start", "joint")
        for against in get_args(Against)
    }
    rows = [
        _row(pairs, split, f"{mode}, against the {against}")
        for split in ("work ratio, leave pair out", "work ratio, leave target out")
        for (mode, against), pairs in sets.items()
    ]
    rows += [_gain_row(pairs, f"{mode}, against the {against}") for (mode, against), pairs in sets.items()]
    rows += [_control(pairs, f"{mode}, against the {against}") for (mode, against), pairs in sets.items()]
    return rows
