"""Throughput on Titan's step-time tables: four ways of holding configurations out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_models.evaluation import Row, Target
from ymir_models.throughput.data import StepRows, titan_models, titan_rows
from ymir_models.throughput.fit import Key, calibrate, fit_step, predict
from ymir_models.throughput.model import StepModel

__all__ = ["DESIGN", "evaluate"]

FloatArray = NDArray[np.float64]

DESIGN = ((1, 0.0), (1, 0.5), (1, 1.0), (2, 0.0), (4, 0.5), (8, 0.0), (12, 1.0), (16, 0.0))
"""The eight profiled configurations: GPUs (packed), and where in the measured local batches."""

CONTROL = "control: shuffled labels"
SPLITS = ("between batches", "held-out count", "8 configurations", "more nodes")
TARGETS = {
    "between batches": (Target("mape", 0.006),),
    "held-out count": (Target("mape", 0.02),),
    "8 configurations": (Target("mape", 0.06),),
    "more nodes": (Target("median", 0.10), Target("p90", 0.25)),
}
NOTES = {
    "between batches": "Every second local batch is left out at every placement, first the odd, then the "
    "even ones; the ends stay.",
    "held-out count": "One GPU count at a time is left out at every placement; its packed placements are "
    "scored.",
    "8 configurations": "Trained on eight step times of packed placements alone (synchronisation not "
    "measured apart); everything else up to four nodes is scored.",
    "more nodes": "Trained on placements of at most four nodes; 6 to 16 nodes are scored. cover80 and "
    "cover95 are the shares of steps inside the intervals.",
    CONTROL: "The step times of the training rows (four in five) are permuted among them. skill is 1 - "
    "mean absolute log error over that of the training median: it must not be above zero.",
}


def _score(truth: FloatArray, predicted: FloatArray) -> dict[str, float]:
    answered = ~np.isnan(predicted)
    error = np.abs(predicted / truth - 1)[answered]
    if not len(error):
        return {"mape": np.nan, "median": np.nan, "p90": np.nan, "answered": 0.0}
    return {
        "mape": float(error.mean()),
        "median": float(np.median(error)),
        "p90": float(np.quantile(error, 0.9)),
        "answered": float(answered.mean()),
    }


def _linear(train: StepRows, test: StepRows) -> FloatArray:
    """Least squares of the step on local batch, GPUs and whether there are several nodes."""

    def design(rows: StepRows) -> FloatArray:
        columns = [np.ones(len(rows)), rows.local, rows.gpus, rows.nodes > 1]
        return np.stack([np.asarray(c, dtype=np.float64) for c in columns], axis=1)

    weights = np.linalg.lstsq(design(train), train.step_s, rcond=None)[0]
    return np.maximum(design(test) @ weights, 1e-4)


def _table(train: StepRows, test: StepRows) -> FloatArray:
    """Return what the planner's table of measured rows answers without any model; NaN where it abstains."""
    from ymir_opt.domain.snapshot import ThroughputRow
    from ymir_opt.estimates.protocols import ThroughputKey
    from ymir_opt.estimates.throughput import ThroughputTable

    fewest = train.take(train.packed) if train.packed.any() else train
    table = ThroughputTable(
        ThroughputRow(
            foundation_model="m", gpu_type="g", gpus=int(n), batch_size=int(n * b), samples_per_s=n * b / s
        )
        for n, b, s in zip(fewest.gpus, fewest.local, fewest.step_s, strict=True)
    )
    batch = test.gpus * test.local
    rate, _, _ = table.lookup(ThroughputKey("m", None, ""), "g", test.gpus, batch)
    step: FloatArray = batch / rate
    return step


def _interpolated(train: StepRows, test: StepRows) -> FloatArray:
    """Linear in the batch at the same placement class (nodes and GPUs); nearest class otherwise."""
    result = np.empty(len(test))
    classes = np.unique(np.stack([train.nodes, train.gpus], axis=1), axis=0)
    for nodes, gpus in np.unique(np.stack([test.nodes, test.gpus], axis=1), axis=0):
        near = classes[np.argmin(10.0 * np.abs(classes[:, 0] - nodes) + np.abs(classes[:, 1] - gpus))]
        at = train.take((train.nodes == near[0]) & (train.gpus == near[1]))
        batches = np.unique(at.local)
        steps = np.array([at.step_s[at.local == b].mean() for b in batches])
        here = (test.nodes == nodes) & (test.gpus == gpus)
        result[here] = np.interp(test.local[here], batches, steps)
    return result


Method = Callable[[StepRows, StepRows], FloatArray]
# "rows alone" is the planner's interpolation of measured rows, which abstains beyond one doubling
BASELINES: dict[str, dict[str, Method]] = {
    "between batches": {"linear interpolation": _interpolated, "linear regression": _linear},
    "held-out count": {"rows alone": _table, "linear regression": _linear},
    "8 configurations": {"rows alone": _table, "linear regression": _linear},
    "more nodes": {"rows alone": _table, "linear regression": _linear},
}


