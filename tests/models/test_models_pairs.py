"""Co-location: the compressed Gaussian process is the full one, and says nothing of what it never saw."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ymir_models.colocation.data import PairRows, build, gavel_pairs, profile_pairs, titan_pairs
from ymir_models.colocation.evaluate import evaluate
from ymir_models.colocation.fit import GRID, additive, fit_pairs
from ymir_models.colocation.model import PairModel, family_kernel, pair_kernel, smooth_kernel
from ymir_models.colocation.saturation import SaturationModel, fit_saturation
from ymir_models.evaluation import markdown, summary

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import ColocationMember, ColocationRow, Mode, ThroughputRow
from ymir_opt.estimates.protocols import ThroughputKey

A, B, C = (ThroughputKey(name, None, "") for name in ("alpha", "beta", "gamma"))


def load(key: tuple[ThroughputKey, int]) -> float:
    weight = {"alpha": 0.2, "beta": 0.5, "gamma": 0.1}[key[0].foundation_model]
    return weight * math.log2(key[1])


@pytest.fixture(scope="module")
def rows() -> PairRows:
    """Return every pair of nine keys; the heaviest do not fit together."""
    keys = [(family, batch) for family in (A, B, C) for batch in (8, 16, 32, 64)]
    table = []
    for x in keys:
        for y in keys:
            heavy = load(x) + load(y) > 5.2
            table.append((x, y, math.nan if heavy else 1 / (1 + load(y) / (1 + load(x)))))
    return build("test", "V100", table)


@pytest.fixture(scope="module")
def model(rows: PairRows) -> PairModel:
    return fit_pairs(rows, GRID[:3])


def dense(rows: PairRows, model: PairModel) -> np.ndarray:
    """Return the posterior mean of the Gaussian process at every row, by solving the whole system."""
    runs = rows.take(rows.feasible)
    same = family_kernel(rows.family, rows.family)
    smooth = smooth_kernel(rows.family, rows.log_batch, rows.family, rows.log_batch, model.hyper.length)
    kernel = pair_kernel(model.hyper, same, smooth, (runs.first, runs.second))
    dual = np.linalg.solve(kernel + model.hyper.noise * np.eye(len(runs)), runs.ratio - model.mean)
    return np.asarray(model.mean + kernel @ dual)


def test_the_compressed_form_is_the_gaussian_process(rows: PairRows, model: PairModel) -> None:
    runs = rows.take(rows.feasible)
    found = model.ratio(
        rows.family[runs.first],
        rows.log_batch[runs.first],
        rows.family[runs.second],
        rows.log_batch[runs.second],
    )
    assert np.allclose(found, np.clip(dense(rows, model), 0.01, 1.02), atol=1e-8)


def test_one_pair_is_what_the_table_says(rows: PairRows, model: PairModel) -> None:
    for first, second in (((A, 8), (B, 16)), ((C, 12), (A, 100)), ((C, 8), (C, 8))):
        pair = model.pair(first, second)
        assert pair is not None
        f = np.array([model.family_of(first[0]), model.family_of(second[0])])
        b = np.log2([first[1], second[1]])
        assert pair == pytest.approx(tuple(model.ratio(f, b, f[::-1], b[::-1])))
        assert model.pair(second, first) == pytest.approx(pair[::-1])


def test_left_out_residuals_are_those_of_a_refit(rows: PairRows) -> None:
    hyper = GRID[:1]
    runs = rows.take(rows.feasible)
    whole = fit_pairs(runs, hyper)
    pair = runs.pair[5]
    out = runs.pair == pair
    refit = fit_pairs(runs.take(~out), hyper)
    test = runs.take(out)
    found = refit.ratio(
        rows.family[test.first],
        rows.log_batch[test.first],
        rows.family[test.second],
        rows.log_batch[test.second],
    )
    # the closed form is used for the intervals; the centre moves a little with the training median
    same = family_kernel(rows.family, rows.family)
    smooth = smooth_kernel(rows.family, rows.log_batch, rows.family, rows.log_batch, hyper[0].length)
    kernel = pair_kernel(hyper[0], same, smooth, (runs.first, runs.second)) + hyper[0].noise * np.eye(
        len(runs)
    )
    inverse = np.linalg.inv(kernel)
    block = np.flatnonzero(out)
    left = np.linalg.solve(inverse[np.ix_(block, block)], (inverse @ (runs.ratio - whole.mean))[block])
    assert np.allclose(test.ratio - found, left, atol=2e-3)


def test_it_learns_more_than_the_additive_model(rows: PairRows) -> None:
    fold = np.random.default_rng(0).permutation(rows.pair.max() + 1)[rows.pair] % 4 == 0
    train, test = rows.take(~fold), rows.take(fold & rows.feasible)
    fitted = fit_pairs(train, GRID[:3])
    found = fitted.ratio(
        rows.family[test.first],
        rows.log_batch[test.first],
        rows.family[test.second],
        rows.log_batch[test.second],
    )
    ours, simple = np.abs(found - test.ratio).mean(), np.abs(additive(train, test) - test.ratio).mean()
    assert ours < 0.5 * simple


def test_it_abstains_where_it_was_never_shown_anything(model: PairModel) -> None:
    unknown = ThroughputKey("delta", None, "")
    assert model.pair((A, 8), (unknown, 8)) is None
    assert model.pair((ThroughputKey("alpha", "LORA", ""), 8), (B, 8)) is None
    assert model.pair((A, 8), (B, 129)) is None
    assert model.pair((A, 8), (B, 128)) is not None or model.pair((A, 8), (C, 128)) is not None
    assert model.pair((A, 3), (B, 8)) is None


def test_two_programs_never_measured_together_are_abstained_from() -> None:
    table = [((x, b), (x, c), 0.5) for x in (A, B) for b in (8, 16) for c in (8, 16)]
    fitted = fit_pairs(build("test", "V100", table), GRID[:1])
    assert fitted.pair((A, 8), (A, 16)) is not None
    assert fitted.pair((A, 8), (B, 16)) is None


def test_pairs_that_do_not_run_are_recognised(rows: PairRows, model: PairModel) -> None:
    keys = rows.family[rows.first], rows.log_batch[rows.first]
    partners = rows.family[rows.second], rows.log_batch[rows.second]
    p = model.p_infeasible(*keys, *partners)
    assert p[~rows.feasible].min() > 0.5
    assert p[rows.feasible].max() < 0.5
    assert model.pair((B, 64), (B, 64)) is None


def test_intervals_are_wider_for_batches_never_measured(model: PairModel) -> None:
    f, b = np.array([0, 0]), np.array([3.0, 3.5])
    width = model.half_width(f, b, np.array([1, 1]), np.array([4.0, 4.0]))
    assert (width[1] >= width[0]).all()
    assert (width[:, 1] >= width[:, 0]).all()


def test_own_pairs_are_read_in_both_orders() -> None:
    members = tuple(ColocationMember(foundation_model=name, batch_size=8) for name in ("alpha", "beta"))
    row = ColocationRow(mode=Mode.GPU_SHARE, gpu_type="V100", gpus=1, members=members, speed_ratio=(0.7, 0.0))
    (found,) = profile_pairs([row, row.model_copy(update={"gpus": 2})])
    assert len(found) == 2
    assert found.ratio[0] == 0.7
    assert math.isnan(found.ratio[1])


# ------------------------------------------------------------------ one backbone, several adapters


TRUE = SaturationModel(A, "V100", np.array([0.05, 0.002, 0.1, 0.02, 3.0]), 128.0, 8, np.zeros(2))


def groups(sizes: list[list[int]]) -> list[ColocationRow]:
    made = []
    for batches in sizes:
        ratio = TRUE.ratios(batches, 1)
        assert ratio is not None
        members = tuple(ColocationMember(foundation_model="alpha", batch_size=b) for b in batches)
        made.append(
            ColocationRow(
                mode=Mode.COLOCATE, gpu_type="V100", gpus=1, members=members, speed_ratio=tuple(ratio)
            )
        )
    return made


def alone() -> list[ThroughputRow]:
    rates = [(b, b / float(TRUE.step_s(np.array([float(b)]), np.ones(1))[0])) for b in (4, 8, 16, 32, 64)]
    return [
        ThroughputRow(foundation_model="alpha", gpu_type="V100", gpus=1, batch_size=b, samples_per_s=r)
        for b, r in rates
    ]


def test_saturation_is_recovered_and_predicts_other_groups() -> None:
    measured = groups([[4, 4], [8, 8, 8], [16] * 4, [32, 32], [4] * 8, [64, 32]])
    model = fit_saturation(A, "V100", alone(), measured)
    for batches in ([8, 8], [16, 4], [8] * 6, [32, 16, 16]):
        assert model.ratios(batches, 1) == pytest.approx(TRUE.ratios(batches, 1), rel=0.08)
    # an unsaturated device gives nearly everybody full speed; a saturated one shares it
    small, large = model.ratios([4, 4], 1), model.ratios([64, 64], 1)
    assert small is not None
    assert large is not None
    assert small.min() > 0.8
    assert large.sum() < 1.3


def test_saturation_abstains_beyond_twice_what_was_measured_and_needs_groups() -> None:
    model = fit_saturation(A, "V100", alone(), groups([[4, 4], [8, 8, 8], [16, 16]]))
    assert model.ratios([64, 64], 1) is None
    assert model.ratios([1] * 7, 1) is None
    assert model.ratios([64, 64], 4) is not None
    with pytest.raises(InputError, match="too few"):
        fit_saturation(A, "V100", alone(), groups([[4, 4]]))


# ------------------------------------------------------------------ real tables


@pytest.mark.data
def test_gavel_s_table_is_read_as_documented(data_dir: Path) -> None:
    sets = {rows.gpu_type: rows for rows in gavel_pairs(data_dir / "gavel")}
    assert {name: len(rows) for name, rows in sets.items()} == {"K80": 676, "P100": 676, "V100": 676}
    assert {name: int((~rows.feasible).sum()) for name, rows in sets.items()} == {
        "K80": 87,
        "P100": 20,
        "V100": 40,
    }
    # combined normalised throughput on V100: median 1.37
    rows = sets["V100"]
    ratio = {(int(a), int(b)): r for a, b, r in zip(rows.first, rows.second, rows.ratio, strict=True)}
    total = [r + ratio[b, a] for (a, b), r in ratio.items() if a <= b and not math.isnan(r)]
    assert np.median(total) == pytest.approx(1.37, abs=0.02)


@pytest.mark.data
def test_titan_s_pairs_are_kept_apart(data_dir: Path) -> None:
    sets = titan_pairs(data_dir / "titan")
    assert [(rows.name, rows.gpu_type, len(rows)) for rows in sets] == [
        ("titan roberta-base", "V100", 44),
        ("titan vit", "V100", 169),
    ]


@pytest.mark.data
def test_the_quick_evaluation_runs(data_dir: Path) -> None:
    rows = evaluate(data_dir / "gavel", quick=True)
    (pair,) = [row for row in rows if row.split == "leave pair out"]
    assert pair.metrics["median"] < 0.8 * pair.baselines["additive"]["median"]
    (family,) = [row for row in rows if row.split == "leave family out"]
    assert family.metrics["answered"] == 0.0


@pytest.mark.slow
@pytest.mark.data
def test_every_target_is_reached(data_dir: Path, documented: Callable[[str], str]) -> None:
    rows = evaluate(data_dir / "gavel")
    assert documented("colocation") == markdown(summary(rows))
    missed = [
        (row.split, row.model, t.metric) for row in rows for t in row.targets if not t.reached(row.metrics)
    ]
    assert not missed
    assert sum(len(row.targets) for row in rows) == 6
    for row in rows:
        if row.split == "leave pair out" and row.model.startswith("gavel"):
            assert abs(row.metrics["cover80"] - 0.80) <= 0.03
            assert abs(row.metrics["cover95"] - 0.95) <= 0.03
        if row.split == "leave family out":
            assert row.metrics["answered"] == 0.0
