"""The order in which a transfer recipe is measured: what is cheap first, then the most promising pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ymir_profiler.analysis.active import Chooser, Pair
from ymir_profiler.analysis.transfer import transfers
from ymir_profiler.measure.bench import Bench
from ymir_profiler.measure.runs import JointRun, WarmRun
from ymir_profiler.runner import Pending
from ymir_profiler.store.store import Store

__all__ = ["ActiveOrder", "pair_of"]


def pair_of(item: Pending) -> Pair | None:
    """Return the pair that a warm run belongs to."""
    run = item.measurement
    return (run.source, run.task) if isinstance(run, WarmRun) else None


class ActiveOrder:
    """Chooses the next measurement from what the store already holds.

    Runs alone and scores come first, in their order. Then pairs: one that has been started gets its other
    seeds, and a new one is chosen by its expected gain and the doubt about it. Joint runs come last.
    """

    def __init__(self, bench: Bench, store: Store) -> None:
        self.bench = bench
        self.store = store
        self._current: Pair | None = None

    def __call__(self, left: Sequence[Pending]) -> Pending:
        """Return the next."""
        for item in left:
            if not isinstance(item.measurement, WarmRun | JointRun):
                return item
        by_pair: dict[Pair, list[Pending]] = defaultdict(list)
        for item in left:
            pair = pair_of(item)
            if pair is not None:
                by_pair[pair].append(item)
        if not by_pair:
            return left[0]
        seeds = len(self.bench.recipe.training.seeds)
        if self._current not in by_pair:
            started = [pair for pair, items in by_pair.items() if len(items) < seeds]
            self._current = started[0] if started else self._choose(list(by_pair))
        return by_pair[self._current][0]

    def _choose(self, allowed: list[Pair]) -> Pair:
        model = self.bench.foundation_model
        wanted = self.bench.recipe.pairs()
        gains = {
            (t.source, t.target): t.gain
            for t in transfers(self.store.records("run", model))
            if t.mode == "warm_start" and (t.source, t.target) in wanted
        }
        names = list(self.bench.recipe.transfer.scores)
        values: dict[Pair, list[float]] = {}
        for record in self.store.records("score", model):
            pair = (record.subject["source"]["task"], record.subject["target"]["task"])
            score, name = record.value.get("score"), record.subject["score"]
            if score is not None and name in names:
                values.setdefault(pair, [0.0] * len(names))[names.index(name)] = float(score)
        return Chooser(wanted, values).next(gains, allowed)
