"""Proof against every group of at most four jobs, by exhaustive pricing.

Let ``P`` be the pool, ``y`` the duals of its relaxation (odd-set inequalities included), ``L`` the bound
that they prove, and ``d_c`` the reduced cost of a column ``c`` outside ``P``. A plan ``S`` is a set of
columns, ``S_P`` those of them in the pool. Coverage holds with equality over all of ``S``. Every other row
that is used here (`KEPT`, and the inequalities) is ``A x <= b`` with ``y <= 0``, has no negative
coefficient in any column, and holds for ``S_P`` alone, because a part of what can be placed and paid for
can be placed and paid for. So by weak duality

    ``cost(S) >= L + sum of d_c over the columns of S outside P``

with of an outside column's entries only those in coverage and in the capacity of its whole GPU type; the
others would only raise ``d_c``. Rows in which a column may have the other sign (protection within nominal,
reclaim, and priorities where reclaim may override them) are left out of this relaxation, which only lowers
``L``. Columns of the pool that sit at their upper bound, with ``d < 0``, hand that price over to the
coverage of their first member: ``L`` does not fall, and what the pool dominates has no negative reduced
cost.

If every column outside the pool that is not dominated has ``d_c >= m >= 0``, a plan either lies in the pool
and costs at least the pool's own bound ``B``, or uses one of them and costs at least ``L + m``. So ``min(B,
L + m)`` bounds every plan. Columns below ``m`` join the pool, until there are none; ``m`` is what the best
plan asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates import Pool
from ymir_opt.candidates.exhaustive import Exhaustive, reduced_costs
from ymir_opt.candidates.outside import Asked, Budget, LimitError
from ymir_opt.domain.plan import StoppedBy
from ymir_opt.domain.snapshot import Reclaim
from ymir_opt.formulation.columns import ColumnTable, concatenate
from ymir_opt.formulation.linear import LinearModel
from ymir_opt.formulation.model import RoundModel
from ymir_opt.planner.pooling import guessed, monotonic, struck
from ymir_opt.planner.search import Outcome, Round

__all__ = ["MOST_SETS", "Proven", "asked_of", "prove"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

KEPT = frozenset(
    ["coverage", "capacity", "resident", "rung", "rung_host", "resource", "quota", "cohort", "lending"]
)
"""Families of rows that the part of a plan that lies in the pool satisfies by itself."""
PRICINGS, RELAXATIONS = 40, 400
CUSHION = 0.1
"""Columns are remembered up to so many GPUs' price above what pays: the next prices are others."""
MOST_SETS = 3_000_000_000
MOST_WANTED = 5_000_000
MOST_JOIN = 100_000
"""So many columns join at once, those of the lowest reduced costs."""
ATTEMPTS = 4


@dataclass(frozen=True)
class Proven:
    """What exhaustive pricing reached.

    Attributes
    ----------
    pool : Pool
    work : Round
        Its columns begin with those of the round it was asked about.
    outcome : Outcome
        Best selection and bound; the bound holds for every plan if ``pool.exhaustive``.
    sets : int
        Sets looked at one by one.
    rounds : int
        Pricings.
    note : str
        Which limit was hit; empty if none was.
    """

    pool: Pool
    work: Round
    outcome: Outcome
    sets: int
    rounds: int
    note: str = ""


def prove(
    pool: Pool,
    work: Round,
    first: Outcome,
    solve: Callable[[Round, Pool], Outcome],
    *,
    gap: int,
    incumbent: int,
    deadline: float | None = None,
    most_sets: int | None = None,
) -> Proven:
    """Enlarge the pool until its bound holds for every group of at most four.

    Parameters
    ----------
    pool : Pool
    work : Round
        Over the pool's columns.
    first : Outcome
        What was found over them.
    solve : callable
        Searches a round over a pool.
    gap : int
        Gap target in quanta.
    incumbent : int
        Objective of a known plan, in quanta.
    deadline : float or None
        Of ``time.perf_counter()``; past it what was reached counts.
    most_sets : int
        Sets looked at, at most; by default `MOST_SETS`.
    """
    state = _State(pool, work, first, solve, gap, incumbent, deadline)
    state.budget = Budget(
        MOST_SETS if most_sets is None else most_sets, MOST_WANTED, lambda: struck(deadline)
    )
    note = ""
    try:
        state.run()
    except LimitError as limit:
        note = str(limit)
        # the bound that is known is that of the columns that were solved over
        state.pool, state.work = state.solved
        if struck(deadline):
            state.outcome = replace(state.outcome, stopped_by=StoppedBy.WALL_CLOCK)
    return Proven(state.pool, state.work, state.outcome, state.budget.sets, state.rounds, note)


