"""Single decisions of the baselines: oracles by enumeration, formulas by hand, properties."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_kit import speeds, view_of

from ymir_opt.domain.errors import NotFoundError
from ymir_opt.policies.base import load_policy, policy_names
from ymir_opt.policies.choose import choose
from ymir_opt.policies.fill import fill
from ymir_opt.policies.gavel import max_min_shares
from ymir_opt.simulator.apply import check_decision

BASELINES = ("fifo", "gavel", "optimus", "pollux", "sia", "srtf", "themis", "tiresias", "titan")


@given(
    need=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    gpus=st.integers(0, 30),
    data=st.data(),
)
def test_fill_is_the_plain_greedy_loop(need: list[int], gpus: int, data: st.DataObject):
    order = data.draw(st.permutations(range(len(need))))
    expected, left = [], gpus
    for row in order:
        if need[row] <= left:
            left -= need[row]
            expected.append(row)
    assert fill(np.array(order), np.array(need), gpus) == expected


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_choose_finds_the_least_cost_of_all_combinations(data: st.DataObject):
    jobs = data.draw(st.integers(1, 4))
    members, cost, gpus, kind = [], [], [], []
    for job in range(jobs):
        members.append((job,))
        cost.append(data.draw(st.integers(20, 40)))
        gpus.append(0)
        kind.append(0)
    for _ in range(data.draw(st.integers(0, 9))):
        pair = tuple(sorted(data.draw(st.sets(st.integers(0, jobs - 1), min_size=1, max_size=2))))
        members.append(pair)
        cost.append(data.draw(st.integers(0, 40)))
        gpus.append(data.draw(st.integers(1, 5)))
        kind.append(data.draw(st.integers(0, 1)))
    capacity = np.array([4, 3])

    best = np.inf
    for taken in product((0, 1), repeat=len(members)):
        rows = [c for c, x in enumerate(taken) if x]
        covered = sorted(j for c in rows for j in members[c])
        used = [sum(gpus[c] for c in rows if kind[c] == t) for t in (0, 1)]
        if covered == list(range(jobs)) and used[0] <= 4 and used[1] <= 3:
            best = min(best, sum(cost[c] for c in rows))
    chosen = choose(members, np.array(cost, float), np.array(gpus), capacity, np.array(kind), jobs=jobs)
    assert sum(cost[c] for c in chosen) == best
    assert sorted(j for c in chosen for j in members[c]) == list(range(jobs))


def test_shares_are_max_min_fair_and_use_what_is_left():
    # Two jobs of one GPU on one GPU of a fast type (3x for the first) and one of a slow type.
    value = np.array([[3.0, 1.0], [1.0, 1.0]])
    shares = max_min_shares(value, np.array([1, 1]), np.array([1, 1]))
    gained = (value * shares).sum(axis=1)
    assert shares.sum(axis=1) == pytest.approx([1.0, 1.0])
    assert gained.min() == pytest.approx(1.0)
    assert gained[0] == pytest.approx(3.0), "the slow type is enough for the second"
    # a forbidden type is not used, an oversized job is capped by the capacity
    shares = max_min_shares(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([4, 1]), np.array([2, 1]))
    assert shares[0, 1] == 0.0
    assert 4 * shares[0, 0] + shares[1, 0] <= 2 + 1e-9


@given(
    rates=st.lists(st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)), min_size=1, max_size=6),
    gpus=st.lists(st.integers(1, 4), min_size=6, max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_no_other_shares_are_fairer(rates: list[tuple[float, float]], gpus: list[int]):
    from scipy.optimize import linprog

    value, need = np.array(rates), np.array(gpus[: len(rates)])
    capacity = np.array([3, 2])
    shares = max_min_shares(value, need, capacity)
    n = len(need)
    objective = np.concatenate([np.zeros(2 * n), [-1.0]])
    rows, limits = [], []
    for m in range(n):
        row = np.zeros(2 * n + 1)
        row[2 * m : 2 * m + 2] = 1
        rows.append(row)
        limits.append(1.0)
        row = np.zeros(2 * n + 1)
        row[2 * m : 2 * m + 2] = -value[m]
        row[-1] = 1
        rows.append(row)
        limits.append(0.0)
    for t in (0, 1):
        row = np.zeros(2 * n + 1)
        row[t : 2 * n : 2] = need
        rows.append(row)
        limits.append(float(capacity[t]))
    best = -linprog(objective, A_ub=np.array(rows), b_ub=np.array(limits)).fun
    assert (value * shares).sum(axis=1).min() == pytest.approx(best, rel=1e-2, abs=1e-6)


def test_tiresias_serves_the_queue_of_little_service_first_and_counts_starting_time():
    hours = 3600.0
    jobs = [
        {"requested_gpus": 8, "gpus": 8, "held_gpu_s": 4 * hours, "attained_gpu_s": 0.0, "remaining": 1e6},
        {"requested_gpus": 8, "gpus": 8, "held_gpu_s": 4 * hours - 1, "remaining": 1e6},
        *({"requested_gpus": 8, "remaining": 1e6} for _ in range(3)),
    ]
    decision = load_policy("tiresias").decide(view_of(jobs))
    assert decision.gpus.tolist() == [0, 8, 8, 8, 8]


def test_srtf_never_preempts_unless_asked_and_breaks_ties_by_submission():
    jobs = [
        {"requested_gpus": 32, "gpus": 32, "remaining": 1e6},
        {"requested_gpus": 16, "remaining": 100.0, "submitted_at_s": 9.0},
        {"requested_gpus": 16, "remaining": 100.0, "submitted_at_s": 8.0},
        {"requested_gpus": 16, "remaining": 100.0, "submitted_at_s": 7.0},
    ]
    assert load_policy("srtf").decide(view_of(jobs)).gpus.tolist() == [32, 0, 0, 0]
    for name in ("srtf:preemptive", "srtf:fixed"):
        assert load_policy(name).decide(view_of(jobs)).gpus.tolist() == [0, 0, 16, 16]


def test_optimus_gives_each_gpu_to_the_largest_gain_and_stops_where_there_is_none():
    table = speeds([1.0, 0.2])
    jobs = [{"key": 0, "remaining": 1000.0, "max_gpus": 12}, {"key": 1, "remaining": 1000.0, "max_gpus": 12}]
    for name in ("optimus", "optimus:fixed"):
        gpus = load_policy(name).decide(view_of(jobs, table=table)).gpus
        assert gpus.sum() <= 24
    fixed = load_policy("optimus:fixed").decide(view_of(jobs, nodes=[("V100", 10)], table=table)).gpus

    # by enumeration: gains are decreasing, so greedy minimises the sum of remaining times
    def total(a: int) -> int:
        return round(1000 / a) + round(1000 / (10 - a) ** 0.2)

    assert fixed.sum() == 10
    assert total(int(fixed[0])) == min(total(a) for a in range(1, 10))


def test_titan_minimises_the_sum_of_slowdowns():
    jobs = [{"key": k, "remaining": 2000.0 * (1 + k)} for k in range(3)]
    table = speeds([0.9, 0.5, 0.7])
    view = view_of(jobs, nodes=[("V100", 4), ("V100", 4)], table=table)
    gpus = load_policy("titan").decide(view).gpus
    power, work, fair = (0.9, 0.5, 0.7), (2000.0, 4000.0, 6000.0), 8 // 3
    counts = (0, 1, 2, 3, 4, 8)

    def cost(given: tuple[int, ...]) -> float:
        total = 0.0
        for k, n in enumerate(given):
            base = max(round(work[k] / fair ** power[k]), 120.0)
            total += 1e4 if n == 0 else max(round(work[k] / n ** power[k]), 120.0) / base
        return total

    best = min((g for g in product(counts, repeat=3) if sum(g) <= 8), key=cost)
    assert cost(tuple(gpus.tolist())) == pytest.approx(cost(best))


def test_sia_starts_small_at_most_doubles_and_prefers_the_type_that_is_faster():
    table = speeds([0.9], types=("V100", "A100"))
    rate = table.rate.copy()
    rate[:, 1] *= 3.0
    object.__setattr__(table, "rate", rate)
    nodes = [("V100", 4), ("A100", 4)]
    jobs = [{"remaining": 1e5}, {"remaining": 1e5, "gpus": 2, "gpu_type": 1, "submitted_at_s": 0.0}]
    decision = load_policy("sia").decide(view_of(jobs, nodes=nodes, table=table))
    assert decision.gpus[0] == 1
    assert decision.gpus[1] in (2, 4)
    assert decision.gpu_type is not None
    assert decision.gpu_type[1] == 1


def test_themis_renews_a_lease_only_after_600_seconds_and_offers_four_fifths():
    jobs = [{"requested_gpus": 4, "remaining": 1e5, "submitted_at_s": 0.0} for _ in range(10)]
    policy = load_policy("themis")
    first = policy.decide(view_of(jobs, nodes=[("V100", 4)] * 10))
    assert (first.gpus > 0).sum() == 8, "80 % of the candidates"
    running = [
        {**job, "gpus": int(g), "last_start_s": 1000.0} for job, g in zip(jobs, first.gpus, strict=True)
    ]
    later = policy.decide(view_of(running, nodes=[("V100", 4)] * 8, now_s=1060.0))
    assert later.gpus.tolist() == first.gpus.tolist(), "leases run and there is no room"


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(
        [*BASELINES, "optimus:fixed", "themis:fixed", "srtf:fixed", "titan:fixed", "titan:merge"]
    ),
    data=st.data(),
)
def test_every_decision_is_valid_whatever_the_state(policy: str, data: st.DataObject):
    number = data.draw(st.integers(0, 14))
    free = 12
    jobs = []
    for _ in range(number):
        most = data.draw(st.integers(1, 12))
        requested = data.draw(st.integers(1, most))
        gpus = requested if data.draw(st.booleans()) and requested <= free else 0
        free -= gpus
        jobs.append(
            {
                "requested_gpus": requested,
                "max_gpus": most,
                "gpus": gpus,
                "remaining": data.draw(st.floats(0.1, 1e6)),
                "done": data.draw(st.floats(0, 1e4)),
                "held_gpu_s": data.draw(st.floats(0, 1e6)),
                "productive_s": data.draw(st.floats(0, 1e3)),
                "submitted_at_s": data.draw(st.floats(0, 1000)),
                "not_before_s": data.draw(st.sampled_from([-np.inf, 2000.0])),
            }
        )
    view = view_of(jobs, nodes=[("V100", 4)] * 3)
    decision = load_policy(policy).decide(view)
    check_decision(view, decision, policy)
    waits = (view.column("not_before_s") > view.now_s) & (view.gpus == 0)
    assert not decision.gpus[waits].any(), "a job that backs off is left alone"


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_has_both_variants_a_cadence_and_a_documented_source(name: str):
    import sys

    for variant in (name, f"{name}:faithful", f"{name}:fixed"):
        policy = load_policy(variant)
        assert policy.name == variant
        assert policy.cadence == load_policy(name).cadence
    text = sys.modules[type(load_policy(name)).__module__].__doc__ or ""
    for heading in ("* Source:", "* Parameters:", "* Cadence:", "* Variants:"):
        assert heading in text


def test_bare_names_are_faithful_and_unknown_ones_are_refused():
    assert {"ymir", "ymir-no-merge", *BASELINES} <= set(policy_names())
    with pytest.raises(NotFoundError, match=r"policy 'nobody': is not installed; known: fifo, gavel"):
        load_policy("nobody")
    with pytest.raises(
        NotFoundError, match=r"titan:bogus: has no variant 'bogus'; known: faithful, fixed, merge"
    ):
        load_policy("titan:bogus")
    with pytest.raises(NotFoundError, match="choose one"):
        load_policy("titan:faithful:fixed")
