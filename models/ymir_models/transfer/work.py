"""Work ratios: what a transfer does to the samples until a target, from measured curves.

Two answers. Where both tasks were measured with this foundation model, an additive model of the logarithm
of the ratio (model, source, target, and source and target within the model). Where only a gain in
accuracy is known, a regression of log ratio on gain, whose own error is most of the interval.

A ratio is *capped*: a run that misses the target ends at the epoch limit, and counts as no benefit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ymir_models.artefact import Fields
from ymir_models.conformal import LEVELS, radius
from ymir_models.logistic import fit_logistic, sigmoid
from ymir_models.transfer.model import Gain
from ymir_opt.estimates.protocols import Z80, WorkRatio
from ymir_opt.jobmodel import Curve, Curves, first_epoch

__all__ = [
    "GainToWork",
    "Pairs",
    "WorkModel",
    "fit_mapping",
    "fit_work",
    "read_traces",
    "titan_pairs",
]

FloatArray = NDArray[np.float64]
Against = Literal["best single setting", "setting of the trace"]

SHARE = 0.98
"""Targets are this share of the best single-task metric (or of the trace's target)."""
RIDGE_RATIO, RIDGE_BENEFIT = 3.0, 1.0
MOST_GAIN = 0.05
"""Gains beyond this were never seen with a ratio; they are taken as this much."""


@dataclass(frozen=True)
class Pairs:
    """Measured transfers.

    Attributes
    ----------
    model, source, target : tuple of str
    log_ratio : float64[n]
        Capped.
    benefit : bool[n]
        The target is reached, with less work than alone.
    gain : float64[n]
        Best metric with the transfer over best metric alone, less 1 (signs as for scores); NaN if unknown.
    """

    model: tuple[str, ...]
    source: tuple[str, ...]
    target: tuple[str, ...]
    log_ratio: FloatArray
    benefit: NDArray[np.bool_]
    gain: FloatArray

    def take(self, mask: NDArray[np.bool_]) -> Pairs:
        """Return some of the pairs."""
        at = np.flatnonzero(mask)
        model, source, target = (
            tuple(part[i] for i in at) for part in (self.model, self.source, self.target)
        )
        return Pairs(model, source, target, self.log_ratio[at], self.benefit[at], self.gain[at])

    def __len__(self) -> int:
        return len(self.log_ratio)


def _best(curve: Curve) -> float:
    return max(value for _, value in curve)


def titan_pairs(curves: Curves, mode: str, against: Against, traces: dict[tuple[str, str], Any]) -> Pairs:
    """Return the ratios of Titan's transfer curves.

    Parameters
    ----------
    curves : Curves
    mode : str
        ``warm_start`` or ``joint``.
    against : str
        What "alone" is: the best measured setting, or the setting that the traces use. The setting of
        the transfer runs was not recorded, so neither matches it.
    traces : mapping
        (model, task) -> (learning rate, accumulation, target) of the traces.
    """
    if mode == "warm_start":
        items = [(m, s, t, c) for (m, s, t), c in curves.temporal.items()]
    else:
        items = [
            (m, next(iter(pair - {t})), t, c) for (m, pair, t), c in curves.spatial.items() if len(pair) == 2
        ]
    rows = []
    for model, source, target, curve in sorted(items, key=lambda item: item[:3]):
        settings = curves.normal.get((model, target))
        if not settings:
            continue
        if against == "best single setting":
            best = max(_best(c) for c in settings.values())
            goal = best - (1 - SHARE) * abs(best)
            alone = curves.best_alone(model, target, goal)
            reach = None if alone is None else alone[1]
        else:
            rate, passes, wanted = traces.get((model, target), ("", 0, math.nan))
            own = settings.get((rate, passes))
            goal = wanted - (1 - SHARE) * abs(wanted)
            best = _best(own) if own is not None else math.nan
            reach = None if own is None else first_epoch(own, goal)
        if reach is None:
            continue
        merged = first_epoch(curve, goal)
        benefit = merged.reached and merged.epochs < reach.epochs
        gain = (_best(curve) - best) / abs(best)
        rows.append((model, source, target, math.log(merged.epochs / reach.epochs), benefit, gain))
    columns = list(zip(*rows, strict=True))
    return Pairs(
        columns[0],
        columns[1],
        columns[2],
        np.array(columns[3], dtype=np.float64),
        np.array(columns[4], dtype=np.bool_),
        np.array(columns[5], dtype=np.float64),
    )


def read_traces(folder: Path) -> dict[tuple[str, str], tuple[str, int, float]]:
    """Return learning rate, accumulation and target of the traces by (model, task)."""
    from ymir_opt.jobmodel.tables import count, finite, read_rows, text

    columns: dict[str, Any] = {
        "model": text,
        "task": text,
        "lr": text,
        "grad_accum_steps": count,
        "target_metric": finite,
    }
    path = folder / "curves" / "trace_job_targets.csv"
    return {(m, t): (lr, steps, goal) for _, (m, t, lr, steps, goal) in read_rows(path, columns)}


def _names(model: str, source: str, target: str) -> tuple[str, ...]:
    return (
        f"model {model}",
        f"source {source}",
        f"target {target}",
        f"source {source} in {model}",
        f"target {target} in {model}",
    )


@dataclass(frozen=True)
class WorkModel:
    """Additive effects on the logarithm of the work ratio, and on the odds of a benefit.

    Attributes
    ----------
    names : tuple of str
        Of the effects.
    ratio, benefit : float64[k + 1]
        Effects, and the intercept.
    radius : float64[2]
        Half widths of log ratio at 80 and 95 %, pairs left out.
    """

    names: tuple[str, ...]
    ratio: FloatArray
    benefit: FloatArray
    radius: FloatArray

    @cached_property
    def _effects(self) -> dict[str, tuple[float, float]]:
        pairs = zip(self.names, self.ratio[:-1].tolist(), self.benefit[:-1].tolist(), strict=True)
        return {name: (ratio, odds) for name, ratio, odds in pairs}

    def answer(self, model: str, source: str, target: str) -> WorkRatio | None:
        """Return the ratio of a pair, None unless both tasks were measured with this model."""
        if source == target:
            return None
        named = _names(model, source, target)
        effects = self._effects
        if not (named[3] in effects and named[4] in effects):
            return None
        log_ratio, odds = float(self.ratio[-1]), float(self.benefit[-1])
        for name in named:
            log_ratio += effects[name][0]
            odds += effects[name][1]
        half = float(self.radius[0])
        return WorkRatio(
            math.exp(log_ratio),
            math.exp(log_ratio - half),
            math.exp(log_ratio + half),
            1.0 / (1.0 + math.exp(-max(-500.0, min(500.0, odds)))),
            True,
        )

    def predict(self, pairs: Pairs) -> tuple[FloatArray, FloatArray]:
        """Return log ratio and probability of a benefit; unknown names count as average."""
        design = _design(self.names, pairs)
        return design @ self.ratio, sigmoid(design @ self.benefit)

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as they are written to an artefact."""
        return {
            "names": list(self.names),
            "ratio": self.ratio,
            "benefit": self.benefit,
            "radius": self.radius,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> WorkModel:
        """Read the parameters back; raises `InputError` where one is missing or wrong."""
        names = fields.texts("names")
        size = len(names) + 1
        return cls(
            names, fields.array("ratio", size), fields.array("benefit", size), fields.array("radius", 2)
        )


def _design(names: Sequence[str], pairs: Pairs) -> FloatArray:
    at = {name: i for i, name in enumerate(names)}
    design = np.zeros((len(pairs), len(names) + 1))
    design[:, -1] = 1.0
    for i, pair in enumerate(zip(pairs.model, pairs.source, pairs.target, strict=True)):
        for name in _names(*pair):
            if name in at:
                design[i, at[name]] = 1.0
    return design


def fit_work(pairs: Pairs, *, calibrate: bool = True, folds: int = 10) -> WorkModel:
    """Fit the additive model (ridge); its intervals come from pairs left out in folds."""
    named = zip(pairs.model, pairs.source, pairs.target, strict=True)
    names = tuple(sorted({name for pair in named for name in _names(*pair)}))
    design = _design(names, pairs)
    penalty = np.append(np.full(len(names), RIDGE_RATIO), 1e-9)
    gram = design.T @ design + np.diag(penalty)
    ratio = np.asarray(np.linalg.solve(gram, design.T @ pairs.log_ratio), dtype=np.float64)
    odds = np.append(np.full(len(names), RIDGE_BENEFIT), 1e-6)
    model = WorkModel(names, ratio, fit_logistic(design, pairs.benefit, odds), np.full(2, np.inf))
    if not calibrate:
        return model
    fold = np.random.default_rng(0).permutation(len(pairs)) % folds
    residual = np.empty(len(pairs))
    for k in range(folds):
        out = fold == k
        if out.any() and not out.all():
            trained = fit_work(pairs.take(~out), calibrate=False)
            residual[out] = trained.predict(pairs.take(out))[0] - pairs.log_ratio[out]
    widths = np.array([radius(residual, level) for level in LEVELS])
    return WorkModel(names, model.ratio, model.benefit, widths)


@dataclass(frozen=True)
class GainToWork:
    """Regression of log work ratio on gain in accuracy.

    Attributes
    ----------
    intercept, slope : float
    spread : float
        Standard deviation of log ratio around the line, target tasks left out.
    """

    intercept: float
    slope: float
    spread: float

    def log_ratio(self, gain: FloatArray) -> FloatArray:
        """Return the expected log ratio."""
        result: FloatArray = self.intercept + self.slope * np.clip(gain, -MOST_GAIN, MOST_GAIN)
        return result

    def answer(self, gain: Gain) -> WorkRatio:
        """Return the work ratio that a gain suggests; its interval holds both uncertainties."""
        middle, low, high = (
            self.intercept + self.slope * max(-MOST_GAIN, min(MOST_GAIN, value))
            for value in (gain.gain, gain.low, gain.high)
        )
        of_gain = abs(high - low) / (2 * Z80)
        deviation = math.hypot(of_gain, self.spread)
        half = Z80 * deviation
        p = 0.5 * math.erfc(middle / (deviation * math.sqrt(2)))
        return WorkRatio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), p, True)

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as they are written to an artefact."""
        return {"intercept": self.intercept, "slope": self.slope, "spread": self.spread}

    @classmethod
    def from_fields(cls, fields: Fields) -> GainToWork:
        """Read the parameters back; raises `InputError` where one is missing or wrong."""
        return cls(fields.number("intercept"), fields.number("slope"), fields.number("spread"))


def _line(gain: FloatArray, value: FloatArray) -> tuple[float, float]:
    x = np.clip(gain, -MOST_GAIN, MOST_GAIN)
    slope, intercept = np.polyfit(x, value, 1)
    return float(intercept), float(slope)


def fit_mapping(pairs: Pairs) -> GainToWork:
    """Fit the regression on measured gains and ratios; the spread is that of target tasks left out."""
    known = pairs.take(np.isfinite(pairs.gain))
    targets = np.array(known.target)
    residual = np.empty(len(known))
    for name in np.unique(targets):
        out = targets == name
        intercept, slope = _line(known.gain[~out], known.log_ratio[~out])
        line = GainToWork(intercept, slope, 0.0)
        residual[out] = line.log_ratio(known.gain[out]) - known.log_ratio[out]
    intercept, slope = _line(known.gain, known.log_ratio)
    return GainToWork(intercept, slope, float(np.sqrt(np.mean(residual**2))))
