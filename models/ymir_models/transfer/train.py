"""Fit what transfers do: gains on TaskWeb, work on Titan's curves and own rows, the rule for groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ymir_models.evaluation import Row
from ymir_models.registry import Fitted, TooLittleError
from ymir_models.sources import describe, describe_profiles
from ymir_models.transfer.data import FILES, read_taskweb
from ymir_models.transfer.fit import fit_gain
from ymir_models.transfer.groups import MTGNET, STANDLEY, rule_error
from ymir_models.transfer.rule_rows import group_sets
from ymir_models.transfer.work import Pairs, fit_mapping, fit_work, read_traces, titan_pairs
from ymir_opt.domain.snapshot import Profiles, Provenance, TransferRow
from ymir_opt.jobmodel import Curves

__all__ = ["KIND", "VERSION", "fit", "own_pairs"]

KIND = "transfer"
VERSION = 1
FEWEST_PAIRS = 10


def own_pairs(rows: Sequence[TransferRow], mode: str) -> Pairs:
    """Return measured rows of a profile with one source; groups are left out."""
    chosen = [
        (row.foundation_model, row.source, row.target, row.work_ratio)
        for row in rows
        if row.mode.value == mode and row.provenance is Provenance.MEASURED and isinstance(row.source, str)
    ]
    ratio = np.array([row[3] for row in chosen], dtype=np.float64)
    return Pairs(
        tuple(row[0] for row in chosen),
        tuple(str(row[1]) for row in chosen),
        tuple(row[2] for row in chosen),
        np.log(ratio),
        ratio < 1,
        np.full(len(chosen), np.nan),
    )


def _joined(parts: list[Pairs]) -> Pairs:
    return Pairs(
        tuple(name for part in parts for name in part.model),
        tuple(name for part in parts for name in part.source),
        tuple(name for part in parts for name in part.target),
        np.concatenate([part.log_ratio for part in parts]),
        np.concatenate([part.benefit for part in parts]),
        np.concatenate([part.gain for part in parts]),
    )


def fit(root: Path | None, profiles: Profiles | None) -> Fitted:
    """Fit the parts that there is data for.

    Parameters
    ----------
    root : Path or None
        Folder that holds ``taskweb``, ``titan``, ``standley``, ``mtgnet`` or some of them.
    profiles : Profiles or None
        Own measured transfers.

    Raises
    ------
    InputError
        If there is nothing to fit from.
    """
    parameters: dict[str, Any] = {"gain": None, "mapping": None, "work": {}, "rule": None}
    data: list[dict[str, Any]] = []
    heldout: list[Row] = []
    pairs: dict[str, list[Pairs]] = {"warm_start": [], "joint": []}
    if root is not None and (root / "taskweb").is_dir():
        folder = root / "taskweb"
        gain = fit_gain(read_taskweb(folder))
        parameters["gain"] = gain.to_json()
        data.append(describe("taskweb", folder, [folder / name for name in FILES]))
        for name, head in (("known task", gain.known), ("new task", gain.new)):
            widths = {"80 %": float(head.radius[0]), "95 %": float(head.radius[1])}
            heldout.append(
                Row(KIND, "half widths of the gain, targets left out", name, gain.measured.size, widths)
            )
    if root is not None and (root / "titan" / "curves").is_dir():
        folder = root / "titan"
        curves, traces = Curves.read(folder / "curves"), read_traces(folder)
        for mode, parts in pairs.items():
            parts.append(titan_pairs(curves, mode, "best single setting", traces))
        parameters["mapping"] = fit_mapping(pairs["warm_start"][0]).to_json()
        data.append(describe("titan", folder, sorted((folder / "curves").glob("*.csv"))))
    if profiles is not None:
        for mode, parts in pairs.items():
            parts.append(own_pairs(profiles.transfer, mode))
        data.append(describe_profiles(profiles))
    for mode, parts in pairs.items():
        whole = _joined(parts) if parts else None
        if whole is not None and len(whole) >= FEWEST_PAIRS:
            model = fit_work(whole)
            parameters["work"][mode] = model.to_json()
            widths = {"80 %": float(model.radius[0]), "95 %": float(model.radius[1])}
            heldout.append(
                Row(KIND, "half widths of log work ratio, pairs left out", mode, len(whole), widths)
            )
    if root is not None:
        parameters["rule"] = _rule(root, pairs["joint"], data)
    if not data or not (parameters["gain"] or parameters["work"]):
        raise TooLittleError(KIND, "has no transfers to fit from", "name a folder with taskweb or titan")
    return Fitted(
        kind=KIND,
        version=VERSION,
        parameters=parameters,
        source={"data": data},
        purpose="Whether and how much starting from another task's weights, or joint training with it, "
        "changes the work of a task.",
        method="Gains in accuracy (TaskWeb): ridge regressions on the history of a source with other "
        "targets, pair scores by a language model and by retrieval, and similarity of tasks; a logistic "
        "one for the probability of a benefit. Work ratios: additive effects of model, source and target on "
        "the logarithm, from Titan's curves against the best single setting and own rows. A gain becomes a "
        "work ratio only through a regression fitted on Titan's curves, whose own error enters the interval.",
        heldout=tuple(heldout),
        limits=(
            "TaskWeb is accuracy after 1 000 samples, and says nothing of time to target by itself.",
            "In Titan's transfer curves the setting was not recorded: part of a work ratio below 1 may be "
            "better hyper-parameters.",
            "For a target never measured with the model, work ratios have next to no skill: the model "
            "abstains, or answers through the gain with a wide interval.",
            "Foundation models of TaskWeb's settings are our reading of its abbreviations.",
            "Groups above two: mean of the pairs, its error measured on losses and scaled to work.",
        ),
    )


def _rule(root: Path, joint: list[Pairs], data: list[dict[str, Any]]) -> dict[str, float] | None:
    """Return the error of the rule for groups above two: in log loss, and as a share of the effect."""
    sets = group_sets(root)
    if not sets:
        return None
    found = [rule_error(groups) for groups in sets]
    for name, files in (("standley", STANDLEY), ("mtgnet", [f for _, *pair in MTGNET for f in pair])):
        if (root / name).is_dir():
            data.append(describe(name, root / name, [root / name / file for file in files]))
    relative = float(np.median([f.relative for f in found]))
    size = float(np.sqrt(np.mean(np.concatenate([p.log_ratio for p in joint]) ** 2))) if joint else 1.0
    return {
        "log_loss_spread": float(np.sqrt(np.mean([f.spread**2 for f in found]))),
        "relative": relative,
        "log_work_spread": relative * size,
    }
