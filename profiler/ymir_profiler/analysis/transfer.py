"""Measured transfer: paired by seed and test row, with intervals and the smallest effect one could see."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ymir_opt.domain.documents import canonical_json
from ymir_profiler.store.store import Record

__all__ = ["Crossing", "Transfer", "crossing", "target_value", "transfers"]

FloatArray = NDArray[np.float64]
ROUNDING = 1e-9


@dataclass(frozen=True)
class Crossing:
    """Samples to a target; ``censored`` where the run ended (at ``samples``) without reaching it."""

    samples: float
    censored: bool


@dataclass(frozen=True)
class Transfer:
    """One pair's measured effect on the target.

    Attributes
    ----------
    mode : str
        ``warm_start`` or ``joint``.
    foundation_model, source, target : str
    seeds : int
        Pairs of runs, with and without the source, alike in all else.
    gain, gain_low, gain_high : float
        Difference of the final metric (a fraction), with its 95 % interval.
    minimal_detectable_effect : float
        The true gain that this design would find significant (5 %) four times in five.
    work_ratio, low, high : float or None
        Geometric mean of samples to the target with over without, and its 80 % interval; None where no
        seed tells (neither run reached the target).
    p_benefit : float or None
        Probability that the ratio is below one.
    target_value : float
    censored : tuple of int
        Runs that did not reach the target: without, with the source. Such a run counts with its last
        sample: a bound on the truth, not the truth.
    """

    mode: str
    foundation_model: str
    source: str
    target: str
    seeds: int
    gain: float
    gain_low: float
    gain_high: float
    minimal_detectable_effect: float
    work_ratio: float | None
    low: float | None
    high: float | None
    p_benefit: float | None
    target_value: float
    censored: tuple[int, int]

    @property
    def detected(self) -> bool:
        """Whether the gain is above the minimal detectable effect."""
        return self.gain > self.minimal_detectable_effect


def crossing(points: Sequence[Mapping[str, float]], target: float) -> Crossing:
    """Return the samples at which a curve first reaches a target.

    Between two evaluations the metric is taken as linear in the logarithm of the samples.

    Parameters
    ----------
    points : sequence of mapping
        With ``samples`` and ``metric``, growing in samples.
    target : float
    """
    before: Mapping[str, float] | None = None
    for point in points:
        if point["metric"] >= target - ROUNDING:
            if before is None or point["metric"] <= before["metric"]:
                return Crossing(float(point["samples"]), censored=False)
            share = (target - before["metric"]) / (point["metric"] - before["metric"])
            a, b = math.log(before["samples"]), math.log(point["samples"])
            return Crossing(math.exp(a + share * (b - a)), censored=False)
        before = point
    return Crossing(float(points[-1]["samples"]), censored=True)


def target_value(final: Sequence[float], majority: float, fraction: float) -> float:
    """Return the target: the majority's share plus a fraction of what a task alone gains over it."""
    return majority + fraction * max(float(np.mean(final)) - majority, 0.0)


Bits = NDArray[np.float64]


def _bits(text: str) -> Bits:
    return np.array([float(bit) for bit in text])


@dataclass(frozen=True)
class _Pair:
    mode: str
    foundation_model: str
    source: str
    target: str
    differences: FloatArray
    """Shape (seeds, rows): correct with the source less correct without."""
    curves: tuple[tuple[Sequence[Mapping[str, float]], Sequence[Mapping[str, float]]], ...]
    target_value: float


def _conditions(subject: Mapping[str, Any], *, without: tuple[str, ...]) -> str:
    return canonical_json({key: value for key, value in subject.items() if key not in without})


