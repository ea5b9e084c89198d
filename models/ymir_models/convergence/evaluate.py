"""Convergence on Titan's ten-point curves: whole tasks left out, after three, five and seven epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_models.convergence.data import NEVER, POINTS, Cases, CurveSet, cases, titan_curves
from ymir_models.convergence.features import CURVE_FEATURES, power_law
from ymir_models.convergence.fit import (
    Table,
    calibrated,
    conditional,
    fit_hazard,
    spread_levels,
    table,
)
from ymir_models.evaluation import Row, Target
from ymir_models.scores import auc, bootstrap, brier, brier_skill, calibration_error

__all__ = ["evaluate"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SEEN = (3, 5, 7)
NOTES = {
    "first epoch, reached": "First epoch at or above 95, 98 and 99.5 % of the curve's own best, where it is "
    "not reached yet; mean absolute error in epochs, every task left out in turn. As the target is reached "
    "by construction, all methods are told that it is by epoch 10. gain is how much lower the error is "
    "than the best baseline's, with 95 % limits of a bootstrap over tasks; cover80 is the share of truths "
    "inside the 80 % limits.",
    "any target": "Targets of the own best and of the best of all settings together (the latter mostly "
    "never reached): whether the target is reached by epoch 10.",
    "control: shuffled labels": "The truths of the training rows are permuted inside each later epoch. "
    "skill is 1 - error over that of the constant: it must not be above zero.",
}


def last_increment(curves: FloatArray, target: FloatArray) -> FloatArray:
    """Return the evaluation at which the last gain, continued, reaches the target."""
    seen = curves.shape[1]
    gain = curves[:, -1] - curves[:, -2]
    gap = target - curves.max(axis=1)
    steps = np.where(gain > 0, np.ceil(gap / np.where(gain > 0, gain, 1.0)), POINTS)
    moment: FloatArray = np.minimum(seen + steps, POINTS)
    return moment


def paper_curve(curves: FloatArray, target: FloatArray, loss: NDArray[np.bool_]) -> FloatArray:
    """Return the evaluation at which Ymir's curve L(k) = 1/(b3 k^2 + b2 k + b1) + b0 reaches the target.

    A score's loss is 1 - score. b0 is searched on a grid, b1..b3 >= 0 by non-negative least squares with
    weights that make it least squares of the loss.
    """
    from scipy.optimize import nnls

    n, seen = curves.shape
    lost = np.where(loss[:, None], -curves, 1.0 - curves)
    goal = np.where(loss, -target, 1.0 - target)
    moments = np.arange(1.0, seen + 1)
    design = np.stack([moments**2, moments, np.ones(seen)], axis=1)
    later = np.arange(seen + 1.0, POINTS + 1)
    ahead = np.stack([later**2, later, np.ones(len(later))], axis=1)
    result = np.full(n, float(POINTS))
    for i in range(n):
        best = np.inf
        for share in (0.0, 0.5, 0.8, 0.9, 0.97):
            floor = share * max(float(lost[i].min()), 0.0)
            height = np.maximum(lost[i] - floor, 1e-6)
            weight = height**2
            b, _ = nnls(design * weight[:, None], weight / height)
            error = float(np.sum((1 / np.maximum(design @ b, 1e-9) + floor - lost[i]) ** 2))
            if error < best:
                best = error
                hit = np.flatnonzero(1 / np.maximum(ahead @ b, 1e-9) + floor <= goal[i])
                result[i] = later[hit[0]] if len(hit) else POINTS
    return result


Baseline = Callable[[CurveSet, Cases], FloatArray]
BASELINES: dict[str, Baseline] = {
    "last increment": lambda c, s: last_increment(c.values[s.curve, : s.seen], s.target),
    "power law": lambda c, s: np.clip(
        np.ceil(power_law(c.values[s.curve, : s.seen], s.target)), s.seen + 1, POINTS
    ),
    "paper's curve": lambda c, s: paper_curve(c.values[s.curve, : s.seen], s.target, c.loss[s.curve]),
}


def _subset(rows: Table, keep: NDArray[np.bool_]) -> Table:
    return Table(rows.design[keep], rows.reached[keep], rows.task[keep])


class _Held:
    """Predictions for every case of one number of evaluations, made by models that never saw its task."""

    def __init__(self, some: Cases) -> None:
        self.cases = some
        n, m = len(some.curve), POINTS - some.seen
        self.survival = np.full((n, m), np.nan)
        self.levels = np.full((n, 2, 2), np.nan)
        self.constant = np.full(n, np.nan)
        self.shuffled = np.full((n, m), np.nan)


def _held_out(curves: CurveSet, held: list[_Held], tasks: list[str]) -> None:
    rows = table(curves)
    rng = np.random.default_rng(0)
    for task in tasks:
        train = _subset(rows, rows.task != task)
        model = calibrated(fit_hazard(train), curves, train)
        moment = train.design[:, CURVE_FEATURES]
        shuffled = train.reached.copy()
        for value in np.unique(moment):
            at = np.flatnonzero(moment == value)
            shuffled[at] = shuffled[rng.permutation(at)]
        nothing = fit_hazard(replace(train, reached=shuffled))
        for hold in held:
            some, seen = hold.cases, hold.cases.seen
            here = curves.task[some.curve] == task
            if not here.any():
                continue
            part = some.take(here)
            shown = curves.values[part.curve, :seen]
            hold.survival[here] = model.survival(shown, part.target, POINTS)
            hold.levels[here] = model.levels
            hold.shuffled[here] = nothing.survival(shown, part.target, POINTS)
            known = ~here & (some.reached < NEVER) & _own(curves, some)
            hold.constant[here] = np.median(some.reached[known])


def _own(curves: CurveSet, some: Cases) -> NDArray[np.bool_]:
    """Say which targets are not above the curve's own best."""
    own: NDArray[np.bool_] = some.target <= curves.values[some.curve].max(axis=1)
    return own


