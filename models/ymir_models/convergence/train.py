"""Fit the hazard of reaching a target on Titan's curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ymir_models.convergence.data import NEVER, POINTS, cases, titan_curves
from ymir_models.convergence.fit import Table, calibrated, conditional, fit_hazard, table
from ymir_models.evaluation import Row
from ymir_models.registry import Fitted
from ymir_models.sources import describe
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import Profiles

__all__ = ["KIND", "VERSION", "fit"]

KIND = "convergence"
VERSION = 1


def fit(root: Path | None, profiles: Profiles | None) -> Fitted:
    """Fit on the single-task curves.

    Parameters
    ----------
    root : Path or None
        Folder that holds ``titan``.
    profiles : Profiles or None
        Not used: profiles hold no curves.

    Raises
    ------
    InputError
        Without `root`.
    """
    if root is None:
        raise InputError(KIND, "is fitted on learning curves, not on profiles", "name --data DIR")
    folder = root / "titan"
    curves = titan_curves(folder)
    rows = table(curves)
    model = calibrated(fit_hazard(rows), curves, rows)
    names = np.unique(curves.task)
    held = []
    for seen in (3, 5, 7):
        some = cases(curves, seen, absolute=False)
        error = np.full(len(some.curve), np.nan)
        for k in range(5):
            out = names[k::5]
            keep = ~np.isin(rows.task, out)
            trained = fit_hazard(Table(rows.design[keep], rows.reached[keep], rows.task[keep]))
            here = np.isin(curves.task[some.curve], out) & (some.reached < NEVER)
            survival = trained.survival(curves.values[some.curve[here], :seen], some.target[here], POINTS)
            error[here] = np.abs(seen + 1 + (conditional(survival) < 0.5).sum(axis=1) - some.reached[here])
        metrics = {"mean absolute error, epochs": float(np.nanmean(error))}
        held.append(Row(KIND, "five folds over tasks", f"after {seen} epochs", len(error), metrics))
    return Fitted(
        kind=KIND,
        version=VERSION,
        parameters=model.to_json(),
        source={"data": [describe("titan", folder, [folder / "curves" / "normal_hpo_curves.csv"])]},
        purpose="Samples to a target from a running job's evaluations, with limits and the probability that "
        "the target is reached; asked again after every evaluation.",
        method="Discrete-time hazard of first reaching the target (interval-censored inside an evaluation, "
        "right-censored at the end), logistic in scale-free features of the curve: gap to the target, gains, "
        "setbacks, and where a power law and the last gain would reach it. Limits are recalibrated on tasks "
        "left out.",
        heldout=tuple(held),
        limits=(
            "Trained on ten-epoch curves of fine-tuning runs, with targets of 95 to 99.5 % of a best metric.",
            "Abstains before the second evaluation; evaluations are taken to be evenly spaced.",
            "Beyond 3.4 times the samples seen the hazard is held constant: a guess, not a fit.",
            "Samples and limits hold given that the target is reached; `p_reached` says how likely that is.",
        ),
    )
