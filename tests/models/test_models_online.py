"""Learning from outcomes: corrections, drift, and what to measure next."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ymir_models import FITTED
from ymir_models.artefact import read_artefact
from ymir_models.online import Candidate, Online, next_to_measure, track_name
from ymir_models.predictor import VERSIONS, FittedPredictor, load

from ymir_opt.domain.errors import InputError
from ymir_opt.estimates.protocols import ThroughputKey

KEY = ThroughputKey("vit", "FULL", "")
NAME = track_name("throughput", "vit", "FULL", "", "V100")


def after(errors: list[float], spread: float = 0.1) -> Online:
    state = Online()
    for error in errors:
        state = state.observe(NAME, 100.0, 100.0 * math.exp(error), spread)
    return state


def test_a_bias_is_learnt_and_little_evidence_moves_little() -> None:
    assert Online().correction(NAME) == 1.0
    one, many = after([0.2]), after([0.2] * 30)
    assert 1.0 < one.correction(NAME) < many.correction(NAME) < math.exp(0.2)
    assert math.log(many.correction(NAME)) == pytest.approx(0.2 * 30 / 33)


def test_noise_alone_is_no_drift_and_a_shift_is() -> None:
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(50):
        noise = rng.normal(0, 0.1, 40).tolist()
        alarms += bool(after(noise).drifted())
    assert alarms <= 10
    found = 0
    for _ in range(50):
        noise = rng.normal(0, 0.1, 40)
        noise[15:] += 0.3
        state = after(noise.tolist())
        found += state.drifted() == (NAME,)
    assert found >= 48


def test_after_a_drift_the_old_level_is_forgotten() -> None:
    state = after([0.0] * 20 + [0.5] * 20)
    assert state.drifted() == (NAME,)
    assert math.log(state.correction(NAME)) > 0.35


def test_a_state_is_written_and_read(tmp_path: Path) -> None:
    state = after([0.1, 0.2, -0.1])
    digest = state.write(tmp_path)
    again = Online.read(tmp_path)
    assert again.correction(NAME) == pytest.approx(state.correction(NAME), rel=1e-9)
    assert again.write(tmp_path) == digest
    assert Online.read(tmp_path / "absent") == Online()


@pytest.mark.parametrize(
    ("predicted", "realised"), [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)]
)
def test_impossible_outcomes_are_refused(predicted: float, realised: float) -> None:
    with pytest.raises(InputError, match="is not above 0"):
        Online().observe(NAME, predicted, realised)


def test_what_was_learnt_reaches_predictions_and_their_version(tmp_path: Path) -> None:
    artefacts = {
        kind: read_artefact(FITTED / f"{kind}.json", kind, VERSIONS[kind])
        for kind in ("throughput", "transfer")
    }
    plain = FittedPredictor(artefacts)
    state = after([0.2] * 30).observe(track_name("warm_start", "roberta-base", "rte"), 1.0, 1.5)
    state.write(tmp_path)
    learnt = FittedPredictor({**artefacts, "online": read_artefact(tmp_path / "online.json", "online", 1)})
    asked = np.array([2]), np.array([256])
    before, now = (p.throughput(KEY, "V100", *asked)[0][0] for p in (plain, learnt))
    assert now == pytest.approx(before * state.correction(NAME), rel=1e-9)
    one, two = (p.warm_start("roberta-base", "mnli", "rte") for p in (plain, learnt))
    assert one is not None
    assert two is not None
    assert two.ratio > one.ratio
    assert two.high / two.low == pytest.approx(one.high / one.low)
    assert plain.version != learnt.version
    # another key is left alone
    other = ThroughputKey("vit-large", "FULL", "")
    assert plain.throughput(other, "V100", *asked)[0] == learnt.throughput(other, "V100", *asked)[0]


def test_an_online_state_alone_is_no_model(tmp_path: Path) -> None:
    after([0.1]).write(tmp_path)
    with pytest.raises(InputError, match="holds no fitted model"):
        load(tmp_path)


def test_the_most_uncertain_work_is_measured_first_within_the_budget() -> None:
    unknown = Candidate("unknown", math.inf, 1000.0, 60.0)
    known = replace(unknown, name="known", half_width=0.02)
    costly = replace(unknown, name="costly", cost_gpu_s=6000.0)
    small = replace(unknown, name="small", gpu_s=10.0)
    sure = replace(unknown, name="sure", half_width=0.0)
    chosen = next_to_measure([known, costly, small, unknown, sure], 200.0)
    assert [c.name for c in chosen] == ["unknown", "known", "small"]
    assert next_to_measure([costly], 200.0) == ()
