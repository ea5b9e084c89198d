"""A solver-neutral mixed-integer linear model: arrays in, stated alike by every backend.

minimise    ``cost @ x + offset``  (integers: objective quanta)
subject to  ``row_lower <= A @ x <= row_upper``,  ``lower <= x <= upper``,  ``x`` integer.

Every coefficient, bound and cost is an integer, so that CP-SAT and the MIP solvers state the
same model to the last digit. Variables that the formulation calls continuous (quota excesses)
are integral at an optimum in their units (twelfths of a GPU); the MIP backends may relax them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["UNBOUNDED", "LinearModel", "ModelBuilder"]

UNBOUNDED = np.iinfo(np.int64).max // 4
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class LinearModel:
    """The model as arrays; rows in CSR form.

    Attributes
    ----------
    cost : int64[n]
        Objective coefficients in quanta.
    lower, upper : int64[n]
        Variable bounds; ``UNBOUNDED`` stands for no upper bound.
    relaxable : bool[n]
        Variables that a MIP backend may declare continuous without changing the optimum.
    row_start : int64[m + 1]
        Offsets into `index` and `value`.
    index, value : int64[nnz]
        Variable indices and coefficients.
    row_lower, row_upper : int64[m]
        Row bounds; ``-UNBOUNDED`` and ``UNBOUNDED`` stand for none.
    row_family : tuple of str, length m
        Name of the constraint family of each row, for explanations and duals.
    offset : int
        Constant of the objective in quanta.
    guess : float64[m] or None
        A guess at the duals of the rows, in quanta per unit: solvers that start from prices are
        faster with a good one, and no worse with a bad one.
    """

    cost: IntArray
    lower: IntArray
    upper: IntArray
    relaxable: BoolArray
    row_start: IntArray
    index: IntArray
    value: IntArray
    row_lower: IntArray
    row_upper: IntArray
    row_family: tuple[str, ...]
    offset: int = 0
    guess: FloatArray | None = None

    @property
    def variables(self) -> int:
        """Number of variables."""
        return len(self.cost)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_lower)

    @property
    def row_of_entry(self) -> IntArray:
        """Row of each entry of `index` and `value`, int64[nnz]."""
        return np.repeat(np.arange(self.rows, dtype=np.int64), np.diff(self.row_start))

    def objective(self, x: IntArray) -> int:
        """Return the objective of a point in quanta."""
        return int(self.cost @ x) + self.offset

    def activity(self, x: IntArray) -> IntArray:
        """Return ``A @ x`` as int64[m]."""
        products = self.value * x[self.index]
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(products)])
        return np.asarray(total[self.row_start[1:]] - total[self.row_start[:-1]])

    def violated(self, x: IntArray) -> IntArray:
        """Return the indices of rows that a point breaks (bounds of variables count as row -1)."""
        activity = self.activity(x)
        rows = np.flatnonzero((activity < self.row_lower) | (activity > self.row_upper))
        if bool(np.any(x < self.lower) or np.any((x > self.upper) & (self.upper < UNBOUNDED))):
            return np.concatenate([[-1], rows]).astype(np.int64)
        return rows.astype(np.int64)


@dataclass
class ModelBuilder:
    """Collects variables and rows, then freezes them into a `LinearModel`."""

    offset: int = 0
    _cost: list[IntArray] = field(default_factory=list)
    _lower: list[IntArray] = field(default_factory=list)
    _upper: list[IntArray] = field(default_factory=list)
    _relaxable: list[BoolArray] = field(default_factory=list)
    _count: int = 0
    _lengths: list[IntArray] = field(default_factory=list)
    _index: list[IntArray] = field(default_factory=list)
    _value: list[IntArray] = field(default_factory=list)
    _row_lower: list[IntArray] = field(default_factory=list)
    _row_upper: list[IntArray] = field(default_factory=list)
    _family: list[str] = field(default_factory=list)

    def variables(
        self,
        cost: IntArray,
        lower: IntArray | int = 0,
        upper: IntArray | int = 1,
        *,
        relaxable: bool = False,
    ) -> IntArray:
        """Add variables and return their indices, int64[k]."""
        cost = np.asarray(cost, dtype=np.int64)
        count = len(cost)
        self._cost.append(cost)
        self._lower.append(np.broadcast_to(np.asarray(lower, np.int64), (count,)))
        self._upper.append(np.broadcast_to(np.asarray(upper, np.int64), (count,)))
        self._relaxable.append(np.full(count, relaxable))
        self._count += count
        return np.arange(self._count - count, self._count, dtype=np.int64)

    def row(
        self,
        index: IntArray | Sequence[int],
        value: IntArray | Sequence[int] | int,
        lower: int,
        upper: int,
        family: str,
    ) -> None:
        """Add one row; repeated indices are summed."""
        index = np.asarray(index, dtype=np.int64)
        value = np.broadcast_to(np.asarray(value, dtype=np.int64), index.shape)
        unique, inverse = np.unique(index, return_inverse=True)
        summed = np.zeros(len(unique), np.int64)
        np.add.at(summed, inverse, value)
        keep = summed != 0
        self._push(np.array([int(keep.sum())]), unique[keep], summed[keep], lower, upper, family)

    def rows(
        self,
        row: IntArray,
        index: IntArray,
        value: IntArray,
        lower: IntArray,
        upper: IntArray,
        family: str,
    ) -> None:
        """Add ``len(lower)`` rows at once from coordinates; entries must not repeat."""
        order = np.argsort(row, kind="stable")
        lengths = np.bincount(row, minlength=len(lower)).astype(np.int64)
        self._lengths.append(lengths)
        self._index.append(np.asarray(index, np.int64)[order])
        self._value.append(np.asarray(value, np.int64)[order])
        self._row_lower.append(np.asarray(lower, np.int64))
        self._row_upper.append(np.asarray(upper, np.int64))
        self._family.extend([family] * len(lower))

    def _push(
        self, lengths: IntArray, index: IntArray, value: IntArray, lower: int, upper: int, family: str
    ) -> None:
        self._lengths.append(lengths.astype(np.int64))
        self._index.append(index)
        self._value.append(value)
        self._row_lower.append(np.array([lower], np.int64))
        self._row_upper.append(np.array([upper], np.int64))
        self._family.append(family)

    def build(self) -> LinearModel:
        """Return the frozen model."""

        def joined(parts: list[IntArray]) -> IntArray:
            return np.concatenate(parts) if parts else np.zeros(0, np.int64)

        lengths = joined(self._lengths)
        return LinearModel(
            cost=joined(self._cost),
            lower=joined(self._lower),
            upper=joined(self._upper),
            relaxable=np.concatenate(self._relaxable) if self._relaxable else np.zeros(0, np.bool_),
            row_start=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int64),
            index=joined(self._index),
            value=joined(self._value),
            row_lower=joined(self._row_lower),
            row_upper=joined(self._row_upper),
            row_family=tuple(self._family),
            offset=self.offset,
        )