class _State:
    """The pool as it grows, and the best outcome."""

    budget: Budget

    def __init__(
        self,
        pool: Pool,
        work: Round,
        first: Outcome,
        solve: Callable[[Round, Pool], Outcome],
        gap: int,
        incumbent: int,
        deadline: float | None,
    ) -> None:
        self.pool, self.work, self.outcome, self.solve = pool, work, first, solve
        self.gap, self.incumbent, self.deadline = gap, incumbent, deadline
        self.solved = pool, work
        self.rounds = 0
        self.exhaustive = Exhaustive(work.evaluator)

    def run(self) -> None:
        """Prove; raises `LimitError` where a limit is hit."""
        if self.outcome.bound is None:
            raise LimitError("too little time" if struck(self.deadline) else "no bound over the pool")
        solved = not self._join(self.exhaustive.alone())
        margin = 0
        for _ in range(ATTEMPTS):
            floor, grown = self._priced(margin)
            if grown or not solved:
                self._solve()
                solved = True
            bound = self.outcome.bound
            assert bound is not None
            if floor + margin >= min(bound, self._best() - self.gap):
                break
            margin = self._best() - self.gap - floor + 1
        else:
            raise LimitError("the relaxation is too far below the best plan")
        proven = min(bound, floor + margin)
        self.outcome = replace(self.outcome, bound=proven)
        self.pool = replace(self.pool, dropped=0, proven=True)

    def _best(self) -> int:
        found = self.outcome.selection
        return self.incumbent if found is None else min(self.incumbent, found.objective)

    def _priced(self, margin: int) -> tuple[int, bool]:
        """Let columns join until none outside is below ``margin``; return L, and whether any joined."""
        grown, whole = False, False
        near = self.exhaustive.expander.empty()
        for _ in range(RELAXATIONS):
            stated = self.work.model()
            priced = asked_of(self.work, stated, self.pool, self.gap, self.deadline)
            if priced is None:
                raise LimitError(
                    "too little time" if struck(self.deadline) else "the relaxation has no bound"
                )
            floor, asked = priced
            # what was nearly worth a place at the last prices may be now
            if self._join_below(near, reduced_costs(near, asked), margin):
                grown = True
                continue
            if self.rounds >= PRICINGS:
                break
            self.rounds += 1
            reach = margin + CUSHION * float(asked.gpu.max(initial=0.0))
            among = None if whole else self.exhaustive.first_of_equals(asked.worth)
            near, reduced = self.exhaustive.below(replace(asked, below=reach, among=among), self.budget)
            if self._join_below(near, reduced, margin):
                grown = True
            elif among is None or not self._spare(near.take(np.flatnonzero(reduced < margin)), among):
                return floor, grown
            else:
                # the pool has what the first of equal jobs are in, but maybe not the same with others
                whole = True
        raise LimitError(f"more than {PRICINGS} pricings")

    def _spare(self, found: ColumnTable, among: NDArray[np.bool_]) -> bool:
        """Say whether equal jobs outside could take a member's place in columns that the pool has."""
        alike = self.exhaustive.alike
        left = np.zeros(int(alike.max(initial=-1)) + 2, dtype=np.bool_)
        left[alike[~among]] = True
        return bool(left[np.append(alike, -1)[found.jobs]].any())

    def _join_below(self, found: ColumnTable, reduced: FloatArray, margin: int) -> bool:
        rows = np.flatnonzero(reduced < margin)
        return self._join(found.take(rows), reduced[rows])

    def _join(self, found: ColumnTable, reduced: FloatArray | None = None) -> bool:
        """Let columns join that nothing dominates; say whether there were any."""
        rows = np.flatnonzero(self.work.quotas.allowed(found)) if len(found) else np.zeros(0, np.int64)
        found = found.take(rows)
        reduced = None if reduced is None else reduced[rows]
        fresh = self.exhaustive.fresh(self.work.table, found) if len(found) else rows
        if not len(fresh):
            return False
        if reduced is not None and len(fresh) > MOST_JOIN:
            order = np.argsort(reduced[fresh], kind="stable")
            fresh = np.sort(fresh[order[:MOST_JOIN]])
        new = found.take(fresh)
        self.work = replace(self.work, table=concatenate([self.work.table, new]))
        self.pool = replace(
            self.pool,
            table=concatenate([self.pool.table, new]),
            generated=self.pool.generated + len(found),
            dominated=self.pool.dominated + len(found) - len(fresh),
        )
        return True

    def _solve(self) -> None:
        """Search the enlarged round; the better selection stays, with the bound over the enlarged pool."""
        before = self.outcome
        found = self.solve(self.work, self.pool)
        if found.bound is None:
            raise LimitError(
                "too little time" if struck(self.deadline) else "no bound over the enlarged pool"
            )
        if found.selection is None or (
            before.selection is not None and before.selection.objective <= found.selection.objective
        ):
            found = replace(found, selection=before.selection)
        self.outcome = found
        self.solved = self.pool, self.work


