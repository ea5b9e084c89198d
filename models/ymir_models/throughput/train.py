"""Fit step models from Titan's tables and own profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ymir_models.evaluation import Row
from ymir_models.registry import Fitted, TooLittleError
from ymir_models.sources import describe, describe_profiles
from ymir_models.throughput.data import StepRows, profile_rows, titan_memory, titan_models, titan_rows
from ymir_models.throughput.fit import Key, calibrate, fit_step, predict
from ymir_opt.domain.snapshot import Profiles

__all__ = ["KIND", "VERSION", "fit"]

KIND = "throughput"
VERSION = 1
FEWEST_ROWS = 4
TITAN_PEFT_TYPE = "FULL"


def fit(root: Path | None, profiles: Profiles | None) -> Fitted:
    """Fit one step model for every (model, PEFT type, configuration, GPU type) with enough rows.

    Parameters
    ----------
    root : Path or None
        Folder that holds ``titan``.
    profiles : Profiles or None
        Own measurements; where both know a key, these win.
    """
    models: dict[Key, Any] = {}
    heldout: dict[Key, Row] = {}
    data = []
    if root is not None:
        folder = root / "titan"
        files = []
        for gpu_type, model in titan_models(folder):
            key = Key(model, TITAN_PEFT_TYPE, "", gpu_type)
            rows, more = (titan_rows(folder, gpu_type, model, scaled=s) for s in (False, True))
            everything = _joined(rows, more)
            memory = titan_memory(folder, gpu_type, model)
            models[key] = calibrate(key, everything, fit_step(key, everything, memory))
            heldout[key] = _heldout(key, everything)
            files += [
                p for p in (folder / "lut" / gpu_type).glob(f"{model}_*.csv") if "sharing" not in p.name
            ]
        data.append(describe("titan", folder, files))
    if profiles is not None:
        for (fm, peft, config, gpu_type), (rows, batch, gib) in profile_rows(profiles.throughput).items():
            key = Key(fm, peft, config, gpu_type, node_gpus=_node_gpus(rows))
            if len(rows) >= FEWEST_ROWS:
                models[key] = calibrate(key, rows, fit_step(key, rows, (batch, gib)))
        data.append(describe_profiles(profiles))
    if not models:
        raise TooLittleError(
            KIND, f"no model has {FEWEST_ROWS} measured throughput rows", "measure more, or name --data DIR"
        )
    return Fitted(
        kind=KIND,
        version=VERSION,
        parameters={"models": [model.to_json() for model in models.values()]},
        source={"data": data},
        purpose="Samples/s and memory of one fine-tuning job, by foundation model, GPU type, GPU count and "
        "global batch, where no measured row answers.",
        method="Pollux's step-time form (compute linear in the local batch; synchronisation inside a node "
        "and between nodes, linear in the GPUs; an overlap exponent), fitted by weighted least squares on "
        "the logarithm of step times, then corrected by shrunk mean residuals at every batch and count. "
        "Intervals are conformal over held-out counts.",
        heldout=tuple(heldout.values()),
        limits=(
            "Answers only for exactly the model, PEFT type, configuration and GPU type that were measured.",
            "Abstains beyond twice the largest measured GPU count, below the smallest local batch, and on "
            "several GPUs or nodes where none of the rows was.",
            "GPU counts are packed on nodes of the size that was measured.",
            "Titan's tables follow one smooth law with uniform noise of 0.5 % (up to four nodes) and 5 % "
            "(more): figures on them are near that noise and flatter any model of the right form.",
        ),
    )


def _joined(first: StepRows, second: StepRows) -> StepRows:
    names = first.__dataclass_fields__
    return StepRows(*(np.concatenate([getattr(first, n), getattr(second, n)]) for n in names))


def _node_gpus(rows: StepRows) -> int:
    """Return the GPUs of a node as the rows show them (8 where no row spans nodes)."""
    several = rows.nodes > 1
    if not several.any():
        return max(8, int(rows.gpus.max()))
    return int(np.max(-(-rows.gpus[several] // rows.nodes[several])))


def _heldout(key: Key, rows: StepRows) -> Row:
    """Return the error with every fifth batch-and-count combination left out."""
    fold = (
        np.searchsorted(np.unique(rows.local), rows.local) + np.searchsorted(np.unique(rows.gpus), rows.gpus)
    ) % 5
    error = np.empty(len(rows))
    for k in range(5):
        out = fold == k
        error[out] = np.abs(predict(fit_step(key, rows.take(~out)), rows.take(out)) / rows.step_s[out] - 1)
    metrics = {"mape": float(error.mean()), "p90": float(np.quantile(error, 0.9))}
    name = f"{key.foundation_model} on {key.gpu_type}"
    return Row(KIND, "five folds over batch and count", name, len(rows), metrics)
