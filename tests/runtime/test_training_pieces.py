"""Schedules, metrics, splits, the order of rows and the rule of the probe, each by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from ymir_opt.runtime.dataset import Stream, split_rows
from ymir_opt.runtime.evaluation import METRICS, Evaluation, macro_f1
from ymir_opt.runtime.events import EventLog, read_lines
from ymir_opt.runtime.probing import judge, projected_samples, value_on
from ymir_opt.runtime.schedules import rate_factor


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 4])
def test_schedules_are_those_of_transformers_after_the_warm_up(kind: str, warmup: int) -> None:
    transformers = pytest.importorskip("transformers")
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    name = "constant_with_warmup" if kind == "constant" else kind
    theirs = transformers.get_scheduler(name, optimiser, num_warmup_steps=warmup, num_training_steps=20)
    for step in range(20):
        rate = theirs.get_last_lr()[0]
        if step >= warmup:
            assert rate_factor(kind, step, warmup, 20) == pytest.approx(rate)
        else:
            # theirs begins with a step at rate 0
            assert rate_factor(kind, step, warmup, 20) == pytest.approx((step + 1) / warmup)
        assert rate_factor(kind, step, warmup, 20) > 0
        optimiser.step()
        theirs.step()


labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


@settings(max_examples=50, deadline=None)
@given(labels)
def test_macro_f1_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    from sklearn.metrics import f1_score

    predicted, true = (torch.tensor(values) for values in zip(*pairs, strict=True))
    theirs = f1_score(true.numpy(), predicted.numpy(), average="macro")
    assert macro_f1(predicted, true) == pytest.approx(theirs)


def test_an_accuracy_equals_its_fraction() -> None:
    predicted = torch.tensor([0] * 7 + [1] * 3)
    assert METRICS["eval_accuracy"](Evaluation(predicted, torch.zeros(10, dtype=torch.long), 0.0)) == 0.7


rows = st.lists(st.tuples(st.text(max_size=4), st.sampled_from("ab")), max_size=60)


@settings(max_examples=50, deadline=None)
@given(rows, st.randoms())
def test_a_split_depends_on_content_alone_and_shares_no_row(pairs: list, random) -> None:  # type: ignore[no-untyped-def]
    train, test = split_rows(pairs)
    assert not {text for text, _ in train} & {text for text, _ in test}
    assert {text for text, _ in train + test} == {text for text, _ in pairs}
    first = dict(reversed(pairs))
    distinct = list(first.items())
    random.shuffle(distinct)
    assert split_rows(distinct) == (train, test)
    for label in "ab":
        count = sum(value == label for value in first.values())
        assert sum(value == label for _, value in test) == count // 5


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5), st.integers(1, 9), st.integers(0, 40), st.integers(1, 12))
def test_a_stream_has_no_memory(seed: int, size: int, position: int, count: int) -> None:
    whole = Stream(seed, size).take(0, position + count)
    assert Stream(seed, size).take(position, count) == whole[position:]
    for epoch in range((position + count) // size):
        assert sorted(whole[epoch * size : (epoch + 1) * size]) == list(range(size))


@dataclass(frozen=True)
class Goal:
    """What the rule needs of a job's settings."""

    target: float | None = 0.9
    greater: bool = True

    def better(self, value: float, than: float) -> bool:
        return value > than if self.greater else value < than

    def reached(self, value: float) -> bool:
        return self.target is not None and not self.better(self.target, value)


def test_a_curve_is_read_between_its_points_only() -> None:
    curve = [(100, 0.5), (400, 0.7)]
    assert value_on(curve, 200) == pytest.approx(0.6)
    assert value_on(curve, 100) == 0.5
    assert value_on(curve, 99) is None
    assert value_on(curve, 401) is None
    assert value_on([], 5) is None


def test_a_projection_follows_the_logarithm_of_the_samples() -> None:
    points = [(100, 0.5), (200, 0.6)]
    assert projected_samples(points, 0.7, greater=True) == pytest.approx(400)
    assert projected_samples(points, 0.55, greater=True) == 200
    assert projected_samples([(100, 0.6), (200, 0.6)], 0.7, greater=True) == math.inf
    assert projected_samples([(100, 1.0), (200, 0.5)], 0.25, greater=False) == pytest.approx(200 * 2**0.5)


@pytest.mark.parametrize(
    ("points", "before", "expected", "own", "passed", "rule"),
    [
        ([(10, 0.95)], None, {"samples_to_target": 1}, (), True, "reached"),
        ([(10, 0.5), (20, 0.6)], None, {}, [(5, 0.4), (40, 0.55)], True, "own curve"),
        ([(10, 0.5), (20, 0.6)], None, {}, [(5, 0.6), (40, 0.65)], False, "own curve"),
        # 0.1 each doubling: 0.9 comes at 160
        ([(10, 0.5), (20, 0.6)], None, {"samples_to_target": 161}, (), True, "samples"),
        ([(10, 0.5), (20, 0.6)], None, {"samples_to_target": 100, "samples_alone": 161}, (), True, "samples"),
        (
            [(10, 0.5), (20, 0.6)],
            None,
            {"samples_to_target": 100, "samples_alone": 150},
            (),
            False,
            "samples",
        ),
        ([(10, 0.6), (20, 0.6)], None, {"samples_to_target": 1e9}, (), False, "samples"),
        ([(10, 0.6), (20, 0.7)], 0.65, {}, (), True, "metric before"),
        ([(10, 0.6), (20, 0.7)], 0.7, {}, (), False, "metric before"),
        ([(10, 0.6), (20, 0.6)], None, {}, (), False, "metric before"),
    ],
)
def test_the_rule_of_the_probe(points, before, expected, own, passed, rule) -> None:  # type: ignore[no-untyped-def]
    verdict = judge(Goal(), points, before, expected, own)  # type: ignore[arg-type]
    assert (verdict.passed, verdict.rule) == (passed, rule)


def test_events_survive_a_torn_line_and_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("ready")
    log.write("started", "a")
    with open(path, "a") as stream:
        stream.write('{"seq": 3, "ev')
    again = EventLog(path)
    again.write("finished", "a", metric=0.5)
    assert [(e["seq"], e["event"]) for e in read_lines(path)] == [
        (1, "ready"),
        (2, "started"),
        (3, "finished"),
    ]
    assert again.said("started", "a")
    again.path = tmp_path / "absent" / "events.jsonl"
    again.write("stopped")
    again.path = path
    again.flush()
    assert [e["seq"] for e in read_lines(path)] == [1, 2, 3, 4]
