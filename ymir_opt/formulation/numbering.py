"""Numbers rows of small whole numbers as they appear, so that each distinct row is looked up once for all.

What a group's speed or transfer depends on (types, counts, batches, tasks) takes few values, and the same
few combinations come up in every batch of candidates. Where these are few a dense table maps them to
their numbers in one step; sorting every batch again, as ``np.unique`` does, takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Answers", "Numbering", "Rows", "rank_in_runs", "unique_rows"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Rows = Sequence[tuple[int, ...]]

CODES = 2**62
# cells of the dense table, four bytes each
MOST_CELLS = 1 << 22
# values up to which a field may have a dense index
MOST_VALUES = 1 << 20


def unique_rows(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct rows of int64[M, K] (values >= -1) and each row's index among them."""
    if not len(values):
        return values, np.zeros(0, np.int64)
    code, size = np.zeros(len(values), np.int64), 1
    for column in values.T:
        width = int(column.max()) + 2
        if size * width >= CODES:
            # the ranks among the prefixes so far keep the order of the rows
            code = np.unique(code, return_inverse=True)[1]
            size = int(code.max()) + 1
        code = code * width + (column + 1)
        size *= width
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return values[first], inverse


def rank_in_runs(sorted_keys: IntArray) -> IntArray:
    """Return each element's position within its run of equal keys."""
    if not len(sorted_keys):
        return np.zeros(0, dtype=np.int64)
    first = np.flatnonzero(np.r_[True, sorted_keys[1:] != sorted_keys[:-1]])
    return np.arange(len(sorted_keys)) - np.repeat(first, np.diff(np.r_[first, len(sorted_keys)]))


class Numbering:
    """Numbers the distinct rows of some fields in the order of their first appearance.

    Attributes
    ----------
    rows : list of tuple of int
        The row of each number.
    """

    def __init__(self, fields: int) -> None:
        self.rows: list[tuple[int, ...]] = []
        self._number: dict[tuple[int, ...], int] = {}
        # for each field, the place of value v at v + 1, -1 of those not seen
        self._place = [np.full(2, -1, dtype=np.int64) for _ in range(fields)]
        self._seen = [0] * fields
        self._room = [1] * fields
        self._table = np.full(1, -1, dtype=np.int32)
        self._dense = True

    def numbers(self, fields: Sequence[IntArray]) -> tuple[IntArray, int]:
        """Return the number of each row, int64[M], and how many numbers are new (the last ones).

        Parameters
        ----------
        fields : sequence of int64[M]
            Values >= -1.
        """
        before = len(self.rows)
        if not len(fields[0]):
            return np.zeros(0, np.int64), 0
        code = self._code(fields) if self._dense else None
        if code is None:
            return self._sorted(fields), len(self.rows) - before
        found = self._table[code]
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            first = unknown[np.sort(np.unique(code[unknown], return_index=True)[1])]
            for row in zip(*(field[first].tolist() for field in fields), strict=True):
                self._number[row] = len(self.rows)
                self.rows.append(row)
            self._table[code[first]] = np.arange(before, len(self.rows), dtype=np.int32)
            found = self._table[code]
        return found.astype(np.int64), len(self.rows) - before

    def _sorted(self, fields: Sequence[IntArray]) -> IntArray:
        """Return the numbers of rows where a dense table would be too large."""
        rows, inverse = unique_rows(np.column_stack(fields))
        numbers = []
        for values in rows.tolist():
            row = tuple(values)
            if row not in self._number:
                self._number[row] = len(self.rows)
                self.rows.append(row)
            numbers.append(self._number[row])
        return np.array(numbers, dtype=np.int64)[inverse]

    def _code(self, fields: Sequence[IntArray]) -> IntArray | None:
        """Return each row's cell, None (from then on) where a dense table would be too large."""
        grown = False
        places = []
        for f, field in enumerate(fields):
            top = int(field.max()) + 2
            if top > MOST_VALUES:
                self._dense = False
                return None
            if top > len(self._place[f]):
                more = np.full(2 * top, -1, dtype=np.int64)
                more[: len(self._place[f])] = self._place[f]
                self._place[f] = more
            place = self._place[f][field + 1]
            if place.min() < 0:
                present = np.zeros(len(self._place[f]), dtype=np.bool_)
                present[field + 1] = True
                new = np.flatnonzero(present & (self._place[f] < 0))
                self._place[f][new] = np.arange(self._seen[f], self._seen[f] + len(new))
                self._seen[f] += len(new)
                place = self._place[f][field + 1]
                if self._seen[f] > self._room[f]:
                    self._room[f] = 2 * self._seen[f]
                    grown = True
            places.append(place)
        if grown and not self._enlarged():
            return None
        return self._cells(places)

    def _cells(self, places: Sequence[IntArray]) -> IntArray:
        cell = places[0]
        for room, place in zip(self._room[1:], places[1:], strict=True):
            cell = cell * room + place
        return cell

    def _enlarged(self) -> bool:
        """Make the table anew for the room that the fields now need; False where that is too much."""
        cells = 1
        for room in self._room:
            cells *= room
        if cells > MOST_CELLS:
            self._dense = False
            self._table = np.full(1, -1, dtype=np.int32)
            return False
        self._table = np.full(cells, -1, dtype=np.int32)
        if self.rows:
            known = np.array(self.rows, dtype=np.int64)
            at = self._cells([self._place[f][known[:, f] + 1] for f in range(known.shape[1])])
            self._table[at] = np.arange(len(self.rows), dtype=np.int32)
        return True


class Answers:
    """Figures for rows of small whole numbers, each row asked about once.

    Parameters
    ----------
    fields, figures : int
        Numbers in a row; figures in its answer.
    ask : callable
        Gives the answers to new rows, float64[N, figures].

    Attributes
    ----------
    known : float64[N, figures]
        By number of the row.
    """

    def __init__(
        self, fields: int, figures: int, ask: Callable[[Rows], Sequence[Sequence[float]] | FloatArray]
    ) -> None:
        self.ask = ask
        self.numbering = Numbering(fields)
        self.known = np.zeros((0, figures))

    def numbers(self, fields: Sequence[IntArray]) -> IntArray:
        """Return the row in `known` of each row that is given by its fields, int64[M]."""
        numbers, new = self.numbering.numbers(fields)
        if new:
            answers = np.asarray(self.ask(self.numbering.rows[-new:]), dtype=np.float64)
            self.known = np.concatenate([self.known, answers])
        return numbers
