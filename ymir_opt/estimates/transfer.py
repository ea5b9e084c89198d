"""Work ratios of warm starts and joint training from the rows of a snapshot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ymir_opt.domain.snapshot import Provenance, TransferMode, TransferRow
from ymir_opt.estimates.protocols import Z80, Predictor, WorkRatio, benefit_probability

__all__ = ["JOINT_RULE_LOG_SD", "TransferTable"]

# Standard deviation of log(measured / geometric mean of pairs) for groups above two.
JOINT_RULE_LOG_SD = 0.10


def _of_row(row: TransferRow) -> WorkRatio:
    low = row.low if row.low is not None else row.work_ratio
    high = row.high if row.high is not None else row.work_ratio
    p = row.p_benefit if row.p_benefit is not None else benefit_probability(row.work_ratio, low, high)
    return WorkRatio(row.work_ratio, low, high, p, row.provenance is Provenance.PREDICTED)


class TransferTable:
    """Answers by (foundation model, sources, target); None where nothing is known."""

    def __init__(
        self, rows: Iterable[TransferRow], predictor: Predictor | None = None, *, pair_rule: bool = True
    ) -> None:
        self._predictor = predictor
        self._pair_rule = pair_rule
        # fitted models know the rule's error in work ratios; the constant is that of published losses
        self._rule_error: float = getattr(predictor, "rule_spread", None) or JOINT_RULE_LOG_SD
        self._warm: dict[tuple[str, str, str], TransferRow] = {}
        self._joint: dict[tuple[str, tuple[str, ...], str], TransferRow] = {}
        for row in rows:
            if row.mode is TransferMode.WARM_START:
                if isinstance(row.source, str):
                    self._better(self._warm, (row.foundation_model, row.source, row.target), row)
            else:
                others = (row.source,) if isinstance(row.source, str) else row.source
                self._better(self._joint, (row.foundation_model, tuple(sorted(others)), row.target), row)
        self._cache: dict[tuple[str, tuple[str, ...], str], WorkRatio | None] = {}
        self._warm_cache: dict[tuple[str, str, str], WorkRatio | None] = {}
        self._logs: dict[tuple[str, str, str], tuple[float, float] | None] = {}

    @staticmethod
    def _better(table: dict[Any, TransferRow], key: Any, row: TransferRow) -> None:
        def rank(r: TransferRow) -> tuple[bool, bool]:
            # measured before predicted, matched hyper-parameters before confounded ones
            return (r.provenance is Provenance.PREDICTED, not r.matched_hyperparameters)

        if key not in table or rank(row) < rank(table[key]):
            table[key] = row

    def measured_together(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return (foundation model, tasks) of every joint row of three or more tasks."""
        return tuple((fm, (*others, target)) for fm, others, target in sorted(self._joint) if len(others) > 1)

    def warm_start(self, foundation_model: str, source: str, target: str) -> WorkRatio | None:
        """Return the ratio of ``target``'s work when it starts from ``source`` (task or adapter)."""
        key = (foundation_model, source, target)
        if key not in self._warm_cache:
            row, found = self._warm.get(key), None
            if row is not None:
                found = _of_row(row)
            elif self._predictor is not None:
                found = self._predictor.warm_start(*key)
            self._warm_cache[key] = found
        return self._warm_cache[key]

    def joint(self, foundation_model: str, others: Sequence[str], target: str) -> WorkRatio | None:
        """Return the ratio of ``target``'s work when it is trained together with ``others``.

        The row whose source equals the others; else, for groups above two, the geometric mean of
        the pairs, marked predicted, its interval widened by the rule's own error.
        """
        key = (foundation_model, tuple(sorted(others)), target)
        if key not in self._cache:
            self._cache[key] = self._find_joint(*key)
        return self._cache[key]

    def _find_joint(self, fm: str, others: tuple[str, ...], target: str) -> WorkRatio | None:
        row = self._joint.get((fm, others, target))
        if row is not None:
            return _of_row(row)
        if len(others) == 1:
            return self._predictor.joint(fm, others, target) if self._predictor is not None else None
        if not self._pair_rule:
            return None
        known = []
        for other in others:
            logs = self._pair(fm, other, target)
            if logs is None:
                return self._predictor.joint(fm, others, target) if self._predictor is not None else None
            known.append(logs)
        log_ratio = sum(log for log, _ in known) / len(known)
        spread = [half for _, half in known]
        half = math.sqrt(sum(s * s for s in spread) / len(spread) + (Z80 * self._rule_error) ** 2)
        ratio, low, high = math.exp(log_ratio), math.exp(log_ratio - half), math.exp(log_ratio + half)
        return WorkRatio(ratio, low, high, benefit_probability(ratio, low, high), True)

    def _pair(self, fm: str, other: str, target: str) -> tuple[float, float] | None:
        """Return log(ratio) and half the log-width of the interval of a pair, remembered."""
        key = (fm, other, target)
        if key not in self._logs:
            pair, logs = self.joint(fm, (other,), target), None
            if pair is not None:
                logs = (math.log(pair.ratio), (math.log(pair.high) - math.log(pair.low)) / 2)
            self._logs[key] = logs
        return self._logs[key]
