"""Sets of jobs worth expanding: every set in small instances, a beam over partners in larger ones."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["SetFinder"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class SetFinder:
    """Finds the sets of one instance, mode by mode."""

    def __init__(self, evaluator: Evaluator, rules: Rules, expander: Expander, limits: PoolLimits) -> None:
        self.evaluator = evaluator
        self.rules = rules
        self.expander = expander
        self.limits = limits

    def columns(self, mode: Mode) -> list[ColumnTable]:
        """Return the columns of all groups of two or more in a mode."""
        if self.expander.exhaustive:
            return self._every(mode)
        return self._beam(mode)

    # -- small instances ------------------------------------------------------------------------

    def _every(self, mode: Mode) -> list[ColumnTable]:
        rows = np.flatnonzero(self.evaluator.jobs.startable & ~self.evaluator.jobs.rigid)
        out = []
        for size in range(2, self.limits.max_members + 1):
            found = permutations(rows, size) if mode is Mode.SEQUENCE else combinations(rows, size)
            sets = np.array(list(found), dtype=np.int64).reshape(-1, size)
            sets = sets[self.rules.allowed(mode, sets)] if len(sets) else sets
            if len(sets):
                out.append(self.expander.expand(mode, sets))
        return out

    # -- larger instances -----------------------------------------------------------------------

    def _beam(self, mode: Mode) -> list[ColumnTable]:
        pairs = self._pairs(mode)
        if not len(pairs):
            return []
        kept = self._best(mode, pairs, self.limits.pairs_per_job)
        out = [self.expander.expand(mode, kept)] if len(kept) else []
        grown = kept
        for _ in range(3, self.limits.max_members + 1):
            wider = self._grow(mode, grown, kept)
            if not len(wider):
                break
            grown = self._best(mode, wider, self.limits.grown_per_job)
            if not len(grown):
                break
            out.append(self.expander.expand(mode, grown))
        return out

    def _pairs(self, mode: Mode) -> IntArray:
        """Return the pairs that the estimates can answer for, int64[P, 2]."""
        possible = self._possible(mode)
        jobs = self.evaluator.jobs
        rows = np.flatnonzero(jobs.startable & ~jobs.rigid & (self._class(mode) >= 0))
        blocks = [rows]
        if mode is not Mode.GPU_SHARE:
            family = jobs.fm[rows]
            blocks = [rows[family == f] for f in np.unique(family)]
        out = []
        for block in blocks:
            if mode is Mode.SEQUENCE:
                a, b = np.meshgrid(block, block, indexing="ij")
                pairs = np.column_stack([a[a != b], b[a != b]])
            else:
                i, k = np.triu_indices(len(block), 1)
                pairs = np.column_stack([block[i], block[k]])
            kind = self._class(mode)
            pairs = pairs[possible[kind[pairs[:, 0]], kind[pairs[:, 1]]]]
            if len(pairs):
                out.append(pairs[self.rules.allowed(mode, pairs)])
        return np.concatenate(out) if out else np.zeros((0, 2), dtype=np.int64)

    def _class(self, mode: Mode) -> IntArray:
        """Return the class of each job that decides whether a pair is answerable."""
        if mode in (Mode.GPU_SHARE, Mode.COLOCATE):
            return self.evaluator.jobs.signature
        return self.evaluator.works.task

    def _possible(self, mode: Mode) -> BoolArray:
        """Return bool[class, class]: some row (or the predictor) may answer for such a pair."""
        evaluator = self.evaluator
        estimates = evaluator.estimates
        if mode in (Mode.GPU_SHARE, Mode.COLOCATE):
            keys = evaluator.jobs.signature_keys
            possible = np.full((len(keys), len(keys)), estimates.predictor is not None, dtype=np.bool_)
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
            # a group may have a row of its own where its pairs have none
            row_of = {task: i for i, task in enumerate(tasks)}
            for fm, names in estimates.transfer.measured_together():
                rows = [row_of[fm, name] for name in names if (fm, name) in row_of]
                if len(rows) == len(names):
                    possible[np.ix_(rows, rows)] = True
        return possible

    def _best(self, mode: Mode, sets: IntArray, per_job: int) -> IntArray:
        """Keep for each job the sets with the largest saving per GPU at a small count."""
        if len(sets) <= per_job:
            return sets
        score = self.score(mode, sets)
        order = np.argsort(-score, kind="stable")
        order = order[np.isfinite(score[order])]
        # a set stays if it is among the best of any of its members
        seen = [0] * self.evaluator.jobs.count
        keep = np.zeros(len(order), dtype=np.bool_)
        for position, members in enumerate(sets[order].tolist()):
            if any(seen[j] < per_job for j in members):
                keep[position] = True
                for j in members:
                    seen[j] += 1
        chosen = np.sort(order[keep])
        self.expander.dropped += int(len(sets) - len(chosen))
        return sets[chosen]

    def score(self, mode: Mode, sets: IntArray) -> NDArray[np.float64]:
        """Return the best saving per GPU of each set over its smallest counts, -inf if inadmissible."""
        evaluator = self.evaluator
        best = np.full(len(sets), -np.inf)
        saving = evaluator.queued_cost[sets].sum(axis=1)
        for t in range(len(evaluator.instance.types)):
            row, gpus = self.expander._rows(mode, sets, t)
            if not len(row):
                continue
            first = np.r_[True, row[1:] != row[:-1]]
            second = np.r_[False, first[:-1]] & ~first
            pick = first | second
            row, gpus = row[pick], gpus[pick]
            members = sets[row]
            result = evaluator.evaluate(
                mode,
                members,
                np.full(len(row), t, dtype=np.int64),
                gpus,
                np.full(members.shape, -1, dtype=np.int64),
                np.zeros(len(row), np.bool_),
            )
            value = np.where(result.valid, (saving[row] - result.cost) / gpus, -np.inf)
            np.maximum.at(best, row, np.nan_to_num(value, nan=-np.inf))
        return best

    def _grow(self, mode: Mode, sets: IntArray, pairs: IntArray) -> IntArray:
        """Return the sets enlarged by a partner of one of their members (of the last, in a sequence)."""
        partners: dict[int, list[int]] = {}
        for a, b in pairs:
            partners.setdefault(int(a), []).append(int(b))
            if mode is not Mode.SEQUENCE:
                partners.setdefault(int(b), []).append(int(a))
        found: dict[tuple[int, ...], None] = {}
        for row in sets:
            members = [int(j) for j in row]
            sources = members[-1:] if mode is Mode.SEQUENCE else members
            for source in sources:
                for extra in partners.get(source, ()):
                    if extra in members:
                        continue
                    wider = [*members, extra]
                    found[tuple(wider if mode is Mode.SEQUENCE else sorted(wider))] = None
        if not found:
            return np.zeros((0, sets.shape[1] + 1), dtype=np.int64)
        grown = np.array(list(found), dtype=np.int64)
        return grown[self.rules.allowed(mode, grown)]