def _solo_key(model: str, subject: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    dropped = ("mode", "source", "target", "members", "source_samples")
    return f"{model}|{canonical_json(dict(target))}|{_conditions(subject, without=dropped)}"


def _collect(records: Sequence[Record], fraction: float) -> list[_Pair]:
    solo: dict[str, Record] = {}
    finals: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.subject["mode"] == "solo" and record.status == "ok":
            target = record.subject["target"]
            solo[_solo_key(record.foundation_model, record.subject, target)] = record
            finals[_any_seed(record, target)].append(_curve(record, target["task"])[-1]["metric"])
    grouped: dict[tuple[str, str, str, str, str], list[tuple[Record, Record]]] = defaultdict(list)
    for record in records:
        if record.subject["mode"] == "solo" or record.status != "ok":
            continue
        for source, target in _directions(record.subject):
            alone = solo.get(_solo_key(record.foundation_model, record.subject, target))
            if alone is not None:
                any_seed = _any_seed(record, target)
                key = (
                    record.subject["mode"],
                    record.foundation_model,
                    source["task"],
                    target["task"],
                    any_seed,
                )
                grouped[key].append((alone, record))
    pairs = []
    for (mode, model, source_name, target_name, any_seed), found in sorted(grouped.items()):
        found.sort(key=lambda both: both[1].subject["seed"])
        rows = [
            _bits(b.value["curves"][target_name]["correct"])
            - _bits(a.value["curves"][target_name]["correct"])
            for a, b in found
        ]
        majority = float(found[0][0].value["curves"][target_name]["majority"])
        pairs.append(
            _Pair(
                mode,
                model,
                source_name,
                target_name,
                np.stack(rows),
                tuple((_curve(a, target_name), _curve(b, target_name)) for a, b in found),
                target_value(finals[any_seed], majority, fraction),
            )
        )
    return pairs


def _any_seed(record: Record, target: Mapping[str, Any]) -> str:
    subject = {key: value for key, value in record.subject.items() if key != "seed"}
    return _solo_key(record.foundation_model, subject, target)


def _curve(record: Record, task: str) -> Sequence[Mapping[str, float]]:
    points: Sequence[Mapping[str, float]] = record.value["curves"][task]["points"]
    return points


def _directions(subject: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    if subject["mode"] == "warm_start":
        return [(subject["source"], subject["target"])]
    a, b = subject["members"]
    return [(a, b), (b, a)]


def _work(pair: _Pair) -> tuple[float | None, float | None, float | None, float | None, tuple[int, int]]:
    logs = []
    censored = [0, 0]
    for without, with_source in pair.curves:
        a, b = crossing(without, pair.target_value), crossing(with_source, pair.target_value)
        censored[0] += a.censored
        censored[1] += b.censored
        if not (a.censored and b.censored):
            logs.append(math.log(b.samples / a.samples))
    counts = (censored[0], censored[1])
    if not logs:
        return None, None, None, None, counts
    mean = float(np.mean(logs))
    if len(logs) < 2:
        return math.exp(mean), None, None, None, counts
    # curves are evaluated at few points: their spread is no less than a small step
    error = max(float(np.std(logs, ddof=1)), 0.05) / math.sqrt(len(logs))
    reach = float(stats.t.ppf(0.9, len(logs) - 1)) * error
    chance = float(stats.t.cdf(-mean / error, len(logs) - 1))
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), chance, counts


def transfers(records: Sequence[Record], fraction: float = 0.9) -> list[Transfer]:
    """Return the measured effect of every pair of which runs with and without the source are there.

    The gain's variance is the sum of that over seeds, divided by their number, and that over test rows,
    divided by theirs: both are drawn, and the sum is on the safe side. With few seeds the variance over
    them is itself uncertain, so it is pooled over the pairs of one mode and model, and t-quantiles with
    the pooled degrees of freedom are used.

    Parameters
    ----------
    records : sequence of Record
        Of kind ``run``; others are ignored.
    fraction : float
        Of the task's own gain over the majority class, as the target of the work ratio.
    """
    pairs = _collect([record for record in records if record.kind == "run"], fraction)
    pooled: dict[tuple[str, str], tuple[float, int]] = {}
    for pair in pairs:
        if len(pair.differences) > 1:
            total, freedom = pooled.get((pair.mode, pair.foundation_model), (0.0, 0))
            means = pair.differences.mean(axis=1)
            total += float(((means - means.mean()) ** 2).sum())
            pooled[pair.mode, pair.foundation_model] = (total, freedom + len(means) - 1)
    found = []
    for pair in pairs:
        seeds, rows = pair.differences.shape
        gain = float(pair.differences.mean())
        total, freedom = pooled.get((pair.mode, pair.foundation_model), (0.0, 0))
        if freedom:
            of_rows = float(pair.differences.mean(axis=0).var(ddof=1)) / rows
            error = math.sqrt(total / freedom / seeds + of_rows)
            significant = float(stats.t.ppf(0.975, freedom))
            reach = significant * error
            smallest = (significant + float(stats.t.ppf(0.8, freedom))) * error
        else:
            # one seed tells nothing about the spread over seeds
            reach = smallest = math.inf
        ratio, low, high, chance, censored = _work(pair)
        found.append(
            Transfer(
                pair.mode,
                pair.foundation_model,
                pair.source,
                pair.target,
                seeds,
                gain,
                gain - reach,
                gain + reach,
                smallest,
                ratio,
                low,
                high,
                chance,
                pair.target_value,
                censored,
            )
        )
    return found
