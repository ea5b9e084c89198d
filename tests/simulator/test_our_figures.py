"""Our planner on Titan's traces against every published figure; all six are in ``docs/comparison.md``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sim_kit import run_titan
from test_published_figures import MEAN_JCT_H, TITAN, TRACES

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    "trace", ["FM-1-roberta-large", pytest.param("FM-1-roberta-base", marks=pytest.mark.slow)]
)
def test_better_than_every_baseline_with_a_shorter_tail_and_no_worse_with_merging(
    data_dir: Path, trace: str
) -> None:
    at = TRACES.index(trace)
    alone = run_titan(data_dir, trace, "ymir-no-merge")
    assert alone.unfinished == ()
    assert alone.merges_kept == 0
    mean = alone.mean_jct_s / 3600
    assert mean <= 0.80 * TITAN["mean"][at]
    assert mean < min(figures[at] for figures in MEAN_JCT_H.values())
    assert np.percentile(alone.jct_s(), 99) / 3600 <= TITAN["p99"][at]
    assert alone.starts < TITAN["starts"][at]
    merged = run_titan(data_dir, trace, "ymir", against="best_single")
    assert merged.mean_jct_s <= 1.01 * alone.mean_jct_s
