"""Domains of GPUs that bound columns, and the arrays behind rows over them.

A *domain* is a set of available GPUs that some shape may use: those of a type with at least a
memory level, on the nodes that a selector matches, and for warm starts holding a foundation model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import UNBOUNDED, ModelBuilder
from ymir_opt.formulation.shapes import Shape

__all__ = ["ColumnIndex", "Domain", "RowBatch", "domains"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Domain:
    """A set of available GPUs, and the shapes (rows of the table's ``shapes``) confined to it."""

    type: int
    resident: int
    gpus: IntArray
    shapes: IntArray


def domains(instance: Instance, available: BoolArray, shapes: tuple[Shape, ...]) -> Iterator[Domain]:
    """Yield the distinct domains of the shapes, and each type and level without a selector.

    Shape ``s`` is confined to the domain of key (type, level, nodes, model) if its type is the same,
    its level at least as high, its nodes a subset, and its model the same (or the key's is -1).
    """
    if not shapes:
        return
    everywhere = instance.eligible_nodes(())
    sets: dict[bytes, int] = {everywhere.tobytes(): 0}
    masks = [everywhere]
    set_of = np.zeros(len(shapes), np.int64)
    for i, shape in enumerate(shapes):
        nodes = instance.eligible_nodes(shape.selector) & (
            (instance.node_type == shape.type) if shape.selector else True
        )
        found = sets.setdefault(nodes.tobytes(), len(masks))
        if found == len(masks):
            masks.append(nodes)
        set_of[i] = found
    matrix = np.array(masks, dtype=np.float32).reshape(len(masks), len(instance.nodes))
    inside = matrix @ (1 - matrix).T == 0  # inside[a, b]: node set a is a subset of b
    shape_type = np.array([s.type for s in shapes], np.int64)
    level = np.array([s.level for s in shapes], np.int64)
    model = np.array([s.resident for s in shapes], np.int64)
    keys = {
        (s.type, s.level, node_set, s.resident) for s, node_set in zip(shapes, set_of.tolist(), strict=True)
    }
    keys |= {(t, lowest, 0, -1) for t, lowest, _, _ in keys}
    keys |= {(t, lowest, node_set, -1) for t, lowest, node_set, _ in keys}
    open_gpu = available & instance.gpu_ready
    for t, lowest, node_set, fm in sorted(keys):
        confined = (shape_type == t) & (level >= lowest) & inside[set_of, node_set]
        mask = open_gpu & (instance.gpu_type == t) & (instance.gpu_level >= lowest)
        mask &= masks[node_set][instance.gpu_node]
        if fm >= 0:
            confined &= model == fm
            mask &= instance.gpu_resident == fm
        yield Domain(t, fm, np.flatnonzero(mask), np.flatnonzero(confined))


@dataclass(frozen=True)
class ColumnIndex:
    """Columns by shape and by running group."""

    by_shape: list[IntArray]
    keeps: IntArray
    keep_of: IntArray
    kept: BoolArray

    @classmethod
    def of(cls, instance: Instance, table: ColumnTable) -> ColumnIndex:
        """Index the columns of a table."""
        order = np.argsort(table.shape, kind="stable").astype(np.int64)
        bounds = np.searchsorted(table.shape[order], np.arange(len(table.shapes) + 1))
        by_shape = [order[a:b] for a, b in pairwise(bounds.tolist())]
        keeps = np.flatnonzero(table.keep >= 0)
        keep_of = table.keep[keeps]
        kept = np.zeros(len(instance.running), np.bool_)
        kept[keep_of] = True
        return cls(by_shape, keeps, keep_of, kept)

    def used(self, shapes: tuple[Shape, ...]) -> tuple[tuple[Shape, ...], IntArray]:
        """Return the shapes that have columns, and their rows."""
        rows = np.array([i for i, columns in enumerate(self.by_shape) if len(columns)], np.int64)
        return tuple(shapes[i] for i in rows), rows


class RowBatch:
    """Collects rows of one family and hands them to the builder at once."""

    def __init__(self, builder: ModelBuilder, family: str) -> None:
        self._builder, self._family = builder, family
        self._index: list[IntArray] = []
        self._value: list[IntArray] = []
        self._upper: list[int] = []

    def add(self, index: Iterable[IntArray], value: Iterable[IntArray], upper: int) -> None:
        """Add ``sum(value * variable) <= upper``."""
        joined, values = np.concatenate(list(index)), np.concatenate(list(value))
        keep = values != 0
        self._index.append(joined[keep])
        self._value.append(values[keep])
        self._upper.append(upper)

    def flush(self) -> None:
        """Give the rows to the builder."""
        if not self._upper:
            return
        lengths = [len(i) for i in self._index]
        self._builder.rows(
            np.repeat(np.arange(len(lengths)), lengths),
            np.concatenate(self._index),
            np.concatenate(self._value),
            np.full(len(lengths), -UNBOUNDED),
            np.array(self._upper, np.int64),
            self._family,
        )
