"""A score of a pair, as a measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import NotFoundError
from ymir_profiler.measure.base import Outcome
from ymir_profiler.measure.bench import Bench
from ymir_profiler.scores.probe import Probe
from ymir_profiler.scores.registry import SCORES

__all__ = ["ScoreOf"]

_PROBES: WeakKeyDictionary[Bench, Probe] = WeakKeyDictionary()


@dataclass(frozen=True)
class ScoreOf:
    """One score of one pair (source, target)."""

    score: str
    source: str
    target: str
    kind: str = "score"

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise NotFoundError(
                "transfer.scores", f"{self.score!r} is unknown", nearest(self.score, set(SCORES))
            )

    @property
    def title(self) -> str:
        """A few words."""
        return f"{self.score}: {self.source} -> {self.target}"

    def subject(self, bench: Bench) -> Mapping[str, Any]:
        """Return what is measured."""
        training = bench.recipe.training
        return {
            "score": self.score,
            "source": {"task": self.source, "sha256": bench.task(self.source).sha256},
            "target": {"task": self.target, "sha256": bench.task(self.target).sha256},
            "adapter": bench.recipe.adapter.model_dump(),
            "batch_size": training.batch_size,
            "max_length": training.max_length,
            "samples": training.source_samples or training.eval_at[-1],
            "seed": training.seeds[0],
        }

    def estimate_cpu_s(self, bench: Bench) -> float:
        """Return a rough cost."""
        return 1.0

    def measure(self, bench: Bench) -> Outcome:
        """Compute it; the value's cost counts shared parts in full."""
        probe = _PROBES.setdefault(bench, Probe(bench))
        value, cost = SCORES[self.score](probe, self.source, self.target)
        if not math.isfinite(value):
            return Outcome({"score": None, "score_cpu_s": cost}, "non-finite")
        return Outcome({"score": value, "score_cpu_s": cost})
