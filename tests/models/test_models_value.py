"""The value of a merge: the paper's two-member forms, brute force, and probes."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ymir_models.value import (
    Merge,
    alone_completions,
    sequence_completions,
    shared_completions,
    tranwt,
    value_of,
)

from ymir_opt.domain.errors import InputError

TIMES = st.lists(st.floats(1, 1000), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.floats(1, 1000), st.floats(1, 1000), st.floats(1, 1000))
def test_two_members_are_the_paper_s_forms(a: float, b: float, merged: float) -> None:
    numerator = 2 * min(a, b) + max(a, b)
    sequence = sequence_completions([a, merged])
    assert tranwt([a, b], sequence) == pytest.approx(numerator / (2 * a + merged))
    assert tranwt([a, b], [merged, merged]) == pytest.approx(numerator / (2 * merged))


@settings(deadline=None)
@given(TIMES, st.data())
def test_shortest_first_is_the_best_order_alone(times: list[float], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=len(times), max_size=len(times)))
    found = float(np.array(weights) @ alone_completions(times, weights))
    best = min(
        sum(
            w * c
            for w, c in zip((weights[i] for i in order), np.cumsum([times[i] for i in order]), strict=True)
        )
        for order in permutations(range(len(times)))
    )
    assert found == pytest.approx(best)


@settings(deadline=None)
@given(TIMES)
def test_sharing_equally_without_loss_completes_the_last_at_the_same_time(times: list[float]) -> None:
    merged = shared_completions(times, lambda running: [1 / len(running)] * len(running))
    assert merged.max() == pytest.approx(sum(times))
    # nobody is earlier than alone, and the order of completion is that of the work
    assert (merged >= np.array(times) - 1e-6).all()
    assert (np.diff(merged[np.argsort(times, kind="stable")]) >= -1e-6).all()


def test_the_first_finisher_leaves_and_the_rest_speed_up() -> None:
    rates = {(0, 1, 2): [1.0, 2.0, 1.0], (0, 2): [1.5, 1.5], (2,): [4.0]}
    merged = shared_completions([10.0, 10.0, 30.0], lambda running: rates[running], start_s=1.0)
    # 1 + 5 s together; then 5 left of the first at 1.5/s; then the third alone
    second = 6.0
    first = second + 5 / 1.5
    third = first + (30 - 5 - 5) / 4
    assert merged.tolist() == pytest.approx([first, second, third])


def joint(ratio: float, spread: float) -> Merge:
    def completions(ratios: np.ndarray) -> np.ndarray:
        return shared_completions(100 * ratios, lambda running: [1 / len(running)] * len(running))

    return Merge((100.0, 100.0), completions, (math.log(ratio),) * 2, (spread,) * 2)


def test_a_sure_merge_has_no_interval_and_gains_nothing_by_a_probe() -> None:
    value = value_of(joint(0.5, 0.0), probe_s=20.0)
    # alone 100 + 200, merged twice 100
    assert value.tranwt == value.low == value.high == pytest.approx(1.5)
    assert value.saving_s == value.saving_probed_s == pytest.approx(100.0)
    assert value.p_benefit == 1.0
    assert value.probe_gain_s == 0.0


def test_a_probe_bounds_what_an_unsure_merge_can_lose() -> None:
    merge = joint(0.75, 0.5)
    value = value_of(merge, probe_s=10.0)
    assert value.low < 1.0 < value.high
    assert value.p_benefit == pytest.approx(0.5, abs=0.02)
    assert value.saving_probed_s > value.saving_s
    assert value_of(merge, probe_s=1e6).saving_probed_s < 0
    # a verdict that is often wrong is worth less
    assert value_of(merge, probe_s=10.0, wrong=0.2).saving_probed_s < value.saving_probed_s


def test_the_expectation_is_the_log_normal_s() -> None:
    value = value_of(joint(0.75, 0.3))
    # merged completions are 200 ratio each: E = 400 * 0.75 * exp(0.3^2/2)
    assert value.saving_s == pytest.approx(300 - 300 * math.exp(0.045), abs=0.5)


@settings(deadline=None)
@given(st.floats(0.3, 2.0), st.floats(0, 1), st.floats(0, 100))
def test_a_right_probe_never_costs_more_than_its_price(ratio: float, spread: float, price: float) -> None:
    value = value_of(joint(ratio, spread), probe_s=price)
    assert value.saving_probed_s >= value.p_benefit * 0 - price - 1e-9
    free = value_of(joint(ratio, spread), probe_s=0.0)
    assert free.saving_probed_s >= max(0.0, value.saving_s) - 1e-9


@pytest.mark.parametrize(
    "merge",
    [
        Merge((), lambda r: r, (), ()),
        Merge((1.0, -1.0), lambda r: r, (0.0, 0.0), (0.0, 0.0)),
        Merge((1.0, math.nan), lambda r: r, (0.0, 0.0), (0.0, 0.0)),
        Merge((1.0, 2.0), lambda r: r, (0.0,), (0.0, 0.0)),
        Merge((1.0, 2.0), lambda r: r, (0.0, 0.0), (-0.1, 0.0)),
    ],
)
def test_bad_merges_are_refused(merge: Merge) -> None:
    with pytest.raises(InputError):
        value_of(merge)
    with pytest.raises(InputError):
        value_of(joint(1.0, 0.1), wrong=0.7)