def _median(survival: FloatArray, seen: int) -> FloatArray:
    return np.asarray(seen + 1 + (conditional(survival) < 0.5).sum(axis=1), dtype=np.float64)


def _mae(error: FloatArray, task: NDArray[np.str_], chosen: IntArray, names: NDArray[np.str_]) -> float:
    """Return the mean error over resampled tasks."""
    total = np.array([error[task == name].sum() for name in names])
    number = np.array([(task == name).sum() for name in names])
    return float(total[chosen].sum() / number[chosen].sum())


def _row(curves: CurveSet, seen: int, hold: _Held) -> Row:
    keep = (hold.cases.reached < NEVER) & np.isfinite(hold.constant)
    some = hold.cases.take(keep)
    truth = some.reached.astype(np.float64)
    task = curves.task[some.curve]
    survival = hold.survival[keep]
    found = {"ours": _median(survival, seen), "constant": hold.constant[keep]}
    found |= {name: method(curves, some) for name, method in BASELINES.items()}
    error = {name: np.abs(np.maximum(value, seen + 1) - truth) for name, value in found.items()}
    names = np.unique(task)
    scores = {
        name: {
            "mae": float(value.mean()),
            "mae, task mean": float(np.mean([value[task == n].mean() for n in names])),
        }
        for name, value in error.items()
    }
    ours = scores.pop("ours")
    strongest = min(scores, key=lambda name: scores[name]["mae"])
    every = np.arange(len(names))

    def gain(chosen: IntArray) -> float:
        return 1 - _mae(error["ours"], task, chosen, names) / _mae(error[strongest], task, chosen, names)

    _, low, high = bootstrap(len(names), gain, rounds=1000)
    ours |= {"gain": gain(every), "gain, low": low, "gain, high": high}
    inside, spread = _coverage(survival, hold.levels[keep], some.reached - seen - 1, task, names)
    ours |= {"cover80": inside[0], "cover80 se": spread[0], "cover95": inside[1], "cover95 se": spread[1]}
    targets = (Target("gain, low", 0.0, at_least=True),) if seen < 7 else ()
    return Row(
        "convergence",
        "first epoch, reached",
        f"after {seen} epochs",
        len(truth),
        ours,
        scores,
        targets,
        NOTES["first epoch, reached"],
    )


