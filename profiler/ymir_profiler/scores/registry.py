"""The scores by name: a guess for a pair (source, target) with its cost in CPU seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ymir_profiler.measure.machine import spending
from ymir_profiler.scores.features import cosine, h_score, leep, logme, transrate
from ymir_profiler.scores.probe import Probe

__all__ = ["SCORES", "Score", "task2vec_similarity"]

Score = Callable[[Probe, str, str], tuple[float, float]]
"""(probe, source, target) -> (score, CPU seconds of everything it needed); more is better."""


def _label_features(probe: Probe, source: str, target: str) -> tuple[float, float]:
    """Return the Jaccard index of the two sets of label names."""
    a, b = set(probe.bench.task(source).classes), set(probe.bench.task(target).classes)
    return len(a & b) / len(a | b), 0.0


def _size_features(probe: Probe, source: str, target: str) -> tuple[float, float]:
    """Return the log ratio of training rows, source over target."""
    a, b = len(probe.bench.task(source).train), len(probe.bench.task(target).train)
    return float(np.log(a / b)), 0.0


def _text_embedding(probe: Probe, source: str, target: str) -> tuple[float, float]:
    """Return the cosine of the tasks' mean embeddings under the bare model."""
    a, cost_a = probe.features(source, None)
    b, cost_b = probe.features(target, None)
    return cosine(a.mean(axis=0), b.mean(axis=0)), cost_a + cost_b


def _of_features(function: Callable[..., float]) -> Score:
    def score(probe: Probe, source: str, target: str) -> tuple[float, float]:
        states, cost = probe.features(target, probe.adapter(source))
        with spending() as spent:
            value = function(states, probe.labels(target))
        return value, cost + spent.cpu_s

    return score


def _leep(probe: Probe, source: str, target: str) -> tuple[float, float]:
    chances, cost = probe.source_probabilities(source, target)
    return leep(chances, probe.labels(target)), cost


def task2vec_similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Return the cosine of a/(a+b) and b/(a+b), as Task2Vec compares embeddings of different scale."""
    total = np.maximum(a + b, 1e-30)
    return cosine(a / total, b / total)


def _task2vec(probe: Probe, source: str, target: str) -> tuple[float, float]:
    a, cost_a = probe.fisher(source)
    b, cost_b = probe.fisher(target)
    return task2vec_similarity(a, b), cost_a + cost_b


def _gradient_cosine(probe: Probe, source: str, target: str) -> tuple[float, float]:
    a, cost_a = probe.gradient(source)
    b, cost_b = probe.gradient(target)
    return cosine(a, b), cost_a + cost_b


SCORES: Mapping[str, Score] = {
    "label-features": _label_features,
    "size-features": _size_features,
    "text-embedding": _text_embedding,
    "logme": _of_features(logme),
    "h-score": _of_features(h_score),
    "transrate": _of_features(transrate),
    "leep": _leep,
    "task2vec": _task2vec,
    "gradient-cosine": _gradient_cosine,
}
