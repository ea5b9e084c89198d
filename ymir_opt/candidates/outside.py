"""Groups outside the pool that would pay at given prices: all of them, by branch and bound over sets.

A column ``c`` of type ``t`` and count ``g`` has the reduced cost ``d_c = cost_c - sum_{j in c} v_j + P_t
g``, with ``v_j`` what covering job ``j`` is worth and ``P_t`` the price of a GPU (`Asked`). Its cost is a
sum over its members, and each member's part grows with its completion ``F_j``. So a lower bound on ``F_j``
in every group that contains some set bounds from above what ``j`` can gain there, ``v_j - cost_j``, and a
set is given up once its members' gains and the best that may join cannot exceed ``P_t g``. What is left is
evaluated exactly. The three kinds of sharing bound completions in three ways: `outside_joint`,
`outside_shared` (gpu_share and colocate) and `outside_chain` (sequences).

Admission, memory, shapes and history only take columns away; bounds need not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["Asked", "Budget", "Found", "Gains", "LimitError", "Terms", "Wanted"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

ROUNDING = 1.0
"""Quanta by which a float sum may miss an integer cost."""


class LimitError(Exception):
    """A limit on work was hit; the message says which."""


@dataclass(frozen=True)
class Asked:
    """At which prices columns are looked for, in quanta.

    Attributes
    ----------
    worth : float64[J]
        ``v_j``, what covering each job is worth.
    gpu : float64[T]
        Price of a GPU of each type.
    below : float
        Columns of a reduced cost below this are wanted.
    among : bool[J] or None
        Only groups of these jobs are looked for; None stands for all.
    """

    worth: FloatArray
    gpu: FloatArray
    below: float = 0.0
    among: BoolArray | None = None

    def open(self, rows: IntArray) -> BoolArray:
        """Say which of these jobs are looked at."""
        return np.ones(len(rows), dtype=np.bool_) if self.among is None else self.among[rows]

    def least(self, t: int, gpus: int) -> float:
        """Return what the gains of a group's members must exceed together."""
        return float(self.gpu[t]) * gpus - self.below - ROUNDING


class Budget:
    """Counts what is looked at; beyond a limit, or past the guard, it ends the search.

    Parameters
    ----------
    most_sets, most_wanted : int
        Sets bounded one by one; sets evaluated exactly.
    stop : callable
        Says whether the wall-clock guard has struck.
    """

    def __init__(self, most_sets: int, most_wanted: int, stop: Callable[[], bool]) -> None:
        self.most_sets, self.most_wanted, self.stop = most_sets, most_wanted, stop
        self.sets = self.wanted = 0

    def look(self, sets: int) -> None:
        """Count sets that are bounded one by one."""
        self.sets += sets
        if self.sets > self.most_sets:
            raise LimitError(f"more than {self.most_sets} sets to look at")
        self.check()

    def want(self, sets: int) -> None:
        """Count sets that are evaluated exactly."""
        self.wanted += sets
        if self.wanted > self.most_wanted:
            raise LimitError(f"more than {self.most_wanted} sets to evaluate")

    def check(self) -> None:
        """End the search past the guard."""
        if self.stop():
            raise LimitError("too little time")


@dataclass(frozen=True)
class Wanted:
    """Sets int64[M, K] that may have a column of a type and count with a reduced cost below the threshold."""

    mode: Mode
    type: int
    gpus: int
    sets: IntArray


Found = Iterator[Wanted]