def _coverage(
    survival: FloatArray,
    levels: FloatArray,
    position: IntArray,
    task: NDArray[np.str_],
    names: NDArray[np.str_],
) -> tuple[list[float], list[float]]:
    """Return the shares of truths inside the 80 and 95 % limits, and their standard errors over tasks."""
    low, high = spread_levels(conditional(survival), position)
    shares, errors = [], []
    for k in range(2):
        bottom, top = levels[:, k, 0], levels[:, k, 1]
        # a truth is known to an interval: the part of it that lies inside counts
        part = np.clip(
            (np.minimum(high, top) - np.maximum(low, bottom)) / np.maximum(high - low, 1e-12), 0, 1
        )
        total = np.array([part[task == n].sum() for n in names])
        number = np.array([(task == n).sum() for n in names])
        shares.append(float(part.mean()))
        errors.append(
            bootstrap(len(names), lambda c, t=total, m=number: t[c].sum() / m[c].sum(), rounds=500)[0]  # type: ignore[misc]
        )
    return shares, errors


def _reached_row(curves: CurveSet, seen: int, hold: _Held) -> Row:
    known = np.isfinite(hold.constant)
    truth = (hold.cases.reached < NEVER)[known]
    probability = 1 - hold.survival[known][:, -1]
    share = np.full(len(truth), truth.mean())
    metrics = {
        "auc": auc(truth, probability),
        "brier": brier(truth, probability),
        "brier skill": brier_skill(truth, probability, share),
        "calibration error": calibration_error(truth, probability),
        "share reached": float(truth.mean()),
    }
    return Row(
        "convergence",
        "any target",
        f"after {seen} epochs",
        len(truth),
        metrics,
        {"share": {"brier": brier(truth, share), "brier skill": 0.0}},
        note=NOTES["any target"],
    )


def _control_row(curves: CurveSet, seen: int, hold: _Held) -> Row:
    keep = (hold.cases.reached < NEVER) & np.isfinite(hold.constant)
    truth = hold.cases.reached[keep]
    error = float(np.abs(_median(hold.shuffled[keep], seen) - truth).mean())
    constant = float(np.abs(hold.constant[keep] - truth).mean())
    return Row(
        "convergence",
        "control: shuffled labels",
        f"after {seen} epochs",
        len(truth),
        {"mae": error, "skill": 1 - error / constant},
        {"constant": {"mae": constant}},
        (Target("skill", 0.02),),
        NOTES["control: shuffled labels"],
    )


def evaluate(folder: Path, *, quick: bool = False) -> list[Row]:
    """Return rows after three, five and seven epochs.

    Parameters
    ----------
    folder : Path
        Titan's data, with ``curves/normal_hpo_curves.csv``.
    quick : bool
        Leave only three tasks out.
    """
    curves = titan_curves(folder)
    tasks = [str(name) for name in np.unique(curves.task)]
    own = {seen: _Held(cases(curves, seen, absolute=False)) for seen in SEEN}
    both = {seen: _Held(cases(curves, seen)) for seen in SEEN}
    chosen = tasks[:3] if quick else tasks
    _held_out(curves, [*own.values(), *both.values()], chosen)
    rows = [_row(curves, seen, hold) for seen, hold in own.items()]
    rows += [_reached_row(curves, seen, hold) for seen, hold in both.items()]
    return rows + [_control_row(curves, seen, hold) for seen, hold in own.items()]
