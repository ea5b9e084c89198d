"""Pairs of jobs that the estimates can answer for: every one, or in large families those of similar rank.

Jobs with equal speed or transfer figures form a *class*. Within a pair of classes only the members' work
and importance differ, so a good partner of a job is one of similar length or similar worth. Where a mode
has too many pairs, each class keeps its most promising partner classes (a sample is scored) and each job
the partners near its own rank, by run time and by worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["PairFinder"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Score = Callable[[Mode, IntArray], FloatArray]

SAMPLE = 6


class PairFinder:
    """Finds the pairs of one mode, of all jobs or of ``among`` bool[J]."""

    def __init__(
        self,
        evaluator: Evaluator,
        rules: Rules,
        limits: PoolLimits,
        worth: FloatArray,
        among: BoolArray | None = None,
    ) -> None:
        self.evaluator = evaluator
        self.rules = rules
        self.limits = limits
        self.worth = worth
        self.among = np.ones(evaluator.jobs.count, np.bool_) if among is None else among
        self.dropped = 0

    def pairs(self, mode: Mode, score: Score) -> IntArray:
        """Return pairs that may form a group of the mode, int64[P, 2]; ordered in a sequence."""
        classes = self._classes(mode)
        if not classes:
            return np.zeros((0, 2), dtype=np.int64)
        kind = self._class(mode)
        possible = self._possible(mode)
        kinds = kind[[c[0] for c in classes]]
        linked = possible[np.ix_(kinds, kinds)]
        if mode is not Mode.SEQUENCE:
            linked = np.triu(linked)
        links = [(a, b) for a, b in np.argwhere(linked).tolist()]
        sizes = [len(c) for c in classes]
        total = sum(
            sizes[a] * sizes[b] // (2 if a == b and mode is not Mode.SEQUENCE else 1) for a, b in links
        )
        if total <= self.limits.all_pairs_to:
            found = [_Ranked.of(classes).all(np.array(links, dtype=np.int64).reshape(-1, 2))]
        else:
            found = self._similar(mode, classes, links, score)
        if not found:
            return np.zeros((0, 2), dtype=np.int64)
        pairs = np.concatenate(found)
        if mode is not Mode.SEQUENCE:
            pairs = np.sort(pairs, axis=1)
        pairs = _unique(pairs[pairs[:, 0] != pairs[:, 1]], self.evaluator.jobs.count)
        self.dropped += max(0, total - len(pairs)) if total > self.limits.all_pairs_to else 0
        return pairs[self.rules.allowed(mode, pairs)]

    def linked(self, mode: Mode) -> BoolArray:
        """Return bool[J, J]: rows (or a predictor) may answer for the two jobs; from, to in a sequence."""
        kind = self._class(mode)
        known = np.zeros((int(kind.max(initial=-1)) + 2,) * 2, dtype=np.bool_)
        possible = self._possible(mode)
        if self.evaluator.estimates.predictor is not None and mode is Mode.JOINT:
            # a predictor may answer for a group of whose pairs it knows nothing
            possible = np.ones_like(possible)
        known[: len(possible), : len(possible)] = possible[: len(known) - 1, : len(known) - 1]
        return np.asarray(known[kind[:, None], kind[None, :]])

    # -- classes --------------------------------------------------------------------------------

    def _classes(self, mode: Mode) -> list[IntArray]:
        """Return the jobs of each class that may be in a group of the mode."""
        jobs = self.evaluator.jobs
        kind = self._class(mode)
        rows = np.flatnonzero(self.among & jobs.startable & ~jobs.rigid & (kind >= 0))
        order = rows[np.argsort(kind[rows], kind="stable")]
        cuts = np.flatnonzero(np.diff(kind[order])) + 1
        return [part for part in np.split(order, cuts) if len(part)]

    def _class(self, mode: Mode) -> IntArray:
        if mode in (Mode.GPU_SHARE, Mode.COLOCATE):
            return self.evaluator.jobs.signature
        return self.evaluator.works.task

    def _possible(self, mode: Mode) -> BoolArray:
        """Return bool[class, class]: some row (or the predictor) may answer for such a pair."""
        known = self.rules.possible.get(mode)
        if known is None:
            known = self.rules.possible[mode] = self._ask(mode)
        return known

    def _ask(self, mode: Mode) -> BoolArray:
        evaluator = self.evaluator
        estimates = evaluator.estimates
        if mode in (Mode.GPU_SHARE, Mode.COLOCATE):
            return self._colocated(mode)
        tasks = evaluator.works.tasks
        possible = np.zeros((len(tasks), len(tasks)), dtype=np.bool_)
        for i, (fm, source) in enumerate(tasks):
            for k, (other, target) in enumerate(tasks):
                if fm != other:
                    continue
                if mode is Mode.SEQUENCE:
                    found = estimates.transfer.warm_start(fm, source, target)
                    possible[i, k] = found is not None and found.ratio < 1
                else:
                    possible[i, k] = (
                        estimates.transfer.joint(fm, [source], target) is not None
                        and estimates.transfer.joint(fm, [target], source) is not None
                    )
        if mode is Mode.JOINT:
            # a group may have a row of its own where its pairs have none: what is lost is then counted
            row_of = {task: i for i, task in enumerate(tasks)}
            for fm, names in estimates.transfer.measured_together():
                rows = [row_of[fm, name] for name in names if (fm, name) in row_of]
                if len(rows) == len(names):
                    possible[np.ix_(rows, rows)] = True
        return possible

    def _colocated(self, mode: Mode) -> BoolArray:
        estimates = self.evaluator.estimates
        keys = self.evaluator.jobs.signature_keys
        possible = np.zeros((len(keys), len(keys)), dtype=np.bool_)
        if estimates.predictor is not None:
            model = np.array([key.key.foundation_model for key in keys], dtype=np.str_)
            possible |= (mode is Mode.GPU_SHARE) | (model[:, None] == model[None, :])
        base: dict[tuple[object, int], list[int]] = {}
        for i, key in enumerate(keys):
            base.setdefault((key.key, key.batch_size), []).append(i)
        for row, members in estimates.colocation.rows:
            if row.mode is not mode:
                continue
            matching = [
                [i for i in base.get((m.key, m.batch_size), ()) if m.task in (None, keys[i].task)]
                for m in members
            ]
            for a, b in permutations(range(len(members)), 2):
                possible[np.ix_(matching[a], matching[b])] = True
        return possible

    # -- large families -------------------------------------------------------------------------

    def _similar(
        self, mode: Mode, classes: list[IntArray], links: list[tuple[int, int]], score: Score
    ) -> list[IntArray]:
        length = self._run_time()
        by_length = _Ranked.of([c[np.argsort(length[c], kind="stable")] for c in classes])
        by_worth = _Ranked.of([c[np.argsort(self.worth[c], kind="stable")] for c in classes])
        chosen = np.array(self._promising(mode, by_length, links, score), dtype=np.int64).reshape(-1, 2)
        apart = chosen[chosen[:, 0] != chosen[:, 1], ::-1]
        found = []
        for ranked in (by_length, by_worth):
            found.append(ranked.near(chosen, self.limits.partner_ranks))
            found.append(ranked.near(apart, self.limits.partner_ranks)[:, ::-1])
        return found

    def _promising(
        self, mode: Mode, ranked: _Ranked, links: list[tuple[int, int]], score: Score
    ) -> list[tuple[int, int]]:
        """Return the links that are among the best of one of their classes, by a scored sample."""
        pairs = np.array(links, dtype=np.int64).reshape(-1, 2)
        at = (np.arange(SAMPLE) + 0.5) / SAMPLE
        size = ranked.size[pairs][:, :, None]
        place = (at * size).astype(np.int64)
        place[:, 1] += (pairs[:, 0] == pairs[:, 1])[:, None]
        place = np.minimum(place, size - 1)
        sample = ranked.jobs[ranked.start[pairs][:, :, None] + place]
        one, two = sample[:, 0].ravel(), sample[:, 1].ravel()
        apart = one != two
        value = score(mode, np.column_stack([one[apart], two[apart]]))
        promise = np.full(len(links), -np.inf)
        np.maximum.at(promise, np.repeat(np.arange(len(links)), SAMPLE)[apart], value)
        best: dict[int, list[int]] = {}
        order = np.argsort(-promise, kind="stable")
        chosen = []
        for i in order[np.isfinite(promise[order])].tolist():
            a, b = links[i]
            room = min(len(best.setdefault(a, [])), len(best.setdefault(b, [])))
            if room < self.limits.partner_classes:
                best[a].append(i)
                best[b].append(i)
                chosen.append((a, b))
        return chosen

    def _run_time(self) -> FloatArray:
        """Return each job's run time at its fastest per GPU, seconds (inf where unknown)."""
        jobs = self.evaluator.jobs
        return np.where(jobs.known, jobs.x, np.inf)


