"""How wrong the pair rule is on groups that were measured: rows of the evaluation."""

from __future__ import annotations

from pathlib import Path

from ymir_models.evaluation import Row
from ymir_models.transfer.groups import GroupSet, mtgnet_sets, rule_error, standley_sets

__all__ = ["group_sets", "rule_rows"]

NOTE = (
    "Log of the loss in a group over the loss alone, members of groups above two: the mean over the pairs "
    "against what was measured. relative is the rule's root mean square error over that of saying 0; the "
    "figures are losses, not work."
)


def group_sets(root: Path) -> list[GroupSet]:
    """Return the collections that lie under a folder."""
    sets: list[GroupSet] = []
    if (root / "standley").is_dir():
        sets += standley_sets(root / "standley")
    if (root / "mtgnet").is_dir():
        sets += mtgnet_sets(root / "mtgnet")
    return sets


def rule_rows(root: Path) -> list[Row]:
    """Return one row for every collection of groups."""
    rows = []
    for groups in group_sets(root):
        found = rule_error(groups)
        metrics = {"mae": found.error, "rms": found.spread, "bias": found.bias, "relative": found.relative}
        baselines = {"no effect": {"mae": found.nothing}, "half the rule": {"mae": found.half}}
        split = "groups above two from pairs"
        rows.append(Row("transfer", split, groups.name, found.cases, metrics, baselines, note=NOTE))
    return rows
