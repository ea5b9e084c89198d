"""Measured transfer: pairing, intervals that cover, censoring, scores' skill, the next pair."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from profiler_kit import about, bits, run_record
from ymir_profiler.analysis.active import Chooser
from ymir_profiler.analysis.skill import skills
from ymir_profiler.analysis.transfer import Crossing, crossing, target_value, transfers
from ymir_profiler.store.store import Record

CURVE = [{"samples": 32, "metric": 0.3}, {"samples": 64, "metric": 0.5}, {"samples": 128, "metric": 0.7}]


def test_crossing_is_interpolated_in_the_logarithm_and_censored_at_the_end() -> None:
    assert crossing(CURVE, 0.6) == Crossing(pytest.approx(64 * math.sqrt(2)), censored=False)
    assert crossing(CURVE, 0.1) == Crossing(32, censored=False)
    assert crossing(CURVE, 0.9) == Crossing(128, censored=True)
    assert target_value([0.7, 0.9], 0.2, 0.5) == pytest.approx(0.5)
    assert target_value([0.1], 0.2, 0.5) == pytest.approx(0.2)


def records(effect: float, rng: np.random.Generator, seeds: int = 3) -> list[Record]:
    """Return runs alone and after a source; rows differ in difficulty, seeds in luck."""
    found = []
    difficulty = rng.normal(0, 0.8, 400)
    for seed in range(seeds):
        for mode, shift, source in (("solo", 0.0, None), ("warm_start", effect, "s")):
            luck = rng.normal(0, 0.015)
            chance = np.clip(0.6 + shift + luck + 0.2 * np.tanh(difficulty), 0, 1)
            correct = "".join("1" if u < c else "0" for u, c in zip(rng.random(400), chance, strict=True))
            share = correct.count("1") / 400
            found.append(run_record(mode, "t", seed, [0.3, 0.4, share], correct, source))
    return found


def test_intervals_cover_the_truth_and_the_detectable_effect_is_honest() -> None:
    rng = np.random.default_rng(0)
    covered = detected = 0
    for _ in range(150):
        (found,) = transfers(records(0.0, rng))
        covered += found.gain_low <= 0.0 <= found.gain_high
        smallest = found.minimal_detectable_effect
        (strong,) = transfers(records(smallest, rng))
        detected += strong.gain_low > 0
    assert covered / 150 >= 0.93
    # the promise is 80 %; the variance is estimated on the safe side
    assert detected / 150 >= 0.7


def test_pairs_need_the_same_seed_and_the_same_conditions() -> None:
    rng = np.random.default_rng(1)
    good = "1" * 400
    alone = run_record("solo", "t", 0, [0.5, 0.8], bits(rng, 0.8))
    after = run_record("warm_start", "t", 1, [0.5, 1.0], good, "s")
    assert transfers([alone, after]) == []
    other = {**after.subject, "seed": 0, "batch_size": 16}
    changed = Record("run", "fm", other, after.value, machine={})
    assert transfers([alone, changed]) == []
    failed = Record("run", "fm", {**after.subject, "seed": 0}, after.value, status="non-finite")
    assert transfers([alone, failed]) == []


def test_work_ratio_counts_what_was_censored_instead_of_dropping_it() -> None:
    runs = []
    for seed in range(3):
        runs.append(run_record("solo", "t", seed, [0.3, 0.4, 0.8], "1" * 320 + "0" * 80))
        never = seed == 2
        metrics = [0.3, 0.3, 0.3] if never else [0.8, 0.8, 0.8]
        runs.append(run_record("warm_start", "t", seed, metrics, "1" * 320 + "0" * 80, "s"))
    (found,) = transfers(runs, fraction=1.0)
    assert found.target_value == pytest.approx(0.8)
    assert found.censored == (0, 1)
    assert found.work_ratio == pytest.approx((0.25 * 0.25 * 1.0) ** (1 / 3))
    assert None not in (found.low, found.high, found.p_benefit)
    assert found.low < found.work_ratio < found.high
    assert 0.5 < found.p_benefit < 1


def test_one_seed_promises_nothing() -> None:
    rng = np.random.default_rng(2)
    (found,) = transfers(records(0.3, rng, seeds=1))
    assert math.isinf(found.minimal_detectable_effect)
    assert not found.detected


def test_skill_finds_an_ordering_and_admits_when_there_is_none() -> None:
    rng = np.random.default_rng(3)
    runs, scores = [], []
    for number in range(12):
        share = 0.5 + 0.03 * number
        target = f"t{number}"
        for seed in range(2):
            runs.append(run_record("solo", target, seed, [0.5], bits(rng, 0.5)))
            runs.append(run_record("warm_start", target, seed, [share], bits(rng, share), "s"))
        for score, value in (("good", number**3), ("noise", rng.normal())):
            subject = {"score": score, "source": about("s"), "target": about(target)}
            scores.append(Record("score", "fm", subject, {"score": value, "score_cpu_s": 2.0}))
    found = {s.score: s for s in skills(scores, transfers(runs))}
    good, noise = found["good"], found["noise"]
    assert None not in (good.correlation, good.low, noise.low, noise.high)
    assert good.correlation > 0.85
    assert good.low > 0.5
    assert noise.low < 0 < noise.high
    assert (good.pairs, good.cost_s, good.mode) == (12, 2.0, "warm_start")


def _taskweb(folder: Path) -> dict[tuple[str, str], float]:
    """Return the mean gain of every (source, target) of the published table."""
    gains: dict[tuple[str, str], list[float]] = defaultdict(list)
    with open(folder / "taskweb" / "taskweb_gain_matrix.csv", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["pc_relative_gain"]:
                gains[row["source"], row["target"]].append(float(row["pc_relative_gain"]))
    return {pair: float(np.mean(values)) for pair, values in gains.items()}


def _found(order: list[tuple[str, str]], gains: dict[tuple[str, str], float], count: int) -> float:
    """Return the mean, over targets, of the best gain among the first pairs (0: no source)."""
    best: dict[str, float] = {target: 0.0 for _, target in gains}
    for pair in order[:count]:
        best[pair[1]] = max(best[pair[1]], gains[pair])
    return float(np.mean(list(best.values())))


@pytest.mark.data
def test_active_choice_beats_random_order_on_a_published_table(data_dir: Path) -> None:
    gains = _taskweb(data_dir)
    assert len(gains) > 300
    pairs = sorted(gains)
    chooser = Chooser(pairs)
    measured: dict[tuple[str, str], float] = {}
    count = 80
    while len(measured) < count:
        pair = chooser.next(measured)
        measured[pair] = gains[pair]
    rng = np.random.default_rng(0)
    random = [_found([pairs[i] for i in rng.permutation(len(pairs))], gains, count) for _ in range(200)]
    assert _found(list(measured), gains, count) > np.quantile(random, 0.95)


def test_the_chooser_uses_scores_and_never_repeats() -> None:
    pairs = [(f"s{i}", f"t{j}") for i in range(5) for j in range(5)]
    rng = np.random.default_rng(4)
    score = {pair: [float(rng.normal())] for pair in pairs}
    truth = {pair: 0.1 * score[pair][0] + 0.005 * float(rng.normal()) for pair in pairs}
    chooser = Chooser(pairs, score)
    measured: dict[tuple[str, str], float] = {}
    while len(measured) < 8:
        pair = chooser.next(measured)
        assert pair not in measured
        measured[pair] = truth[pair]
    best = sorted(truth.values())[-3:]
    assert max(measured.values()) >= best[0]
    with pytest.raises(ValueError, match="every pair"):
        chooser.next(truth)