@dataclass(frozen=True)
class _Ranked:
    """Classes of jobs, each in an order; ``start`` and ``size`` say where each lies in ``jobs``."""

    jobs: IntArray
    start: IntArray
    size: IntArray

    @classmethod
    def of(cls, classes: list[IntArray]) -> _Ranked:
        size = np.array([len(c) for c in classes], dtype=np.int64)
        return cls(np.concatenate(classes), np.cumsum(size) - size, size)

    def all(self, links: IntArray) -> IntArray:
        """Return every pair, int64[P, 2], of the two classes of links int64[L, 2]."""
        other = self.size[links[:, 1]]
        count = self.size[links[:, 0]] * other
        link = np.repeat(np.arange(len(links)), count)
        rank = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        one = self.jobs[self.start[links[:, 0]][link] + rank // other[link]]
        two = self.jobs[self.start[links[:, 1]][link] + rank % other[link]]
        return np.column_stack([one, two])

    def near(self, links: IntArray, reach: int) -> IntArray:
        """Return the pairs of similar relative rank, int64[P, 2], for links int64[L, 2] of two classes."""
        one, two = links[:, 0], links[:, 1]
        count = self.size[one]
        link = np.repeat(np.arange(len(links)), count)
        rank = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        member = self.jobs[self.start[one][link] + rank]
        other, start = self.size[two][link], self.start[two][link]
        at = ((rank + 0.5) / count[link] * other).astype(np.int64)
        parts = [np.zeros((0, 2), dtype=np.int64)]
        for offset in range(-reach, reach + 1):
            place = at + offset
            inside = (place >= 0) & (place < other)
            parts.append(np.column_stack([member[inside], self.jobs[(start + place)[inside]]]))
        return np.concatenate(parts)


def _unique(pairs: IntArray, count: int) -> IntArray:
    # sorting is several times faster than np.unique, which hashes
    code = np.sort(pairs[:, 0] * count + pairs[:, 1])
    code = code[np.diff(code, prepend=-1) != 0]
    return np.column_stack([code // count, code % count])
