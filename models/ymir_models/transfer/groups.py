"""Joint training of more than two tasks from measured pairs, and how wrong that rule is.

The rule: the logarithm of a member's ratio in a group is the mean over the other members of its logarithm
in the pair. Judged on groups whose pairs were also measured; the figures are losses, not work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_models.sources import require_folder
from ymir_opt.domain.errors import InputError

__all__ = ["GroupSet", "RuleError", "judge_rule", "mtgnet_sets", "rule_error", "standley_sets"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

STANDLEY = (
    "results.tsv",
    "results_test.tsv",
    "results_large.tsv",
    "results_alt.tsv",
    "results_small_data.tsv",
)
MTGNET = (
    ("ETTm1", "ETT_ETTm1_x.csv", "ETT_ETTm1_y.csv"),
    ("Taskonomy", "taskonomy_taskonomy_x.csv", "taskonomy_taskonomy.csv"),
    ("MIMIC-III", "mimic27_mimic_x.csv", "mimic27_mimic_y_test.csv"),
)
LEAST = 0.05
"""Losses are taken as at least this share of the loss alone."""


@dataclass(frozen=True)
class GroupSet:
    """Groups with the loss of every member over its loss alone.

    Attributes
    ----------
    name : str
    member : bool[g, n]
    log_ratio : float64[g, n]
        NaN where a task is not in the group.
    """

    name: str
    member: BoolArray
    log_ratio: FloatArray


@dataclass(frozen=True)
class RuleError:
    """Error of the rule over members of groups above two.

    Attributes
    ----------
    cases : int
    spread, bias : float
        Root mean square and mean of measured less predicted log ratio.
    relative : float
        `spread` over the root mean square of the measured log ratios: 1 is no better than saying nothing.
    error, nothing, half : float
        Mean absolute error of the rule, of saying 0, and of half the rule.
    """

    cases: int
    spread: float
    bias: float
    relative: float
    error: float
    nothing: float
    half: float


def standley_sets(folder: Path) -> list[GroupSet]:
    """Return Taskonomy's five tasks in every group, for several sizes and losses.

    The first line (single tasks at half cost) is left out; alone is the single-task network.
    """
    sets = []
    for name in STANDLEY:
        path = require_folder(folder, name) / name
        rows = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            cells = (line.split("\t") + [""] * 5)[:5]
            try:
                rows.append([float(cell) if cell.strip() else np.nan for cell in cells])
            except ValueError:
                raise InputError(f"{path}: line {number}", "is not numbers", "get the file again") from None
        loss = np.array(rows)[1:]
        member = np.isfinite(loss)
        size = member.sum(axis=1)
        alone = np.array([loss[(size == 1) & member[:, t], t][0] for t in range(5)])
        groups = size > 1
        sets.append(GroupSet(f"standley {name[:-4]}", member[groups], np.log(loss[groups] / alone)))
    return sets


def mtgnet_sets(folder: Path) -> list[GroupSet]:
    """Return MTG-Net's three collections; a gain g is a loss of 1 - g of the loss alone."""
    sets = []
    for name, members, gains in MTGNET:
        require_folder(folder, members, gains)
        comma = "," if name == "Taskonomy" else None
        member = np.loadtxt(folder / members, delimiter=comma) > 0
        gain = np.loadtxt(folder / gains)
        ratio = np.log(np.maximum(1 - gain, LEAST))
        sets.append(GroupSet(f"mtgnet {name}", member, np.where(member, ratio, np.nan)))
    return sets


def judge_rule(groups: GroupSet) -> tuple[FloatArray, FloatArray]:
    """Return the rule's and the measured log ratios of members of groups above two with known pairs."""
    n = groups.member.shape[1]
    pair = np.full((n, n), np.nan)
    size = groups.member.sum(axis=1)
    for row in np.flatnonzero(size == 2):
        a, b = np.flatnonzero(groups.member[row])
        pair[a, b], pair[b, a] = groups.log_ratio[row, a], groups.log_ratio[row, b]
    predicted, measured = [], []
    for row in np.flatnonzero(size > 2):
        inside = np.flatnonzero(groups.member[row])
        table = pair[np.ix_(inside, inside)]
        np.fill_diagonal(table, 0.0)
        found = table.sum(axis=1) / (len(inside) - 1)
        known = np.isfinite(found)
        predicted.append(found[known])
        measured.append(groups.log_ratio[row, inside[known]])
    return np.concatenate(predicted), np.concatenate(measured)


def rule_error(groups: GroupSet) -> RuleError:
    """Return how wrong the rule is on one collection."""
    predicted, measured = judge_rule(groups)
    error = measured - predicted
    spread = float(np.sqrt(np.mean(error**2)))
    return RuleError(
        len(error),
        spread,
        float(error.mean()),
        spread / float(np.sqrt(np.mean(measured**2))),
        float(np.abs(error).mean()),
        float(np.abs(measured).mean()),
        float(np.abs(measured - predicted / 2).mean()),
    )
