"""Rows on GPUs: nested capacity, resident GPUs, node-shape rungs, CPUs and host memory.

All are linear relaxations of placement: every set of columns that can be placed satisfies them.
Symbols: ``x_c`` column ``c`` is chosen; ``g_c`` its GPUs; ``D`` a domain (see `domains`); ``C(D)``
the columns that can only use GPUs of ``D``; ``a_r(D)`` the number of GPUs of ``D`` that running
group ``r`` holds. The exact model is in `nodes`.
"""

from __future__ import annotations

from functools import reduce
from math import gcd

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.domains import ColumnIndex, RowBatch, domains
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import ModelBuilder
from ymir_opt.formulation.parts import Resources, group_use, node_limits, normalised
from ymir_opt.formulation.rungs import rung_rows

__all__ = ["capacity_rows", "resident_rows", "resource_rows", "rung_rows"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def _gpu_rows(
    builder: ModelBuilder,
    instance: Instance,
    available: BoolArray,
    table: ColumnTable,
    x: IntArray,
    *,
    warm: bool,
    family: str,
) -> None:
    columns = ColumnIndex.of(instance, table)
    shapes, rows = columns.used(table.shapes)
    out = RowBatch(builder, family)
    for domain in domains(instance, available, shapes):
        if (domain.resident >= 0) != warm or not len(domain.shapes):
            continue
        new = np.concatenate([columns.by_shape[s] for s in rows[domain.shapes]])
        held = instance.gpu_held[domain.gpus]
        count = np.bincount(held[held >= 0], minlength=len(instance.running)).astype(np.int64)
        kept = count[columns.keep_of]
        if int(table.gpus[new].sum() + kept.sum()) <= len(domain.gpus):
            continue  # cannot bind
        out.add((x[new], x[columns.keeps]), (table.gpus[new], kept), len(domain.gpus))
    out.flush()


def capacity_rows(
    builder: ModelBuilder, instance: Instance, available: BoolArray, table: ColumnTable, x: IntArray
) -> None:
    """Add the nested capacity of each (type, memory level) and of each distinct eligible node set.

    For every domain without a model:
    ``sum_{c in C(D) new} g_c x_c + sum_{c keep} a_{r(c)}(D) x_c <= |D|``
    Classes of a type are nested: who needs less memory may use GPUs with more.
    """
    _gpu_rows(builder, instance, available, table, x, warm=False, family="capacity")


def resident_rows(
    builder: ModelBuilder, instance: Instance, available: BoolArray, table: ColumnTable, x: IntArray
) -> None:
    """Add the supply of GPUs that hold a foundation model, for each (model, type) with warm columns.

    For every domain with a model:
    ``sum_{c in C(D) warm} g_c x_c + sum_{c keep} a_{r(c)}(D) x_c <= |D|``
    A warm start needs the model on every GPU; a cold one may take any GPU.
    """
    _gpu_rows(builder, instance, available, table, x, warm=True, family="resident")


def resource_rows(
    builder: ModelBuilder, instance: Instance, available: BoolArray, table: ColumnTable, x: IntArray
) -> None:
    """Add the total of CPUs and of host memory of each type whose ready nodes all state them.

    ``sum_{c new} g_c u_c x_c + sum_{c keep} v_{r(c)} x_c <= sum_n U_n``, where ``u_c`` is what the
    shape takes for each GPU. A kept group counts on node ``n`` with its use, scaled down where
    keepable groups together use more than ``U_n``: kept overuse is tolerated there, and must not be
    charged to other nodes.
    """
    columns = ColumnIndex.of(instance, table)
    shapes, rows = columns.used(table.shapes)
    open_gpu = available & instance.gpu_ready
    count = len(instance.nodes)
    out = RowBatch(builder, "resource")
    uses = {r: group_use(instance, r) for r in np.flatnonzero(columns.kept).tolist()}
    for t in sorted({s.type for s in shapes}):
        mine = np.bincount(instance.gpu_node[open_gpu & (instance.gpu_type == t)], minlength=count) > 0
        for which, limit in enumerate(node_limits(instance)):
            each = {i: normalised(instance, s) for i, s in enumerate(shapes) if s.type == t}
            figures = {i: (s.cpus_per_gpu, s.host_gib_per_gpu)[which] for i, s in each.items()}
            figures = {i: figure for i, figure in figures.items() if figure > 0}
            if not figures or not np.isfinite(limit[mine]).all():
                continue
            scale = Resources.of(figures.values())
            weight = {i: scale.need(figure) for i, figure in figures.items()}
            kept = _kept_use(instance, uses, mine, limit, which)
            new = np.concatenate([columns.by_shape[rows[i]] for i in figures])
            value = np.concatenate(
                [np.full(len(columns.by_shape[rows[i]]), shapes[i].gpus * weight[i]) for i in figures]
            )
            held = np.floor(kept[columns.keep_of] * scale.scale + 1e-6).astype(np.int64)
            upper = int(np.floor(limit[mine].sum() * scale.scale + 1e-6))
            if int(value.sum() + held.sum()) <= upper:
                continue
            divisor = reduce(gcd, [*value.tolist(), *held.tolist()], 0) or 1
            out.add((x[new], x[columns.keeps]), (value // divisor, held // divisor), upper // divisor)
    out.flush()


def _kept_use(
    instance: Instance,
    uses: dict[int, tuple[float, float]],
    mine: BoolArray,
    limit: FloatArray,
    which: int,
) -> FloatArray:
    """Use of each running group on the marked nodes, scaled down where the nodes are overused."""
    pairs: list[tuple[int, int, float]] = []
    total = np.zeros(len(limit))
    for r, use in uses.items():
        nodes, gpus = np.unique(instance.gpu_node[instance.running[r].gpus], return_counts=True)
        for n, g in zip(nodes.tolist(), gpus.tolist(), strict=True):
            if mine[n] and use[which] > 0:
                pairs.append((r, n, use[which] * g))
                total[n] += use[which] * g
    kept = np.zeros(len(instance.running))
    for r, n, amount in pairs:
        kept[r] += amount * min(1.0, limit[n] / total[n])
    return kept