def profiled(rows: StepRows) -> NDArray[np.int64]:
    """Return the rows of :data:`DESIGN` (first packed placement, nearest measured batch)."""
    batches = np.unique(rows.local)
    chosen = []
    for gpus, share in DESIGN:
        batch = batches[round(share * (len(batches) - 1))]
        chosen.append(np.flatnonzero(rows.packed & (rows.gpus == gpus) & (rows.local == batch))[0])
    return np.array(chosen)


def _folds(split: str, rows: StepRows, more: StepRows) -> Iterator[tuple[StepRows, StepRows]]:
    if split == "between batches":
        inner = np.unique(rows.local)[1:-1]
        for part in (inner[::2], inner[1::2]):
            out = np.isin(rows.local, part)
            yield rows.take(~out), rows.take(out)
    elif split == "held-out count":
        for count in np.unique(rows.gpus[rows.packed]):
            out = rows.gpus == count
            yield rows.take(~out), rows.take(out & rows.packed)
    elif split == "8 configurations":
        chosen = profiled(rows)
        rest = np.ones(len(rows), dtype=np.bool_)
        rest[chosen] = False
        yield rows.take(chosen).without_sync(), rows.take(rest)
    else:
        yield rows, more


def evaluate(folder: Path, *, quick: bool = False) -> list[Row]:
    """Return one row for every split and table, and one over all tables.

    Parameters
    ----------
    folder : Path
        Titan's data, with ``lut/<GPU type>/<model>_placements.csv`` and ``_scalability.csv``.
    quick : bool
        The first table alone.
    """
    names = titan_models(folder)[: 1 if quick else None]
    tables = [(g, m, titan_rows(folder, g, m), titan_rows(folder, g, m, scaled=True)) for g, m in names]
    rows: list[Row] = []
    for split in SPLITS:
        covers: list[FloatArray] = []
        pooled: dict[str, list[FloatArray]] = {}
        for gpu_type, model, steps, more in tables:
            key = Key(model, None, "", gpu_type)
            truth: list[FloatArray] = []
            found: dict[str, list[FloatArray]] = {}
            for train, test in _folds(split, steps, more):
                truth.append(test.step_s)
                fitted = fit_step(key, train)
                found.setdefault("", []).append(predict(fitted, test))
                if split == "more nodes":
                    covers.append(_covered(calibrate(key, train, fitted), test))
                for name, method in BASELINES[split].items():
                    found.setdefault(name, []).append(method(train, test))
            actual = np.concatenate(truth)
            all_found = {name: np.concatenate(parts) for name, parts in found.items()}
            pooled.setdefault("truth", []).append(actual)
            for name, values in all_found.items():
                pooled.setdefault(name, []).append(values)
            rows.append(_row(split, f"{model} on {gpu_type}", actual, all_found, covers[-1:]))
        actual = np.concatenate(pooled.pop("truth"))
        rows.append(_row(split, "all", actual, {n: np.concatenate(v) for n, v in pooled.items()}, covers))
    return [*rows, _control(tables)]


def _control(tables: list[tuple[str, str, StepRows, StepRows]]) -> Row:
    """Return what is learnt from shuffled step times: nothing, if the evaluation is honest."""
    rng = np.random.default_rng(0)
    ours: list[FloatArray] = []
    constant: list[FloatArray] = []
    for gpu_type, model, rows, _ in tables:
        held = rng.permutation(len(rows)) % 5 == 0
        train, test = rows.take(~held), rows.take(held)
        order = rng.permutation(len(train))
        mixed = replace(train, step_s=train.step_s[order], sync_s=np.full(len(train), np.nan))
        found = predict(fit_step(Key(model, None, "", gpu_type), mixed), test)
        ours.append(np.abs(np.log(found / test.step_s)))
        constant.append(np.abs(np.log(np.median(train.step_s) / test.step_s)))
    error, middle = (float(np.concatenate(parts).mean()) for parts in (ours, constant))
    return Row(
        "throughput",
        CONTROL,
        "all",
        sum(map(len, ours)),
        {"log error": error, "skill": 1 - error / middle},
        {"training median": {"log error": middle}},
        (Target("skill", 0.02),),
        NOTES[CONTROL],
    )


def _covered(model: StepModel, test: StepRows) -> FloatArray:
    """Return float[k, 2]: whether each step lies in its 80 and 95 % interval."""
    predicted = predict(model, test)
    inside = []
    for level in range(2):
        low, high = model.interval(predicted, test.gpus, test.nodes, level)
        inside.append((test.step_s >= low) & (test.step_s <= high))
    return np.stack(inside, axis=1).astype(np.float64)


def _row(
    split: str, model: str, actual: FloatArray, found: dict[str, FloatArray], covers: list[FloatArray]
) -> Row:
    scores = {name: _score(actual, values) for name, values in found.items()}
    ours = scores.pop("")
    if covers:
        share = np.concatenate(covers).mean(axis=0)
        ours |= {"cover80": float(share[0]), "cover95": float(share[1])}
    return Row("throughput", split, model, len(actual), ours, scores, TARGETS[split], NOTES[split])