class Gains:
    """What jobs gain by completions: ``v_j - cost_j(F)``, never increasing in ``F``; quanta."""

    def __init__(self, evaluator: Evaluator, asked: Asked) -> None:
        p = evaluator.parameters
        self.d0 = p.d0_s
        self.importance = evaluator.jobs.importance / evaluator.quantum
        self.full = self.importance * (p.kappa / p.d0_s)
        self.base = asked.worth - self.full
        self.slack = evaluator.slack if p.deadlines else np.full(len(self.base), np.inf)
        self.horizon = p.deadline_horizon_rounds * evaluator.instance.snapshot.round_s
        self.late = bool(np.isfinite(self.slack).any())
        # what a member that waits is short of its worth
        self.price = evaluator.queued_cost / evaluator.quantum - asked.worth

    def of(self, jobs: IntArray, finish: FloatArray) -> FloatArray:
        """Return gains at completions, -inf where there is none (NaN or inf)."""
        with np.errstate(invalid="ignore", over="ignore"):
            out = self.base[jobs] + self.importance[jobs] / np.maximum(finish, self.d0)
            if self.late:
                late = np.minimum(1.0, np.maximum(0.0, finish - self.slack[jobs]) / self.horizon)
                out = out - self.full[jobs] * np.where(np.isfinite(self.slack[jobs]), late, 0.0)
        return np.where(np.isfinite(finish), out, -np.inf)


class Terms:
    """Least figures of each job over everything that it may start from, by which completions are bounded.

    Attributes
    ----------
    work, high : float64[J]
        Least work, and least pessimistic work, over the job's own weights and the adapters it may use.
    spread : float64[J]
        ``high / work``, by which the pessimistic run is at least as long.
    """

    def __init__(self, evaluator: Evaluator, expander: Expander) -> None:
        jobs = evaluator.jobs
        self.evaluator = evaluator
        self.work, self.high = jobs.rest.copy(), jobs.rest_high.copy()
        table = evaluator.works._starts
        for j, options in enumerate(expander.start_options):
            for a in options[1:]:
                cell = evaluator.works.task[j], a
                ratio, top = float(table["ratio"][cell]), float(table["high"][cell])
                top = top if table["predicted"][cell] == 1.0 else min(ratio, top)
                self.work[j] = min(self.work[j], jobs.whole[j] * ratio)
                self.high[j] = min(self.high[j], jobs.whole_high[j] * top)
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.where(self.work > 0, self.high / self.work, 1.0)
        self.spread = np.where(np.isfinite(spread), spread, 1.0)
        instance = evaluator.instance
        held = (instance.gpu_resident >= 0) & instance.gpu_ready
        self.resident = np.zeros((len(instance.fms) + 1, len(instance.types)), dtype=np.int64)
        np.add.at(self.resident, (instance.gpu_resident[held], instance.gpu_type[held]), 1)

    def begin(self, rows: IntArray, t: int, gpus: int) -> FloatArray:
        """Return the least seconds until each job runs: a switch, warm where it may be, and lost work."""
        jobs = self.evaluator.jobs
        cold, warm = jobs.cold[rows, t], jobs.warm[rows, t]
        may = (jobs.fm[rows] >= 0) & (self.resident[jobs.fm[rows], t] >= gpus)
        return np.asarray(np.where(may, np.minimum(cold, warm), cold) + self.evaluator.lost_s[rows])

    def run_factor(self, spread: FloatArray) -> FloatArray:
        """Return by what the expected run exceeds the one at the point estimate, at least."""
        k = self.evaluator.parameters.uncertainty
        return np.asarray((1 - k) + k * np.where(np.isfinite(spread), spread, 1.0))


class EveryExpander(Expander):
    """Expands sets at one type and count, whatever heuristics the pool was made with."""

    def __init__(self, evaluator: Evaluator, rules: Rules, limits: PoolLimits) -> None:
        super().__init__(evaluator, rules, limits)
        self.exhaustive = True
        self.only: tuple[int, int] | None = None

    def _rows(self, mode: Mode, sets: IntArray, t: int) -> tuple[IntArray, IntArray]:
        if self.only is None:
            return super()._rows(mode, sets, t)
        if self.only[0] != t:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        row, gpus = super()._rows(mode, sets, t)
        mine = gpus == self.only[1]
        return row[mine], gpus[mine]
