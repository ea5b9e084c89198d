"""How well cheap scores order pairs, beside what they cost."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ymir_profiler.analysis.transfer import Transfer
from ymir_profiler.store.store import Record

__all__ = ["Skill", "skills"]

RESAMPLES = 2000


@dataclass(frozen=True)
class Skill:
    """One score's rank correlation with the measured gain.

    Attributes
    ----------
    score, mode : str
    pairs : int
    correlation : float or None
        Spearman's; None with fewer than three pairs or a constant score.
    low, high : float or None
        95 % interval by bootstrap over pairs.
    within_target : float or None
        Mean over targets, with three sources or more, of the correlation among their sources: choosing a
        source is what a scheduler does.
    cost_s : float
        Mean CPU seconds a pair.
    """

    score: str
    mode: str
    pairs: int
    correlation: float | None
    low: float | None
    high: float | None
    within_target: float | None
    cost_s: float


def _spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return float(stats.spearmanr(x, y).statistic)


def skills(records: Sequence[Record], measured: Sequence[Transfer]) -> list[Skill]:
    """Return every score's skill for every mode, the best first.

    Parameters
    ----------
    records : sequence of Record
        Of kind ``score``; others are ignored.
    measured : sequence of Transfer
    """
    gains = {(t.mode, t.foundation_model, t.source, t.target): t.gain for t in measured}
    found: dict[tuple[str, str], list[tuple[str, float, float, float]]] = defaultdict(list)
    for record in records:
        if record.kind != "score" or record.value.get("score") is None:
            continue
        source, target = record.subject["source"]["task"], record.subject["target"]["task"]
        for mode in ("warm_start", "joint"):
            gain = gains.get((mode, record.foundation_model, source, target))
            if gain is not None:
                row = (target, float(record.value["score"]), gain, float(record.value["score_cpu_s"]))
                found[record.subject["score"], mode].append(row)
    out = []
    for (score, mode), rows in found.items():
        values, effects = [r[1] for r in rows], [r[2] for r in rows]
        low, high = _bootstrap(values, effects)
        by_target: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for target, value, gain, _ in rows:
            by_target[target].append((value, gain))
        within = [_spearman([v for v, _ in few], [g for _, g in few]) for few in by_target.values()]
        known = [w for w in within if w is not None]
        out.append(
            Skill(
                score,
                mode,
                len(rows),
                _spearman(values, effects),
                low,
                high,
                float(np.mean(known)) if known else None,
                float(np.mean([r[3] for r in rows])),
            )
        )
    return sorted(out, key=lambda s: (s.mode, -(s.correlation if s.correlation is not None else -2), s.score))


def _bootstrap(values: Sequence[float], effects: Sequence[float]) -> tuple[float | None, float | None]:
    if _spearman(values, effects) is None or len(values) < 5:
        return None, None
    rng = np.random.default_rng(0)
    x, y = np.asarray(values), np.asarray(effects)
    drawn = rng.integers(0, len(x), (RESAMPLES, len(x)))
    ranks_x = stats.rankdata(x[drawn], axis=1)
    ranks_y = stats.rankdata(y[drawn], axis=1)
    ranks_x -= ranks_x.mean(axis=1, keepdims=True)
    ranks_y -= ranks_y.mean(axis=1, keepdims=True)
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore")
        rho = (ranks_x * ranks_y).sum(axis=1) / np.sqrt((ranks_x**2).sum(axis=1) * (ranks_y**2).sum(axis=1))
    low, high = np.nanquantile(rho, [0.025, 0.975])
    return float(low), float(high)
