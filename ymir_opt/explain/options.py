"""What else could be done with a job: columns that the pool pruned, and options as sets of columns.

The pool leaves out what provably cannot be in a better plan. An explanation must still be able to say what
such an option would lose, so the model is stated again with every solo column, in small rounds (or for one
job) with every pair, and where the pool is enumerated in full with every group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import combinations, permutations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import MODES, ColumnTable, concatenate

if TYPE_CHECKING:
    from ymir_opt.planner.search import Round

__all__ = ["EVERY_PAIR_TO", "Kind", "Option", "Options", "extend"]

IntArray = NDArray[np.int64]

SHARED = (Mode.GPU_SHARE, Mode.COLOCATE, Mode.JOINT, Mode.SEQUENCE)
# up to so many jobs every pair is stated, and every pair that cannot be is given a reason
EVERY_PAIR_TO = 40


class Kind(Enum):
    """What an option does with its job."""

    KEEP = auto()
    SOLO = auto()
    START = auto()
    MERGE = auto()
    WAIT = auto()


@dataclass(frozen=True)
class Option:
    """One thing that could be done with a job.

    Attributes
    ----------
    job : int
    kind : Kind
    text : str
        In words; the same option reads the same in every round.
    columns : tuple of int
        The columns of the extended table that do it; empty for waiting.
    partner : int
        Of a merge the other job, else -1.
    after : bool
        In a sequence the job comes after its partner.
    """

    job: int
    kind: Kind
    text: str
    columns: tuple[int, ...]
    partner: int = -1
    after: bool = False


def extend(work: Round, rows: IntArray, *, merge: bool) -> Round:
    """Return the round over its own columns and those that pruning left out for some jobs.

    Parameters
    ----------
    work : Round
        Its columns keep their positions.
    rows : int64[m]
        Jobs of which every solo column is added.
    merge : bool
        Also add groups of two, where there are few jobs or one is asked about; larger ones too where
        the pool is exhaustive.
    """
    evaluator = work.evaluator
    jobs = evaluator.jobs
    rules = Rules(evaluator)
    expander = Expander(evaluator, rules, PoolLimits.of_size(jobs.count))
    alone = rows[jobs.startable[rows]]
    tables = [expander.expand(Mode.SOLO, alone.reshape(-1, 1))] if len(alone) else []
    if merge and (jobs.count <= EVERY_PAIR_TO or len(rows) == 1):
        largest = expander.limits.max_members if expander.exhaustive else 2
        for mode in SHARED:
            for size in range(2, largest + 1):
                sets = _sets(rows, np.flatnonzero(jobs.startable & ~jobs.rigid), size, mode)
                if mode is not Mode.GPU_SHARE and len(sets):
                    sets = sets[(jobs.fm[sets] == jobs.fm[sets[:, :1]]).all(axis=1)]
                sets = sets[rules.allowed(mode, sets)] if len(sets) else sets
                if len(sets):
                    tables.append(expander.expand(mode, sets))
    tables = [t.take(np.flatnonzero(work.quotas.allowed(t))) for t in tables if len(t)]
    joined = concatenate([work.table, *tables])
    return replace(work, table=joined.take(_fresh(joined, len(work.table))))


def _sets(rows: IntArray, open_jobs: IntArray, size: int, mode: Mode) -> IntArray:
    """Return the sets of open jobs with at least one of the rows; in a sequence in every order."""
    asked = set(rows.tolist())
    if len(asked) == 1:
        (j,) = asked
        others = [o for o in open_jobs.tolist() if o != j]
        if len(others) == len(open_jobs):
            return np.zeros((0, size), dtype=np.int64)
        found = [tuple(sorted((j, *rest))) for rest in combinations(others, size - 1)]
    else:
        found = [s for s in combinations(open_jobs.tolist(), size) if asked & set(s)]
    if mode is Mode.SEQUENCE:
        found = [order for s in found for order in permutations(s)]
    return np.array(found, dtype=np.int64).reshape(-1, size)


def _fresh(table: ColumnTable, known: int) -> IntArray:
    """Return the rows of a table without those after ``known`` that repeat an earlier one."""
    seen: set[bytes] = set()
    key = np.column_stack([table.jobs, table.mode, table.shape, table.keep, table.start])
    largest = int(table.size[known:].max(initial=1))
    keep = np.ones(len(table), dtype=np.bool_)
    for i in np.flatnonzero(table.size <= largest).tolist():
        mark = key[i].tobytes()
        keep[i] = i < known or mark not in seen
        seen.add(mark)
    return np.flatnonzero(keep)


class Options:
    """The options of every job over an extended round.

    Parameters
    ----------
    work : Round
        Extended.
    reduced : list of float
        Reduced cost of every column, see `Pricing.columns`.
    most : int, optional
        A job's shared columns that make options: those of least reduced cost, and all with a negative
        one. By default all.
    """

    def __init__(self, work: Round, reduced: list[float], most: int | None = None) -> None:
        self.work = work
        table = work.table
        column, position = np.nonzero(table.jobs >= 0)
        member = table.jobs[column, position]
        cost = np.array(reduced)[column]
        order = np.lexsort((column, cost, member))
        if most is not None:
            shared = (table.size[column] > 1) & (table.keep[column] < 0)
            rank = np.cumsum(shared[order])
            first = np.searchsorted(member[order], member[order], side="left")
            before = np.concatenate([[0], rank])[first]
            order = order[~shared[order] | (rank - before <= most) | (cost[order] < 0)]
        self._column, self._position = column[order].tolist(), position[order].tolist()
        count = len(table.queued_cost)
        self._start = np.searchsorted(member[order], np.arange(count + 1)).tolist()
        types = work.evaluator.instance.types
        self._where = [f"{g} x {types[t]}" for g, t in zip(table.gpus, table.type, strict=True)]
        self._mode, self._keep, self._size = table.mode.tolist(), table.keep.tolist(), table.size.tolist()
        self._names = [job.id for job in work.evaluator.instance.jobs]

    def of(self, j: int) -> list[Option]:
        """Return a job's options: to go on, alone by type and count, with each partner, to wait.

        The columns of an option are in the order of their reduced cost.
        """
        instance = self.work.evaluator.instance
        groups: dict[tuple[object, ...], tuple[Kind, str, int, bool, list[int]]] = {}

        def add(
            key: tuple[object, ...], kind: Kind, text: str, c: int, partner: int = -1, after: bool = False
        ) -> None:
            groups.setdefault(key, (kind, text, partner, after, []))[4].append(c)

        for i in range(self._start[j], self._start[j + 1]):
            c = self._column[i]
            if self._keep[c] >= 0:
                add(("keep",), Kind.KEEP, "to go on as it runs", c)
            elif self._size[c] == 1:
                where = self._where[c]
                add((where,), Kind.SOLO, f"{where} alone", c)
                start = int(self.work.table.start[c, 0])
                source = (
                    f"adapter {instance.snapshot.adapters[start].id}" if start >= 0 else "its own weights"
                )
                add((where, start), Kind.START, f"{where} alone, from {source}", c)
            else:
                self._merges(c, self._position[i], add)
        found = [
            Option(j, kind, text, tuple(rows), partner, after)
            for kind, text, partner, after, rows in groups.values()
        ]
        if not self.work.evaluator.pinned[j]:
            r = int(instance.running_of[j])
            runs = r >= 0 and j in instance.running[r].holders
            found.append(Option(j, Kind.WAIT, "to stop for now" if runs else "to wait", ()))
        return found

    def _merges(self, c: int, at: int, add: Callable[..., None]) -> None:
        """Add a shared column to the options of its member with each partner."""
        mode = MODES[self._mode[c]]
        for other_at, other in enumerate(self.work.table.jobs[c].tolist()):
            if other < 0 or other_at == at:
                continue
            name = self._names[other]
            after = mode is Mode.SEQUENCE and other_at < at
            text = f"{mode.value} with {name}"
            if mode is Mode.SEQUENCE:
                text = f"sequence after {name}" if after else f"sequence before {name}"
            add((mode, other, after), Kind.MERGE, text, c, other, after)
