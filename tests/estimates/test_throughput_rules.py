"""Speeds and memory between and around measured points, against arithmetic by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ymir_opt.domain.snapshot import Cluster, Profiles, Provenance, Snapshot, ThroughputRow
from ymir_opt.estimates import Estimates, ThroughputKey
from ymir_opt.estimates.throughput import ThroughputTable

KEY = ThroughputKey("m", "LORA", "")


def row(gpus: int, batch: int, rate: float, memory: float | None = 10.0, **fields) -> ThroughputRow:
    return ThroughputRow(
        **{
            "foundation_model": "m",
            "peft_type": "LORA",
            "gpu_type": "A",
            "gpus": gpus,
            "batch_size": batch,
            "samples_per_s": rate,
            "memory_gib": memory,
            **fields,
        }
    )


def ask(rows, gpus: int, batch: int = 32, key: ThroughputKey = KEY, gpu_type: str = "A"):
    rate, memory, predicted = ThroughputTable(rows).lookup(key, gpu_type, np.array([gpus]), np.array([batch]))
    return float(rate[0]), float(memory[0]), bool(predicted[0])


def test_a_measured_point_is_itself() -> None:
    rows = [row(1, 32, 10.0, 4.0), row(2, 32, 18.0, 5.0), row(4, 64, 40.0, 6.0)]
    assert ask(rows, 2) == (18.0, 5.0, False)
    assert ask(rows, 4, 64) == (40.0, 6.0, False)


def test_counts_are_interpolated_linearly_in_samples_per_second() -> None:
    rows = [row(2, 32, 20.0, 8.0), row(6, 32, 40.0, 3.0)]
    assert ask(rows, 3) == (pytest.approx(25.0), 8.0, False)
    assert ask(rows, 5) == (pytest.approx(35.0), 8.0, False)  # memory: the larger neighbour


def test_batches_are_interpolated_in_seconds_per_step() -> None:
    rows = [row(1, 32, 16.0, 4.0), row(1, 64, 20.0, 7.0)]  # steps of 2.0 and 3.2 s
    assert ask(rows, 1, 48) == (pytest.approx(48 / 2.6), 7.0, False)  # memory of the next larger batch
    assert ask(rows, 1, 16) == (pytest.approx(16 / 2.0), 4.0, False)  # a step never gets shorter
    assert ask(rows, 1, 8)[0] == pytest.approx(4.0)


def test_above_the_largest_batch_accumulation_keeps_its_samples_per_second() -> None:
    rows = [row(1, 32, 16.0, 4.0), row(1, 64, 20.0, 7.0)]
    assert ask(rows, 1, 65) == (pytest.approx(20.0), 7.0, False)
    assert ask(rows, 1, 10**6) == (pytest.approx(20.0), 7.0, False)


def test_one_doubling_beyond_by_a_power_law_through_the_two_nearest_counts() -> None:
    rows = [row(1, 32, 1.0), row(2, 32, 10.0, 3.0), row(4, 32, 16.0, 5.0)]
    exponent = math.log(1.6) / math.log(2)
    assert ask(rows, 8) == (pytest.approx(16.0 * 2**exponent), 5.0, True)
    assert ask(rows, 6) == (pytest.approx(16.0 * 1.5**exponent), 5.0, True)
    assert math.isnan(ask(rows, 9)[0])
    rows = [row(4, 32, 16.0, 5.0), row(8, 32, 25.6, 6.0)]
    assert ask(rows, 2) == (pytest.approx(10.0), 5.0, True)
    assert ask(rows, 3) == (pytest.approx(16.0 * 0.75**exponent), 5.0, True)
    assert math.isnan(ask(rows, 1)[0])


@pytest.mark.parametrize(
    ("rates", "beyond"),
    [((10.0, 25.0), 50.0), ((10.0, 8.0), 8.0), ((10.0, 10.0), 10.0)],
    ids=["no more than linear", "never slower", "flat"],
)
def test_the_exponent_stays_within_zero_and_one(rates, beyond) -> None:
    rows = [row(1, 32, rates[0]), row(2, 32, rates[1])]
    assert ask(rows, 4)[0] == pytest.approx(beyond)


def test_a_single_count_grows_with_exponent_four_fifths() -> None:
    rows = [row(4, 32, 10.0)]
    assert ask(rows, 8)[0] == pytest.approx(10.0 * 2**0.8)
    assert ask(rows, 2)[0] == pytest.approx(10.0 * 0.5**0.8)
    assert math.isnan(ask(rows, 16)[0])


def test_the_largest_answerable_count() -> None:
    table = ThroughputTable([row(1, 32, 10.0), row(4, 32, 10.0)])
    assert table.largest(KEY, "A") == 8
    assert table.largest(KEY, "B") == 0
    assert table.knows(KEY, "A")
    assert not table.knows(KEY, "B")


def test_unknown_memory_on_one_side_is_unknown() -> None:
    rows = [row(1, 32, 10.0, 4.0), row(4, 32, 20.0, None)]
    assert math.isnan(ask(rows, 2)[1])
    assert ask(rows, 1)[1] == 4.0


def test_rows_of_other_keys_and_rows_without_speed_say_nothing() -> None:
    rows = [row(1, 32, 10.0), row(2, 32, 0.0)]
    assert math.isnan(ask(rows, 1, key=ThroughputKey("m", "IA3", ""))[0])
    assert math.isnan(ask(rows, 1, key=ThroughputKey("m", "LORA", "fp16"))[0])
    assert math.isnan(ask(rows, 1, key=ThroughputKey("n", "LORA", ""))[0])
    assert math.isnan(ask(rows, 1, gpu_type="B")[0])
    assert ask(rows, 2) == (pytest.approx(10.0 * 2**0.8), 10.0, True)


def test_packed_rows_go_first_then_measured_ones() -> None:
    spread = row(2, 32, 9.0, nodes=2)
    packed = row(2, 32, 15.0, nodes=1)
    guess = row(2, 32, 99.0, source=Provenance.PREDICTED)
    measured = row(2, 32, 14.0)
    for rows in ([spread, packed], [packed, spread]):
        assert ask(rows, 2)[0] == 15.0
    for rows in ([guess, measured], [measured, guess]):
        assert ask(rows, 2) == (14.0, 10.0, False)


def test_a_figure_is_predicted_where_a_predicted_row_enters_it() -> None:
    guess = {"source": Provenance.PREDICTED}
    rows = [row(1, 32, 10.0), row(2, 32, 18.0, **guess), row(4, 32, 30.0)]
    assert [ask(rows, g)[2] for g in (1, 2, 3, 4, 8)] == [False, True, True, False, True]
    rows = [row(1, 16, 8.0), row(1, 32, 10.0), row(1, 64, 12.0, **guess)]
    assert [ask(rows, 1, b)[2] for b in (8, 16, 24, 32, 48, 64, 128)] == [False] * 4 + [True] * 3


rates = st.floats(0.5, 1000, allow_nan=False)
points = st.dictionaries(
    st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([8, 32, 64])),
    st.tuples(rates, st.floats(1, 40)),
    min_size=1,
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(points, st.integers(1, 20), st.integers(1, 200), st.randoms(use_true_random=False))
def test_properties_of_the_surface(measured, gpus, batch, random) -> None:
    rows = [row(g, b, rate, memory) for (g, b), (rate, memory) in measured.items()]
    found = ask(rows, gpus, batch)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert ask(shuffled, gpus, batch) == pytest.approx(found, nan_ok=True)
    counts = sorted({g for g, _ in measured})
    known = not math.isnan(found[0])
    assert known == (counts[0] <= 2 * gpus and gpus <= 2 * counts[-1])
    assert found[2] == (known and not counts[0] <= gpus <= counts[-1])
    for (g, b), (rate, memory) in measured.items():
        assert ask(rows, g, b) == (pytest.approx(rate), pytest.approx(memory), False)
    if known and counts[0] <= gpus <= counts[-1]:
        around = [max(c for c in counts if c <= gpus), min(c for c in counts if c >= gpus)]
        ends = [ask(rows, c, batch)[0] for c in around]
        assert min(ends) * (1 - 1e-9) <= found[0] <= max(ends) * (1 + 1e-9)


def estimates(rows, predictor=None, **options) -> Estimates:
    snapshot = Snapshot(taken_at_s=0.0, cluster=Cluster(), profiles=Profiles(throughput=tuple(rows)))
    return Estimates(snapshot, predictor, **options)


class Guess:
    """A predictor that knows everything below nine GPUs."""

    name, version, sha256 = "guess", "7", "0" * 64

    def throughput(self, key, gpu_type, gpus, batch):
        return np.where(gpus < 9, 5.0 * gpus, np.nan), np.full(len(gpus), 3.0)

    def colocation(self, mode, gpu_type, gpus, members):
        return None

    def warm_start(self, foundation_model, source, target):
        return None

    def joint(self, foundation_model, others, target):
        return None


def test_measured_only_interpolates_but_never_extrapolates() -> None:
    rows = [row(1, 32, 10.0), row(4, 32, 30.0), row(2, 32, 99.0, source=Provenance.PREDICTED)]
    gpus, batch = np.array([1, 2, 4, 8]), np.full(4, 32)
    rate, _, predicted = estimates(rows, Guess(), measured_only=True).throughput(KEY, "A", gpus, batch)
    assert rate[:3] == pytest.approx([10.0, 10.0 + 20.0 / 3, 30.0])
    assert math.isnan(rate[3])
    assert not predicted[:3].any()
    rate, _, predicted = estimates(rows).throughput(KEY, "A", gpus, batch)
    assert rate[1] == pytest.approx(99.0)
    assert predicted.tolist() == [False, True, False, True]


def test_the_predictor_is_asked_only_where_rows_are_silent() -> None:
    rows = [row(1, 32, 10.0)]
    gpus, batch = np.array([1, 2, 4, 16]), np.full(4, 32)
    rate, memory, predicted = estimates(rows, Guess()).throughput(KEY, "A", gpus, batch)
    assert rate[:3] == pytest.approx([10.0, 10.0 * 2**0.8, 20.0])
    assert math.isnan(rate[3])
    assert memory[2] == 3.0
    assert predicted.tolist()[:3] == [False, True, True]
    assert estimates(rows, Guess()).largest_count(KEY, "A", 64) == 64
    assert estimates(rows).largest_count(KEY, "A", 64) == 2
    assert estimates(rows, Guess(), measured_only=True).largest_count(KEY, "A", 64) == 2


def test_many_questions_are_answered_like_few():
    import numpy as np

    from ymir_opt.domain.snapshot import ThroughputRow
    from ymir_opt.estimates.protocols import ThroughputKey
    from ymir_opt.estimates.throughput import ThroughputTable

    table = ThroughputTable(
        [
            ThroughputRow(
                foundation_model="m",
                gpu_type="T",
                gpus=gpus,
                batch_size=batch,
                samples_per_s=batch**0.5 * gpus**0.7,
                memory_gib=None if batch == 16 else float(batch),
            )
            for gpus in (2, 4, 8)
            for batch in (8, 16, 64)
        ]
    )
    rng = np.random.default_rng(1)
    for counts, batches in (((1, 20), (1, 200)), ((0, 3), (5, 10**9))):
        gpus, batch = rng.integers(*counts, 5000), rng.integers(*batches, 5000)
        many = table.lookup(ThroughputKey("m", None, ""), "T", gpus, batch)
        few = [
            table.lookup(ThroughputKey("m", None, ""), "T", gpus[i : i + 500], batch[i : i + 500])
            for i in range(0, 5000, 500)
        ]
        for answer, parts in zip(many, zip(*few, strict=True), strict=True):
            np.testing.assert_array_equal(answer, np.concatenate(parts))
