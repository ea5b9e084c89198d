"""Odd-set inequalities: what the coverage rows of an odd number of jobs prove only together.

Half of the sum of the packing rows of an odd set ``S`` says ``sum_c |c and S| / 2 x_c <= |S| / 2``;
rounding down, ``sum_c floor(|c and S| / 2) x_c <= (|S| - 1) / 2``. For pairs these are the blossom
inequalities, which describe matchings completely (J. Edmonds, *Maximum matching and a polyhedron
with 0,1-vertices*, 1965); for larger columns the subset-row inequalities (M. Jepsen, B. Petersen,
S. Spoorendonk, D. Pisinger, *Subset-row inequalities applied to the vehicle-routing problem with
time windows*, Operations Research 56 (2008)). They are most of what separates the relaxation of a
round from its optimum. Triples are enumerated, larger sets found as odd cycles of little slack.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import UNBOUNDED, LinearModel
from ymir_opt.solvers.matrix import Columns

__all__ = ["FAMILY", "Cut", "Separator", "extended"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

FAMILY = "odd_set"
LEAST_VIOLATION = 1e-3
INTEGRAL = 1e-6
CUTS_PER_ROUND = 200
CUTS_PER_ROW = 3
MOST_FRACTIONAL = 3000
"""With more fractional columns than this (families of equal jobs) separation is left to the solver."""
TRIPLES = 200_000
LONGEST_CYCLE = 15


@dataclass(frozen=True)
class Cut:
    """The inequality ``values @ x[columns] <= upper``."""

    columns: IntArray
    values: IntArray
    upper: int


class Separator:
    """Finds inequalities that fractional points of one model violate; none is found twice.

    Parameters
    ----------
    model : LinearModel
    columns : Columns
        Its matrix.
    packing : bool[m]
        Rows that may be combined, see `packing_rows`.
    """

    def __init__(self, model: LinearModel, columns: Columns, packing: BoolArray) -> None:
        self.model = model
        self.columns = columns
        self.packing = packing
        self.seen: set[tuple[int, ...]] = set()

    def violated(self, x: FloatArray) -> list[Cut]:
        """Return violated inequalities, most violated first; few share a row."""
        graph = _Graph.of(self.columns, self.packing, x)
        if graph is None:
            return []
        found: dict[tuple[int, ...], float] = {}
        for rows in graph.triples():
            self._judge(graph, rows, found)
        if not found:
            for rows in graph.cycles():
                self._judge(graph, rows, found)
        used: dict[int, int] = {}
        out: list[Cut] = []
        for rows in sorted(found, key=lambda rows: (-found[rows], rows)):
            if len(out) >= CUTS_PER_ROUND:
                break
            if any(used.get(row, 0) >= CUTS_PER_ROW for row in rows):
                continue
            for row in rows:
                used[row] = used.get(row, 0) + 1
            self.seen.add(rows)
            out.append(self._cut(rows))
        return out

    def _judge(self, graph: _Graph, rows: tuple[int, ...], found: dict[tuple[int, ...], float]) -> None:
        if rows in self.seen or rows in found:
            return
        excess = graph.excess(rows)
        if excess > LEAST_VIOLATION:
            found[rows] = excess

    def _cut(self, rows: tuple[int, ...]) -> Cut:
        model = self.model
        members = np.concatenate([model.index[model.row_start[r] : model.row_start[r + 1]] for r in rows])
        column, count = np.unique(members, return_counts=True)
        held = count >= 2
        return Cut(column[held].astype(np.int64), count[held].astype(np.int64) // 2, (len(rows) - 1) // 2)


@dataclass(frozen=True)
class _Graph:
    """Fractional columns: the packing rows of each, the columns of each row, the weight of pairs of rows."""

    x: dict[int, float]
    rows: dict[int, list[int]]
    columns: dict[int, set[int]]
    near: dict[int, dict[int, float]]

    @classmethod
    def of(cls, columns: Columns, packing: BoolArray, x: FloatArray) -> _Graph | None:
        fractional = np.flatnonzero((x > INTEGRAL) & (x < 1 - INTEGRAL))
        if not 0 < len(fractional) <= MOST_FRACTIONAL:
            return None
        graph = cls({}, {}, {}, {})
        for column in fractional.tolist():
            rows = columns.row[columns.start[column] : columns.start[column + 1]]
            mine = sorted(rows[packing[rows]].tolist())
            if len(mine) < 2:
                continue
            graph.x[column], graph.rows[column] = float(x[column]), mine
            for row in mine:
                graph.columns.setdefault(row, set()).add(column)
            for one, two in combinations(mine, 2):
                for a, b in ((one, two), (two, one)):
                    weights = graph.near.setdefault(a, {})
                    weights[b] = weights.get(b, 0.0) + float(x[column])
        return graph

    def excess(self, rows: tuple[int, ...]) -> float:
        """Return by how much the point breaks the inequality of a set of rows."""
        count: dict[int, int] = {}
        for row in rows:
            for column in self.columns[row]:
                count[column] = count.get(column, 0) + 1
        total = sum(self.x[column] * (count[column] // 2) for column in sorted(count))
        return total - (len(rows) - 1) // 2

    def triples(self) -> Iterator[tuple[int, ...]]:
        """Yield sets of three rows of which two pairs, at least, share a column."""
        looked = 0
        for one in sorted(self.near):
            for two, three in combinations(sorted(self.near[one]), 2):
                looked += 1
                if looked > TRIPLES:
                    return
                yield tuple(sorted((one, two, three)))

    def cycles(self) -> Iterator[tuple[int, ...]]:
        """Yield the rows of odd cycles whose slack, the sum of ``1 - 2 x`` over their edges, is below 1."""
        for start in sorted(self.near):
            found = self._cycle(start)
            if found is not None:
                yield found

    def _cycle(self, start: int) -> tuple[int, ...] | None:
        """Return the rows of the odd closed walk of least slack through a row, if these are odd in number.

        Dijkstra's method over (row, row before, parity): the slack between two edges at a row,
        ``1 - x_1 - x_2``, is not negative.
        """
        heap: list[tuple[float, int, int, int, tuple[int, ...]]] = [
            (0.0, 1, to, start, (start, to)) for to in sorted(self.near[start])
        ]
        heapq.heapify(heap)
        done: set[tuple[int, int, int]] = set()
        while heap:
            slack, length, at, before, path = heapq.heappop(heap)
            state = (at, before, length % 2)
            if state in done or length >= LONGEST_CYCLE:
                continue
            done.add(state)
            weight = self.near[at][before]
            for to in sorted(self.near[at]):
                if to == before:
                    continue
                further = slack + max(0.0, 1.0 - weight - self.near[at][to])
                if further >= 1.0:
                    continue
                if to != start:
                    heapq.heappush(heap, (further, length + 1, to, at, (*path, to)))
                elif (length + 1) % 2:
                    rows = tuple(sorted(set(path)))
                    if len(rows) > 3 and len(rows) % 2:
                        return rows
        return None


def extended(model: LinearModel, cuts: list[Cut]) -> LinearModel:
    """Return the model with the inequalities as rows at its end; every whole point stays."""
    if not cuts:
        return model
    length = np.array([len(cut.columns) for cut in cuts], dtype=np.int64)
    return replace(
        model,
        row_start=np.concatenate([model.row_start, model.row_start[-1] + np.cumsum(length)]),
        index=np.concatenate([model.index, *(cut.columns for cut in cuts)]),
        value=np.concatenate([model.value, *(cut.values for cut in cuts)]),
        row_lower=np.concatenate([model.row_lower, np.full(len(cuts), -UNBOUNDED)]),
        row_upper=np.concatenate([model.row_upper, np.array([cut.upper for cut in cuts], np.int64)]),
        row_family=model.row_family + (FAMILY,) * len(cuts),
        guess=None,
    )