def asked_of(
    work: Round, stated: RoundModel, pool: Pool, gap: int, deadline: float | None
) -> tuple[int, Asked] | None:
    """Return the bound ``L`` of a relaxation, and what it asks of columns outside; None where it has none."""
    from ymir_opt.solvers.strengthen import strengthen

    model = _restricted(guessed(stated, pool), _families(work))
    found = strengthen(model, monotonic(deadline), gap)
    if found is None:
        return None
    lp = found[1]
    if not lp.optimal or lp.bound is None:
        return None
    family = np.array(model.row_family, dtype=np.str_)
    duals = lp.row_duals[: model.rows]
    worth = duals[family == "coverage"] - _handed_over(stated, lp.reduced_costs)
    free = model.upper[stated.y] > 0
    worth = np.where(free, np.minimum(worth, stated.table.queued_cost), worth)
    return lp.bound, Asked(worth, _gpu_prices(work, stated, model, duals))


def _families(work: Round) -> frozenset[str]:
    overridden = any(row.reclaim is Reclaim.ANY for row in work.quotas.rows)
    return KEPT if overridden else KEPT | {"priority"}


def _handed_over(stated: RoundModel, reduced: FloatArray) -> FloatArray:
    """Return by how much each job's worth falls for no column of the pool to have a negative reduced cost."""
    lowered = np.zeros(len(stated.y))
    for c in np.flatnonzero(reduced[stated.x] < 0).tolist():
        members = stated.table.jobs[c]
        members = members[members >= 0]
        left = float(reduced[stated.x[c]] + lowered[members].sum())
        if left < 0:
            lowered[members[0]] -= left
    return lowered


def _gpu_prices(work: Round, stated: RoundModel, model: LinearModel, duals: FloatArray) -> FloatArray:
    """Return the price of a GPU of each type: of the rows over all GPUs of it on which anything may start."""
    instance = work.evaluator.instance
    usable = work.available & instance.gpu_ready
    total = np.bincount(instance.gpu_type[usable], minlength=len(instance.types))
    kind = np.full(model.variables, -1, dtype=np.int64)
    kind[stated.x] = stated.table.type
    price = np.zeros(len(instance.types))
    for row in [i for i, name in enumerate(model.row_family) if name == "capacity"]:
        index = model.index[model.row_start[row] : model.row_start[row + 1]]
        t = int(kind[index].max(initial=-1))
        if t >= 0 and int(model.row_upper[row]) == int(total[t]):
            price[t] -= float(duals[row])
    return price


def _restricted(model: LinearModel, families: frozenset[str]) -> LinearModel:
    """Return the model with the rows of these families only."""
    keep = np.array([name in families for name in model.row_family], dtype=np.bool_)
    if keep.all():
        return model
    entry = keep[model.row_of_entry]
    length = np.diff(model.row_start)[keep]
    return replace(
        model,
        row_start=np.concatenate([np.zeros(1, np.int64), np.cumsum(length)]).astype(np.int64),
        index=model.index[entry],
        value=model.value[entry],
        row_lower=model.row_lower[keep],
        row_upper=model.row_upper[keep],
        row_family=tuple(np.array(model.row_family, dtype=object)[keep].tolist()),
        guess=None if model.guess is None else model.guess[keep],
    )
