"""Mean JCT, tails and makespan of the baselines against the figures committed upstream (Titan, SoCC'22)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sim_kit import run_titan

pytestmark = pytest.mark.data

TRACES = (
    "FM-1-roberta-base",
    "FM-1-roberta-large",
    "FM-1-vit",
    "FM-1-vit-large",
    "FM-2-roberta-base",
    "FM-2-vit",
)
MEAN_JCT_H = {
    "tiresias": (0.358, 0.497, 1.482, 0.950, 0.927, 5.673),
    "srtf": (0.355, 0.492, 1.033, 0.846, 0.883, 2.763),
    "themis": (0.297, 0.452, 0.796, 0.726, 0.657, 2.443),
    "optimus": (0.224, 0.343, 0.459, 0.471, 0.514, 1.140),
}
TITAN = {
    "mean": (0.190, 0.187, 0.381, 0.418, 0.447, 0.843),
    "p99": (0.786, 0.740, 1.555, 1.220, 2.164, 4.072),
    "makespan": (8.072, 7.665, 8.741, 8.519, 8.783, 11.114),
    "starts": (328, 151, 694, 585, 880, 1225),
}
QUICK = {"FM-1-roberta-base", "FM-1-roberta-large"}


def _cases() -> list[object]:
    out = []
    for policy in sorted(MEAN_JCT_H):
        for trace in TRACES:
            marks = () if trace in QUICK or policy in ("srtf", "tiresias") else (pytest.mark.slow,)
            out.append(pytest.param(policy, trace, marks=marks))
    return out


@pytest.mark.parametrize(("policy", "trace"), _cases())
def test_heuristics_reproduce_the_published_mean(data_dir: Path, policy: str, trace: str) -> None:
    result = run_titan(data_dir, trace, policy, series=False)
    published = MEAN_JCT_H[policy][TRACES.index(trace)]
    assert result.unfinished == ()
    # Published to three digits; everything beyond their rounding is a real difference.
    assert result.mean_jct_s / 3600 == pytest.approx(published, rel=0.003, abs=0.0006)


@pytest.mark.parametrize(
    "trace", [t if t == "FM-1-roberta-large" else pytest.param(t, marks=pytest.mark.slow) for t in TRACES]
)
def test_titan_without_merging_reproduces_mean_tail_and_makespan(data_dir: Path, trace: str) -> None:
    result = run_titan(data_dir, trace, "titan", series=False)
    at = TRACES.index(trace)
    assert result.mean_jct_s / 3600 == pytest.approx(TITAN["mean"][at], rel=0.03)
    assert result.makespan_s / 3600 == pytest.approx(TITAN["makespan"][at], rel=0.03)
    # A tail of one to six jobs: single ties of the program move it.
    assert np.percentile(result.jct_s(), 99) / 3600 == pytest.approx(TITAN["p99"][at], rel=0.12)
    assert result.starts == pytest.approx(TITAN["starts"][at], rel=0.06)


@pytest.mark.parametrize(
    ("trace", "hours"),
    [
        ("FM-1-roberta-base", 0.204),
        pytest.param("FM-1-vit-large", 0.425, marks=pytest.mark.slow),
    ],
)
def test_optimus_without_its_mistake_is_better(data_dir: Path, trace: str, hours: float) -> None:
    result = run_titan(data_dir, trace, "optimus:fixed", series=False)
    assert result.mean_jct_s / 3600 == pytest.approx(hours, rel=0.01)
    assert result.mean_jct_s / 3600 < MEAN_JCT_H["optimus"][TRACES.index(trace)]


@pytest.mark.parametrize("policy", ["tiresias", "srtf"])
def test_at_equal_rounds_the_baselines_are_better_than_published(data_dir: Path, policy: str) -> None:
    """FM-1-vit-large at 120 s: 0.793 and 0.733 h, so part of what Titan reports is its shorter round."""
    from ymir_opt.policies.base import Cadence

    result = run_titan(data_dir, "FM-1-vit-large", policy, cadence=Cadence.rounds(120.0), series=False)
    assert result.mean_jct_s / 3600 == pytest.approx({"tiresias": 0.793, "srtf": 0.733}[policy], rel=0.01)
