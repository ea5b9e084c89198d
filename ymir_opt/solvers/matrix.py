"""The columns of a model's matrix, and which of its rows are packings of 0-1 variables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.linear import LinearModel

__all__ = ["Columns", "packing_rows"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Columns:
    """The matrix by columns.

    Attributes
    ----------
    start : int64[n + 1]
        Offsets into the other arrays.
    row : int64[nnz]
    value : float64[nnz]
    column : int64[nnz]
        Ascending.
    """

    start: IntArray
    row: IntArray
    value: FloatArray
    column: IntArray

    @classmethod
    def of(cls, model: LinearModel) -> Columns:
        """Turn a model's rows into columns."""
        order = np.argsort(model.index, kind="stable")
        length = np.bincount(model.index, minlength=model.variables)
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)]).astype(np.int64)
        return cls(
            start, model.row_of_entry[order], model.value[order].astype(np.float64), model.index[order]
        )

    @property
    def length(self) -> IntArray:
        """Number of entries of each column, int64[n]."""
        return np.diff(self.start)

    def entries(self, columns: IntArray) -> tuple[IntArray, IntArray]:
        """Return the entries of some columns, one after the other, and where each begins, int64[k + 1]."""
        length = self.start[columns + 1] - self.start[columns]
        begin = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)]).astype(np.int64)
        entry = np.repeat(self.start[columns] - begin[:-1], length) + np.arange(begin[-1])
        return entry.astype(np.int64), begin

    def asked(self, cost: FloatArray, rows: int) -> FloatArray:
        """Return what the cheapest column with this row alone asks for it, float64[rows], inf without one."""
        single = np.flatnonzero(self.length == 1)
        entry = self.start[single]
        prices = np.full(rows, np.inf)
        np.minimum.at(prices, self.row[entry], cost[single] / self.value[entry])
        return prices

    def price(self, cost: FloatArray, duals: FloatArray) -> FloatArray:
        """Return the reduced cost of every column at these duals of the rows."""
        covered = np.bincount(self.column, self.value * duals[self.row], minlength=len(self.start) - 1)
        return np.asarray(cost - covered)


def packing_rows(model: LinearModel) -> BoolArray:
    """Return bool[m]: the row lets at most one of its variables be 1, all of them whole and not below 0."""
    odd = (model.value != 1) | (model.lower[model.index] < 0) | model.relaxable[model.index]
    broken = np.bincount(model.row_of_entry[odd], minlength=model.rows) > 0
    return np.asarray((model.row_upper == 1) & ~broken)
