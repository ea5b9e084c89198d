"""Step times: the physical form is recovered, its edges hold, and held-out measurements are met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ymir_models.evaluation import markdown, summary
from ymir_models.throughput.data import StepRows, profile_rows, titan_rows
from ymir_models.throughput.evaluate import evaluate, profiled
from ymir_models.throughput.fit import Key, calibrate, fit_step, predict
from ymir_models.throughput.model import StepModel, accumulation, pure_step

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import ThroughputRow
from ymir_opt.jobmodel.throughput import accumulation as of_the_job_model

KEY = Key("m", "LORA", "", "A100")
THETA = np.array([0.02, 0.005, 0.002, 0.0005, 0.012, 0.002, 1.3])


def measured(
    theta: np.ndarray = THETA, noise: float = 0.0, counts: tuple[int, ...] = (1, 2, 4, 8, 12, 16)
) -> StepRows:
    """Return rows of nodes of four GPUs that follow the law."""
    rng = np.random.default_rng(0)
    rows = []
    for n in counts:
        nodes = -(-n // 4)
        for b in (2, 4, 8, 16, 32):
            step = float(pure_step(theta, np.array([float(b)]), np.array([float(n)]), np.array([nodes]))[0])
            rows.append((nodes, n, b, step * (1 + noise * rng.uniform(-1, 1)), np.nan, True))
    return StepRows.build(rows)


@settings(deadline=None)
@given(st.integers(1, 4096), st.integers(1, 64), st.integers(1, 8), st.integers(8, 64))
def test_accumulation_is_the_job_model_s(batch: int, gpus: int, smallest: int, largest: int) -> None:
    local, passes = accumulation(np.array([batch]), np.array([gpus]), smallest, largest)
    assert (int(local[0]), int(passes[0])) == of_the_job_model(batch, gpus, smallest, largest)


def test_a_law_without_noise_is_recovered() -> None:
    rows = measured()
    model = fit_step(KEY, rows)
    assert np.allclose(predict(model, rows), rows.step_s, rtol=0.002)
    # counts and batches that were not measured
    between = measured(counts=(3, 6, 10))
    assert np.allclose(predict(model, between), between.step_s, rtol=0.01)
    beyond = measured(counts=(24, 32))
    assert np.allclose(predict(model, beyond), beyond.step_s, rtol=0.05)


def test_the_residual_correction_learns_what_the_law_lacks() -> None:
    rows = measured()
    bent = replace(rows, step_s=rows.step_s * np.where(rows.local == 16, 1.1, 1.0))
    model = fit_step(KEY, bent)
    error = np.abs(predict(model, bent) / bent.step_s - 1)
    without = replace(
        model,
        batch_knots=np.zeros(0),
        batch_correction=np.zeros(0),
        count_knots=np.zeros(0),
        count_correction=np.zeros(0),
    )
    assert error.mean() < 0.6 * np.abs(predict(without, bent) / bent.step_s - 1).mean()


@pytest.fixture(scope="module")
def fitted() -> StepModel:
    rows = measured(noise=0.02)
    return calibrate(KEY, rows, fit_step(KEY, rows, (np.array([2.0, 8.0]), np.array([5.0, 11.0]))))


def test_accumulation_makes_a_plateau(fitted: StepModel) -> None:
    rate = fitted.samples_per_s([64, 128, 1024], [1, 1, 1])
    assert (np.diff(rate) < 0.05 * rate[0]).all()
    # exactly one step and one pass without synchronisation
    step, compute = fitted.step_s([32], [2], [1])[0], fitted.compute_s([32])[0]
    assert fitted.samples_per_s([128], [2])[0] == pytest.approx(128 / (step + compute))


def test_it_abstains_outside_what_was_measured(fitted: StepModel) -> None:
    rate = fitted.samples_per_s([64, 64, 1000], [32, 33, 0])
    assert np.isfinite(rate[0])
    assert np.isnan(rate[1:]).all()
    # a local batch below the smallest
    assert np.isnan(fitted.samples_per_s([15], [8])[0])


def test_a_network_that_was_never_measured_is_not_guessed() -> None:
    single = fit_step(KEY, measured(counts=(1,)))
    assert np.isfinite(single.samples_per_s([64], [1])[0])
    assert np.isnan(single.samples_per_s([64], [2])[0])
    one_node = fit_step(KEY, measured(counts=(1, 2, 4)))
    assert np.isfinite(one_node.samples_per_s([64, 64], [3, 4])).all()
    assert np.isnan(one_node.samples_per_s([64], [8])[0])


def test_memory_is_linear_in_the_local_batch(fitted: StepModel) -> None:
    assert fitted.memory_gib([8, 32, 64], [1, 2, 4]) == pytest.approx([11.0, 19.0, 19.0])
    assert np.isnan(fit_step(KEY, measured()).memory_gib([8], [1])).all()


def test_intervals_widen_beyond_the_measured_counts(fitted: StepModel) -> None:
    low, high = fitted.interval([100.0, 100.0], [16, 32])
    assert 0 < high[0] - low[0] < high[1] - low[1]
    wide = fitted.interval([100.0], [16], level=1)
    assert wide[1][0] >= high[0]


def test_too_few_rows_are_refused_and_never_give_narrow_limits() -> None:
    with pytest.raises(InputError, match="too few"):
        fit_step(KEY, measured().take(np.array([0])))
    pair = measured().take(np.array([0, 3]))
    assert np.isinf(calibrate(KEY, pair, fit_step(KEY, pair)).radius).all()


def test_profile_rows_are_grouped_and_uneven_batches_left_out() -> None:
    row = ThroughputRow(
        foundation_model="m",
        peft_type="LORA",
        gpu_type="A100",
        gpus=2,
        batch_size=64,
        samples_per_s=320.0,
        memory_gib=7.0,
    )
    found = profile_rows(
        [
            row,
            row.model_copy(update={"batch_size": 63}),
            row.model_copy(update={"gpus": 8, "nodes": 2}),
            row.model_copy(update={"samples_per_s": 0.0}),
        ]
    )
    rows, batch, gib = found["m", "LORA", "", "A100"]
    assert rows.local.tolist() == [32, 8]
    assert rows.nodes.tolist() == [1, 2]
    assert rows.step_s.tolist() == pytest.approx([0.2, 0.2])
    assert batch.tolist() == [32, 8]
    assert gib.tolist() == [7.0, 7.0]


@pytest.mark.data
def test_eight_configurations_of_a_real_table_are_enough(data_dir: Path) -> None:
    rows = titan_rows(data_dir / "titan", "V100", "vit")
    chosen = profiled(rows)
    assert len(set(chosen.tolist())) == 8
    assert rows.packed[chosen].all()
    model = fit_step(Key("vit", "FULL", "", "V100"), rows.take(chosen).without_sync())
    assert np.abs(predict(model, rows) / rows.step_s - 1).mean() <= 0.06


@pytest.mark.data
def test_the_quick_evaluation_has_every_split(data_dir: Path) -> None:
    rows = evaluate(data_dir / "titan", quick=True)
    assert {row.split for row in rows} == {
        "between batches",
        "held-out count",
        "8 configurations",
        "more nodes",
        "control: shuffled labels",
    }
    assert all(target.reached(row.metrics) for row in rows for target in row.targets)


@pytest.mark.slow
@pytest.mark.data
def test_every_target_is_reached_on_every_table(data_dir: Path, documented: Callable[[str], str]) -> None:
    rows = evaluate(data_dir / "titan")
    assert documented("throughput") == markdown(summary(rows))
    assert len({row.model for row in rows}) == 9
    missed = [
        (row.split, row.model, t.metric) for row in rows for t in row.targets if not t.reached(row.metrics)
    ]
    assert not missed
    for row in rows:
        if row.split == "more nodes":
            assert row.metrics["cover80"] >= 0.77
