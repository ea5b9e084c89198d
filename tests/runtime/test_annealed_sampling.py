"""Annealed sampling: by size at first, nearly alike at the end."""

from __future__ import annotations

from collections import Counter

import pytest

from ymir_opt.runtime.sampling import annealed_probabilities, annealed_schedule


def test_probabilities_follow_sizes_first_and_level_out() -> None:
    assert annealed_probabilities([900, 100], 0.0) == pytest.approx((0.9, 0.1))
    end = annealed_probabilities([900, 100], 1.0)
    assert end[0] / end[1] == pytest.approx(9**0.2)


def test_schedule_is_seeded_and_keeps_both_tasks() -> None:
    one = annealed_schedule([900, 100], 400, seed=3)
    assert one == annealed_schedule([900, 100], 400, seed=3) != annealed_schedule([900, 100], 400, seed=4)
    early, late = Counter(one[:200]), Counter(one[200:])
    assert early[1] < late[1]
