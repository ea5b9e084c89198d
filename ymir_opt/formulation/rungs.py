"""Node-shape rungs: blocks of GPUs that must lie on one node (docs/placement.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.domains import ColumnIndex, Domain, RowBatch, domains
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import UNBOUNDED, ModelBuilder
from ymir_opt.formulation.parts import fewest_blocks, node_capacity, normalised, splits
from ymir_opt.formulation.shapes import Shape

__all__ = ["rung_rows"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def rung_rows(
    builder: ModelBuilder, instance: Instance, available: BoolArray, table: ColumnTable, x: IntArray
) -> None:
    """Add the node-shape rungs: blocks of ``B`` GPUs that lie on one node.

    For every domain and ``B`` among the powers of two and the part sizes, with ``f_n`` its GPUs on
    node ``n``, ``b_c(B)`` the blocks that column ``c`` takes at least (`fewest_blocks`) and ``K_n``
    the kept GPUs on ``n``:
    ``sum_{c in C(D)} b_c(B) x_c <= sum_n floor((f_n - K_n) / B)``.
    It holds for parts of any size since ``sum floor(p / B) <= floor(sum p / B)``, and is exact for
    parts that are powers of two on GPUs of one kind (proof in docs/placement.md).
    The floor is linear in the keep columns of a node where at most one of its groups holds a count
    that ``B`` does not divide; the other nodes get an integer ``s`` with ``B s + K_n <= f_n``.
    Whole-node shapes also count the nodes of each size that are entirely free. Columns whose shape
    not even empty nodes could hold are forbidden.
    """
    columns = ColumnIndex.of(instance, table)
    shapes, rows = columns.used(table.shapes)
    sizes = [{size for split in splits(instance, shape).items for size, _ in split} | {1} for shape in shapes]
    out = RowBatch(builder, "rung")
    never = [columns.by_shape[rows[i]] for i, s in enumerate(shapes) if not splits(instance, s).items]
    if never:
        out.add([x[c] for c in never], [np.ones(len(c), np.int64) for c in never], 0)
    for domain in domains(instance, available, shapes):
        parts = {1}.union(*(sizes[s] for s in domain.shapes))
        powers = {1 << k for k in range(1, max(parts).bit_length())}
        load = _Load.of(instance, domain, columns)
        for block in sorted((powers | parts) - {1}):
            blocks = [fewest_blocks(instance, shapes[s], block) for s in domain.shapes]
            _rung(builder, out, load, block, blocks, domain, columns, rows, x)
    _whole_rungs(builder, out, instance, available, shapes, rows, columns, x)
    out.flush()


@dataclass(frozen=True)
class _Load:
    """GPUs of a domain on each node, and what keepable groups hold of them (one row a pair)."""

    free: IntArray
    group: IntArray
    node: IntArray
    held: IntArray

    @classmethod
    def of(cls, instance: Instance, domain: Domain, columns: ColumnIndex) -> _Load:
        count = len(instance.nodes)
        at = instance.gpu_node[domain.gpus]
        holder = instance.gpu_held[domain.gpus]
        kept = holder >= 0
        kept[kept] = columns.kept[holder[kept]]
        pair, held = np.unique(holder[kept] * count + at[kept], return_counts=True)
        return cls(
            free=np.bincount(at, minlength=count).astype(np.int64),
            group=(pair // max(count, 1)).astype(np.int64),
            node=(pair % max(count, 1)).astype(np.int64),
            held=held.astype(np.int64),
        )


def _rung(
    builder: ModelBuilder,
    out: RowBatch,
    load: _Load,
    block: int,
    blocks: list[int],
    domain: Domain,
    columns: ColumnIndex,
    rows: IntArray,
    x: IntArray,
) -> None:
    chosen = [(columns.by_shape[rows[s]], b) for s, b in zip(domain.shapes, blocks, strict=True) if b]
    if not chosen:
        return
    new = np.concatenate([c for c, _ in chosen])
    weight = np.concatenate([np.full(len(c), b, np.int64) for c, b in chosen])
    floors = load.free // block
    uneven = np.bincount(load.node[load.held % block != 0], minlength=len(load.free))
    counted = (uneven >= 2) & (floors > 0)
    linear = ~counted[load.node]
    lost = floors[load.node] - (load.free[load.node] - load.held) // block
    drop = np.zeros(len(columns.kept), np.int64)
    np.add.at(drop, load.group[linear], lost[linear])
    kept = drop[columns.keep_of]
    upper = int(floors[~counted].sum())
    if not counted.any() and int(weight.sum() + kept.sum()) <= upper:
        return  # cannot bind
    hosts = np.flatnonzero(counted)
    s = builder.variables(np.zeros(len(hosts), np.int64), 0, floors[hosts])
    out.add((x[new], x[columns.keeps], s), (weight, kept, np.full(len(s), -1)), upper)
    row = np.full(len(load.free), -1, np.int64)
    row[hosts] = np.arange(len(hosts))
    mine = row[load.node] >= 0
    _host_rows(builder, load, mine, row, hosts, s, block, columns, x)


def _host_rows(
    builder: ModelBuilder,
    load: _Load,
    mine: BoolArray,
    row: IntArray,
    hosts: IntArray,
    s: IntArray,
    block: int,
    columns: ColumnIndex,
    x: IntArray,
) -> None:
    """``B s_n + sum_r a_r(n) x_r <= f_n`` for the nodes that have an ``s``."""
    if not len(hosts):
        return
    order = np.argsort(columns.keep_of, kind="stable")
    groups, first = columns.keep_of[order], load.group[mine]
    low = np.searchsorted(groups, first, side="left")
    many = np.searchsorted(groups, first, side="right") - low
    source = np.repeat(np.arange(len(first)), many)
    offset = np.arange(len(source)) - np.repeat(np.cumsum(many) - many, many)
    keep = columns.keeps[order[low[source] + offset]]
    builder.rows(
        np.concatenate([np.arange(len(hosts)), row[load.node[mine]][source]]),
        np.concatenate([s, x[keep]]),
        np.concatenate([np.full(len(hosts), block), load.held[mine][source]]),
        np.full(len(hosts), -UNBOUNDED),
        load.free[hosts],
        "rung_host",
    )


def _whole_rungs(
    builder: ModelBuilder,
    out: RowBatch,
    instance: Instance,
    available: BoolArray,
    shapes: tuple[Shape, ...],
    rows: IntArray,
    columns: ColumnIndex,
    x: IntArray,
) -> None:
    """Whole nodes of each size: ``sum_c m_c(z) x_c <= sum_{n of size z} [no group on n is kept]``."""
    whole = [i for i, shape in enumerate(shapes) if shape.whole]
    if not whole:
        return
    count = len(instance.nodes)
    held_back = np.bincount(instance.gpu_node[~(available & instance.gpu_ready)], minlength=count) > 0
    groups: list[list[int]] = [[] for _ in range(count)]
    for r in np.flatnonzero(columns.kept).tolist():
        for n in np.unique(instance.gpu_node[instance.running[r].gpus]).tolist():
            groups[n].append(r)
    keep_rows: dict[int, IntArray] = {
        r: columns.keeps[columns.keep_of == r] for r in {r for of_node in groups for r in of_node}
    }
    for domain in domains(instance, available, tuple(shapes[i] for i in whole)):
        if domain.resident >= 0:
            continue
        inner = [whole[s] for s in domain.shapes]
        sizes = np.zeros(count, np.int64)
        for i in inner:  # a node counts if any of the shapes may take it
            sizes = np.maximum(sizes, node_capacity(instance, normalised(instance, shapes[i])))
        sizes[held_back] = 0
        for z in sorted(set().union(*(part_sizes(instance, shapes[i]) for i in inner))):
            need = [(columns.by_shape[rows[i]], _least(instance, shapes[i], z)) for i in inner]
            need = [(c, m) for c, m in need if m]
            if not need:
                continue
            index = [x[c] for c, _ in need]
            value = [np.full(len(c), m, np.int64) for c, m in need]
            nodes = np.flatnonzero(sizes == z)
            upper = 0
            for n in nodes.tolist():
                if len(groups[n]) > 1:
                    s = builder.variables(np.zeros(1, np.int64))
                    index.append(s)
                    value.append(np.full(1, -1))
                    for r in groups[n]:
                        builder.row(np.concatenate([s, x[keep_rows[r]]]), 1, -UNBOUNDED, 1, "rung_host")
                    continue
                upper += 1
                for r in groups[n]:
                    index.append(x[keep_rows[r]])
                    value.append(np.ones(len(keep_rows[r]), np.int64))
            joined = np.concatenate(index)
            unique, inverse = np.unique(joined, return_inverse=True)
            total = np.bincount(inverse, weights=np.concatenate(value), minlength=len(unique))
            out.add((unique,), (np.rint(total).astype(np.int64),), upper)


def _least(instance: Instance, shape: Shape, size: int) -> int:
    """Return the fewest whole nodes of one size that the shape takes."""
    options = splits(instance, shape)
    if not options.exact:
        return 0
    return min((dict(split).get(size, 0) for split in options.items), default=0)


def part_sizes(instance: Instance, shape: Shape) -> set[int]:
    """Return the sizes of parts that occur in the splits of a shape."""
    return {size for split in splits(instance, shape).items for size, _ in split}
