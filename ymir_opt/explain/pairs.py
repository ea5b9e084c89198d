"""Figures of every pair of jobs that the rules allow, evaluated at once, mode by mode."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, permutations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.evaluate import Evaluation

if TYPE_CHECKING:
    from ymir_opt.planner.search import Round

__all__ = ["PairFigures", "Together"]

IntArray = NDArray[np.int64]


@dataclass
class Together:
    """What the evaluations of one pair at all types and counts say.

    Attributes
    ----------
    known, valid : bool
        Some count has known figures; some is admitted.
    need, most : float
        Memory of the admitted count that fits best, and the most that a GPU has there, GiB a GPU.
    mean_s, where, p_benefit, probe_s
        Of the known count with the earliest mean finish.
    """

    known: bool = False
    valid: bool = False
    need: float = np.inf
    most: float = 0.0
    mean_s: float = np.inf
    where: str = ""
    p_benefit: float = 1.0
    probe_s: float = 0.0

    def add(self, result: Evaluation, i: int, where: str, top: float) -> None:
        """Take one evaluation in; ``top`` is the largest memory of a GPU of the type, GiB."""
        if not result.known[i]:
            return
        self.known = True
        mean = float(result.finish_s[i].mean())
        if mean < self.mean_s:
            self.mean_s, self.where = mean, where
            self.p_benefit = float(result.work.p_benefit[i].min())
            self.probe_s = float(result.probe_s[i].max())
        if result.valid[i]:
            self.valid = True
            memory = float(np.nan_to_num(result.memory[i])) * (1 - 1e-9)
            if memory - top < self.need - self.most:
                self.need, self.most = memory, top


class PairFigures:
    """Figures by mode and pair, computed for all pairs of a mode when the first is asked about."""

    def __init__(self, work: Round, rules: Rules, expander: Expander, only: int | None) -> None:
        self.work = work
        self.evaluator = work.evaluator
        self.rules = rules
        self.expander = expander
        self.only = only
        self._found: dict[Mode, dict[tuple[int, int], Together]] = {}
        self._signatures: dict[Mode, set[tuple[int, int]]] = {}

    def of(self, mode: Mode, a: int, b: int) -> Together | None:
        """Return a pair's figures (``a`` before ``b`` in a sequence, else ascending), None without any."""
        if mode not in self._found:
            self._found[mode] = self._evaluate(mode)
        return self._found[mode].get((a, b))

    def together(self, mode: Mode) -> set[tuple[int, int]]:
        """Return the pairs of speed signatures (ascending) whose speed together is known somewhere."""
        if mode not in self._signatures:
            jobs, types = self.evaluator.jobs, self.evaluator.instance.types
            rows = np.flatnonzero(jobs.signature >= 0)
            some = rows[np.unique(jobs.signature[rows], return_index=True)[1]].tolist()
            cells = [
                (a, b, t, g)
                for i, a in enumerate(some)
                for b in some[i:]
                for t in range(len(types))
                for g in self.expander.menu[t].tolist()
            ]
            cell = np.array(cells, dtype=np.int64).reshape(-1, 4)
            members = cell[:, :2]
            found = self.evaluator.speeds.shared(mode, members, cell[:, 2], cell[:, 3], members >= 0)[0]
            known = np.sort(jobs.signature[members[np.isfinite(found).all(axis=1)]], axis=1)
            self._signatures[mode] = {(int(a), int(b)) for a, b in known}
        return self._signatures[mode]

    def _evaluate(self, mode: Mode) -> dict[tuple[int, int], Together]:
        instance = self.evaluator.instance
        pairs = self._pairs(mode)
        out: dict[tuple[int, int], Together] = {}
        for t in range(len(instance.types) if len(pairs) else 0):
            row, gpus = self.expander._rows(mode, pairs, t)
            members = pairs[row]
            holders = members[:, :1] if mode is Mode.SEQUENCE else members
            allowed = (self.work.quotas.job_rows(holders.reshape(-1), t) != -1).reshape(holders.shape)
            members, gpus = members[allowed.all(axis=1)], gpus[allowed.all(axis=1)]
            if not len(members):
                continue
            result = self.evaluator.evaluate(
                mode,
                members,
                np.full(len(members), t, dtype=np.int64),
                gpus,
                np.full(members.shape, -1, dtype=np.int64),
                np.zeros(len(members), np.bool_),
            )
            top = float(instance.levels[t].max()) if len(instance.levels[t]) else 0.0
            for i, (one, two) in enumerate(members.tolist()):
                where = f"{gpus[i]} x {instance.types[t]}"
                out.setdefault((one, two), Together()).add(result, i, where, top)
        return out

    def _pairs(self, mode: Mode) -> IntArray:
        """Return the pairs that the rules allow, those with the one job where only it is asked about."""
        jobs = self.evaluator.jobs
        rows = np.flatnonzero(jobs.startable & ~jobs.rigid & (jobs.fm >= 0)).tolist()
        if self.only is None:
            found = list(permutations(rows, 2) if mode is Mode.SEQUENCE else combinations(rows, 2))
        else:
            one = self.only
            found = [(min(one, r), max(one, r)) for r in rows if r != one] if one in rows else []
            if mode is Mode.SEQUENCE:
                found += [(b, a) for a, b in found]
        pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
        if mode is not Mode.GPU_SHARE:
            pairs = pairs[jobs.fm[pairs[:, 0]] == jobs.fm[pairs[:, 1]]]
        return pairs[self.rules.allowed(mode, pairs)] if len(pairs) else pairs
