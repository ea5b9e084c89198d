"""A point near a relaxation: feasible, never below the bound, and what the relaxation takes far off stays."""

from __future__ import annotations

import numpy as np
import pytest
from solver_models import packing_model

from ymir_opt.solvers.lp import relax
from ymir_opt.solvers.nearby import nearby


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [0.001, 0.05])
def test_it_is_feasible_and_no_better_than_the_bound(seed: int, share: float) -> None:
    model = packing_model(seed)
    lp = relax(model)
    assert lp is not None
    assert lp.bound is not None
    gap = max(1, int(share * abs(lp.bound)))
    point = nearby(model, lp, gap, None, 0)
    whole = not (np.abs(lp.x - np.rint(lp.x)) > 1e-6).any()
    if whole:
        assert point is None
    if point is not None:
        assert len(model.violated(point)) == 0
        assert model.objective(point) >= lp.bound


def test_it_finds_points_and_respects_the_clock() -> None:
    found = 0
    for seed in range(12):
        model = packing_model(seed)
        lp = relax(model)
        assert lp is not None
        assert lp.bound is not None
        point = nearby(model, lp, max(1, abs(lp.bound) // 10), None, 0)
        again = nearby(model, lp, max(1, abs(lp.bound) // 10), None, 0)
        assert (point is None) == (again is None)
        if point is not None:
            assert np.array_equal(point, again)
            found += 1
    assert found > 3
